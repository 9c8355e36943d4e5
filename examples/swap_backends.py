"""One app, every backend: files in service, memory in most of its tests, all of them in one. Nothing else is changed.

In tests under pytest the fixtures of ``harness.testing.fixtures`` do what ``main`` does here.
"""

from __future__ import annotations

import tempfile

import anyio

from harness import AgentHarness, ChatModel, Session
from harness.testing import ScriptedModel, each_backend


async def answer(session: Session, model: ChatModel, question: str) -> str:
    """The app: it does not know where its conversation is kept."""
    async with AgentHarness(session, model) as harness:
        return (await harness.prompt(question)).text


async def main() -> None:
    """Ask the same of an agent on each backend, and see that each remembers."""
    with tempfile.TemporaryDirectory() as folder:
        for backend in each_backend(folder):
            model = ScriptedModel(["Forty-two.", "Of six times seven."])
            async with backend.session() as session:
                assert await answer(session, model, "What is six times seven?") == "Forty-two."
            async with backend.session() as session:  # as after a restart
                text = await answer(session, model, "What did we talk about?")
            asked = [message.text for message in model.requests[-1].messages]
            print(f"{backend.name}: {text} It was shown: {asked}")


if __name__ == "__main__":
    anyio.run(main)
