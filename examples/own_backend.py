"""A backend of your own: the sessions of a whole service in one table of an SQLite database.

Four members of plain blocking code. The log above it gives the queue, the threads, the rules of the tree, cancellation,
and the same behaviour as every other backend.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from harness import (
    Mode,
    ReadOnlySessionError,
    Record,
    Session,
    SessionHeader,
    SessionNotFoundError,
    StaleSessionError,
    StorageInfo,
    UserMessage,
    new_header,
    parse_header,
    parse_record,
)
from storage.testing import check_storage


class TableStorage:
    """One session, in the rows of two tables. It is made, as it is used, in a worker thread."""

    def __init__(self, database: Path, session_id: str, mode: Mode = "write") -> None:
        self._writable = mode == "write"
        self._place = f"{database}#{session_id}"
        if self._writable:
            database.touch(mode=0o600)  # a transcript is as secret as what was said in it
        address = f"{database.resolve().as_uri()}?mode={'rw' if self._writable else 'ro'}"
        # The log calls from one thread at a time, but not always from the same one.
        self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = FULL")
        if self._writable:
            self._begin(new_header(session_id=session_id))
        row = self._connection.execute("SELECT header FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            self.close()
            raise SessionNotFoundError(f"there is no session {session_id!r}", path=self._place)
        self._header: SessionHeader = parse_header(row[0])

    def _begin(self, header: SessionHeader) -> None:
        with self._connection:
            self._connection.execute("CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, header BLOB)")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS records (session TEXT, seq INTEGER, data BLOB, PRIMARY KEY (session, seq))"
            )
            self._connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?)", (header.id, header.to_line()))

    @property
    def info(self) -> StorageInfo:
        """What this is. ``place`` is for messages."""
        return StorageInfo(header=self._header, writable=self._writable, place=self._place)

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``, as they are in the table now."""
        rows = self._connection.execute(
            "SELECT seq, data FROM records WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
            (self._header.id, after_seq, -1 if limit is None else limit),
        ).fetchall()  # a cursor that is left open keeps every other writer out
        return [parse_record(data, seq, path=self._place) for seq, data in rows]

    def commit(self, records: Sequence[Record]) -> None:
        """All of ``records`` or none: one transaction. It is durable when it returns, so no sync is due."""
        if not self._writable:
            raise ReadOnlySessionError("opened to read; open it with mode='write'", path=self._place)
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            (following,) = self._connection.execute(  # by the key: however long the session is
                "SELECT coalesce(max(seq) + 1, 0) FROM records WHERE session = ?", (self._header.id,)
            ).fetchone()
            if records and records[0].seq != following:
                raise StaleSessionError("another writer was here; open the session anew", path=self._place)
            rows = [(self._header.id, record.seq, record.data) for record in records]
            self._connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()


async def main() -> None:
    """Write in one session, find it again in the next, and see whether the backend keeps the rules."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "service.db")
        async with Session.open(anyio.to_thread.run_sync(TableStorage, database, "ada")) as session:
            await session.append_message(UserMessage(content="Remember me."))
        async with Session.open(anyio.to_thread.run_sync(TableStorage, database, "ada")) as session:
            (message,) = (await session.build_context()).messages
            print(message.text)
        report = await check_storage(
            lambda name, mode: TableStorage(database, name, mode),
            in_folder=lambda folder: lambda name, mode: TableStorage(Path(folder, "copied.db"), name, mode),
        )
        report.raise_for_failures()
        print("the conformance suite found nothing wrong")
        print(
            f"{len(report.passed)} clauses passed, {len(report.absent)} are about what it has not, or what C code does"
        )


if __name__ == "__main__":
    anyio.run(main)
