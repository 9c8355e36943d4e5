"""An agent that remembers: run it twice, in one folder, and the second run goes on where the first one stopped."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from harness import AgentHarness, JsonlStorage, OpenAIChatModel, Session
from harness.testing import ScriptedModel


def read_file(path: str) -> str:
    """Read a text file of the project."""
    return Path(path).read_text(encoding="utf-8")


async def main() -> None:
    """Ask one question. Without a key the answer is a made-up one, so that this runs everywhere."""
    model = OpenAIChatModel("gpt-5-mini") if "OPENAI_API_KEY" in os.environ else ScriptedModel(["It is called Atlas."])
    async with Session.open(JsonlStorage.open_or_create("chat.jsonl")) as session:
        harness = AgentHarness(session, model, tools=[read_file])
        reply = await harness.prompt("What is this project called?")
        print(reply.text)
        print(f"{len(await session.branch())} entries in chat.jsonl")


if __name__ == "__main__":
    anyio.run(main)
