"""Cancelling a coroutine at its n-th step, by scope or natively."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import anyio

Cancel = Callable[[], object]


class StoppedAtStep(Awaitable[Any]):
    """Runs a coroutine, and calls ``cancel`` just as it waits for the ``step``-th time (counted from 1)."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], step: int, cancel: Cancel) -> None:
        self._coroutine = coroutine
        self._step = step
        self._cancel = cancel
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            trap = self._coroutine.send(None)
            while True:
                self.steps += 1
                if self.steps == self._step:
                    self._cancel()
                try:
                    sent = yield trap
                except BaseException as error:  # noqa: BLE001 - thrown on into the coroutine
                    trap = self._coroutine.throw(error)
                else:
                    trap = self._coroutine.send(sent)
        except StopIteration as stop:
            return stop.value


async def run_cancelled(way: str, work: Callable[[Cancel], Awaitable[Any]]) -> str:
    """Run ``work`` in a task that its argument cancels; "finished", "cancelled", or the name of the exception.

    ``way``: "scope" (an anyio scope in the same task) or "native" (``task.cancel()``, asyncio only).
    """
    if way == "scope":
        with anyio.CancelScope() as scope:
            try:
                await work(scope.cancel)
            except Exception as error:  # noqa: BLE001 - its name is the answer
                return type(error).__name__
            return "finished"
        return "cancelled"
    import asyncio

    async def whole() -> None:
        await work(task.cancel)

    task = asyncio.ensure_future(whole())
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled"
    except Exception as error:  # noqa: BLE001 - its name is the answer
        return type(error).__name__
    return "finished"
