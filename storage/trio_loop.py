"""trio, where anyio cannot do it: a wait that a cancellation does not end, and protection against Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from storage.event_loops import Waitable


class TrioLoop:
    """The running trio loop."""

    __slots__ = ("_token",)

    checkpoint_is_bare = False

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def is_current(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def is_over(self) -> bool:
        try:
            self._token.run_sync_soon(_nothing)
        except trio.RunFinishedError:
            return True
        return False

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._token.run_sync_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> bool:
        try:
            self._token.run_sync_soon(callback)
        except trio.RunFinishedError:
            return False
        return True

    def checkpoint(self) -> Generator[Any, Any, None]:
        return trio.lowlevel.checkpoint().__await__()

    def wait(self, waitable: Waitable) -> Generator[Any, Any, None]:
        return self._wait(waitable).__await__()

    async def _wait(self, waitable: Waitable) -> None:
        stayed = False
        while not waitable.is_done():
            task = trio.lowlevel.current_task()
            woken = False

            def wake(task: trio.lowlevel.Task = task) -> None:
                nonlocal woken
                if not woken:
                    woken = True
                    trio.lowlevel.reschedule(task)

            def abort(_: Callable[[], None], wake: Callable[[], None] = wake) -> trio.lowlevel.Abort:
                nonlocal stayed
                if waitable.must_stay():
                    stayed = True
                    return trio.lowlevel.Abort.FAILED
                waitable.unregister(wake)
                return trio.lowlevel.Abort.SUCCEEDED

            waitable.register(wake)
            await trio.lowlevel.wait_task_rescheduled(abort)
        if stayed:
            await trio.lowlevel.checkpoint_if_cancelled()

    def protect(self, function: Callable[[], None]) -> Callable[[], None]:
        return trio.lowlevel.enable_ki_protection(function)


def _nothing() -> None:
    """For asking whether the loop still takes calls."""
