"""What a storage with a writer's lock does, whatever lies under it: who may write, what is next, what was never closed."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

from storage.errors import ReadOnlySessionError, SessionClosedError, StaleSessionError
from storage.file_lock import WriterLock
from storage.index import EntryIndex
from storage.protocols import Durability, Record, StorageInfo


class LockedStorage(ABC):
    """An open session: with the writer's lock if it may be written (R12), without it if it is only read."""

    def __init__(
        self, info: StorageInfo, lock: WriterLock | None, index: EntryIndex, next_seq: int, durability: Durability
    ) -> None:
        """Takes over ``lock``. ``index`` and ``next_seq``: what opening has read, or making has written."""
        self._info = info
        self._lock = lock
        self._index: EntryIndex | None = index
        self._next_seq: int = next_seq
        self._durable = durability == "fsync"
        self._writing = info.writable
        self._closed = False

    @abstractmethod
    def _let_go(self) -> None:
        """Close what the backend has open. Called once; the lock is freed after it."""

    @property
    def info(self) -> StorageInfo:
        """The header and the state."""
        return self._info

    def take_index(self) -> EntryIndex | None:
        """What opening has read, indexed, for the one who asks first."""
        index, self._index = self._index, None
        return index

    def close(self) -> None:
        """Close what is open and free the lock, which goes whatever closing raises. Idempotent."""
        self._writing = False
        try:
            if not self._closed:
                self._closed = True
                self._let_go()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()  # first: where warnings are errors, nothing comes after them
            warnings.warn(
                f"a session was dropped without being closed: {self._info.place}", ResourceWarning, stacklevel=1
            )

    def _may_write(self) -> bool:
        return self._writing and self._lock is not None and self._lock.held

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("this storage is closed; open the session anew", path=self._info.place)

    def _check_next(self, records: Sequence[Record], what: str) -> None:
        """Raise ``StaleSessionError`` unless ``records`` are the next ones of this ``what``, and the lock is ours.

        Raises ``SessionClosedError`` where it was closed, and ``ReadOnlySessionError`` where it may not be written.
        """
        self._check_open()
        if not self._info.writable:
            why = (
                self._info.read_only_reason or "the session was opened for reading; open it with mode='write' to append"
            )
            raise ReadOnlySessionError(why, path=self._info.place)
        if self._lock is None or not self._lock.held:
            raise StaleSessionError(
                "the writer's lock is not ours (was this process forked?); nothing was written; open the session anew",
                path=self._info.place,
            )
        if records and (records[0].seq != self._next_seq or not self._writing):
            raise StaleSessionError(
                f"the next entry of this {what} is {self._next_seq}, not {records[0].seq}; open the session anew",
                path=self._info.place,
            )
