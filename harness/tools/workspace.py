"""A folder that tools may look into and write into, and nothing outside it.

A path is walked part by part from the root's own descriptor, never following what the system would follow by itself: a
symbolic link is read and its target walked in the same way, ``..`` goes back to the folder that was walked through. So
there is no moment at which another process can swap a folder for a link and lead a tool out. Where the system has no
such calls (Windows), the path is resolved, opened, and the opened file compared with what the path then names.

A link, an absolute path or a ``..`` that stays inside is fine. Hard links cannot be told from files, and a folder that
is moved out while it is being read or written is read or written to its end.
"""

# ruff: noqa: PTH100, PTH115, PTH116, PTH117, PTH123 - this module is about which system calls are made, and in what order

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from harness.tools.replacing import MISSING, Replaced, Snapshot, never, replace_file, snapshot_of
from storage.errors import ToolError

_MAX_LINKS = 40
_MAX_DEPTH = 200

_HAS_DIRECTORY_DESCRIPTORS = (
    {os.open, os.stat, os.readlink, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd
    and os.scandir in os.supports_fd
    and hasattr(os, "O_NOFOLLOW")
    and hasattr(os, "O_DIRECTORY")
)
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_READ_FOLDER = _READ | getattr(os, "O_DIRECTORY", 0)
# A pipe that nobody writes to must not make the open wait, nor a terminal become ours.
_READ_FILE = _READ | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

Kind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True)
class Found:
    """Something in a folder. ``size`` is in bytes, of a file; ``target`` is where a link points."""

    name: str
    kind: Kind
    size: int = 0
    target: str = ""


