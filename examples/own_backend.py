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

from harness import (
    Mode,
    ReadOnlySessionError,
    Record,
    Session,
    SessionHeader,
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
        database.touch(mode=0o600)  # a transcript is as secret as what was said in it
        # The log calls from one thread at a time, but not always from the same one.
        self._connection = sqlite3.connect(database, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._connection:
            self._connection.execute("CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, header BLOB)")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS records (session TEXT, seq INTEGER, data BLOB, PRIMARY KEY (session, seq))"
            )
            fresh = new_header(session_id=session_id)
            self._connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?)", (session_id, fresh.to_line()))
        (line,) = self._connection.execute("SELECT header FROM sessions WHERE id = ?", (session_id,)).fetchone()
        self._header: SessionHeader = parse_header(line)
        self._writable = mode == "write"
        self._place = f"{database}#{session_id}"

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
            (count,) = self._connection.execute(
                "SELECT count(*) FROM records WHERE session = ?", (self._header.id,)
            ).fetchone()
            if records and records[0].seq != count:
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
        async with Session.open(TableStorage(database, "ada")) as session:
            await session.append_message(UserMessage(content="Remember me."))
        async with Session.open(TableStorage(database, "ada")) as session:
            (message,) = (await session.build_context()).messages
            print(message.text)
        report = await check_storage(
            lambda name, mode: TableStorage(database, name, mode),
            in_folder=lambda folder: lambda name, mode: TableStorage(Path(folder, "copied.db"), name, mode),
        )
        report.raise_for_failures()
        print("the conformance suite found nothing wrong")
        print(f"{len(report.passed)} clauses passed, {len(report.absent)} are about abilities that it has not")


if __name__ == "__main__":
    anyio.run(main)
