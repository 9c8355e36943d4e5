"""Opening, making and deleting a session of a database: locked if it is to be written, read piece by piece, and checked."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TypeVar

from storage import files
from storage.blobs import Blobs, check_blob_name
from storage.decode import facts_of, parse_entry
from storage.errors import BranchlineError, DamagedSessionError, StaleSessionError, StorageError
from storage.event_loops import Breath, in_slices, run_in_worker
from storage.file_lock import WriterLock, open_when_free
from storage.header import SessionHeader, parse_header, stand_in_header
from storage.index import EntryIndex
from storage.protocols import Corrupt, Durability, Mode, Record, SessionWarning, StorageInfo
from storage.sqlite_connections import patiently
from storage.sqlite_database import Database
from storage.sqlite_errors import NotWrittenError, first_cause, meaning_of
from storage.sqlite_sessions import (
    Found,
    HeadFacts,
    SpooledBlobs,
    blob_content,
    check_free,
    common_beginning,
    delete_session,
    facts_in,
    find_session,
    make_session,
    read_piece,
)

T = TypeVar("T")

_SPOOLED_BYTES = 16 * 1024 * 1024
_REWRITTEN_BYTES = 32 * 1024 * 1024
"""Up to this size the file is rewritten after a deletion, so that nothing lingers between what is kept."""


def meaning(path: str, doing: str, action: Callable[[], T]) -> T:
    """Run ``action``; what SQLite or the system raise becomes an error of ours that names the path."""
    try:
        return action()
    except BranchlineError:
        raise
    except NotWrittenError as error:
        cause = error.__cause__ or error
        raise meaning_of(_as_exception(cause), f"{doing}; nothing was written", path) from cause
    except (OSError, sqlite3.Error) as error:
        raise meaning_of(error, doing, path) from first_cause(error)


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, OSError) and isinstance(error.__cause__, sqlite3.Error):
        return error.__cause__
    return error if isinstance(error, Exception) else StorageError(str(error))


def real_path(path: str) -> str:
    """Where the file really lies: behind a symlink, its log and its locks lie beside the real one."""
    return os.path.realpath(path)


def lock_path(path: str, session_id: str) -> str:
    """The writer's lock of one session of the database at ``path``."""
    return os.path.join(f"{path}.locks", f"{session_id}.lock")


def take_lock(path: str, session_id: str) -> WriterLock:
    """The writer's lock of a session. Raises ``SessionLockedError`` and ``StorageError``."""
    place = lock_path(path, session_id)
    files.create_folders(os.path.dirname(place))
    return WriterLock.acquire(place)


def place_of(path: str, session_id: str) -> str:
    """How a session is called in messages and listings."""
    return f"{path}#{session_id}"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session, open: its place in the tables, the writer's lock if it may be written, and what was read of it."""

    database: Database
    found: Found
    lock: WriterLock | None
    info: StorageInfo
    index: EntryIndex
    """What was read or written, indexed."""

    def close(self) -> None:
        """Give the database back and free the lock."""
        self.database.release()
        if self.lock is not None:
            self.lock.discard()


