"""What the tests of PostgreSQL put between us and the server, and how they look into it behind our back."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import psycopg

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
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.close()

    def cut_all(self) -> None:
        """Cut every connection there is, now."""
        self._generation += 1

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
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        generation = self._generation
        with client, server:
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
