"""What the tests of PostgreSQL put between us and the server, and how they look into it behind our back."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import anyio
import psycopg

from storage import EntryLog, PostgresStorage
from storage.event_loops import run_in_worker
from storage.postgres_pool import Pool
from tests.postgres_server import PostgresServer, free_port, unprivileged, without_server

TABLES = (
    "branchline_names",
    "branchline_sessions",
    "branchline_entries",
    "branchline_shares",
    "branchline_blobs",
)


def sql(dsn: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement, on a connection of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def rows_in(dsn: str) -> dict[str, int]:
    """How many rows each table has."""
    return {table: sql(dsn, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def pool_of(log: EntryLog) -> Pool:
    """The pool of a log's storage."""
    assert isinstance(log.storage, PostgresStorage)
    assert log.storage._pool is not None
    return log.storage._pool


@contextlib.contextmanager
def impatient(log: EntryLog, seconds: float) -> Generator[None]:
    """Meanwhile an answer may take that long only; before and after it has all the time that a busy machine needs."""
    pool = pool_of(log)
    settings = pool.settings
    pool.settings = replace(settings, answer_seconds=seconds)
    for connection in pool._free:
        connection._seconds = seconds
    try:
        yield
    finally:
        pool.settings = settings
        for connection in pool._free:
            connection._seconds = settings.answer_seconds


async def until_waiting(dsn: str, count: int) -> None:
    """Until so many connections wait for a lock, but those that renew leases: they wait for a moment only."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query NOT LIKE '%given.age%' "
        "AND datname = current_database()"
    )
    with anyio.fail_after(60):
        while (await run_in_worker(lambda: sql(dsn, waiting)))[0][0] < count:
            await anyio.sleep(0.01)


class Appends:
    """Holds up the appends of chosen sessions in the middle of their statements, behind their rows' locks.

    For a place with tables of its own.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        sql(
            dsn,
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
            "PERFORM pg_advisory_xact_lock_shared(hashtextextended(NEW.session::text, 0)); RETURN NEW; END'",
        )
        sql(dsn, "CREATE TRIGGER wait BEFORE INSERT ON branchline_entries FOR EACH ROW EXECUTE FUNCTION wait()")

    @contextlib.contextmanager
    def held_up(self, *session_ids: str) -> Generator[psycopg.Connection]:
        """Until the end, or until the connection is rolled back."""
        with psycopg.connect(self._dsn) as connection:
            for session_id in session_ids:
                connection.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended(session::text, 0)) FROM branchline_sessions "
                    "WHERE id = %s",
                    (session_id,),
                )
            yield connection


async def until_gathered(log: EntryLog, count: int) -> None:
    """Until so many appends wait for the next statement of the log's pool."""
    with anyio.fail_after(60):
        while len(pool_of(log).batches._waiting) < count:
            await anyio.sleep(0.01)


class Proxy:
    """Stands between the client and the server, and cuts the connection at the worst moment."""

    def __init__(self, server: PostgresServer) -> None:
        self._target = server.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_after: int | None = None
        """Cut when so many more bytes have gone to the server; then this is ``None`` again."""
        self.cut_on_answer = False
        """Cut when the server answers next, and swallow the answer; then this is false again."""
        self.cut_answer_to: bytes | None = None
        """Cut and swallow the answer to what holds these bytes; then this is ``None`` again."""
        self.cut_always: bytes | None = None
        """Let nothing through that holds these bytes: cut instead, each time."""
        self.silent = False
        """Let nothing through, in either direction, without a word."""
        self.cuts = 0
        self.sent = 0
        """How many bytes have gone to the server."""
        self._ended = threading.Event()
        self._generation = 0
        self._forwarding: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.close()

    def cut_all(self) -> None:
        """Cut every connection there is, and come back when that is done."""
        self._generation += 1
        there = set(self._forwarding)
        until = time.monotonic() + 60
        while there & self._forwarding:
            assert time.monotonic() < until
            time.sleep(0.005)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._forwarding.add(client)
            threading.Thread(target=self._forward, args=(client, server, self._generation), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, generation: int) -> None:
        with contextlib.ExitStack() as both:
            both.callback(self._forwarding.discard, client)
            both.enter_context(client)
            both.enter_context(server)
            while not self._ended.is_set() and self._generation == generation:
                if self.silent:
                    time.sleep(0.01)
                    continue
                ready, _, _ = select.select([client, server], [], [], 0.05)
                for one in () if self.silent else ready:
                    try:
                        data = one.recv(65536)
                    except OSError:
                        return
                    if not data or self._cuts(data, one is client, server):
                        return
                    try:
                        (server if one is client else client).sendall(data)
                    except OSError:
                        return
                    self.sent += len(data) if one is client else 0

    def _cuts(self, data: bytes, to_server: bool, server: socket.socket) -> bool:
        if not to_server:
            cut, self.cut_on_answer = self.cut_on_answer, False
            self.cuts += cut
            return cut
        if self.cut_always is not None and self.cut_always in data:
            self.cuts += 1
            return True
        if self.cut_answer_to is not None and self.cut_answer_to in data:
            self.cut_answer_to = None
            self.cut_on_answer = True
        if self.cut_after is None:
            return False
        if len(data) < self.cut_after:
            self.cut_after -= len(data)
            return False
        server.sendall(data[: self.cut_after])
        self.cut_after = None
        self.cuts += 1
        return True


class Pooler:
    """PgBouncer in transaction mode, before a server: fewer connections than clients, another one for each transaction."""

    def __init__(self, server: PostgresServer, connections: int = 3) -> None:
        program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
        if program is None:
            without_server("there is no PgBouncer here; install Debian's pgbouncer package")
            raise AssertionError
        self.port = free_port()
        user = unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="branchline-pgbouncer-"))
        (self._folder / "users").write_text('"postgres" ""\n')
        (self._folder / "settings").write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={server.port}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self._folder / 'users'}\n"
            f"pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 200\n"
        )
        for path in (self._folder, *self._folder.iterdir()):
            if user is not None:
                os.chown(path, user, -1)
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [program, self._folder / "settings"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=user,
                extra_groups=None if user is None else [],
            )
        self.dsn = server.dsn(port=self.port)
        until = time.monotonic() + 20
        while True:
            try:
                sql(self.dsn, "SELECT 1")
            except psycopg.Error:
                if time.monotonic() > until or self._process.poll() is not None:
                    self.stop()
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
