"""The one connection that writes to a database in this process, and whose turn it is.

Writes of several sessions that come at the same time are committed in one transaction with one sync: whoever comes first
leads, takes along what waits, and hands the lead on. Nothing here knows what a session is.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from storage.errors import BranchlineError, SessionClosedError, StaleSessionError
from storage.sqlite_connections import connect_to_read, patiently
from storage.sqlite_errors import NotWrittenError, first_cause, is_busy, is_failed_sync, is_undone
from storage.sqlite_schema import APPLICATION_ID

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
"""Statements of one transaction. It may refuse, by a ``BranchlineError``, before it has written anything."""

_BATCH_WRITES: Final = 256
_BATCH_BYTES: Final = 8 * 1024 * 1024
_LOG_BYTES: Final = 16 * 1024 * 1024
"""After so many bytes the log is brought into the file."""

_PAGES: Final = 2 * 4096
"""What a commit adds to the log beside its own bytes, about."""


class _Write(Generic[T]):
    """Work that waits for its turn, and what came of it."""

    def __init__(self, work: Work[T], size: int, *, durable: bool, alone: bool = False) -> None:
        self.work = work
        self.size = size
        self.durable = durable
        self.alone = alone
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> None:
        """Until it is done, or it is its turn to lead."""
        self._turn.acquire()

    def wake(self) -> None:
        """Let it go on."""
        self._turn.release()

    def outcome(self) -> T:
        """What the work returned, or raise what came of it."""
        if self.error is None:
            return cast("T", self.result)
        try:
            raise self.error
        finally:
            self.error = None  # its traceback holds this frame: break the cycle


class DatabaseWriter:
    """Takes the writes of all sessions of a file, one transaction at a time. Blocking, for any thread."""

    def __init__(self, path: str, connection: sqlite3.Connection, check_still_there: Callable[[], None]) -> None:
        """``check_still_there`` raises ``StaleSessionError`` if what lies at ``path`` is not the file that was opened."""
        self.path = path
        self._connection = connection
        self._check_still_there = check_still_there
        self._guard = threading.Lock()
        self._waiting: deque[_Write[Any]] = deque()
        self._busy = False
        """Whether somebody leads."""
        self._full = True
        """Whether each commit is synced."""
        self._log_path = path + "-wal"
        self._log_identity: tuple[int, int] | None = None
        """Device and inode. As long as we have it open, no SQLite takes it away."""
        self._log_bytes = 0
        self._log_is_new = True
        """Whether the next commit begins the log, which SQLite syncs whatever was asked for."""
        self._checking = False
        """Whether the log is being brought into the file."""
        self._broken: BaseException | None = None
        self._closed = False

    @property
    def is_broken(self) -> bool:
        """Whether a sync failed, so that nobody knows what the disk holds."""
        return self._broken is not None

    def close(self) -> None:
        """Close the connection. The last one to close a database brings the log into the file."""
        with self._guard:
            self._closed = True
        if self._broken is None:
            self._connection.close()
            return
        # That must not be tried after a sync that failed, so somebody else is the last one: who can only read.
        try:
            witness, _ = connect_to_read(self.path)
        except (OSError, sqlite3.Error):
            self._connection.close()
            return
        self._connection.close()
        witness.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise SessionClosedError("this storage is closed; open the session anew", path=self.path)
        if self._broken is not None:
            raise self._broken

    def write(self, work: Work[T], *, size: int = 0, durable: bool) -> T:
        """Do ``work`` in a transaction, perhaps together with others', and commit it; ``durable``: and sync it.

        Raises what ``work`` refused with (nothing is written then), ``NotWrittenError`` from the first error where it is
        known that nothing was, ``StaleSessionError``, and anything else where nobody knows.
        """
        return self._queue(_Write(work, size, durable=durable))

    def write_at_once(self, work: Work[T], *, size: int) -> tuple[bool, T | None]:
        """Do it without waiting for anybody or for a sync; ``(False, None)`` if that cannot be. For the event loop."""
        write = _Write(work, size, durable=False)
        with self._guard:
            self._check_usable()
            if self._busy or self._log_is_new:
                return False, None
            self._busy = True
        try:
            done = self._commit([write], patient=False)
        finally:
            self._hand_on([])
        return (True, write.outcome()) if done else (False, None)

    def alone(self, work: Work[T]) -> T:
        """Do ``work``, which opens no transaction or its own, while nobody here writes."""
        return self._queue(_Write(work, 0, durable=True, alone=True))

    def empty_log(self) -> None:
        """Bring the whole log into the file and cut it to nothing, so that what was deleted is in neither.

        Raises ``sqlite3.OperationalError`` if somebody reads for too long.
        """

        def empty(connection: sqlite3.Connection) -> None:
            def attempt() -> None:
                (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if busy:
                    error = sqlite3.OperationalError("somebody reads, and has done so for long")
                    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                    raise error

            patiently(attempt, 10)
            self._log_bytes = 0
            self._log_is_new = True

        self.alone(empty)

    def _queue(self, write: _Write[T]) -> T:
        with self._guard:
            self._check_usable()
            leads = not self._busy
            if leads:
                self._busy = True
            else:
                self._waiting.append(write)
        if not leads:
            write.wait()
        if not write.done:
            batch = [write] if leads else self._take()
            try:
                self._lead(batch)
            finally:
                self._hand_on([other for other in batch if other is not write])
        result = write.outcome()
        if self.log_is_long and not write.alone:
            self.check_point()
        return result

    def _take(self) -> list[_Write[Any]]:
        """The head of what waits, with as much behind it as goes into one transaction."""
        with self._guard:
            batch = [self._waiting.popleft()]
            size = batch[0].size
            while (
                self._waiting
                and not batch[0].alone
                and not self._waiting[0].alone
                and len(batch) < _BATCH_WRITES
                and size + self._waiting[0].size <= _BATCH_BYTES
            ):
                batch.append(self._waiting.popleft())
                size += batch[-1].size
            return batch

    def _hand_on(self, settled: Sequence[_Write[Any]]) -> None:
        """The next one leads; those that were settled go on."""
        with self._guard:
            following = self._waiting[0] if self._waiting else None
            self._busy = following is not None
        if following is not None:
            following.wake()
        for write in settled:
            write.wake()

    def _lead(self, batch: list[_Write[Any]]) -> None:
        if batch[0].alone:
            (write,) = batch
            try:
                self._check_usable()
                write.result = write.work(self._connection)
            except BaseException as error:  # noqa: BLE001 - handed to who asked for it
                self._note(error)
                self._roll_back(error)
                write.error = error
            write.done = True
            return
        self._commit(batch, patient=True)

    def _commit(self, batch: list[_Write[Any]], *, patient: bool) -> bool:
        """Settle all of ``batch``. False if it would have to wait for another process; then nothing is settled."""
        connection = self._connection
        begun = False
        committing = False
        try:
            self._check_usable()
            if patient:
                self._check_still_there()
            self._choose_level(connection, full=any(write.durable for write in batch))
            if patient:
                patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            else:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if is_busy(error):
                        return False
                    raise
            begun = True
            for write in batch:
                try:
                    write.result = write.work(connection)
                except BranchlineError as refusal:
                    write.error = refusal
            committing = True
            connection.execute("COMMIT")
            self._log_is_new = False
            self._log_bytes += sum([write.size + _PAGES for write in batch])
            # What went into a file that was deleted or replaced before is in no session.
            self._check_still_there()
            self._check_log()
        except BaseException as error:  # noqa: BLE001 - it settles every write of the batch
            self._settle_failed(batch, error, begun=begun, committing=committing)
        for write in batch:
            write.done = True
        return True

    def _check_log(self) -> None:
        """Raise ``StaleSessionError`` if the log was taken away, by whatever cleans up: what is in it would be lost."""
        try:
            status = os.stat(self._log_path)
        except FileNotFoundError as error:
            raise StaleSessionError(
                "the database's log (-wal) was deleted while it was open; open the session anew", path=self.path
            ) from error
        identity = (status.st_dev, status.st_ino)
        if self._log_identity is None:
            self._log_identity = identity
        elif identity != self._log_identity:
            raise StaleSessionError(
                "the database's log (-wal) was replaced while it was open; open the session anew", path=self.path
            )

    def _choose_level(self, connection: sqlite3.Connection, *, full: bool) -> None:
        if full is not self._full:
            connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full

    def _settle_failed(self, batch: list[_Write[Any]], error: BaseException, *, begun: bool, committing: bool) -> None:
        """Roll back, and give each write its outcome; where it is sure that nothing was written, each is tried alone."""
        self._note(error)
        known = not begun or not committing or is_undone(error)
        if self._broken is not None or isinstance(error, StaleSessionError) or not isinstance(error, Exception):
            known = False
        if begun and not self._roll_back(error):
            known = False
        if known and begun and not committing and len(batch) > 1:
            # One of them is to blame, and the others are not.
            for write in batch:
                self._commit([write], patient=True)
            return
        cause = self._broken or first_cause(error)
        for write in batch:
            if known:
                failure: BaseException = NotWrittenError(str(cause))
                failure.__cause__ = cause
            else:
                failure = cause
            write.error = failure

    def _roll_back(self, error: BaseException) -> bool:
        """End what ``error`` has left open, which would keep every other writer out. Whether that worked."""
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as second:
                error.__context__ = second
                return False
        return True

    def _note(self, error: BaseException) -> None:
        """After a sync that failed, this is the error of everybody here."""
        if is_failed_sync(error) and self._broken is None:
            self._broken = first_cause(error)

    @property
    def log_is_long(self) -> bool:
        """Whether it is time for ``check_point``."""
        return self._log_bytes > _LOG_BYTES and not self._checking

    def check_point(self) -> None:
        """Bring the log into the file, and begin it anew.

        Nobody here writes meanwhile: SQLite before 3.51.3 has a rare race between one that writes and one that does this.
        """
        with self._guard:
            if self._checking or self._closed:
                return
            self._checking = True
        try:
            self.alone(self._begin_log_anew)
        except sqlite3.Error as error:
            # What was acknowledged is in the log, as durably as it was asked for, and this is tried again later. Only
            # after a sync that failed nobody knows what the disk holds.
            if self._broken is not None:
                raise self._broken from error
        finally:
            self._log_bytes = 0
            self._checking = False

    def _begin_log_anew(self, connection: sqlite3.Connection) -> None:
        """Bring the log into the file, and write a page that is what it was.

        SQLite syncs a log that begins again, whatever was asked for: here, and not under an append on the event loop.
        """
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
        self._log_is_new = False
