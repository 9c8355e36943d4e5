"""A disk that fails when it is told to: full at a byte, failing calls, short writes, slow ones; around real files.

::

    with FaultyDisk(folder) as disk:
        disk.room = 1000  # bytes that it still takes; then there is no space left
        disk.fail("fsync", OSError(errno.EIO, "Input/output error"))
        ...
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from storage.testing.file_calls import Call, FileCalls

DiskCall = Literal["open", "write", "fsync", "ftruncate", "rename", "link", "unlink", "mkdir", "rmdir"]


class FaultyDisk(FileCalls):
    """Breaks what this process does to the files below ``folder``, while its ``with`` block runs.

    Calls are counted from 1, from the moment it was made; ``fdatasync`` counts as ``fsync``, ``replace`` as ``rename``.
    Files with ``quiet`` names (locks) are left alone. What is done from C, as SQLite does it, is not seen.
    """

    def __init__(self, folder: str | os.PathLike[str], *, quiet: Iterable[str] = (".lock",)) -> None:
        """Nothing fails yet."""
        super().__init__(folder)
        self.room: int | None = None
        """How many bytes may still be written; ``None``: as many as there is space for."""
        self.most_at_once: int | None = None
        """How many bytes a write takes at most; the others are left to the next one."""
        self.counts: Counter[str] = Counter()
        """How often each call was made, failed ones too."""
        self._quiet = tuple(quiet)
        self._failures: dict[tuple[str, int], BaseException] = {}
        self._always: dict[str, BaseException] = {}
        self._seconds: dict[str, float] = {}

    def fail(self, call: DiskCall, error: BaseException, *, at: int | None = None) -> None:
        """Make call number ``at`` (default: the next one) fail with ``error``; it does nothing then."""
        number = self.counts[call] + 1 if at is None else at
        if number <= self.counts[call]:
            raise ValueError(f"{call} number {number} has been made already")
        self._failures[call, number] = error

    def fail_always(self, call: DiskCall, error: BaseException) -> None:
        """Make this call fail, from now on."""
        self._always[call] = error

    def slow_down(self, call: DiskCall, seconds: float) -> None:
        """Make this call take ``seconds`` longer, from now on. 0 ends that."""
        self._seconds[call] = seconds

    def heal(self) -> None:
        """Nothing fails any more, nothing is slow, and there is room."""
        self.room = self.most_at_once = None
        self._failures.clear()
        self._always.clear()
        self._seconds.clear()

    def around(self, name: str, real: Call, paths: tuple[str, ...], descriptor: int | None, arguments: Any) -> Any:
        """Make the call, or fail."""
        del descriptor
        last = os.path.basename(paths[0])
        if last.startswith(self._quiet) or last.endswith(self._quiet):
            return real()
        kind = "write" if name == "pwrite" else name
        self.counts[kind] += 1
        if self._seconds.get(kind):
            time.sleep(self._seconds[kind])
        error = self._failures.pop((kind, self.counts[kind]), None) or self._always.get(kind)
        if error is not None:
            raise error
        if kind != "write":
            return real()
        data = arguments if name == "write" else arguments[0]
        if not data:
            return real()
        take = min(len(data), *(limit for limit in (self.room, self.most_at_once, len(data)) if limit is not None))
        if take == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), paths[0])
        count: int = real(data[:take])
        if self.room is not None:
            self.room -= count
        return count
