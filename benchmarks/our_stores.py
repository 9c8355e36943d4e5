"""``python -m benchmarks.our_stores BACKEND DURABILITY PLACE PLAN``: our backends and their floors, for the driver of all.

A floor is the least that anybody does who keeps a line of the same size with the same engine and the same durability,
without holding the event loop: no entry is made or encoded, nothing is checked, ordered or locked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measuring import TEXT, message
from benchmarks.peer_scripts.store_driver import Store, plan_from, run
from benchmarks.sqlite_appending import Floor
from harness.session import Session
from storage import files
from storage.entry_file_repository import EntryFileRepository
from storage.jsonl_repository import JsonlRepository
from storage.memory_repository import MemoryRepository
from storage.protocols import Durability
from storage.sqlite_repository import SqliteRepository

LINE = os.urandom(530).hex().encode() + b"\n"
"""As long as the line of a message of ``benchmarks.measuring``."""

_MANY = 1_000
_AROUND = 77
"""Characters that a message takes of a context's budget beside its text."""


class Ours(Store):
    """The sessions of a repository; each is a ``Session``."""

    def __init__(self, repository_in: Callable[[Path, str | None], Any]) -> None:
        """``repository_in`` makes the repository in a folder or a database."""
        super().__init__()
        self._repository_in = repository_in
        self._repository: Any = None

    async def start(self, place: Path) -> None:
        self._repository = self._repository_in(place, self.dsn)

    async def create(self, name: str) -> Session:
        return await Session.open(self._repository.create(name))

    async def append(self, session: Session) -> None:
        await session.append_message(message())

    async def extend(self, session: Session, count: int) -> Session:
        for number in range(count):
            session.append_message(message())
            if number % _MANY == _MANY - 1:
                await session.flush()
        await session.flush()
        return session

    async def close(self, session: Session) -> None:
        await session.aclose()

    async def reopen(self, session: Session) -> Session:
        return await Session.open(self._repository.open(session.id))

    async def whole(self, session: Session) -> int:
        return len((await session.build_context()).messages)

    async def last(self, session: Session, count: int) -> int:
        return len((await session.build_context(max_chars=budget_for(count))).messages)

    async def fork(self, session: Session) -> None:
        await (await session.fork(into=self._repository)).aclose()

    async def stop(self) -> None:
        self._repository = None


class InMemory(Ours):
    """Memory is what is there again after a stop."""

    def __init__(self) -> None:
        super().__init__(lambda _place, _dsn: None)

    async def start(self, place: Path) -> None:
        del place
        self._repository = self._repository or MemoryRepository()

    async def stop(self) -> None:
        pass


def budget_for(count: int) -> int:
    """``max_chars`` for a context that keeps so many of the messages that are appended here."""
    return count * (len(TEXT) + _AROUND) + len(TEXT) // 2


class _Lines(Store):
    """For memory: a line of JSON in a list."""

    async def start(self, place: Path) -> None:
        del place

    async def create(self, name: str) -> list[str]:
        del name
        return []

    async def append(self, session: list[str]) -> None:
        session.append(json.dumps({"type": "message", "message": {"role": "user", "content": self.text}}))


class _Files(Store):
    """For JSONL: a write and a sync in a thread, to a file of each session's own."""

    def __init__(self, durability: Durability) -> None:
        super().__init__()
        self._sync = durability == "fsync"
        self._place = Path()

    async def start(self, place: Path) -> None:
        self._place = place

    async def create(self, name: str) -> int:
        return files.create_file(str(self._place / name))

    async def append(self, session: int) -> None:
        await asyncio.to_thread(self._write, session)

    def _write(self, descriptor: int) -> None:
        os.write(descriptor, LINE)
        if self._sync:
            files.sync_data(descriptor)

    async def close(self, session: int) -> None:
        os.close(session)