class Workspace:
    """A root folder, and what may be opened below it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Raises ``ToolError`` unless ``root`` is a folder that is there."""
        self.root: Path = Path(os.path.realpath(root))
        if not self.root.is_dir():
            raise ToolError(f"the working directory {os.fspath(root)!r} is no folder; make it, or give another")
        self._roots = {self.root.parts, Path(os.path.abspath(root)).parts}  # the second with its links unresolved

    def open_file(self, path: str) -> BinaryIO:
        """A regular file below the root, opened for reading.

        Raises ``ToolError`` for a path that leads out, for a folder, a device or a pipe, and for what the system says.
        """
        with _told_to_the_model(path), self._opened(path) as descriptor:
            _check_is_file(os.fstat(descriptor).st_mode, path)
            return open(os.dup(descriptor), "rb", buffering=0)  # the caller closes it

    def scan(self, path: str) -> list[Found]:
        """What is in a folder below the root, sorted by name. Raises ``ToolError`` as ``open_file`` does."""
        with _told_to_the_model(path):
            if not _HAS_DIRECTORY_DESCRIPTORS:
                resolved = self._resolve(path)
                _check_is_folder(os.stat(resolved).st_mode, path)
                return self._scan(resolved)
            with self._opened(path) as descriptor:
                _check_is_folder(os.fstat(descriptor).st_mode, path)
                return self._scan(descriptor)

    def is_folder(self, path: str) -> bool:
        """Whether ``path`` names a folder (not a file) below the root. Raises ``ToolError`` as ``open_file`` does."""
        with _told_to_the_model(path):
            if not _HAS_DIRECTORY_DESCRIPTORS:
                return self._resolve(path).is_dir()
            with self._opened(path) as descriptor:
                return stat.S_ISDIR(os.fstat(descriptor).st_mode)

    def look(self, path: str, *, limit: int) -> Snapshot:
        """What a file below the root holds now, to be compared when it is replaced; ``MISSING`` where there is none.

        Its content only if that is at most ``limit`` bytes. Raises ``ToolError`` as ``open_file`` does.
        """
        with _told_to_the_model(path):
            try:
                with self._opened(path) as descriptor:
                    _check_is_file(os.fstat(descriptor).st_mode, path)
                    return snapshot_of(descriptor, limit)
            except FileNotFoundError:
                return MISSING

    def replace(
        self,
        path: str,
        data: bytes,
        *,
        seen: Snapshot | None = None,
        make_folders: bool = False,
        stopped: Callable[[], bool] = never,
    ) -> Replaced:
        """Make ``data`` the whole of a file below the root, new or not, in one step (``harness.tools.replacing``).

        A link that stays inside is followed, and the file it names is replaced or made. ``make_folders`` makes the folders
        above it that are missing. With ``seen``, a file that is not as it was then is refused; once ``stopped()`` is true,
        nothing is replaced any more.

        Raises ``ToolError`` for a path that leads out, for a folder, a device or a pipe, for a file that may not be
        written or that changed, and for what the system says. The file is then as it was.
        """
        with _told_to_the_model(path), self._folder_of(path, make_folders=make_folders) as (folder, name):
            return replace_file(folder, name, data, path=path, seen=seen, stopped=stopped)

    def _scan(self, folder: int | Path) -> list[Found]:
        with os.scandir(folder) as items:
            return sorted((self._found(item, folder) for item in items), key=lambda found: found.name)

    def _found(self, item: os.DirEntry[str], folder: int | Path) -> Found:
        if item.is_symlink():
            try:
                target = os.readlink(item.name, dir_fd=folder) if isinstance(folder, int) else os.readlink(item.path)
            except OSError:
                return Found(item.name, "link")
            return Found(item.name, "link", target=target)
        if item.is_dir(follow_symlinks=False):
            return Found(item.name, "folder")
        if item.is_file(follow_symlinks=False):
            try:
                return Found(item.name, "file", item.stat(follow_symlinks=False).st_size)
            except OSError:
                return Found(item.name, "file")  # removed meanwhile
        return Found(item.name, "other")

    @contextlib.contextmanager
    def _opened(self, path: str) -> Generator[int]:
        """The descriptor of what ``path`` names; closed afterwards."""
        if not _HAS_DIRECTORY_DESCRIPTORS:
            descriptor = self._open_resolved(path)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            return
        walked = [os.open(self.root, _READ_FOLDER)]
        try:
            self._walk(path, walked)
            yield walked[-1]
        finally:
            for descriptor in walked:
                os.close(descriptor)

    @contextlib.contextmanager
    def _folder_of(self, path: str, *, make_folders: bool) -> Generator[tuple[int | Path, str]]:
        """The folder that ``path`` is (or would be) a file in, links followed, and the file's name in it."""
        if path.endswith(("/", os.sep)):
            raise _is_folder(path)
        if not _HAS_DIRECTORY_DESCRIPTORS:
            resolved = self._resolve(path, strict=False)
            if make_folders:
                resolved.parent.mkdir(parents=True, exist_ok=True)
                resolved = self._resolve(path, strict=False)
            if resolved == self.root:
                raise _is_folder(path)
            yield resolved.parent, resolved.name
            return
        walked = [os.open(self.root, _READ_FOLDER)]
        try:
            name = self._walk(path, walked, to_write=True, make_folders=make_folders)
            if name is None:
                raise _is_folder(path)
            yield walked[-1], name
        finally:
            for descriptor in walked:
                os.close(descriptor)

    def _walk(self, path: str, walked: list[int], *, to_write: bool = False, make_folders: bool = False) -> str | None:
        """Open each part of ``path`` in turn. ``walked`` holds the root's descriptor and then that of each part.

        ``to_write`` stops in the folder of a file, which is there or not, and returns its name; ``None`` for a folder.
        """
        waiting = self._parts_of(path)
        waiting.reverse()
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                if len(walked) == 1:
                    raise _outside(path)
                os.close(walked.pop())
                continue
            try:
                mode = os.stat(part, dir_fd=walked[-1], follow_symlinks=False).st_mode
            except FileNotFoundError:
                if to_write and not waiting:
                    return part
                # Going up again from a folder that is not there is a mistake, as it is for the system.
                if not make_folders or ".." in waiting:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=walked[-1])
                mode = stat.S_IFDIR
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(part, dir_fd=walked[-1])
                if os.path.isabs(target):
                    while len(walked) > 1:
                        os.close(walked.pop())
                waiting.extend(reversed(self._parts_of(target, path)))
            elif stat.S_ISDIR(mode):
                if len(walked) > _MAX_DEPTH:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
                walked.append(os.open(part, _READ_FOLDER, dir_fd=walked[-1]))
            elif waiting:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            else:
                # Looked at before it is opened, since opening a device may already do something; and again after.
                _check_is_file(mode, path)
                if to_write:
                    return part
                walked.append(os.open(part, _READ_FILE, dir_fd=walked[-1]))
        return None

    def _parts_of(self, path: str, asked: str | None = None) -> list[str]:
        """The parts of a path, from the root on; ``..`` is kept. An absolute path must begin with the root."""
        if not os.path.isabs(path):
            separators = {os.sep, os.altsep or os.sep}
            for separator in separators:
                path = path.replace(separator, "/")
            return [part for part in path.split("/") if part not in {"", "."}]
        parts = Path(path).parts
        for root in self._roots:
            if parts[: len(root)] == root:
                return list(parts[len(root) :])
        raise _outside(path if asked is None else asked)

    def _resolve(self, path: str, *, strict: bool = True) -> Path:
        resolved = Path(os.path.realpath(self.root.joinpath(*self._parts_of(path)), strict=strict))
        if not resolved.is_relative_to(self.root):
            raise _outside(path)
        return resolved

    def _open_resolved(self, path: str) -> int:
        """Without directory descriptors: resolve, open, and see that the path still names the very file we opened."""
        resolved = self._resolve(path)
        _check_is_file(os.stat(resolved).st_mode, path)
        descriptor = os.open(resolved, _READ_FILE)
        try:
            same = os.path.samestat(os.fstat(descriptor), os.stat(self._resolve(path)))
        except BaseException:
            os.close(descriptor)
            raise
        if not same:
            os.close(descriptor)
            raise ToolError(f"{path}: changed while it was being opened; try again")
        return descriptor


def _outside(path: str) -> ToolError:
    return ToolError(f"{path}: outside the working directory; use a path below it")


def _is_folder(path: str) -> ToolError:
    return ToolError(f"{path}: is a folder, so it cannot be written; give the path of a file")


def _check_is_file(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise ToolError(f"{path}: is a folder; list it instead")
    if not stat.S_ISREG(mode):
        raise ToolError(f"{path}: is a device, pipe or socket, not a file")


def _check_is_folder(mode: int, path: str) -> None:
    if not stat.S_ISDIR(mode):
        raise ToolError(f"{path}: is a file; read it instead")


@contextlib.contextmanager
def _told_to_the_model(path: str) -> Generator[None]:
    """What the system says of a path, as an error in words that name only that path."""
    if "\0" in path:
        raise ToolError(f"{path!r}: a path cannot hold a NUL character")
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ToolError(f"{path}: too many symbolic links, or one that appeared while it was opened") from error
        raise ToolError(f"{path}: {error.strerror or type(error).__name__}") from error
    except UnicodeError as error:
        raise ToolError(f"{path!r}: not a path that this system can have") from error
