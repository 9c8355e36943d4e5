"""A program that appends while the system under it is made to fail; run by the tests in a process of its own.

``python -m tests.storage.breaking_program SCENARIO PATH LOOP``. It prints one JSON object at the end: what became of each
write, and the ids that the session holds when it is opened anew.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from storage import EntryFileStorage, EntryLog, JsonlStorage, PendingWrite, SqliteStorage, StorageError, UserMessage

SIZE = 900
COUNT = 40


def backend(path: str) -> Any:
    """The storage class for a path."""
    if path.endswith(".sqlite"):
        return SqliteStorage
    return JsonlStorage if path.endswith(".jsonl") else EntryFileStorage


def fill(folder: Path, leave: int) -> Path:
    """Fill the disk that ``folder`` is on, but for ``leave`` bytes."""
    filler = folder / "filler"
    free = os.statvfs(folder)
    filler.write_bytes(b"\0" * max(0, free.f_bavail * free.f_frsize - leave))
    return filler


async def write_many(log: EntryLog, count: int = COUNT) -> dict[str, Any]:
    """Append ``count`` messages side by side, and say what became of them."""
    writes: list[PendingWrite] = [log.append_message(UserMessage(content=f"{n} " + "x" * SIZE)) for n in range(count)]
    committed: list[str] = []
    failed: list[BaseException] = []
    for write in writes:
        try:
            committed.append(await write)
        except StorageError as error:
            failed.append(error)
    causes = {id(error.__cause__): error.__cause__ for error in failed}
    return {
        "committed": committed,
        "failed": len(failed),
        "kinds": sorted({type(error).__name__ for error in failed}),
        "causes": len(causes),
        "errnos": [getattr(cause, "errno", None) for cause in causes.values()],
        "writable": log.writable,
    }


async def disk(path: str) -> dict[str, Any]:
    """The disk is full, and then it is not."""
    folder = Path(path).parent
    log = await EntryLog.open(await backend(path).create(path))
    before = [await log.append_message(UserMessage(content="before"))]
    filler = fill(folder, leave=12_000)
    full = await write_many(log)
    again = await write_many(log, 3)
    raw = Path(path).read_bytes().endswith(b"\n") if path.endswith(".jsonl") else True
    filler.unlink()
    room = await write_many(log)
    await log.aclose()
    try:
        fill(folder, leave=0)
        await backend(path).create(f"{path}2{Path(path).suffix}")
        created = "made"
    except StorageError:
        created = "refused"
    (folder / "filler").unlink()
    left = sorted(name for name in os.listdir(folder) if not name.endswith(".lock") and "2" in name)
    return {
        "before": before,
        "full": full,
        "again": again,
        "room": room,
        "whole": raw,
        "created": created,
        "left": left,
    }


async def limited(path: str, limit: int, low: Callable[[], int]) -> dict[str, Any]:
    """A limit of the process stops a write in its middle, and is then taken away."""
    log = await EntryLog.open(await backend(path).open_or_create(path))
    before = [entry.id for entry in await log.entries()] + [await log.append_message(UserMessage(content="before"))]
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (low(), hard))
    full = await write_many(log)
    resource.setrlimit(limit, (soft, hard))
    room = await write_many(log)
    await log.aclose()
    return {"before": before, "full": full, "room": room}


async def plain(path: str) -> dict[str, Any]:
    """Appends, one by one; whatever fails them comes from outside."""
    log = await EntryLog.open(await backend(path).open(path))
    results = [await _one(log) for _ in range(6)]
    calls = []
    for action in (log.entries, log.flush):
        try:
            await action()
            calls.append("fine")
        except StorageError as error:
            calls.append(type(error.__cause__).__name__)
    await log.aclose()
    return {"results": results, "calls": calls}


async def _one(log: EntryLog) -> Any:
    try:
        return await log.append_message(UserMessage(content="x" * SIZE))
    except StorageError as error:
        return {"errno": getattr(error.__cause__, "errno", None), "kind": type(error).__name__}


async def main(scenario: str, path: str) -> None:
    """Run a scenario, then open anew, strictly, and report."""
    if scenario == "disk":
        found = await disk(path)
    elif scenario == "size":
        found = await limited(path, resource.RLIMIT_FSIZE, lambda: os.stat(path).st_size + 12_345)
    elif scenario == "files":
        found = await limited(path, resource.RLIMIT_NOFILE, lambda: len(os.listdir("/proc/self/fd")) + 12)
    else:
        found = await plain(path)
    log = await EntryLog.open(await backend(path).open(path, on_torn_tail="raise"))
    found["held"] = [entry.id for entry in await log.entries(limit=100_000)]
    leaf = await log.path()
    found["chain"] = len(leaf)
    await log.aclose()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], backend=sys.argv[3])
