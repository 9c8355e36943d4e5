"""Appends: one awaited at a time, many side by side, and whether they cost more as the session grows."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measuring import TEXT, Figure, message, ratio, seconds, seconds_of
from harness.session import Session
from storage import files
from storage.entry_files import EntryFileStorage
from storage.jsonl import JsonlStorage
from storage.messages import Message

SIDE_BY_SIDE = 64


async def awaited_without_sync(folder: Path, backend: str, rounds: int, count: int) -> list[Figure]:
    """``durability="os"`` against json.dumps, write and flush of the same message."""
    ours: list[float] = []
    floors: list[float] = []
    with (folder / "floor.jsonl").open("w", encoding="utf-8") as file:
        async with Session.open(JsonlStorage.create(folder / f"{backend}.jsonl", durability="os")) as session:
            for _ in range(rounds):
                messages = [message(number * 2) for number in range(count)]

                async def append(messages: list[Message] = messages) -> None:
                    for one in messages:
                        await session.append_message(one)

                def floor() -> None:
                    for _ in range(count):
                        entry = {
                            "seq": 1,
                            "type": "message",
                            "id": "01a2297b-f7b5-765d-8f66-825139ede58d",
                            "parentId": "01a2297b-f7b5-765d-8f66-825139ede58c",
                            "timestamp": "2026-11-29T22:45:19.925Z",
                            "message": {"role": "user", "content": TEXT, "timestamp": 1795992943201},
                        }
                        file.write(json.dumps(entry) + "\n")
                        file.flush()

                ours.append(await seconds_of(append) / count)
                floors.append(seconds(floor) / count)
    limit = 2.5 if backend == "asyncio" else 3.0
    note = f"{statistics.median(ours) * 1e6:.1f} µs against {statistics.median(floors) * 1e6:.1f} µs"
    return [Figure(f"append, os, {backend} / json.dumps, write, flush", ratio(ours, floors), "×", limit, note)]


async def awaited_with_sync(folder: Path, rounds: int, count: int) -> list[Figure]:
    """``durability="fsync"``: one at a time against ``asyncio.to_thread``; 64 side by side with one sync."""
    single: list[float] = []
    floors: list[float] = []
    together: list[float] = []
    syncs = syncs_of_64 = 0
    original = files.sync_data

    def counted(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        original(descriptor)

    descriptor = os.open(folder / "floor.bin", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    data = os.urandom(1100)

    def write_and_sync() -> None:
        os.write(descriptor, data)
        original(descriptor)

    files.sync_data = counted
    try:
        async with Session.open(JsonlStorage.create(folder / "synced.jsonl")) as session:
            for _ in range(rounds):

                async def one_at_a_time() -> None:
                    for _ in range(count):
                        await session.append_message(message())

                async def floor() -> None:
                    for _ in range(count):
                        await asyncio.to_thread(write_and_sync)

                async def side_by_side() -> None:
                    writes = [session.append_message(message()) for _ in range(SIDE_BY_SIDE)]
                    for write in writes:
                        await write

                single.append(await seconds_of(one_at_a_time) / count)
                floors.append(await seconds_of(floor) / count)
                before = syncs
                together.append(await seconds_of(side_by_side) / SIDE_BY_SIDE)
                syncs_of_64 = syncs - before
    finally:
        files.sync_data = original
        os.close(descriptor)
    note = f"{statistics.median(single) * 1e6:.0f} µs against {statistics.median(floors) * 1e6:.0f} µs"
    return [
        Figure("append, fsync, one at a time / to_thread(write, fdatasync)", ratio(single, floors), "×", 1.15, note),
        Figure("syncs for 64 appends side by side", syncs_of_64, "", 1),
        Figure("throughput, 64 side by side / one at a time", ratio(single, together), "×", 10, at_least=True),
    ]


async def as_it_grows(folder: Path, many: int) -> list[Figure]:
    """The cost of an append at ``many`` entries against at 100."""
    small: list[float] = []
    large: list[float] = []
    async with (
        Session.open(JsonlStorage.create(folder / "small.jsonl", durability="os")) as few,
        Session.open(JsonlStorage.create(folder / "growing.jsonl", durability="os")) as lots,
    ):
        for number in range(many):
            lots.append_message(message(number))
            if number % 256 == 255:
                await lots.flush()
        for number in range(100):
            await few.append_message(message(number))
        await lots.flush()

        async def append(session: Session, count: int) -> None:
            for _ in range(count):
                await session.append_message(message())

        for _ in range(20):
            small.append(await seconds_of(partial(append, few, 20)))
            large.append(await seconds_of(partial(append, lots, 20)))
    return [Figure(f"append at {many:,} entries / at 100", ratio(large, small), "×", 1.2)]


async def entry_files(folder: Path, rounds: int, count: int) -> list[Figure]:
    """A file an entry, against its own floor: temporary file, sync, rename, folder sync."""
    ours: list[float] = []
    floors: list[float] = []
    floor_folder = folder / "floor"
    floor_folder.mkdir()
    data = os.urandom(1100)
    number = 0

    def write_one() -> None:
        nonlocal number
        number += 1
        temporary = floor_folder / f".{number}.tmp"
        descriptor = files.create_file(str(temporary))
        os.write(descriptor, data)
        files.sync_data(descriptor)
        os.close(descriptor)
        temporary.rename(floor_folder / f"{number}.json")
        files.sync_folder(str(floor_folder))

    async with Session.open(EntryFileStorage.create(folder / "entries")) as session:
        for _ in range(rounds):

            async def append() -> None:
                for _ in range(count):
                    await session.append_message(message())

            async def floor() -> None:
                for _ in range(count):
                    await asyncio.to_thread(write_one)

            ours.append(await seconds_of(append) / count)
            floors.append(await seconds_of(floor) / count)
    note = f"{statistics.median(ours) * 1e6:.0f} µs"
    return [Figure("append, entry files / temporary, sync, rename, folder sync", ratio(ours, floors), "×", 1.3, note)]


def is_supported(name: str) -> bool:
    """Whether an event loop can be used here."""
    if find_spec(name) is None:
        print(f"{name} is not installed; its figure is left out", file=sys.stderr)
        return False
    return True


Benchmark = Callable[[Path], object]
