"""Many sessions in one SQLite database: one file to copy, forks that share what they have in common, a quick listing.

The file is in write-ahead mode: readers read while a writer writes, and writers of several sessions, in one process or
many, take turns by the transaction. Within a session there is one writer, as everywhere; see ``docs/sqlite.md``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from storage.blobs import Blobs, blob_exists, blob_not_found, check_blob_name
from storage.copying import renumbered
from storage.errors import (
    CommitFailed,
    DamagedSessionError,
    ReadOnlySessionError,
    StaleSessionError,
)
from storage.event_loops import Breath, run_in_worker
from storage.file_lock import open_when_free
from storage.header import new_header
from storage.identifiers import absolute_place, check_session_id
from storage.locked_storage import LockedStorage
from storage.open_or_make import open_or_make
from storage.protocols import Corrupt, Durability, Mode, Record, TornTail
from storage.sqlite_errors import NotWrittenError
from storage.sqlite_opening import (
    OpenSession,
    create_session,
    delete_from,
    meaning,
    missing,
    open_session,
    read_record,
    take_lock,
)
from storage.sqlite_sessions import (
    Blob,
    HeadFacts,
    add_blob,
    add_lines,
    blob_content,
    blob_names,
    count_lines,
    facts_in,
    read_lines,
)

_INLINE_BYTES = 64 * 1024


class SqliteStorage(LockedStorage):
    """A ``SessionStorage`` over a session in a database file. Made by ``create``, ``open`` and ``open_or_create``.

    Beside ``chats.sqlite`` lie ``chats.sqlite-wal`` and ``-shm`` while it is open (SQLite's log), and the writers' locks in
    ``chats.sqlite.locks/``. All sessions of one file in a process share one connection that writes.
    """

    def __init__(self, opened: OpenSession, durability: Durability) -> None:
        """Use ``create``, ``open`` or ``open_or_create``."""
        info = replace(opened.info, inline=opened.info.writable and durability != "fsync")
        super().__init__(info, opened.lock, opened.index, opened.found.next_seq, durability)
        self._database = opened.database
        self._parts = opened.found.parts
        self._number = opened.found.number
        self._seen = opened.found.next_seq
        """How many lines there were when it was looked at last."""
        self._wants_first_message = not opened.found.has_first_message
        self.path: str = opened.database.path
        """The database's absolute path."""

    @classmethod
    async def create(
        cls,
        path: str | os.PathLike[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
        blobs: Blobs = (),
        durability: Durability = "fsync",
    ) -> SqliteStorage:
        """A new session in the database at ``path``, which is made (0600) where there is none; whole or not at all.

        If the session ``parent_session`` is in the same database, the lines and blobs that both have are not copied.
        Raises ``SessionExistsError`` (also for an id that differs only in case), ``SessionLockedError``,
        ``InvalidIdError``, ``DamagedSessionError`` for a file that is no such database, ``UnsupportedVersionError`` and
        ``StorageError``.
        """
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)
        place = absolute_place(path)

        def create() -> OpenSession:
            return create_session(place, header, renumbered(records), durability, blobs)

        doing = "the session cannot be made"
        opened = await run_in_worker(lambda: meaning(place, doing, create), undo=OpenSession.close)
        return cls(opened, durability)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        session_id: str | None = None,
        mode: Mode = "write",
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "read_only",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> SqliteStorage:
        """The session of that id, every line checked; without an id, the only one of the file.

        ``on_torn_tail`` is taken for symmetry: a transaction leaves none. ``on_corrupt="skip"`` shows what is left around
        bad lines, to read only. ``lock_timeout``: seconds to wait for another writer of this session.

        Raises ``SessionNotFoundError``, ``SessionLockedError``, ``DamagedSessionError`` naming the line (or saying that the
        file is no database), ``UnsupportedVersionError`` and ``StorageError`` (unreadable).
        """
        del on_torn_tail
        if session_id is not None:
            check_session_id(session_id)
        opened = await open_session(absolute_place(path), session_id, mode, on_corrupt, lock_timeout)
        return cls(opened, durability)

    @classmethod
    async def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "repair",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> SqliteStorage:
        """The session of that id for writing; a new one if there is none yet. Without an id: the only one of the file.

        Raises what ``open`` and ``create`` raise.
        """
        del on_torn_tail
        place = absolute_place(path)
        if session_id is not None:
            check_session_id(session_id)

        def make() -> OpenSession:
            header = new_header(session_id=session_id, cwd=cwd)
            return meaning(place, "the session cannot be made", lambda: create_session(place, header, [], durability))

        opened = await open_or_make(
            lambda: open_session(place, session_id, "write", on_corrupt, lock_timeout),
            lambda: open_when_free(make, lock_timeout, undo=OpenSession.close),
        )
        return cls(opened, durability)

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``, as they are in the tables now."""
        self._check_open()
        if limit == 0 or (self._writing and after_seq + 1 >= self._next_seq):
            return []
        return meaning(self._info.place, "the session cannot be read", lambda: self._read(after_seq, limit))

    def _read(self, after_seq: int, limit: int | None) -> Sequence[Record]:
        place = self._info.place

        def rows(connection: sqlite3.Connection) -> tuple[int, list[tuple[int, object]]]:
            end = count_lines(connection, self._number, place)
            return end, list(read_lines(connection, self._parts, after_seq, end, limit))

        end, lines = self._database.read(rows)
        if end < self._seen:
            raise StaleSessionError(
                f"the session has {end:,} entries, fewer than the {self._seen:,} that were read; open it anew",
                path=place,
            )
        self._seen = end
        records: list[Record] = []
        breath = Breath()
        skips = self._info.salvaged
        expected = after_seq + 1
        for seq, data in lines:
            if seq != expected and not skips:
                raise missing(expected, seq, place)
            expected = seq + 1
            try:
                records.append(read_record(seq, data, place))
            except DamagedSessionError:
                if not skips:
                    raise
            breath.take()
        if not skips and expected < end and (limit is None or len(lines) < limit):
            raise missing(expected, end, place)
        return records

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Add ``records`` in one transaction. What is due, if anything is, is a wait for others, or for the log's place.

        Without a sync (``durability="os"``), a small batch is written here and now if nobody else writes; else that is
        returned, to be done in a worker. With it, everything is done here, perhaps together with other sessions' writes.
        """
        place = self._info.place
        self._check_next(records, "session")
        if not records:
            return None
        facts = facts_in(records, with_first_message=self._wants_first_message)
        number = self._number
        size = len(records[0].data) if len(records) == 1 else sum([len(record.data) for record in records])

        def work(connection: sqlite3.Connection) -> None:
            add_lines(connection, number, records, facts, place)

        if not self._durable and size <= _INLINE_BYTES:
            try:
                done, _ = self._database.writer.write_at_once(work, size=size)
            except NotWrittenError as error:
                raise self._failed(error) from error.__cause__
            if not done:
                return lambda: self._write(work, size, records, facts)
            self._written(records, facts)
            return self._database.writer.check_point if self._database.writer.log_is_long else None
        self._write(work, size, records, facts)
        return None

    def _write(
        self,
        work: Callable[[sqlite3.Connection], None],
        size: int,
        records: Sequence[Record],
        facts: HeadFacts | None,
    ) -> None:
        try:
            self._database.writer.write(work, size=size, durable=self._durable)
        except NotWrittenError as error:
            raise self._failed(error) from error.__cause__
        self._written(records, facts)

    def _written(self, records: Sequence[Record], facts: HeadFacts | None) -> None:
        self._next_seq += len(records)
        if facts is not None and facts.first_message is not None:
            self._wants_first_message = False

    def _failed(self, error: NotWrittenError) -> CommitFailed:
        return CommitFailed(
            f"the database could not be written: {error}; nothing of it was kept", committed=0, path=self._info.place
        )

    # --- blobs

    def write_blob(self, name: str, data: bytes) -> None:
        """Keep ``data`` in the database under that name."""
        check_blob_name(name)
        self._check_open()
        place, number, durable = self._info.place, self._number, self._durable
        if not self._may_write():
            raise ReadOnlySessionError(self._info.read_only_reason or "the writer's lock is not ours", path=place)

        def work(connection: sqlite3.Connection) -> None:
            count_lines(connection, number, place)
            if connection.execute("SELECT 1 FROM blobs WHERE session = ? AND name = ?", (number, name)).fetchone():
                raise blob_exists(name, path=place)
            add_blob(connection, number, Blob(name, data, None))

        meaning(
            place,
            "the blob could not be written",
            lambda: self._database.writer.write(work, size=len(data), durable=durable),
        )

    def read_blob(self, name: str) -> bytes:
        """What is kept under ``name``."""
        check_blob_name(name)
        self._check_open()
        place, number = self._info.place, self._number
        found = meaning(
            place,
            "the blob cannot be read",
            lambda: self._database.read(lambda connection: blob_content(connection, number, name)),
        )
        if found is None:
            raise blob_not_found(name, path=place)
        return found[1]

    def blob_names(self) -> Sequence[str]:
        """The names of all blobs, sorted."""
        self._check_open()
        number = self._number
        return meaning(
            self._info.place,
            "the blobs cannot be listed",
            lambda: self._database.read(lambda connection: blob_names(connection, number)),
        )

    # --- the end

    def _let_go(self) -> None:
        self._database.release()  # the last one closes it
        if self._lock is not None:
            self._lock.discard()  # a file for each session that was ever written would be many

    def delete(self) -> None:
        """Delete the session, blobs and all. Raises ``SessionLockedError`` while somebody else writes, and ``OSError``."""
        session_id, place = self._info.header.id, self._info.place
        self._check_open()
        lock = self._lock
        if lock is None or not lock.held:
            lock = take_lock(self.path, session_id)
        self._lock = None
        self._writing = False
        try:
            delete_from(self.path, session_id, place)
            lock.remove()
        finally:
            lock.release()
            self.close()
