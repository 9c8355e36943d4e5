"""The connections to one database that the sessions of a process share, and how a lost one is survived.

A pool lives as long as somebody holds it: a repository, or an open storage. With the last of them its connections go.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from storage.errors import SessionNotFoundError, StorageError
from storage.postgres_batches import Batches, give_way
from storage.postgres_leases import Keeper
from storage.postgres_schema import NO_TABLE, VERSION, installed_version, migrate
from storage.postgres_wire import Connection, ConnectionLost, Refused, shown

T = TypeVar("T")

_AGAIN: Final = ("40001", "40P01", "55P03")
"""SQLSTATEs that say: nothing was done, try once more (serialisation, deadlock, a lock that was not free)."""

_READ_ONLY: Final = "25006"
_ATTEMPTS: Final = 10
_SHORTEST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.5
_LONGEST_ANSWER: Final = 86_400


@dataclass(frozen=True, slots=True)
class Settings:
    """How a pool goes about it; see ``PostgresRepository``."""

    dsn: str = field(repr=False)
    connections: int = 4
    answer_seconds: float = 30.0
    lease_seconds: int = 30
    direct_dsn: str | None = field(default=None, repr=False)
    together: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.connections < 1:
            raise ValueError(f"connections={self.connections}: a pool needs at least one")
        if not 0 < self.answer_seconds <= _LONGEST_ANSWER:
            raise ValueError(f"answer_seconds={self.answer_seconds}: give more than 0, and at most {_LONGEST_ANSWER}")
        if self.lease_seconds < 1:
            raise ValueError(f"lease_seconds={self.lease_seconds}: give at least 1")


_pools: WeakValueDictionary[tuple[int, Settings], Pool] = WeakValueDictionary()
_pools_guard = threading.Lock()
if hasattr(os, "register_at_fork"):
    # A child that was forked while another thread had it would wait for it for ever.
    os.register_at_fork(
        before=_pools_guard.acquire, after_in_parent=_pools_guard.release, after_in_child=_pools_guard.release
    )


def shared_pool(settings: Settings) -> Pool:
    """The pool of this process for these settings; made now if nobody holds one. Connects to nothing."""
    key = (os.getpid(), settings)
    with _pools_guard:
        pool = _pools.get(key)
        if pool is None:
            pool = _pools[key] = Pool(settings)
        return pool


class Pool:
    """At most so many connections to one database, and what all sessions of it share. Blocking, for worker threads."""

    def __init__(self, settings: Settings) -> None:
        """Use ``shared_pool``."""
        self.settings = settings
        self.place: str = shown(settings.dsn)
        self.keeper: Keeper = Keeper(self)
        self.batches: Batches = Batches(self)
        self._free: list[Connection] = []
        self._open = 0
        self._changed = threading.Condition()
        self._checked = False
        # Not __del__: where a pool is collected as part of a cycle, that may come after its connections' own, which warn
        # that nobody closed them.
        weakref.finalize(self, _close_all, self._free)

    # --- connections

    @contextmanager
    def connection(self, until: float, *, free_until: float | None = None) -> Generator[Connection]:
        """A connection of one's own for a while. Raises ``ConnectionLost`` if none can be made ``until`` then.

        ``free_until``: until when to wait for one that others use; without it, for as long as an answer may take.
        """
        connection = self._take(until, max(until, self.deadline()) if free_until is None else free_until)
        try:
            yield connection
        except Refused as refused:
            if refused.sqlstate == _READ_ONLY:
                connection.close()  # it was the primary once: by the address, another one is found
            raise
        finally:
            self._put_back(connection)

    @contextmanager
    def extra_connection(self) -> Generator[Connection]:
        """A connection beside the pool's, for work in which others are waited for that need one of those."""
        connection = Connection(self.settings.dsn, seconds=self.settings.answer_seconds)
        try:
            yield connection
        finally:
            connection.close()

    def _take(self, until: float, free_until: float) -> Connection:
        wait = _SHORTEST_WAIT
        while True:
            with self._changed:
                while self._open >= self.settings.connections and not self._free:
                    if not self._changed.wait(free_until - time.monotonic()):
                        raise ConnectionLost("all connections of the pool were in use all the time")
                if self._free:
                    return self._free.pop()
                self._open += 1
            try:
                return Connection(self.settings.dsn, seconds=self.settings.answer_seconds)
            except BaseException as error:
                with self._changed:
                    self._open -= 1
                    self._changed.notify_all()
                    give_up_at = free_until if self._open else until
                    if not isinstance(error, ConnectionLost) or time.monotonic() + wait > give_up_at:
                        raise
                    # The server is starting, another one takes its place, or it takes no more of us: then those that we
                    # have must do.
                    self._changed.wait_for(lambda: self._free, wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    def _put_back(self, connection: Connection) -> None:
        if not connection.lost and connection.in_transaction:
            try:
                connection.run("ROLLBACK")
            except (ConnectionLost, Refused):
                connection.close()
        with self._changed:
            if connection.lost:
                self._open -= 1
                # What the others were connected to is gone as well, likely; finding out costs each an unknown outcome.
                while self._free:
                    self._free.pop().close()
                    self._open -= 1
                self._changed.notify_all()
            else:
                self._free.append(connection)
                self._changed.notify()

    def deadline(self) -> float:
        """Until when, on the monotonic clock, something that begins now may go on about a lost connection."""
        return time.monotonic() + self.settings.answer_seconds

    # --- work that may be done again

    def call(self, work: Callable[[Connection], T], *, patient: bool = False, extra: bool = False) -> T:
        """What ``work`` returns. It is done once more, on another connection, if one was lost: it must allow that.

        ``patient``: go on connecting for as long as an answer may take; without it, a server that is not there is an
        error at once. ``extra``: on a connection beside the pool's. Raises ``StorageError``, and what ``work`` raises.
        """
        until = self.deadline()
        attempts = _ATTEMPTS
        while True:
            attempts -= 1
            try:
                taken = self.extra_connection() if extra else self.connection(until if patient else time.monotonic())
                with taken as connection:
                    return work(connection)
            except ConnectionLost as lost:
                if time.monotonic() > until or not (patient or (attempts and self._is_there())):
                    raise StorageError(
                        f"the database cannot be reached: {lost}; see that the server runs and the address is right, then "
                        "try again",
                        path=self.place,
                    ) from (lost.__cause__ or lost)
            except Refused as refused:
                if refused.sqlstate == NO_TABLE:  # they were dropped
                    self._checked = False
                if refused.sqlstate not in _AGAIN or attempts <= 0:
                    raise self.refusal(refused) from refused.error
            give_way(_ATTEMPTS - attempts)

    def _is_there(self) -> bool:
        """Whether a new connection can be made: the lost one may have been an old one, to a server that was restarted."""
        try:
            with self.connection(time.monotonic()):
                return True
        except ConnectionLost:
            return False

    def refusal(self, refused: Refused) -> StorageError:
        """The error for a statement that the server refused."""
        return StorageError(
            f"the database refused: {refused}; nothing of it was written", path=self.place, sqlstate=refused.sqlstate
        )

    # --- the tables

    def ready(self, *, make: bool) -> None:
        """See that the tables are there, of our version. ``make``: make or change them if they are not.

        Raises ``SessionNotFoundError`` where there are none, ``UnsupportedVersionError``, ``StorageError``.
        """
        if self._checked:
            return

        def look(connection: Connection) -> int:
            version = installed_version(connection)
            if make and version < VERSION:
                migrate(connection)
                version = VERSION
            if version and not connection.run("SELECT 1 FROM pg_catalog.pg_proc WHERE proname = 'pg_notify'"):
                self.batches.tell_nobody()
            return version

        version = self.call(look)
        if version == 0:
            raise SessionNotFoundError("there is no session in this database, not even the tables", path=self.place)
        if version < VERSION:
            raise StorageError(
                f"the tables are of schema version {version}, and this program needs {VERSION}; create a session here once "
                "with it, which brings them up to date",
                path=self.place,
            )
        self._checked = True


def _close_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
