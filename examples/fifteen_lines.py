"""The smallest app: an agent that remembers, and whose answer is shown as it comes."""

import anyio

from harness import AgentHarness, JsonlStorage, Session, TextDelta
from harness.testing import ScriptedModel  # in an app: from harness import OpenAIChatModel


async def main() -> None:
    """Ask one question."""
    model = ScriptedModel(["I am a script. What I say is written in chat.jsonl.\n"])
    async with Session.open(JsonlStorage.open_or_create("chat.jsonl")) as session:
        stream = AgentHarness(session, model).stream("Who are you?")
        async with stream as events:
            async for event in events:
                print(event.text if isinstance(event, TextDelta) else "", end="", flush=True)


anyio.run(main)
