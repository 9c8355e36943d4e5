"""A program that tells each step on standard output, for the tests that read a trace of its system calls.

``python -m tests.storage.traced_program PATH LOOP DURABILITY``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio

from storage import EntryFileStorage, EntryLog, JsonlStorage, SqliteStorage, UserMessage


def tell(word: str) -> None:
    """One write to standard output, which the trace shows."""
    os.write(1, f"{word}\n".encode())


async def main(path: str, durability: Any) -> None:
    """Create, append one by one and side by side, close; tear the tail; reopen with repair."""
    backend: Any = {".jsonl": JsonlStorage, ".sqlite": SqliteStorage}.get(Path(path).suffix, EntryFileStorage)
    tell("begin")
    log = await EntryLog.open(await backend.create(path, durability=durability))
    tell("created")
    for _ in range(3):
        tell(f"acknowledged {await log.append_message(UserMessage(content='one by one'))}")
    writes = [log.append_message(UserMessage(content="side by side")) for _ in range(5)]
    await writes[-1]
    for write in writes:
        tell(f"acknowledged {await write}")
    large = await log.append_message(UserMessage(content="large " * 40_000))
    tell(f"acknowledged {large}")
    await log.aclose()
    if path.endswith(".jsonl"):
        with Path(path).open("ab") as file:
            file.write(b"torn")
        tell("torn")
        log = await EntryLog.open(await backend.open(path, durability=durability, on_torn_tail="repair"))
        tell("repaired")
        await log.aclose()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[3], backend=sys.argv[2])
