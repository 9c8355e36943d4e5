"""Ask a question two ways from one point, compare the answers, and take one of them along as a session of its own."""

from __future__ import annotations

import anyio

from harness import AgentHarness, MemoryStorage, Session
from harness.testing import ScriptedModel

QUESTION = "Name a data structure for conversations."


async def main() -> None:
    """Two branches, then a fork of the second."""
    async with Session.open(MemoryStorage.create()) as session:
        harness = AgentHarness(session, ScriptedModel(["A list.", "A tree.", "Because one can go back."]))

        start = await session.append_session_name("Structures")
        await harness.prompt(QUESTION)
        first = session.leaf_id

        await session.move_to(start)
        await harness.prompt(f"{QUESTION} One can go back in them.")
        second = session.leaf_id

        for name, leaf in (("first", first), ("second", second)):
            context = await session.build_context(leaf_id=leaf)
            print(f"{name}: {[message.text for message in context.messages]}")

        # The branch that is left stays in the session. A summary of it goes along to where one arrives.
        await session.move_to(second, summary="The other answer was a list.")
        await harness.prompt("Why?")

        async with await session.fork(into=MemoryStorage.create) as other:
            messages = (await other.build_context()).messages
            print(f"forked: {await other.name()}, {len(messages)} messages, the last: {messages[-1].text}")


if __name__ == "__main__":
    anyio.run(main)
