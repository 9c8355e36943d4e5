"""Waiting for what others append: told by the server where it can tell, else looked up a few times a second.

``LISTEN`` needs a connection of its own, straight to the server: through a transaction pooler the news go to whoever has
the connection at that moment. Appends tell the news only where somebody follows: each telling holds a lock of the whole
database for a moment, which a hundred thousand sessions that nobody watches should not wait for.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
import uuid
from typing import TYPE_CHECKING, Final

from storage.errors import SessionClosedError, StorageError
from storage.postgres_schema import FOLLOW
from storage.postgres_wire import Connection, ConnectionLost, Refused, Value, bigint

if TYPE_CHECKING:
    from storage.postgres_pool import Pool

_FOLLOWED_SECONDS: Final = 30
_TELL_EVERY: Final = 10.0
_LOOK_EVERY_WHEN_TOLD: Final = 5.0
"""News can be lost (the server was restarted, the row was not there yet), so it is looked up as well."""

_LOOK_EVERY: Final = 0.2
_PAUSE: Final = 0.05
_SLICE: Final = 0.5
"""How long it waits for the server without looking whether it was closed."""


class Follower:
    """Waits for changes of one session, on one connection. For one thread at a time."""

    def __init__(self, pool: Pool, session: bytes) -> None:
        """Connects when it first waits."""
        self._pool = pool
        self._session = session
        self._name = str(uuid.UUID(bytes=session))
        self._connection: Connection | None = None
        self._ended = threading.Event()
        self._guard = threading.RLock()
        self._listens = False
        self._is_told = False
        """Whether it listens, and appends know that."""
        self._tell_at = 0.0
        self._look_at = 0.0
        self._tip: list[tuple[Value, ...]] | None = None

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; whether there may be something new. The first time it says so at once.

        Raises ``StorageError``, and ``SessionClosedError`` if it is closed meanwhile.
        """
        until = time.monotonic() + timeout
        with self._guard:
            return self._wait(until)

    def _wait(self, until: float) -> bool:
        while True:
            if self._ended.is_set():
                raise SessionClosedError(
                    "this storage was closed while it waited; open the session anew", path=self._pool.place
                )
            try:
                if self._look(until):
                    return True
            except (ConnectionLost, Refused) as error:
                self._let_go()
                if time.monotonic() >= until or isinstance(error, Refused):
                    raise StorageError(
                        f"the session cannot be followed: {error}; see that the server runs, then try again",
                        path=self._pool.place,
                    ) from error
                self._ended.wait(_PAUSE)
                continue
            if time.monotonic() >= until:
                return False

    def close(self) -> None:
        """Let the connection go, as soon as who waits in another thread has seen it. Idempotent."""
        self._ended.set()
        with self._guard:
            self._let_go()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _look(self, until: float) -> bool:
        connection = self._connection or self._connect()
        now = time.monotonic()
        if self._listens and now >= self._tell_at:
            self._tell(connection, now)
        if now >= self._look_at:
            self._look_at = now + (_LOOK_EVERY_WHEN_TOLD if self._is_told else _LOOK_EVERY)
            if self._has_changed(connection):
                return True
        wake_at = min(until, self._look_at, self._tell_at if self._listens else until)
        if self._is_told:
            # What came along with an answer is there already, and the socket does not tell.
            if not (told := connection.notifications()):
                poller = select.poll()
                poller.register(connection.socket, select.POLLIN)
                poller.poll(min(_SLICE, max(0.0, wake_at - time.monotonic())) * 1000)
                told = connection.notifications()
            return self._name in told and self._has_changed(connection)
        self._ended.wait(max(0.0, wake_at - time.monotonic()))
        return False

    def _has_changed(self, connection: Connection) -> bool:
        tip = connection.run(
            "SELECT s.session, (SELECT max(e.seq) FROM branchline_entries e WHERE e.session = s.session) "
            "FROM branchline_sessions s WHERE s.session = $1::uuid",
            self._session,
        )
        changed = tip != self._tip
        self._tip = tip
        return changed

    def _connect(self) -> Connection:
        settings = self._pool.settings
        connection = self._connection = Connection(settings.direct_dsn or settings.dsn, seconds=settings.answer_seconds)
        self._listens = self._is_told = False
        self._look_at = 0.0
        # A pooler tells its clients a process number of its own.
        ((backend,),) = connection.run("SELECT pg_backend_pid()")
        if int.from_bytes(backend or b"", "big") == connection.backend:
            # Refused by another engine, or a standby: then it is looked up.
            with contextlib.suppress(Refused):
                connection.run("LISTEN branchline")
                self._listens = True
                self._tell(connection, time.monotonic())
        return connection

    def _tell(self, connection: Connection, now: float) -> None:
        """Tell the writer that somebody follows. Where that is refused (for now), it is looked up."""
        self._tell_at = now + _TELL_EVERY
        try:
            connection.run(FOLLOW, self._session, bigint(_FOLLOWED_SECONDS))
        except Refused:
            self._is_told, self._look_at = False, 0.0
        else:
            self._is_told = True
