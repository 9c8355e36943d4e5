"""What SQLite's errors mean here: which are damage, which a failing disk, and after which nobody knows what is stored."""

from __future__ import annotations

import errno
import sqlite3

from storage.errors import BranchlineError, DamagedSessionError, SessionClosedError, SessionError, StorageError

_ERRNOS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EAGAIN,
    sqlite3.SQLITE_LOCKED: errno.EAGAIN,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_TOOBIG: errno.EFBIG,
}
_NEXT_STEPS = (
    ((errno.ENOSPC,), "make room on the disk, and try again"),
    (
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "see that the file, its folder and what lies beside it (-wal, -shm, .locks) can be read, and written by who writes",
    ),
    ((errno.EAGAIN,), "somebody else has held the database for long; end that program, or try again later"),
    ((errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP), "move away what is in its place, or give another path"),
    (
        (errno.EIO,),
        "the disk did not do what it was told; see whether it is full, and what the system's log says of it",
    ),
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_BUSY)
_SYNCS = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)


class NotWrittenError(Exception):
    """A transaction failed, and the file is known to hold nothing of it. ``__cause__`` is the first error."""


def code_of(error: BaseException) -> int:
    """SQLite's extended result code; 0 for what has none."""
    return getattr(error, "sqlite_errorcode", 0)


def is_busy(error: BaseException) -> bool:
    """Whether somebody else writes at this moment, so that it can be tried again."""
    return code_of(error) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def is_damage(error: BaseException) -> bool:
    """Whether the file is no database, or not a whole one: a table may have been taken out of it, too."""
    if code_of(error) == sqlite3.SQLITE_ERROR:
        return str(error).startswith(("no such table", "no such column", "no such view"))
    return code_of(error) & 0xFF in _DAMAGE


def is_no_room(error: BaseException) -> bool:
    """Whether the disk is full, also for the few pages of ``-shm`` that a reader needs."""
    return code_of(error) & 0xFF == sqlite3.SQLITE_FULL or code_of(error) == sqlite3.SQLITE_IOERR_SHMSIZE


def is_failed_sync(error: BaseException) -> bool:
    """Whether a sync failed, after which nothing may be tried again: the system may have dropped what it could not write."""
    return code_of(error) in _SYNCS


def is_undone(error: BaseException) -> bool:
    """Whether a failed COMMIT is known to have committed nothing: its last frame, which counts, was not written whole."""
    code = code_of(error)
    return code in _NOT_WRITTEN or code & 0xFF == sqlite3.SQLITE_BUSY


def system_error(error: sqlite3.Error) -> OSError:
    """The same error as a caller expects it from a file: with an ``errno``. Its cause is SQLite's own."""
    number = _errno_of(error) or errno.EIO
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    made = OSError(number, f"{error} ({name})")
    made.__cause__ = error
    return made


def first_cause(error: BaseException) -> BaseException:
    """What a failed write is told to have been caused by."""
    return system_error(error) if isinstance(error, sqlite3.Error) else error


def meaning_of(error: Exception, doing: str, path: str) -> SessionError:
    """The error of this library for what SQLite raised; ``doing`` is what failed, as the beginning of a sentence.

    Give it as ``raise meaning_of(error, …) from first_cause(error)``.
    """
    if isinstance(error, SessionError):
        return error
    if isinstance(error, BranchlineError):
        return SessionError(error.message, path=path)
    if is_damage(error):
        return DamagedSessionError(
            f"{doing}: this is no database, or a damaged one ({error}); the file was left as it is. Restore a copy, or let "
            "'sqlite3 FILE .recover' save what can be read",
            path=path,
        )
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return SessionClosedError("this storage is closed; open the session anew", path=path)
    return StorageError(f"{doing}: {error}{_next_step(error)}", path=path)


def _errno_of(error: BaseException) -> int | None:
    return errno.ENOSPC if is_no_room(error) else _ERRNOS.get(code_of(error) & 0xFF)


def _next_step(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else _errno_of(error)
    return next((f"; {step}" for numbers, step in _NEXT_STEPS if number in numbers), "")
