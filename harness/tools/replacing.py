"""Making bytes the whole content of a file in one step: whoever reads it sees the old content or the new, never half.

The bytes go to a file of another name in the same folder, which is then renamed. It keeps the old file's mode, and its
owner where the system lets us; a new file gets what the umask leaves. Other hard links to the old file keep the old
content, and access lists beyond the mode are not copied. Nothing is synced: after a power cut the file may hold the old
content, or on some file systems none.

Replacements in one process are made one after the other, each with a last look whether the file is still as its author
saw it. Another program that writes in the moment between that look and the rename is overwritten.
"""

# ruff: noqa: PTH123 - this module is about which system calls are made, and in what order

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ToolError

_SAFE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
# A pipe or a terminal that took the file's place must not make the open wait, nor become ours.
_EXISTING = _SAFE | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_one_at_a_time = threading.Lock()


def never() -> bool:
    """Nobody stops this."""
    return False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A file as it was at one moment. Two are equal if nothing changed in between."""

    content: bytes | None = None
    """All of it, in memory; ``None`` if it was not there, or too large to keep."""
    mark: tuple[int, ...] | None = None
    """Device, inode, size and time of change of a file too large to keep."""

    @property
    def is_missing(self) -> bool:
        """Whether there was no file."""
        return self.content is None and self.mark is None


MISSING = Snapshot()
"""No file was there."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a replacement did: sizes in bytes, ``size_before`` is ``None`` for a file that was made."""

    size: int
    size_before: int | None


def snapshot_of(descriptor: int, limit: int) -> Snapshot:
    """The open file's snapshot, with its content if that is at most ``limit`` bytes."""
    known = os.fstat(descriptor)
    if known.st_size <= limit:
        with open(os.dup(descriptor), "rb", buffering=0) as stream:
            content = _read_at_most(stream.read, limit)
        if content is not None:
            return Snapshot(content)
    return Snapshot(mark=(known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns))


def replace_file(
    folder: int | Path,
    name: str,
    data: bytes,
    *,
    path: str,
    seen: Snapshot | None = None,
    stopped: Callable[[], bool] = never,
) -> Replaced:
    """Replace or make the file ``name`` in ``folder`` (its descriptor, or its path where the system has no such calls).

    A symbolic link of that name is not followed. ``path`` is what errors call the file.

    Raises:
        ToolError: it changed since ``seen``, is no regular file, or ``stopped()`` turned true.
        OSError: what the system says, also where the old file may not be written.
    """
    place = _Place(folder)
    before = place.writable(name, path)
    temporary = f".branchline-{secrets.token_hex(8)}.tmp"
    descriptor = place.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666 if before is None else 0o600)
    try:
        try:
            _fill(descriptor, data, before)
        finally:
            os.close(descriptor)
        with _one_at_a_time:
            if stopped():
                raise ToolError(f"{path}: was not written, since the call was stopped")
            if seen is not None and place.snapshot(name, seen) != seen:
                raise ToolError(f"{path}: was changed meanwhile and is left as it is; read it again, then try again")
            place.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            place.unlink(temporary)
        raise
    return Replaced(len(data), None if before is None else before.st_size)


@dataclass(frozen=True, slots=True)
class _Place:
    """The calls of the system on names in one folder, by its descriptor or by its path."""

    folder: int | Path

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        return os.open(self._of(name), flags, mode, dir_fd=self._at)

    def rename(self, name: str, target: str) -> None:
        os.replace(self._of(name), self._of(target), src_dir_fd=self._at, dst_dir_fd=self._at)

    def unlink(self, name: str) -> None:
        os.unlink(self._of(name), dir_fd=self._at)

    def writable(self, name: str, path: str) -> os.stat_result | None:
        """What is known of the file, which may be written; ``None`` if there is none.

        Renaming asks nobody whether the file itself may be written, so it is opened for that.
        """
        try:
            _check_regular(os.stat(self._of(name), dir_fd=self._at, follow_symlinks=False), path)
            descriptor = self.open(name, os.O_WRONLY | _EXISTING)
        except FileNotFoundError:
            return None
        try:
            known = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        _check_regular(known, path)
        return known

    def snapshot(self, name: str, like: Snapshot) -> Snapshot:
        """The file's snapshot now, as large as ``like`` at most."""
        try:
            descriptor = self.open(name, os.O_RDONLY | _EXISTING)
        except FileNotFoundError:
            return MISSING
        try:
            return snapshot_of(descriptor, -1 if like.content is None else len(like.content))
        finally:
            os.close(descriptor)

    @property
    def _at(self) -> int | None:
        return self.folder if isinstance(self.folder, int) else None

    def _of(self, name: str) -> str:
        return name if isinstance(self.folder, int) else str(self.folder / name)


def _fill(descriptor: int, data: bytes, before: os.stat_result | None) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if before is None or not hasattr(os, "fchown"):
        return
    mode = stat.S_IMODE(before.st_mode)
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except OSError:
            mode &= 0o777  # only root may give files away; what ran as its owner must not run as us
            with contextlib.suppress(OSError):
                os.fchown(descriptor, -1, before.st_gid)
    os.fchmod(descriptor, mode)


def _check_regular(known: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(known.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if stat.S_ISDIR(known.st_mode):
        raise ToolError(f"{path}: is a folder, so it cannot be written; give the path of a file")
    if not stat.S_ISREG(known.st_mode):
        raise ToolError(f"{path}: is a device, pipe or socket, not a file")


def _read_at_most(read: Callable[[int], bytes | None], limit: int) -> bytes | None:
    """All that there is, or ``None`` if it is more than ``limit`` bytes (the file grew meanwhile)."""
    pieces: list[bytes] = []
    left = limit
    while piece := read(min(left, 1 << 20) + 1):
        left -= len(piece)
        if left < 0:
            return None
        pieces.append(piece)
    return b"".join(pieces)
