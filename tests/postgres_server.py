"""A PostgreSQL server of the tests' own: in a temporary folder, on a free port, run by an unprivileged user.

``fsync`` is on, as it is where sessions matter. It stops with the process that started it, whatever becomes of that one;
several of them side by side know nothing of each other.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path

import pytest

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/pgsql/bin")
_SECONDS = 120.0
_DIE_WITH_PARENT = 1
_numbers = itertools.count(1)


def binaries() -> Path | None:
    """The folder with ``initdb`` and ``postgres``, of the newest version; ``None`` if there is none."""
    found = [Path(folder) for place in _PLACES for folder in glob(place)]
    on_path = shutil.which("initdb")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    whole = [folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()]
    return max(whole, key=lambda folder: [int(part) for part in folder.parts if part.isdigit()], default=None)


class PostgresServer:
    """One server. ``start`` makes its folder and starts it; ``stop`` removes both."""

    def __init__(self, folder_with_binaries: Path, **settings: str) -> None:
        self._binaries = folder_with_binaries
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._user = unprivileged()
        self.port: int = free_port()
        self.folder: Path = Path(tempfile.mkdtemp(prefix="branchline-postgres-"))

    def dsn(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The address of a database; ``port`` is that of somebody in between."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Make the folder, start the server, and wait until it answers."""
        if self._user is not None:
            os.chown(self.folder, self._user, -1)
        made = self._run(
            "initdb", "-D", "data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        if made.wait(_SECONDS):
            raise RuntimeError(f"initdb failed: {self.log()}")
        self.launch()

    def standby(self) -> PostgresServer:
        """Another server that follows this one, running."""
        server = PostgresServer(self._binaries, **self._settings)
        if server._user is not None:
            os.chown(server.folder, server._user, -1)
        copied = server._run(
            "pg_basebackup", "-D", "data", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", self.dsn()
        )
        if copied.wait(_SECONDS):
            raise RuntimeError(f"pg_basebackup failed: {server.log()}")
        server.launch()
        return server

    def launch(self) -> None:
        """Start the process on the folder that is there, and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "32MB",
            "max_connections": "200",
            "fsync": "on",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self._run("postgres", "-D", "data", "-p", str(self.port), *options)
        until = time.monotonic() + _SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {self.log()}")
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it takes connections and queries."""
        import psycopg

        try:
            with psycopg.connect(self.dsn(), connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def kill(self) -> None:
        """``kill -9`` for the whole server, as a power cut would: nothing is flushed, nobody is told."""
        assert self._process is not None
        # Stopped first: a child that it makes after we have looked would live on, and keep the next server from starting.
        server = self._process.pid
        os.kill(server, signal.SIGSTOP)
        self._wait_for(lambda: _ps("stat=", "-p", server)[0].startswith("T"))
        children = [int(child) for child in _ps("pid=", "--ppid", server)]
        for process in (*children, server):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._wait_for(lambda: all(state.startswith("Z") for child in children for state in _ps("stat=", "-p", child)))

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _SECONDS
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"the server could not be killed: {self.log()}")
            time.sleep(0.005)

    def restart(self) -> None:
        """Start it again after ``kill`` or ``shut_down``."""
        self.launch()

    def shut_down(self) -> None:
        """End it in good order, but at once: connections are told and closed."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def stop(self) -> None:
        """End it and remove its folder."""
        self.shut_down()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_schema(self) -> str:
        """A place of its own for tables in the one database; the address that leads there."""
        import psycopg

        name = f"shelf_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.dsn()}?options=-csearch_path%3D{name}"

    def log(self) -> str:
        """The end of what it said."""
        try:
            return (self.folder / "log").read_text(errors="replace")[-2000:]
        except OSError:
            return "it said nothing"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [self._binaries / program, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                extra_groups=None if self._user is None else [],
                start_new_session=True,  # Ctrl-C is for the tests; they stop it themselves
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
                env={key: value for key, value in os.environ.items() if not key.startswith("PG")} | {"LC_ALL": "C"},
            )


def _ps(column: str, which: str, process: int) -> list[str]:
    return subprocess.run(
        ["ps", "-o", column, which, str(process)], capture_output=True, text=True, check=False
    ).stdout.split()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGINT)


def unprivileged() -> int | None:
    """The user that the server runs as: the server refuses to be root. ``None``: as we are."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise RuntimeError("there is no user to run the server as")


def free_port() -> int:
    """A port that nobody listens on, of those that no system gives out by itself: nobody else gets it meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def without_server(why: str) -> None:
    """Skip the test; where everything is to be tested (``CI`` is set), fail it."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def started_server(**settings: str) -> PostgresServer:
    """A running server; the test is skipped (in CI: fails) if there is none to be had."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'branchline[postgres]'")
    folder = binaries()
    if folder is None or sys.platform == "win32":
        without_server("there is no PostgreSQL server here; install Debian's postgresql package")
        raise AssertionError
    server = PostgresServer(folder, **settings)
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of this process."""
    server = started_server()
    yield server
    server.stop()
