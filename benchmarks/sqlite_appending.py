"""Appends to SQLite against the engine's own floor: an INSERT and a COMMIT by sqlite3 in a thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.measuring import Figure, message, ratio, seconds_of
from harness.session import Session
from storage.protocols import Durability
from storage.sqlite import SqliteStorage
from storage.sqlite_repository import SqliteRepository

SIDE_BY_SIDE = 64
_LEVELS: dict[Durability, str] = {"fsync": "FULL", "os": "NORMAL"}
_DATA = os.urandom(550).hex().encode()


class Floor:
    """One connection in write-ahead mode, and a table of lines with a session's name: the least that anybody would do."""

    def __init__(self, path: Path, durability: Durability) -> None:
        """Make the table."""
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {_LEVELS[durability]}")
        self._connection.execute("CREATE TABLE lines (number INTEGER PRIMARY KEY, session TEXT, data BLOB)")
        self._turn = asyncio.Lock()

    def _insert(self, session: str) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO lines (session, data) VALUES (?, ?)", (session, _DATA))
        self._connection.execute("COMMIT")

    async def append(self, session: str) -> None:
        """An awaited append."""
        async with self._turn:
            await asyncio.to_thread(self._insert, session)

    def close(self) -> None:
        """Close it."""
        self._connection.close()


async def one_at_a_time(folder: Path, durability: Durability, rounds: int, count: int) -> list[Figure]:
    """A single session, each append awaited."""
    ours: list[float] = []
    floors: list[float] = []
    floor = Floor(folder / f"floor-{durability}.sqlite", durability)
    async with Session.open(
        SqliteStorage.create(folder / f"ours-{durability}.sqlite", durability=durability)
    ) as session:
        for _ in range(rounds):

            async def append() -> None:
                for _ in range(count):
                    await session.append_message(message())

            async def least() -> None:
                for _ in range(count):
                    await floor.append("one")

            ours.append(await seconds_of(append) / count)
            floors.append(await seconds_of(least) / count)
    floor.close()
    note = f"{statistics.median(ours) * 1e6:.0f} µs against {statistics.median(floors) * 1e6:.0f} µs"
    return [Figure(f"SQLite, append, {durability} / INSERT, COMMIT in a thread", ratio(ours, floors), "×", 1.5, note)]


async def side_by_side(folder: Path, durability: Durability, rounds: int, count: int) -> list[Figure]:
    """64 sessions of one file, each in a task that awaits its appends one by one."""
    ours: list[float] = []
    floors: list[float] = []
    floor = Floor(folder / f"floor-64-{durability}.sqlite", durability)
    repository = SqliteRepository(folder / f"ours-64-{durability}.sqlite", durability=durability)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(Session.open(repository.create())) for _ in range(SIDE_BY_SIDE)]

        async def write(session: Session) -> None:
            for _ in range(count):
                await session.append_message(message())

        async def write_least(name: str) -> None:
            for _ in range(count):
                await floor.append(name)

        async def append() -> None:
            await asyncio.gather(*(write(session) for session in sessions))

        async def least() -> None:
            await asyncio.gather(*(write_least(str(number)) for number in range(SIDE_BY_SIDE)))

        for _ in range(rounds):
            ours.append(await seconds_of(append) / count / SIDE_BY_SIDE)
            floors.append(await seconds_of(least) / count / SIDE_BY_SIDE)
    floor.close()
    note = f"{statistics.median(ours) * 1e6:.0f} µs against {statistics.median(floors) * 1e6:.0f} µs"
    name = f"SQLite, {SIDE_BY_SIDE} sessions side by side, {durability} / INSERT, COMMIT in a thread"
    return [Figure(name, ratio(ours, floors), "×", 1.5, note)]