class _Folders(Store):
    """For entry files: a temporary file, a sync, a rename and the folder's sync in a thread; a folder for each session."""

    def __init__(self, durability: Durability) -> None:
        super().__init__()
        self._sync = durability == "fsync"
        self._place = Path()
        self._numbers = itertools.count()

    async def start(self, place: Path) -> None:
        self._place = place

    async def create(self, name: str) -> Path:
        folder = self._place / name
        folder.mkdir()
        return folder

    async def append(self, session: Path) -> None:
        await asyncio.to_thread(self._write, session, next(self._numbers))

    def _write(self, folder: Path, number: int) -> None:
        temporary = folder / f".{number}.tmp"
        descriptor = files.create_file(str(temporary))
        os.write(descriptor, LINE)
        if self._sync:
            files.sync_data(descriptor)
        os.close(descriptor)
        temporary.rename(folder / f"{number}.json")
        if self._sync:
            files.sync_folder(str(folder))


class _Rows(Store):
    """For SQLite: an INSERT and a COMMIT by ``sqlite3`` in a thread, over one connection, in turn."""

    def __init__(self, durability: Durability) -> None:
        super().__init__()
        self._durability: Durability = durability
        self._floor: Floor | None = None

    async def start(self, place: Path) -> None:
        self._floor = Floor(place / "floor.sqlite", self._durability)

    async def create(self, name: str) -> str:
        return name

    async def append(self, session: str) -> None:
        assert self._floor is not None
        await self._floor.append(session)

    async def stop(self) -> None:
        if self._floor is not None:
            self._floor.close()


class _Inserts(Store):
    """For PostgreSQL: psycopg's prepared INSERT; of one session alone in a thread, of several over a connection for each."""

    def __init__(self, durability: Durability) -> None:
        super().__init__()
        self._commit = f"SET synchronous_commit = {'on' if durability == 'fsync' else 'off'}".encode()
        self._insert = "INSERT INTO floor VALUES (%s, %s, %s)"
        self._blocking: Any = None
        self._sessions = 0

    async def start(self, place: Path) -> None:
        del place
        import psycopg

        self._blocking = psycopg.connect(self.dsn or "", autocommit=True)
        self._blocking.execute("CREATE TABLE floor (session uuid, seq bigint, data bytea, PRIMARY KEY (session, seq))")
        self._blocking.execute(self._commit)

    async def create(self, name: str) -> tuple[uuid.UUID, itertools.count[int], Any]:
        del name
        import psycopg

        connection = await psycopg.AsyncConnection.connect(self.dsn or "", autocommit=True)
        await connection.execute(self._commit)
        self._sessions += 1
        return uuid.uuid4(), itertools.count(), connection

    async def append(self, session: tuple[uuid.UUID, itertools.count[int], Any]) -> None:
        values = (session[0], next(session[1]), LINE)
        if self._sessions == 1:
            await asyncio.to_thread(self._blocking.execute, self._insert, values, prepare=True, binary=True)
        else:
            await session[2].execute(self._insert, values, prepare=True, binary=True)

    async def close(self, session: tuple[uuid.UUID, itertools.count[int], Any]) -> None:
        await session[2].close()
        self._sessions -= 1

    async def stop(self) -> None:
        if self._blocking is not None:
            self._blocking.close()


def stores(backend: str, durability: Durability) -> tuple[Store, Store]:
    """The backend and its floor."""
    if backend == "memory":
        return InMemory(), _Lines()
    if backend == "jsonl":
        return Ours(lambda place, _dsn: JsonlRepository(place, durability=durability)), _Files(durability)
    if backend == "entry-files":
        return Ours(lambda place, _dsn: EntryFileRepository(place, durability=durability)), _Folders(durability)
    if backend == "sqlite":
        return Ours(lambda place, _dsn: SqliteRepository(place / "o.sqlite", durability=durability)), _Rows(durability)

    from storage.postgres_repository import PostgresRepository

    return Ours(lambda _place, dsn: PostgresRepository(dsn or "", durability=durability)), _Inserts(durability)


def main() -> None:
    """Measure one backend in this process."""
    backend, durability, place, plan = sys.argv[1:]
    assert durability in ("fsync", "os")
    ours, floor = stores(backend, durability)
    run(ours, floor, Path(place), plan_from(plan))


if __name__ == "__main__":
    main()
