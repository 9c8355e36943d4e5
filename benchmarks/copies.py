"""Forking, against a plain copy with one sync; and listing a shelf of sessions."""

from __future__ import annotations

import os
import shutil
import statistics
from functools import partial
from pathlib import Path

from benchmarks.measuring import Figure, message, ratio, seconds, seconds_of
from harness.session import Session
from storage import files
from storage.jsonl import JsonlStorage
from storage.jsonl_repository import JsonlRepository


async def forking(path: Path, folder: Path, rounds: int) -> list[Figure]:
    """A fork of the whole path to a new file."""
    ours: list[float] = []
    floors: list[float] = []
    async with Session.open(JsonlStorage.open(path)) as session:
        count = len(session.log.index)
        for number in range(rounds):

            async def fork(number: int = number) -> None:
                target = partial(JsonlStorage.create, folder / f"fork-{number}.jsonl")
                await (await session.fork(into=target)).aclose()

            def copy(number: int = number) -> None:
                target = folder / f"copy-{number}.jsonl"
                shutil.copyfile(path, target)
                descriptor = os.open(target, os.O_RDWR)
                files.sync_data(descriptor)
                os.close(descriptor)

            ours.append(await seconds_of(fork))
            floors.append(seconds(copy))
    note = f"{statistics.median(ours) * 1e3:.0f} ms"
    return [Figure(f"fork of {count:,} entries / copy with one sync", ratio(ours, floors), "×", 3, note)]


async def listing(folder: Path, count: int) -> list[Figure]:
    """A page after page of all sessions; each file's head and tail is read, and no more."""
    repository = JsonlRepository(folder)
    for _ in range(count):
        async with Session.open(repository.create()) as session:
            for number in range(4):
                session.append_message(message(number))

    found = 0

    async def list_all() -> None:
        nonlocal found
        found = 0
        after = None
        while True:
            page = await repository.list(after=after, limit=200)
            found += len(page.sessions)
            after = page.after
            if after is None:
                break

    elapsed = await seconds_of(list_all)
    return [Figure(f"listing {found:,} sessions", elapsed * 1e3, "ms")]
