"""One database file as this process has it open: one connection that writes, some that read, shared by all its sessions."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from typing import Final, TypeVar

from storage.errors import SessionClosedError, StaleSessionError
from storage.sqlite_connections import (
    check_tables,
    connect_to_read,
    connect_to_write,
    file_status,
    look,
    make_file,
    patiently,
)
from storage.sqlite_writer import DatabaseWriter, Work

T = TypeVar("T")

_IDLE_READERS: Final = 4

_registry = threading.RLock()
"""Held only to find the lock of a path."""

_path_locks: weakref.WeakValueDictionary[str, threading.RLock] = weakref.WeakValueDictionary()
"""Held while the database of a path is opened or closed, as long as that takes: a slow disk holds up no other one.

These can be taken again by who has them: a storage that was dropped is closed by the garbage collector, in any thread.
"""

_open: dict[str, Database] = {}
_all: weakref.WeakSet[Database] = weakref.WeakSet()
_left_to_parent: list[Database] = []


class Database:
    """A file, shared by its users in this process. Made by ``use``; each gives it back by ``release``. Blocking."""

    def __init__(self, path: str, status: os.stat_result) -> None:
        """Use ``use``."""
        self.path = path
        self._identity = (status.st_dev, status.st_ino)
        self._guard = threading.Lock()
        self._writer: DatabaseWriter | None = None
        self._readers: list[sqlite3.Connection] = []
        self._users = 0
        self._gone = False
        _all.add(self)

    # --- users

    @classmethod
    def use(cls, path: str, *, writing: bool, create: bool = False, durable: bool = True) -> Database:
        """The database at ``path``, a real path; opened, and with ``create`` made, if nobody here has it open.

        Raises ``SessionNotFoundError``, ``DamagedSessionError``, ``UnsupportedVersionError``, ``OSError`` and
        ``sqlite3.Error``.
        """
        with _lock_of(path):
            if create:
                make_file(path, durable=durable)
            status = file_status(path)
            database = _open.get(path)
            if database is None or not database.join(status, writing=writing):
                version = look(path)
                if not create:
                    check_tables(version, path, writing=writing)
                database = cls(path, status)
                if writing:
                    database._connect_to_write()
                try:
                    database.check_still_there()  # what was opened is what we looked at
                except BaseException:
                    database._close()
                    raise
                database._users = 1
                _open[path] = database
            return database

    def join(self, status: os.stat_result, *, writing: bool) -> bool:
        """One user more, if that is our file, and nothing happened after which one has to begin anew; whether it is so."""
        self._users += 1  # before anything else, so that no user who is collected in this thread closes it
        joined = False
        try:
            broken = self._gone or (self._writer is not None and self._writer.is_broken)
            if not broken and (status.st_dev, status.st_ino) == self._identity:
                if writing and self._writer is None:
                    self._connect_to_write()
                joined = True
        finally:
            if not joined:
                self._give_back()
        return joined

    def _connect_to_write(self) -> None:
        self._writer = DatabaseWriter(self.path, connect_to_write(self.path), self.check_still_there)

    def release(self) -> None:
        """One user less; the last one closes it."""
        with _lock_of(self.path):
            self._give_back()

    def _give_back(self) -> None:
        self._users -= 1
        if self._users or self._gone:
            return
        if _open.get(self.path) is self:
            del _open[self.path]
        self._close()

    def _close(self) -> None:
        with self._guard:
            readers, self._readers = self._readers, []
            self._gone = True
        for connection in readers:
            connection.close()
        if self._writer is not None:
            self._writer.close()  # last: it takes the log's files away

    @property
    def writer(self) -> DatabaseWriter:
        """What writes. Raises ``SessionClosedError`` where it was opened to read."""
        if self._writer is None:
            raise SessionClosedError("the database was opened for reading", path=self.path)
        return self._writer

    def check_still_there(self) -> None:
        """Raise ``StaleSessionError`` unless what lies at our path is the file that we opened."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError as error:
            raise StaleSessionError("the database was deleted; open the session anew", path=self.path) from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise StaleSessionError("the database was replaced; open the session anew", path=self.path)
        if status.st_size == 0:
            raise StaleSessionError("the database was emptied; open the session anew", path=self.path)

    def leave_to_parent(self) -> None:
        """In a forked child: never touch it again, not even to close it. The files and their locks are the parent's."""
        self._guard = threading.Lock()
        self._gone = True
        _left_to_parent.append(self)

    # --- reading

    def read(self, work: Work[T]) -> T:
        """What ``work`` finds, all of it as of one moment. Raises what it raises, and ``sqlite3.Error``."""
        return patiently(lambda: self._read(work))

    def _read(self, work: Work[T]) -> T:
        self.check_still_there()
        with self._guard:
            if self._gone:
                raise SessionClosedError("this storage is closed; open the session anew", path=self.path)
            connection = self._readers.pop() if self._readers else None
        lasts = True
        if connection is None:
            connection, lasts = connect_to_read(self.path)
        try:
            connection.execute("BEGIN")
            try:
                result = work(connection)
            finally:
                if connection.in_transaction:  # a disk that fails has ended it, and that error is the one to tell
                    connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
        with self._guard:
            keep = lasts and not self._gone and len(self._readers) < _IDLE_READERS
            if keep:
                self._readers.append(connection)
        if not keep:
            connection.close()
        return result


def _lock_of(path: str) -> threading.RLock:
    with _registry:
        lock = _path_locks.get(path)
        return _path_locks.setdefault(path, threading.RLock()) if lock is None else lock


def _leave_to_parent() -> None:
    """In a forked child: SQLite's connections must not be used there, nor closed."""
    global _registry, _path_locks
    _registry = threading.RLock()
    _path_locks = weakref.WeakValueDictionary()
    for database in list(_all):
        database.leave_to_parent()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
