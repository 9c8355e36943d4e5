"""Opening a database file: who may make it, how it is looked at without a trace, and how one connects to write or read.

No file of a database is ever opened here but by SQLite: closing any handle on it would drop the locks that SQLite holds
on it in this process.
"""

from __future__ import annotations

import os
import random
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TypeVar
from urllib.parse import quote

from storage import files
from storage.errors import SessionNotFoundError, StorageError, UnsupportedVersionError
from storage.sqlite_errors import code_of, is_busy, is_no_room
from storage.sqlite_schema import MIGRATIONS, check_version, migrate

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long one waits for another process that writes to the same file."""

_SHORTEST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02
_JOURNAL_BYTES = 16 * 1024 * 1024


def patiently(action: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Do ``action``, again and again while somebody else keeps the file busy. Raises the last error when time is up.

    SQLite's own busy handler is not asked everywhere: switching to the write-ahead log can fail at once.
    """
    end = time.monotonic() + seconds
    pause = _SHORTEST_PAUSE
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > end:
                raise
        time.sleep(pause * (0.5 + random.random()))  # noqa: S311 - so that two do not wake at the same moments
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def file_status(path: str) -> os.stat_result:
    """What lies at ``path``. Raises ``SessionNotFoundError`` and, for what is no file, ``StorageError``."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise SessionNotFoundError(
            "there is no database here; create a session, or check the path", path=path
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise StorageError("this is not a file; give the path of a database", path=path)
    return status


def make_file(path: str, *, durable: bool) -> None:
    """An empty file (0600) at ``path``, if there is none; the folders above it too (0700).

    It is made under another name and linked: it is never ours to close while SQLite may have it open already.
    """
    if os.path.lexists(path):
        return
    folder, name = os.path.split(path)
    made = files.create_folders(folder)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
    os.close(files.create_file(temporary))
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # somebody was quicker, so it is there
    finally:
        with suppress(FileNotFoundError):  # somebody wrote to it meanwhile, and took it for a killed one's
            os.unlink(temporary)
    if durable:
        for changed in (folder, *map(os.path.dirname, made)):
            files.sync_folder(changed)


def check_one_name(path: str) -> None:
    """Raise ``StorageError`` for a file that has a second name (a hard link). Who writes looks first.

    SQLite keeps a log for each name: two who write under two names would overwrite what the other was acknowledged. A name
    that a killed ``make_file`` has left goes; nobody ever opened the file by it.
    """
    status = os.stat(path)
    if status.st_nlink <= 1:
        return
    folder, name = os.path.split(path)
    for other in os.listdir(folder):
        if other.startswith(f".{name}.") and other.endswith(".tmp"):
            beside = os.path.join(folder, other)
            try:
                if os.path.samestat(os.lstat(beside), status):
                    os.unlink(beside)
            except FileNotFoundError:
                pass  # its maker is alive, and was quicker
    if os.stat(path).st_nlink > 1:
        raise StorageError(
            "this file has a second name (a hard link), and who writes under the other one would not be seen; nothing was "
            "written; remove the other name, which 'find -samefile FILE' finds, or write to a copy",
            path=path,
        )


def look(path: str) -> int:
    """The version of the tables at ``path`` (0: none yet), leaving no trace, whoever wrote the file.

    Raises what ``check_version`` raises, and ``sqlite3.Error``.
    """
    if file_status(path).st_size == 0:
        return 0

    def attempt() -> int:
        # Beside a log one reads as a reader does; where there is none, whoever opened the file would make one.
        kind = "mode=ro" if _has_bytes(path + "-wal") else "immutable=1"
        with closing(_connect(path, kind)) as connection:
            return check_version(connection, path)

    return patiently(attempt)


def connect_to_write(path: str) -> sqlite3.Connection:
    """The one connection that writes. Makes the tables, or brings them to the newest version.

    Raises ``sqlite3.Error``, and ``StorageError`` for a file that has two names.

    Others may do the same at the same moment, so any of its steps may find the file busy, and then it begins again.
    """
    check_one_name(path)
    return patiently(lambda: _connect_to_write(path))


def _connect_to_write(path: str) -> sqlite3.Connection:
    connection = _connect(path, "mode=rw")
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA fullfsync = ON")  # on macOS a plain fsync leaves the data in the drive's cache
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # made by us, where its failure is seen
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"SQLite cannot keep a write-ahead log here (journal mode {mode!r}); keep the file on a local disk",
                path=path,
            )
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")
        if check_version(connection, path) < len(MIGRATIONS):
            connection.execute("BEGIN IMMEDIATE")
            try:
                migrate(connection, path)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: str) -> tuple[sqlite3.Connection, bool]:
    """A connection that only reads, and leaves no trace; and whether it sees what is written later.

    Raises ``sqlite3.Error``.
    Beside a write-ahead log it is opened read-only. Without one, and where we may write, SQLite makes the log's files and
    takes them away again. Where we may not (a folder or a disk that cannot be written), nobody else has the file open
    either, as far as anyone can know, and it is read as one that does not change: for as long as a single read takes. So
    it is on a full disk: who else had it open would have the ``-shm`` already that there is no room for.
    """
    log = path + "-wal"
    if not os.path.exists(log):
        try:
            return _connected(_connect(path, "mode=rw")), True
        except sqlite3.OperationalError as error:
            may_not = code_of(error) & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
            if not may_not and not is_no_room(error):
                raise
    if os.path.exists(log):
        try:
            return _connected(_connect(path, "mode=ro")), True
        except sqlite3.OperationalError as error:
            if not is_no_room(error) or _has_bytes(log):
                raise
    return _connected(_connect(path, "immutable=1")), False


def check_tables(version: int, path: str, *, writing: bool) -> None:
    """Raise unless there are tables, of a version that a reader can read; who writes brings them up to it."""
    if writing:
        check_one_name(path)  # first: under a second name, there may seem to be no tables
    if version == 0:
        raise SessionNotFoundError("there is no session in this database yet; create one", path=path)
    if version < len(MIGRATIONS) and not writing:
        raise UnsupportedVersionError(
            f"the tables of this database are of version {version}; open a session in it for writing once, which brings "
            f"them to version {len(MIGRATIONS)}",
            path=path,
            version=version,
        )


def _has_bytes(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _connected(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA busy_timeout = 30000")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # only now the files are opened
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: str, how: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{how}", uri=True, timeout=0, isolation_level=None, check_same_thread=False
    )
