"""asyncio, where anyio cannot do it: a wait that outlives ``task.cancel()``, and a checkpoint of one turn of the loop."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop as running_loop  # pyright: ignore[reportPrivateUsage] - the public one raises
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.event_loops import Waitable


class AsyncioLoop:
    """The running asyncio loop (or one that takes its place, such as uvloop's)."""

    __slots__ = ("_loop",)

    checkpoint_is_bare = True

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def is_current(self) -> bool:
        return running_loop() is self._loop

    def is_over(self) -> bool:
        return self._loop.is_closed()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def checkpoint(self) -> Generator[Any, Any, None]:
        yield

    def wait(self, waitable: Waitable) -> Generator[Any, Any, None]:
        cancellation: asyncio.CancelledError | None = None
        while not waitable.is_done():
            future: asyncio.Future[None] = self._loop.create_future()

            def wake(future: asyncio.Future[None] = future) -> None:
                if not future.done():
                    future.set_result(None)

            waitable.register(wake)
            try:
                yield from future
            except asyncio.CancelledError as error:
                waitable.unregister(wake)
                if not waitable.must_stay():
                    raise
                # A native cancellation goes to the innermost future; the work goes on, so wait for it once more. The
                # same exception is raised at the end: then ``asyncio.timeout`` and anyio's scopes still count it right.
                cancellation = error
        if cancellation is not None:
            try:
                raise cancellation
            finally:
                cancellation = None

    def protect(self, function: Callable[[], None]) -> Callable[[], None]:
        return function
