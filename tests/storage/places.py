"""Where the tests of the log keep a session: the same few steps for memory, one file, and a folder of files.

What a place holds is read here from the bytes alone, with the standard library, never by the code under test.
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from storage import (
    EntryFileStorage,
    EntryLog,
    JsonlStorage,
    Memory,
    MemoryStorage,
    PostgresRepository,
    PostgresStorage,
    SessionStorage,
    SqliteStorage,
    UserMessage,
    new_id,
)

Json = dict[str, Any]


class Place(ABC):
    """One session of one backend."""

    name: str
    on_disk = True

    @abstractmethod
    async def create(self, **options: Any) -> SessionStorage:
        """A new session here."""

    @abstractmethod
    async def open(self, **options: Any) -> SessionStorage:
        """The session, opened again."""

    @abstractmethod
    def lines(self) -> list[bytes]:
        """The committed lines as they lie there, in order, without the header."""

    def another(self, number: int) -> Place:
        """Another place of the same kind, of that number."""
        folder = self.path.parent / f"again{number}"  # pyright: ignore[reportAttributeAccessIssue]
        folder.mkdir()
        return type(self)(folder)  # pyright: ignore[reportCallIssue]

    def address(self) -> list[str]:
        """How another process finds it."""
        return [str(self.path)]  # pyright: ignore[reportAttributeAccessIssue]

    def entries(self) -> list[Json]:
        """The committed lines, parsed."""
        return [json.loads(line) for line in self.lines()]

    async def new_log(self, **options: Any) -> EntryLog:
        """A log over a new session."""
        return await EntryLog.open(await self.create(**options))

    async def log(self, **options: Any) -> EntryLog:
        """A log over the session, opened again."""
        return await EntryLog.open(await self.open(**options))


class MemoryPlace(Place):
    """In memory."""

    name = "memory"
    on_disk = False

    def __init__(self) -> None:
        self.memory: Memory | None = None

    async def create(self, **options: Any) -> SessionStorage:
        storage = await MemoryStorage.create(**options)
        self.memory = storage.memory
        return storage

    async def open(self, **options: Any) -> SessionStorage:
        assert self.memory is not None
        return await MemoryStorage.open(self.memory, **options)

    def another(self, number: int) -> Place:
        return self

    def lines(self) -> list[bytes]:
        assert self.memory is not None
        return [record.data for record in self.memory.records]


class JsonlPlace(Place):
    """One file."""

    name = "jsonl"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chat.jsonl"

    async def create(self, **options: Any) -> SessionStorage:
        return await JsonlStorage.create(self.path, **with_defaults(options))

    async def open(self, **options: Any) -> SessionStorage:
        return await JsonlStorage.open(self.path, **with_defaults(options))

    def lines(self) -> list[bytes]:
        return committed_lines(self.path.read_bytes())[1:]


class EntryFilePlace(Place):
    """A folder of files."""

    name = "entry files"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chat"

    async def create(self, **options: Any) -> SessionStorage:
        return await EntryFileStorage.create(self.path, **with_defaults(options))

    async def open(self, **options: Any) -> SessionStorage:
        return await EntryFileStorage.open(self.path, **with_defaults(options))

    def lines(self) -> list[bytes]:
        found = [path.read_bytes() for path in (self.path / "entries").glob("*.json")]
        return sorted(found, key=lambda data: json.loads(data)["seq"])

    def entries(self) -> list[Json]:
        """Without ``batch``, which is no part of the record."""
        return [{key: value for key, value in entry.items() if key != "batch"} for entry in super().entries()]


def rows(path: str | Path, statement: str) -> list[tuple[Any, ...]]:
    """What the standard library's sqlite3 finds in a database."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


class SqlitePlace(Place):
    """One session of a database that holds another one besides."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chats.sqlite"

    async def create(self, **options: Any) -> SessionStorage:
        options = {"session_id": "chat", **with_defaults(options)}
        return await SqliteStorage.create(self.path, **options)

    async def open(self, **options: Any) -> SessionStorage:
        options = {"session_id": "chat", **with_defaults(options)}
        return await SqliteStorage.open(self.path, **options)

    def lines(self) -> list[bytes]:
        # Beside a log as a reader, which leaves it as it is; without one so that none is left.
        beside_a_log = self.path.with_name("chats.sqlite-wal").exists()
        connection = sqlite3.connect(f"file:{self.path}?mode={'ro' if beside_a_log else 'rw'}", uri=True)
        try:
            return [
                line.encode()
                for (line,) in connection.execute(
                    "SELECT data FROM session_entries WHERE session = 'chat' ORDER BY seq"
                ).fetchall()
            ]
        finally:
            connection.close()


class PostgresPlace(Place):
    """One session of a database that holds those of all other tests besides."""

    name = "postgres"

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.session_id = f"chat-{new_id()}"
        self.repository = PostgresRepository(dsn)
        assert self.repository.place  # from here on the connections stay

    async def create(self, **options: Any) -> SessionStorage:
        options = {"session_id": self.session_id, **with_defaults(options)}
        return await PostgresStorage.create(self.dsn, **options)

    async def open(self, **options: Any) -> SessionStorage:
        return await PostgresStorage.open(self.dsn, session_id=self.session_id, **with_defaults(options))

    def another(self, number: int) -> Place:
        return PostgresPlace(self.dsn)

    def address(self) -> list[str]:
        return [self.dsn, self.session_id]

    def lines(self) -> list[bytes]:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            found = connection.execute(
                "SELECT e.data FROM branchline_entries e JOIN branchline_sessions s USING (session) WHERE s.id = %s "
                "ORDER BY e.seq",
                (self.session_id,),
            )
            return [bytes(line) for (line,) in found]


PLACES = ("memory", "jsonl", "entry files", "sqlite", "postgres")


def place(kind: str, folder: Path) -> Place:
    """A place of one kind, in ``folder``."""
    if kind == "memory":
        return MemoryPlace()
    if kind == "sqlite":
        return SqlitePlace(folder)
    return JsonlPlace(folder) if kind == "jsonl" else EntryFilePlace(folder)


def with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Without a sync for each write, unless a test asks for it."""
    return {"durability": "os", **options}


def committed_lines(data: bytes) -> list[bytes]:
    """The lines of a file that end with a newline."""
    return [line for line in data.split(b"\n")[:-1] if line.strip()]


def fork() -> int:
    """``os.fork`` in a test process that has idle worker threads, of which newer Pythons warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def said(text: str = "hello") -> UserMessage:
    """A user message."""
    return UserMessage(content=text)


def texts(entries: list[Json]) -> list[str]:
    """The texts of message entries."""
    return [entry["message"]["content"] for entry in entries if entry["type"] == "message"]


def assert_chain(entries: list[Json]) -> None:
    """Each entry is in its place and the child of the one before."""
    assert [entry["seq"] for entry in entries] == list(range(len(entries)))
    assert [entry["parentId"] for entry in entries] == [None, *(entry["id"] for entry in entries[:-1])]
