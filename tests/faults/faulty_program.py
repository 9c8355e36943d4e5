"""A program that uses a session while the system under it fails; run by the tests in a process of its own.

``python -m tests.faults.faulty_program SCENARIO PATH LOOP``. It prints one JSON object at the end, or, when it fights
for a session, the id of each entry as soon as it is acknowledged.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio

from harness import Session
from storage import BranchlineError, EntryFileStorage, JsonlStorage, SessionLockedError, UserMessage


def backend(path: str) -> Any:
    """The storage class for a path."""
    return JsonlStorage if path.endswith(".jsonl") else EntryFileStorage


class Tries:
    """What was tried, and what came of it."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.blobs = 0
        self.codes: Counter[str] = Counter()

    async def everything(self, session: Session, path: str, number: int) -> None:
        """An entry, a large entry, a label, a blob, a fork."""
        for write in (
            lambda: session.append_message(UserMessage(content="small")),
            lambda: session.append_message(UserMessage(content="large " * 5_000)),
            lambda: session.append_label(session.leaf_id or "", "here"),
        ):
            try:
                self.acknowledged.append(await write())
            except BranchlineError as error:
                self.codes[error.code] += 1
        try:
            data = os.urandom(50_000)
            assert await session.read_blob(await session.write_blob(data)) == data
            self.blobs += 1
        except BranchlineError as error:
            self.codes[error.code] += 1
        place = path.replace("chat", f"fork{number}")
        try:
            fork = await session.fork(into=lambda **given: backend(path).create(place, **given))
            await fork.aclose()
        except BranchlineError as error:
            self.codes[error.code] += 1
            assert not os.path.exists(place)

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {"acknowledged": len(self.acknowledged), "blobs": self.blobs, "failed": self.codes.total()}


async def disk(path: str) -> dict[str, Any]:
    """The disk fills up, and is emptied, twice."""
    tries = Tries()
    found: dict[str, Any] = {}
    async with Session.open(backend(path).create(path)) as session:
        await tries.everything(session, path, 0)
        found["before"] = tries.facts()
        for number in (1, 2):
            filler = Path(path).parent / "filler"
            free = os.statvfs(filler.parent)
            filler.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - 4096))
            await tries.everything(session, path, number * 2)
            found[f"full {number}"] = tries.facts()
            filler.unlink()
            await tries.everything(session, path, number * 2 + 1)
            found[f"room {number}"] = tries.facts()
    return found | {"expected": tries.acknowledged, "codes": sorted(tries.codes)}


async def size(path: str) -> dict[str, Any]:
    """No file may be longer than so much; then it may."""
    tries = Tries()
    async with Session.open(backend(path).create(path)) as session:
        await tries.everything(session, path, 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        length = os.stat(path).st_size if path.endswith(".jsonl") else 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (length + 10_000, hard))
        before = tries.facts()
        await tries.everything(session, path, 1)
        limited = tries.facts()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await tries.everything(session, path, 2)
    return {
        "before": before,
        "limited": limited,
        "room": tries.facts(),
        "expected": tries.acknowledged,
        "codes": sorted(tries.codes),
    }


async def plain(path: str) -> dict[str, Any]:
    """Nothing fails that is not made to from outside."""
    tries = Tries()
    async with Session.open(backend(path).create(path)) as session:
        for number in range(3):
            await tries.everything(session, path, number)
    return tries.facts() | {"expected": tries.acknowledged, "codes": sorted(tries.codes)}


async def fight(path: str, rounds: Iterable[int]) -> None:
    """Open, append a few, close, again and again, while others do the same."""
    for round_number in rounds:
        while True:
            try:
                session = await Session.open(backend(path).open(path, durability="os", on_torn_tail="repair"))
                break
            except SessionLockedError:
                await anyio.sleep(0.001 * (os.getpid() % 3 + 1))
        async with session:
            for number in range(3):
                entry_id = await session.append_message(UserMessage(content=f"{os.getpid()} {round_number} {number}"))
                os.write(1, f"{entry_id}\n".encode())


async def main(scenario: str, path: str) -> None:
    """Run a scenario; then open anew, strictly, and report."""
    if scenario.startswith("fight"):
        await fight(path, itertools.count() if scenario == "fight until killed" else range(12))
        return
    found = await {"disk": disk, "size": size, "plain": plain}[scenario](path)
    async with Session.open(backend(path).open(path, on_torn_tail="raise")) as session:
        found["held"] = [entry.id for entry in await session.entries(limit=100_000)]
        found["warnings"] = [warning.code for warning in session.warnings]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], backend=sys.argv[3])
