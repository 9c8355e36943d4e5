"""Ask a question two ways from one point, compare the answers, and go on with one that knows a summary of the other."""

from __future__ import annotations

import anyio

from harness import AgentHarness, ChatModel, MemoryStorage, ModelRequest, ReplyFinished, Session, UserMessage
from harness.testing import ScriptedModel

QUESTION = "Name a data structure for conversations."


async def summary_of(model: ChatModel, session: Session, leaf_id: str | None) -> str:
    """What the model itself says of a branch. Only the answer is kept: the request is not part of the conversation."""
    messages = (await session.build_context(leaf_id=leaf_id)).messages
    asked = UserMessage(content="Summarise this conversation in one sentence.")
    async with model.stream(ModelRequest("You summarise conversations.", [*messages, asked])) as events:
        async for event in events:
            if isinstance(event, ReplyFinished):
                return event.message.text
    raise AssertionError("a stream ends with the whole reply")


async def main() -> None:
    """Two branches, a summary of the one that is left, and a fork of the other."""
    model = ScriptedModel(["A list.", "A tree.", "The other answer was a list.", "Because one can go back."])
    async with Session.open(MemoryStorage.create()) as session:
        harness = AgentHarness(session, model)

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
        await session.move_to(second, summary=await summary_of(model, session, first))
        await harness.prompt("Why?")
        print(f"it was told: {model.requests[-1].messages[-2].text.splitlines()[-1]}")

        async with await session.fork(into=MemoryStorage.create) as other:
            messages = (await other.build_context()).messages
            print(f"forked: {await other.name()}, {len(messages)} messages, the last: {messages[-1].text}")


if __name__ == "__main__":
    anyio.run(main)