class BegunSession:
    """A session that is being opened."""

    def __init__(self, path: str, session_id: str | None, mode: Mode, on_corrupt: Corrupt) -> None:
        """Lock and open, or raise and leave nothing behind. Blocking."""
        self.path = path
        self.writing: bool = mode == "write"
        self.skips: bool = on_corrupt == "skip"
        self.warnings: list[SessionWarning] = []
        self.lock: WriterLock | None = None
        self.database: Database = Database.use(path, writing=self.writing)
        try:
            self.found: Found = self.database.read(lambda connection: find_session(connection, session_id, path))
            self.header: SessionHeader = self._header()
            if self.writing:
                self.lock = take_lock(path, self.header.id)
                # Once more: it may have been written to, or deleted, before the lock was ours.
                self.found = self.database.read(lambda connection: find_session(connection, self.header.id, path))
        except BaseException:
            self.close()
            raise
        self.place: str = place_of(path, self.header.id)
        self.index: EntryIndex = EntryIndex(foreign=self.header.branchline is None)
        self.index.salvaged = self.skips
        self.seq: int = 0
        """The place of the next line that is expected."""

    def _header(self) -> SessionHeader:
        try:
            return parse_header(self.found.header, path=self.path)
        except DamagedSessionError as error:
            if not self.skips or not self.found.next_seq:
                raise
            self._report(error)
            return stand_in_header(self.found.id)

    def piece(self) -> list[tuple[int, object]]:
        """About the next MiB of lines; nothing at the end. Blocking."""
        found = self.found
        lines = self.database.read(
            lambda connection: read_piece(connection, found, self.seq - 1, found.next_seq, self.place)
        )
        if not lines and self.seq < found.next_seq:
            self._report_gap(found.next_seq)
            self.seq = found.next_seq
        return lines

    def take(self, lines: Sequence[tuple[int, object]]) -> Iterator[None]:
        """Check and index some lines; pauses after every few."""
        add = self.index.add
        for count, (seq, data) in enumerate(lines):
            if seq != self.seq:
                self._report_gap(seq)
            self.seq = seq + 1
            try:
                add(read_record(seq, data, self.place))
            except DamagedSessionError as error:
                error.path = error.path or self.place
                self._report(error)
            if not count & 15:
                yield

    def _report(self, error: DamagedSessionError) -> None:
        if not self.skips:
            raise error
        message = error.message.split("; nothing was")[0].split("; the file was")[0]
        self.warnings.append(SessionWarning("bad_line", message, error.line))

    def _report_gap(self, seq: int) -> None:
        if not self.skips:
            raise missing(self.seq, seq, self.place)
        line = seq + 2
        why = f"line {line} holds seq {seq}, where {self.seq} was expected; the entries between are missing"
        self.warnings.append(SessionWarning("entries_missing", why, line))

    def finish(self) -> OpenSession:
        """All is read: decide whether it may be written. Blocking."""
        reason = ""
        if self.warnings:
            bad = sum(warning.code == "bad_line" for warning in self.warnings)
            lost = f"{bad} bad lines were skipped" if bad else "entries are missing"
            reason = f"{lost}, so the session can only be read"
        elif not self.writing:
            reason = "the session was opened for reading; open it with mode='write' to append"
        if reason and self.lock is not None:
            self.lock.discard()  # somebody else may repair it
            self.lock = None
        info = StorageInfo(
            header=self.header,
            writable=not reason,
            warnings=tuple(self.warnings),
            place=self.place,
            read_only_reason=reason,
            salvaged=self.skips,
        )
        return OpenSession(self.database, self.found, self.lock, info, self.index)

    def close(self) -> None:
        """Opening failed: give the database back and free the lock."""
        self.database.release()
        if self.lock is not None:
            self.lock.discard()
            self.lock = None


def read_record(seq: int, data: object, where: str) -> Record:
    """The record in a line of the tables. Raises ``DamagedSessionError`` naming the line as a file of lines counts it."""
    line = seq + 2
    if not isinstance(data, bytes):
        raise DamagedSessionError(
            f"invalid session record at line {line}: a {type(data).__name__} where bytes should be; nothing was changed, "
            "and opening with on_corrupt='skip' shows the rest",
            path=where,
            line=line,
        )
    entry = parse_entry(data, where, line)
    if entry.seq is not None and entry.seq != seq:
        raise DamagedSessionError(
            f"invalid session record at line {line}: expected seq {seq}, found {entry.seq}; nothing was changed, and "
            "opening with on_corrupt='skip' shows the rest",
            path=where,
            line=line,
            expected=seq,
            found=entry.seq,
        )
    return Record(seq, entry.id, entry.parent_id, entry.type, data, facts_of(entry), line)


def missing(seq: int, found: int, where: str) -> DamagedSessionError:
    """The error for lines that are not there."""
    return DamagedSessionError(
        f"invalid session record at line {seq + 2}: expected seq {seq}, found {found}; entries are missing; nothing was "
        "changed, and opening with on_corrupt='skip' shows the rest",
        path=where,
        line=seq + 2,
        expected=seq,
        found=found,
    )


async def open_session(
    path: str, session_id: str | None, mode: Mode, on_corrupt: Corrupt, lock_timeout: float
) -> OpenSession:
    """Open and read a whole session; see ``SqliteStorage.open``. The lines are checked as ``open_session_file`` does it."""
    doing = "the session cannot be opened"
    begun = await open_when_free(
        lambda: meaning(path, doing, lambda: BegunSession(real_path(path), session_id, mode, on_corrupt)),
        lock_timeout,
        undo=BegunSession.close,
    )
    try:
        while lines := await run_in_worker(partial(meaning, path, doing, begun.piece)):
            await in_slices(begun.take(lines))
        return await run_in_worker(begun.finish)
    except BaseException:
        await run_in_worker(begun.close)
        raise


def create_session(
    path: str,
    header: SessionHeader,
    records: Sequence[Record],
    durability: Durability,
    blobs: Blobs = (),
    *,
    indexed: bool = True,
) -> OpenSession:
    """Make a session, whole or not at all, and the database if there is none. Blocking.

    Lines and blobs that the session named by ``parent_session`` has in this file too are referred to, not copied. Without
    ``indexed``, nothing of the records is kept in memory, and the session is to be closed.
    """
    path = real_path(path)
    durable = durability == "fsync"
    database = Database.use(path, writing=True, create=True, durable=durable)
    lock: WriterLock | None = None
    try:
        database.read(lambda connection: check_free(connection, header.id, path))
        lock = take_lock(path, header.id)
        found = _make(database, header, records, blobs, durable)
        index = EntryIndex()
        breath = Breath()
        for record in records if indexed else ():
            index.add(record)
            breath.take()
        info = StorageInfo(header=header, writable=True, inline=not durable, place=place_of(path, header.id))
        return OpenSession(database, found, lock, info, index)
    except BaseException:
        if lock is not None:
            # Others may have opened it meanwhile, and its lock is theirs to find; else nothing is left of it.
            lock.release() if _exists(database, header.id) else lock.remove()
        database.release()
        raise


