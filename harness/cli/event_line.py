"""From the conversation's thread to the one that shows it; waiting can end with a key that a person pressed."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

T = TypeVar("T")

Key = Literal["key"]
KEY: Key = "key"
"""What ``get`` returns when a key is waiting to be read."""


class EventLine(Generic[T]):
    """``put`` from any thread, never waiting; ``get`` from one. Use it in a ``with``.

    ``keyboard`` is the descriptor to be watched as well, or ``None``.
    """

    def __init__(self, keyboard: int | None) -> None:
        self._queue: SimpleQueue[T] = SimpleQueue()
        self.keyboard = keyboard
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        if keyboard is not None:
            self._pipe = os.pipe()
            for descriptor in self._pipe:
                os.set_blocking(descriptor, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # a late put must not write to a descriptor that belongs to another file by now
            pipe, self._pipe = self._pipe, None
        for descriptor in pipe or ():
            os.close(descriptor)

    def put(self, item: T) -> None:
        """Hand ``item`` over."""
        self._queue.put(item)
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes its reader as well
            if self._pipe is not None:
                os.write(self._pipe[1], b"\0")

    def get(self) -> T | Key:
        """The next item, or ``KEY`` as soon as a key is waiting."""
        if self.keyboard is None or self._pipe is None:
            return self._queue.get()
        reading = self._pipe[0]
        while True:
            ready, _, _ = select.select([reading, self.keyboard], [], [], None if self._queue.empty() else 0)
            if self.keyboard in ready:
                return KEY
            with contextlib.suppress(BlockingIOError):
                os.read(reading, 65536)
            with contextlib.suppress(Empty):
                return self._queue.get_nowait()
