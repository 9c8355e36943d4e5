"""The writer's lock: a file beside a session that its one writer keeps locked (R12).

What counts is the operating system's lock on the open file, never that the file exists: when its owner dies, by
whatever signal, the lock is free at once, and the file that is left behind blocks nobody. The owner's name is written
into the file after the lock was got, and read, never written, by who did not get it. Only who holds the lock ever
removes the file, and before giving the lock up; who gets a lock looks whether its file is still the one in its place,
and else begins again. So no two writers ever hold two files of one name.
"""

from __future__ import annotations

import json
import math
import os
import socket
import stat
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

import anyio
import portalocker
from portalocker.exceptions import AlreadyLocked, LockException

from storage.entries import iso_timestamp
from storage.errors import SessionLockedError, StorageError
from storage.event_loops import run_in_worker

T = TypeVar("T")

_FLAGS = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)  # the owner's name must not be written into a file that a symlink points to
    | getattr(os, "O_BINARY", 0)
)
_EXCLUSIVE = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
_SHORTEST_WAIT = 0.002
_LONGEST_WAIT = 0.05
_LONGEST_OWNER = 4096
_REPLACED_AT_MOST = 100
_UNKNOWN_OWNER = "another writer"

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """The one writer's right to a session. Made by ``acquire``; blocking code, to be called from a worker thread."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Takes over ``descriptor``, which is open on ``path`` and locked; use ``acquire``."""
        self.path = path
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def acquire(cls, path: str | os.PathLike[str], timeout: float = 0) -> WriterLock:
        """Lock ``path``, making the file (0600) where there is none, and write this process's name into it.

        Waits at most ``timeout`` seconds while somebody else holds it (0: not at all, ``math.inf``: for ever), in short
        sleeps. Two locks in one process exclude each other like those of two processes.

        Raises ``SessionLockedError``, whose ``details["owner"]`` names the holder as far as it is known, and
        ``StorageError`` where the file cannot be made or locked (a folder without write permission, say).
        """
        if math.isnan(timeout):
            raise ValueError("timeout is not a number; give the seconds to wait, 0 for not at all")
        place = os.fspath(path)
        end = time.monotonic() + timeout
        wait = _SHORTEST_WAIT
        while (descriptor := _try_lock(place)) is None:
            rest = end - time.monotonic()
            if rest <= 0:
                raise _locked(place)
            time.sleep(min(wait, rest))
            wait = min(wait * 2, _LONGEST_WAIT)
        try:
            _write_owner(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(place, descriptor)

    @property
    def held(self) -> bool:
        """Whether it is still ours: not given up, and not in a forked child, where it stays the parent's."""
        return self._descriptor is not None

    def release(self) -> None:
        """Give the lock up; the file stays. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.ftruncate(descriptor, 0)  # so that nobody is told of an owner who is gone
            # Not by closing alone: a child that was just forked and has not run exec yet has a copy of the handle.
            portalocker.unlock(descriptor)
        except (OSError, LockException):
            # Nothing is lost: the name is a courtesy, and closing, below, gives up the lock.
            pass
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Delete the lock file and give the lock up: for a session that was deleted. Idempotent.

        Whoever waits for the lock notices that the file it opened is gone, and starts with a new one.
        """
        descriptor = self._descriptor
        if descriptor is None:
            return
        try:
            if sys.platform == "win32":  # an open file cannot be deleted there
                self.release()
                os.unlink(self.path)
            elif _is_at(self.path, descriptor):
                os.unlink(self.path)
        except FileNotFoundError:
            pass  # somebody removed it, and the lock with it
        finally:
            self.release()

    def discard(self) -> None:
        """Give the lock up, and its file where that can go with it: for a folder that would come to hold many. Idempotent.

        Where an open file cannot be deleted (Windows), or nothing in that folder, the file stays, and blocks nobody.
        """
        if sys.platform == "win32":
            self.release()
            return
        try:
            self.remove()
        except OSError:
            pass  # ``remove`` has given it up all the same

    def leave_to_parent(self) -> None:
        """Close this forked child's copy of the handle, without unlocking: the lock is the parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.release()  # first: where warnings are errors, nothing is done after them
            warnings.warn(f"a writer's lock was dropped: {self.path}; close its session", ResourceWarning, stacklevel=1)

    def __repr__(self) -> str:
        return f"<WriterLock {self.path!r} {'held' if self.held else 'released'}>"


async def open_when_free(attempt: Callable[[], T], lock_timeout: float, *, undo: Callable[[T], object]) -> T:
    """What ``attempt`` opens in a worker thread; tried again for ``lock_timeout`` seconds while it is locked.

    ``attempt`` itself takes the lock without waiting: the waiting is done here, where it can be cancelled. ``undo``
    closes what was opened just as the caller was cancelled. Raises the last ``SessionLockedError``.
    """
    if math.isnan(lock_timeout):
        raise ValueError("lock_timeout is not a number; give the seconds to wait, 0 for not at all")
    end = time.monotonic() + lock_timeout
    wait = _SHORTEST_WAIT
    while True:
        try:
            return await run_in_worker(attempt, undo=undo)
        except SessionLockedError:
            rest = end - time.monotonic()
            if rest <= 0:
                raise
            await anyio.sleep(min(wait, rest))
            wait = min(wait * 2, _LONGEST_WAIT)


def lock_owner(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Who wrote their name into the lock file (``pid``, ``host``, ``since``), or ``None``.

    It says who holds the lock only if somebody holds it. Writes nothing, waits for nothing.
    """
    try:
        with open(path, "rb") as file:
            loaded: object = json.loads(file.read(_LONGEST_OWNER))
    except (OSError, ValueError, RecursionError):
        # Not there, not readable (Windows locks the bytes themselves), or half written: then it is not known.
        return None
    return cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else None


def _try_lock(path: str) -> int | None:
    """A locked descriptor, or ``None`` while somebody else holds the lock."""
    for _ in range(_REPLACED_AT_MOST):
        descriptor = _open(path)
        try:
            portalocker.lock(descriptor, _EXCLUSIVE)
            if _is_at(path, descriptor):
                return descriptor
        except AlreadyLocked:
            os.close(descriptor)
            return None
        except LockException as error:
            os.close(descriptor)
            raise StorageError(
                f"the file system cannot lock files here ({error.strerror or error}); keep sessions on one that can, "
                "or open this one for reading",
                path=path,
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        # The session was deleted between our open and our lock, and its lock file with it. Begin again.
        os.close(descriptor)
    raise StorageError("the lock file is replaced again and again, or is a symbolic link; move it away", path=path)


def _open(path: str) -> int:
    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except FileNotFoundError as error:
        raise StorageError("there is no folder for the lock file; make the folder first", path=path) from error
    except OSError as error:
        raise StorageError(
            f"the lock file cannot be made or opened ({error.strerror}): a writer needs write permission in this "
            "folder and on this file, a reader (mode='read') does not",
            path=path,
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError("what is in the lock file's place is no file; move it away", path=path)
    return descriptor


def _is_at(path: str, descriptor: int) -> bool:
    """Whether the file that was locked is still the one at ``path``: its session may have been deleted meanwhile."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _write_owner(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": iso_timestamp()}
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(owner).encode() + b"\n")
    except OSError:
        # A full disk: the lock is held all the same, and its owner's name is a courtesy.
        pass


def _locked(path: str) -> SessionLockedError:
    owner = lock_owner(path)
    if owner is None:
        name = _UNKNOWN_OWNER
    else:
        here = owner.get("pid") == os.getpid() and owner.get("host") == socket.gethostname()
        name = f"process {owner.get('pid')!s:.20} on {owner.get('host')!s:.100}" + (", this one," if here else "")
        name += f" since {owner.get('since')!s:.40}"
    return SessionLockedError(
        f"the session is being written by {name}; end that writer, wait for it (lock_timeout=seconds), "
        "or open the session for reading (mode='read')",
        path=path,
        owner=owner,
    )


def _leave_to_parent() -> None:
    """In a forked child: close the copies of the handles, or the parent's death would not free the locks."""
    for lock in list(_held):
        lock.leave_to_parent()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