def _exists(database: Database, session_id: str) -> bool:
    try:
        database.read(lambda connection: check_free(connection, session_id, database.path))
    except (BranchlineError, OSError, sqlite3.Error):
        return True  # or nobody knows
    return False


def _make(database: Database, header: SessionHeader, records: Sequence[Record], blobs: Blobs, durable: bool) -> Found:
    path = database.path
    facts = facts_in(records, with_first_message=True) or HeadFacts(None, None, is_named=False)
    parent = _parent(database, header) if header.parent_session and (records or blobs) else None
    # What the caller gives is taken before the transaction begins: it may take its time, and it may fail.
    with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES, dir=os.path.dirname(path)) as spool:
        taken: list[tuple[str, int, int | None]] = []
        for name, data in blobs:
            check_blob_name(name)
            content = _content_of(database, parent, name, data)
            if content is None:
                spool.write(data)
            taken.append((name, len(data), content))
        try:
            return _write_session(database, header, records, facts, parent, spool, taken, durable)
        except StaleSessionError:
            database.check_still_there()
            if parent is None or any(content is not None for _, _, content in taken):
                raise
        # The parent was deleted this moment, so nothing of it can be referred to.
        return _write_session(database, header, records, facts, None, spool, taken, durable)


def _write_session(
    database: Database,
    header: SessionHeader,
    records: Sequence[Record],
    facts: HeadFacts,
    parent: Found | None,
    spool: IO[bytes],
    taken: Sequence[tuple[str, int, int | None]],
    durable: bool,
) -> Found:
    shared = 0
    if parent is not None and records:
        shared = database.read(lambda connection: common_beginning(connection, parent, records, database.path))
    blobs = SpooledBlobs(spool, taken)
    return database.writer.write(
        lambda connection: make_session(
            connection, header, records, facts, parent if shared else None, shared, blobs, database.path
        ),
        size=sum([len(record.data) for record in records[shared:]]),
        durable=durable,
    )


def _parent(database: Database, header: SessionHeader) -> Found | None:
    """The session of this file that a new one was forked from, if it is one of this file."""
    parent_id = header.parent_session or ""
    try:
        return database.read(lambda connection: find_session(connection, parent_id, database.path))
    except BranchlineError:
        return None


def _content_of(database: Database, parent: Found | None, name: str, data: bytes) -> int | None:
    """The number of the parent's blob of that name, if its bytes are these."""
    if parent is None:
        return None
    there = database.read(lambda connection: blob_content(connection, parent.number, name))
    return there[0] if there is not None and there[1] == data else None


def delete_and_scrub(database: Database, session_id: str) -> None:
    """Delete a session, so that its bytes are neither in the file nor in the log. Blocking; the caller has its lock."""
    path = database.path
    database.writer.write(lambda connection: delete_session(connection, session_id, path), durable=True)
    try:
        database.writer.alone(partial(_rewrite, limit=_REWRITTEN_BYTES))
        database.writer.empty_log()
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"the session is deleted, but its bytes could not be wiped from the file: {error}; call "
            "SqliteRepository.vacuum() when nobody reads and the disk has room",
            path=path,
        ) from first_cause(error)


def delete_from(path: str, session_id: str, place: str) -> None:
    """Delete a session whose lock the caller holds, from the database at a real path. Blocking."""
    doing = "the session could not be deleted"
    database = meaning(place, doing, lambda: Database.use(path, writing=True))
    try:
        meaning(place, doing, lambda: delete_and_scrub(database, session_id))
    finally:
        database.release()


def rewrite(database: Database) -> None:
    """Write the whole file anew, without what was deleted. Blocking."""
    database.writer.alone(partial(_rewrite, limit=None))
    database.writer.empty_log()


def _rewrite(connection: sqlite3.Connection, limit: int | None) -> None:
    """SQLite wipes what is deleted, but not what it left behind when it moved a row to another page."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    if limit is not None and pages * size > limit:
        return
    in_memory = pages * size <= _REWRITTEN_BYTES
    connection.execute(f"PRAGMA temp_store = {'MEMORY' if in_memory else 'FILE'}")
    patiently(lambda: connection.execute("VACUUM"))
