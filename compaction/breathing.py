"""Long work in pieces: a generator that yields now and then, so that whoever runs it can let the event loop breathe."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from storage.event_loops import let_others_run

T = TypeVar("T")

PIECE_SECONDS = 0.0005
"""How long a piece of work lasts. The first may last twice as long: most work is done by then, and never pauses."""

Job: TypeAlias = Callable[[], Any]
"""Work that takes too long for an event loop and needs nothing of it."""

Steps: TypeAlias = Generator["Job | None", Any, T]
"""Work that yields ``None`` where it can pause, and a ``Job`` where it wants its result sent back. It returns a ``T``."""


class Breath:
    """Tells when a piece of work has lasted long enough: when ``perf_counter()`` has passed ``due``."""

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due: float = perf_counter() + 2 * PIECE_SECONDS

    def is_due(self) -> bool:
        """Whether it is time to pause."""
        return perf_counter() > self.due

    def taken(self) -> None:
        """The next piece begins."""
        self.due = perf_counter() + PIECE_SECONDS


def run_at_once(steps: Steps[T]) -> T:
    """Do all of it here and now, jobs included. Blocks: for code without an event loop."""
    result: Any = None
    while True:
        try:
            job = steps.send(result)
        except StopIteration as stop:
            return stop.value
        result = None if job is None else job()


async def run_with_pauses(steps: Steps[T]) -> T:
    """Do it piece by piece on the event loop, a checkpoint between two, and jobs in a worker thread.

    Cancelled, it stops at the next pause, or at once while it waits for a job, whose thread then ends by itself (a job
    only computes). The threads are not those of anyio's shared limiter, which others may have filled.
    """
    limiter: anyio.CapacityLimiter | None = None
    result: Any = None
    try:
        while True:
            try:
                job = steps.send(result)
            except StopIteration as stop:
                return stop.value
            if job is None:
                result = None
                await let_others_run()
            else:
                limiter = limiter or anyio.CapacityLimiter(1)
                result = await anyio.to_thread.run_sync(job, limiter=limiter, abandon_on_cancel=True)
    finally:
        steps.close()
