"""One app, every backend: memory in its tests, files on a laptop. One constructor is changed and nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable
from pathlib import Path

import anyio

from harness import (
    AgentHarness,
    EntryFileStorage,
    JsonlStorage,
    MemoryStorage,
    Session,
    SessionStorage,
)
from harness.testing import ScriptedModel


async def answer(storage: Awaitable[SessionStorage], question: str) -> str:
    """The app: it does not know where its conversation is kept."""
    async with Session.open(storage) as session:
        harness = AgentHarness(session, ScriptedModel(["Forty-two."]))
        return (await harness.prompt(question)).text


async def main() -> None:
    """Ask the same of an agent on each backend."""
    with tempfile.TemporaryDirectory() as folder:
        for storage in (
            MemoryStorage.create(),
            JsonlStorage.open_or_create(Path(folder, "chat.jsonl")),
            EntryFileStorage.open_or_create(Path(folder, "chat")),
        ):
            text = await answer(storage, "What is six times seven?")
            assert text == "Forty-two."
            print(text)


if __name__ == "__main__":
    anyio.run(main)
