"""asyncio, where anyio cannot do it: a wait that outlives ``task.cancel()``, and a checkpoint of one turn of the loop."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop as running_loop  # pyright: ignore[reportPrivateUsage] - the public one raises
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import anyio

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
        cancellation = yield from self._wait(waitable)
        if cancellation is None:
            return
        # A native cancellation goes to the innermost future, whatever shields it; the work goes on, so wait for it once
        # more. anyio's scopes cancel again and again, each turn of the loop, and would keep the interpreter from the worker
        # that we wait for: against those the shield does help.
        with anyio.CancelScope(shield=True):  # noqa: ASYNC100 - a generator waits by yielding
            while not waitable.is_done():
                yield from self._wait(waitable)
        # The same exception is raised at the end: then ``asyncio.timeout`` and anyio's scopes still count it right.
        try:
            raise cancellation
        finally:
            del cancellation

    def _wait(self, waitable: Waitable) -> Generator[Any, Any, asyncio.CancelledError | None]:
        """Wait until it is done, or until a cancellation that has to wait, which is returned."""
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
                return error
        return None

    def protect(self, function: Callable[[], None]) -> Callable[[], None]:
        return function
