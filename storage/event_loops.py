"""Which event loop we are on, and the few things that anyio cannot do on it.

anyio's own thread calls are abandoned by a native ``task.cancel()`` while the thread writes on, and its locks must be
released by the task that took them. So the log waits in its own way: ``asyncio_loop`` and ``trio_loop`` hold the one
small implementation each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

from storage import workers

T = TypeVar("T")

SLICE_SECONDS = 0.0007
"""How long work may keep the event loop's thread, or the interpreter, to itself."""

_PAUSE_SECONDS = 0.00005


class Waitable(Protocol):
    """Something that a task can wait for: it is done some day, and wakes those who registered."""

    def is_done(self) -> bool:
        """Whether there is nothing left to wait for."""
        ...

    def must_stay(self) -> bool:
        """Whether a cancelled task has to wait all the same, because work is under way on its behalf."""
        ...

    def register(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called on the event loop when it is done."""
        ...

    def unregister(self, wake: Callable[[], None]) -> None:
        """Take that back."""
        ...


class EventLoop(Protocol):
    """One running event loop."""

    checkpoint_is_bare: bool
    """Whether a bare ``yield`` is this loop's checkpoint, which saves two generators."""

    def is_current(self) -> bool:
        """Whether the caller runs on this loop, in its thread."""
        ...

    def is_over(self) -> bool:
        """Whether the loop has ended, so that nothing will ever run on it again."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call on the loop, in its next turn."""
        ...

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> bool:
        """The same from a worker thread. False if the loop is closed: nobody is left who waits."""
        ...

    def checkpoint(self) -> Generator[Any, Any, None]:
        """Let the others run; a cancellation is raised here."""
        ...

    def wait(self, waitable: Waitable) -> Generator[Any, Any, None]:
        """Wait until it is done. A cancellation is let through at once, or, if it ``must_stay``, when it is done."""
        ...

    def protect(self, function: Callable[[], None]) -> Callable[[], None]:
        """``function`` so that a Ctrl-C does not tear it apart, where the loop would let it."""
        ...


def current_loop() -> EventLoop:
    """The loop that runs in this thread. Raises ``RuntimeError`` without one."""
    if "trio" in sys.modules:  # never imported on account of us: who runs on trio has it loaded
        import trio

        if trio.lowlevel.in_trio_task():
            from storage.trio_loop import TrioLoop

            return TrioLoop()
    from storage.asyncio_loop import AsyncioLoop

    return AsyncioLoop()


class _Call(Waitable):
    """A function that runs in a worker, and what came of it."""

    def __init__(self, loop: EventLoop, function: Callable[[], Any]) -> None:
        self._loop = loop
        self._function = function
        self._wakes: list[Callable[[], None]] = []
        self.finished = False
        self.result: Any = None
        self.error: BaseException | None = None
        workers.submit(self._run, self._tell)

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - handed to the task that waits
            self.error = error
        self.finished = True

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()
        self._wakes.clear()

    def is_done(self) -> bool:
        return self.finished

    def must_stay(self) -> bool:
        return True

    def register(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    def unregister(self, wake: Callable[[], None]) -> None:
        if wake in self._wakes:
            self._wakes.remove(wake)


class _Waiting:
    def __init__(self, loop: EventLoop, waitable: Waitable) -> None:
        self._loop = loop
        self._waitable = waitable

    def __await__(self) -> Generator[Any, Any, None]:
        return self._loop.wait(self._waitable)


async def run_in_worker(function: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
    """Run blocking ``function`` in a worker thread; always until it has ended, whatever is thrown into the task.

    A cancellation is let through after that. ``undo`` is called before (in a worker) with a result that nobody will get,
    so that a lock or a file that ``function`` opened does not stay open.
    """
    loop = current_loop()
    call = _Call(loop, function)
    try:
        await _Waiting(loop, call)
    except BaseException:
        if undo is not None and call.error is None:
            await _Waiting(loop, _Call(loop, partial(undo, cast("T", call.result))))
        raise
    if call.error is not None:
        try:
            raise call.error
        finally:
            del call  # the error's traceback holds this frame: break the cycle
    return cast("T", call.result)


_TURNS: Final = 3


async def let_others_run() -> None:
    """A checkpoint between two pieces of long work, after which whoever was due has run.

    One turn of the loop is not enough: in the first a timer that is due is seen, in the second it wakes its task, in the
    third the task runs; and our own next piece would come before each of them.
    """
    loop = current_loop()
    for _ in range(_TURNS):
        await _Checkpoint(loop)


class _Checkpoint:
    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def __await__(self) -> Generator[Any, Any, None]:
        return self._loop.checkpoint()


async def in_slices(work: Iterable[object]) -> None:
    """Do ``work``, which pauses every few steps, on the event loop; that gets its turn after each half millisecond."""
    until = time.perf_counter() + SLICE_SECONDS
    for _ in work:
        if time.perf_counter() > until:
            await let_others_run()
            until = time.perf_counter() + SLICE_SECONDS


class Breath:
    """Lets the event loop's thread have the interpreter while a worker does long work in Python.

    Without it, the loop would wait for the interpreter's switch interval (5 ms) again and again.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_SECONDS

    def take(self) -> None:
        """Call it every few records: gives way when about half a millisecond has passed."""
        if time.perf_counter() > self._until:
            time.sleep(_PAUSE_SECONDS)
            self._until = time.perf_counter() + SLICE_SECONDS
