"""The few file operations that backends are made of, in one small seam, so that tests can record and break them.

Files are made 0600 and folders 0700: a transcript is as secret as what was said in it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would otherwise translate newlines


def create_file(path: str) -> int:
    """A new file, open for appending. Raises ``FileExistsError``; never touches what is there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | _BINARY, 0o600)


def open_file(path: str, *, writing: bool) -> int:
    """An existing file, for reading or for reading and appending."""
    flags = (os.O_RDWR | os.O_APPEND) if writing else os.O_RDONLY
    # Without O_NONBLOCK, opening a pipe that lies in a file's place would wait for its other end for ever.
    descriptor = os.open(path, flags | os.O_CLOEXEC | _BINARY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "this is no file", path)
    return descriptor


def create_folders(path: str) -> list[str]:
    """``path`` and the folders above it, as far as they are missing, each 0700; those that were made, topmost first."""
    missing: list[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    missing.reverse()
    for folder in missing:
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
    return missing


def write(descriptor: int, data: bytes | memoryview) -> int:
    """One ``write`` call; how many bytes the kernel took, which may be fewer. Raises ``OSError`` if it took none."""
    count = os.write(descriptor, data)
    if count == 0 and len(data):
        raise OSError(errno.EIO, "the system wrote nothing, and named no error")
    return count


def write_all(descriptor: int, data: bytes) -> None:
    """Write the whole of ``data``, in as many calls as it takes: a full disk takes a part first, and then says so."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(descriptor, rest) :]


def truncate(descriptor: int, length: int) -> None:
    """Cut the file to ``length`` bytes."""
    os.ftruncate(descriptor, length)


def sync_data(descriptor: int) -> None:
    """Return when the file's bytes and its length survive power loss."""
    if sys.platform == "darwin":
        import fcntl

        # On macOS fsync leaves the data in the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_folder(path: str) -> None:
    """Return when the names in a folder survive power loss. Windows cannot, and does nothing."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: str, target: str) -> None:
    """Rename, replacing nothing of ours: the caller holds the writer's lock and knows that ``target`` is new."""
    os.replace(source, target)
