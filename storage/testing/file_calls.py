"""Stands between a program and the system: each call of ``os`` that changes what lies below one folder, as it is made.

What a backend does to its files is seen at the last place before the kernel, whichever way it got there, so that no
backend has to be written for it. A file that is opened by ``open`` to be written is Python's own implementation of one
(``_pyio``), whose calls can be seen; calls that are made from C, such as SQLite's, are not.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Self, cast

Call = Callable[..., Any]

_seen_open: Final[Call] = import_module("_pyio").open
_WRITING: Final = frozenset("wax+")

_WRITES: Final = ("write", "pwrite")
_SYNCS: Final = ("fsync", "fdatasync")
_CUTS: Final = ("ftruncate", "truncate")
_NAMES: Final = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink")
CALLS: Final = ("open", "close", *_WRITES, *_SYNCS, *_CUTS, *_NAMES)

_OPEN_FILES = "/proc/self/fd"
_FULL_SYNC = 51
"""``F_FULLFSYNC``, by which macOS is asked for what others call fsync."""


class FileCalls:
    """Watches one folder while its ``with`` block runs, in this process, on all threads. Subclasses say what is done.

    Two of them may be nested; they are left in the other order.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """``folder`` has to be there."""
        self.folder: str = os.path.realpath(os.fspath(folder))
        self.guard: threading.RLock = threading.RLock()
        self._open: dict[int, tuple[str, int, int]] = {}
        self._real: dict[str, Call] = {}
        self._real_open: Call = builtins.open

    def around(self, name: str, real: Call, paths: tuple[str, ...], descriptor: int | None, arguments: Any) -> Any:
        """Make the call, or not, and return what it returns.

        ``name`` is that of the function in ``os`` (``remove`` comes as ``unlink``, ``replace`` as ``rename``,
        ``fdatasync`` as ``fsync``, ``truncate`` as ``ftruncate``), ``real`` makes the call. ``paths`` are those below the
        folder that it is about, absolute: of a descriptor, the path that it was opened by. ``arguments``: of a write its
        bytes, of a cut its length, of an opening its flags.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Begin to watch. Files that are open already are known on Linux."""
        self._find_open_files()
        for name in CALLS:
            if hasattr(os, name):
                self._real[name] = getattr(os, name)
                setattr(os, name, self._standing_in(name))
        self._real_open = builtins.open
        builtins.open = io.open = cast("Any", self._opened_as_object)
        if sys.platform == "darwin":
            import fcntl

            self._real["fcntl"] = fcntl.fcntl
            fcntl.fcntl = cast("Any", self._fcntl)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Watch no more."""
        builtins.open = io.open = cast("Any", self._real_open)
        for name, real in self._real.items():
            if name != "fcntl":
                setattr(os, name, real)
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl = cast("Any", self._real["fcntl"])

    def path_of(self, descriptor: int) -> str | None:
        """The path below the folder that ``descriptor`` was opened by, if it was."""
        found = self._open.get(descriptor)
        if found is None:
            return None
        path, device, inode = found
        try:
            status = os.fstat(descriptor)
        except OSError:
            return None
        # A number that was closed by somebody else, and given out again, is another file.
        return path if (status.st_dev, status.st_ino) == (device, inode) else None

    def _find_open_files(self) -> None:
        if not os.path.isdir(_OPEN_FILES):
            return
        for number in os.listdir(_OPEN_FILES):
            try:
                place = os.readlink(os.path.join(_OPEN_FILES, number))
                status = os.fstat(int(number))
            except OSError:
                continue  # the one that listed them
            if self._place(place, None) is not None:
                self._open[int(number)] = (place, status.st_dev, status.st_ino)

    def _standing_in(self, name: str) -> Call:
        real = self._real[name]

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            return self._opened(real, path, flags, mode, dir_fd)

        # What may be given by name has the name that it has in ``os``.
        def closed(fd: int) -> None:
            self._closed(real, fd)

        def synced(fd: Any) -> None:
            self._on_descriptor("fsync", lambda _: real(fd), fd, None)

        def written(descriptor: int, data: Any) -> int:
            return self._on_descriptor("write", lambda some: real(descriptor, some), descriptor, data)

        def written_at(descriptor: int, data: Any, offset: int) -> int:
            return self._on_descriptor("pwrite", lambda some: real(descriptor, some, offset), descriptor, data, offset)

        def cut_open(fd: int, length: int) -> None:
            self._cut(real, fd, length)

        def cut(path: Any, length: int) -> None:
            self._cut(real, path, length)

        def named(*given: Any, **more: Any) -> None:
            self._named(name, real, given, more)

        own: dict[str, Call] = {"open": opened, "close": closed, "write": written, "pwrite": written_at}
        own |= dict.fromkeys(_SYNCS, synced) | {"ftruncate": cut_open, "truncate": cut}
        return own.get(name, named)

    def _opened_as_object(self, file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        is_seen = _WRITING.intersection(mode) and self._place(file, None) is not None
        return (_seen_open if is_seen else self._real_open)(file, mode, *given, **named)

    def _opened(self, real: Call, path: Any, flags: int, mode: int, dir_fd: int | None) -> int:
        place = self._place(path, dir_fd)

        def call() -> int:
            return real(path, flags, mode) if dir_fd is None else real(path, flags, mode, dir_fd=dir_fd)

        if place is None:
            descriptor = call()
            self._open.pop(descriptor, None)
            return descriptor
        with self.guard:
            descriptor = self.around("open", call, (place,), None, flags)
            status = os.fstat(descriptor)
            self._open[descriptor] = (place, status.st_dev, status.st_ino)
            return descriptor

    def _closed(self, real: Call, descriptor: int) -> None:
        with self.guard:
            place = self.path_of(descriptor)
            self._open.pop(descriptor, None)
            if place is None:
                real(descriptor)
            else:
                self.around("close", lambda: real(descriptor), (place,), descriptor, None)

    def _on_descriptor(
        self, name: str, call: Callable[[Any], Any], descriptor: Any, what: Any, offset: int | None = None
    ) -> Any:
        """``call`` makes the real one; of a write, with as many of its bytes as it is given."""
        number: int = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        place = self.path_of(number)
        if place is None:
            return call(what)
        with self.guard:
            if name in _WRITES:

                def written(some: Any = what) -> int:
                    return call(some)

                data = bytes(what)
                return self.around(name, written, (place,), number, data if offset is None else (data, offset))
            return self.around(name, lambda: call(None), (place,), number, what)

    def _cut(self, real: Call, path: Any, length: int) -> None:
        if isinstance(path, int):
            self._on_descriptor("ftruncate", lambda _: real(path, length), path, length)
            return
        place = self._place(path, None)
        if place is None:
            real(path, length)
            return
        with self.guard:
            self.around("ftruncate", lambda: real(path, length), (place,), None, length)

    def _named(self, name: str, real: Call, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        one = {"remove": "unlink", "replace": "rename"}.get(name, name)
        of_names = ("src", "dst") if one in ("rename", "link", "symlink") else ("path",)
        all_given = {**dict(zip(of_names, given, strict=False)), **named}
        if one in ("rename", "link"):
            found = (
                self._place(all_given["src"], named.get("src_dir_fd")),
                self._place(all_given["dst"], named.get("dst_dir_fd")),
            )
        else:
            found = (self._place(all_given[of_names[-1]], named.get("dir_fd")),)
        paths = tuple(place for place in found if place is not None)
        if not paths:
            real(*given, **named)
            return
        with self.guard:
            self.around(one, lambda: real(*given, **named), paths, None, None)

    def _fcntl(self, descriptor: Any, command: int, *more: Any) -> Any:
        real = self._real["fcntl"]
        if command != _FULL_SYNC:
            return real(descriptor, command, *more)
        return self._on_descriptor("fsync", lambda _: real(descriptor, command, *more), descriptor, None)

    def _place(self, path: Any, dir_fd: int | None) -> str | None:
        """The absolute path, if it lies below the folder (or is the folder)."""
        if isinstance(path, int):
            return self.path_of(path)
        text = os.fsdecode(path)
        if dir_fd is not None:
            above = self.path_of(dir_fd)
            if above is None:
                return None
            text = os.path.join(above, text)
        above, last = os.path.split(os.path.abspath(text))
        place = os.path.join(os.path.realpath(above), last)
        inside = place == self.folder or place.startswith(self.folder + os.sep)
        return place if inside else None
