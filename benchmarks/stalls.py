"""How long the event loop is held: a heartbeat that sleeps a millisecond and measures what came on top."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from benchmarks.measuring import Figure, message, percentile
from harness.session import Session
from storage.jsonl import JsonlStorage

_BEAT = 0.001


async def _while_beating(work: Callable[[], Awaitable[object]]) -> list[float]:
    """The stalls, in milliseconds, while ``work`` runs."""
    stalls: list[float] = []

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await anyio.sleep(_BEAT)
            stalls.append((time.perf_counter() - began - _BEAT) * 1e3)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        await anyio.sleep(0.05)
        stalls.clear()
        await work()
        tasks.cancel_scope.cancel()
    return stalls


async def appending(folder: Path, producers: int, count: int) -> list[Figure]:
    """``producers`` tasks that append one after another, all at once."""
    async with Session.open(JsonlStorage.create(folder / f"stall-{producers}.jsonl")) as session:

        async def produce() -> None:
            for number in range(count):
                await session.append_message(message(number))

        async def work() -> None:
            async with anyio.create_task_group() as tasks:
                for _ in range(producers):
                    tasks.start_soon(produce)

        stalls = await _while_beating(work)
    limit = 1 if producers == 1 else 3
    return [Figure(f"stall while {producers} append, p99", percentile(stalls, 0.99), "ms", limit)]


async def opening(path: Path) -> list[Figure]:
    """Opening a large session."""

    async def work() -> None:
        async with Session.open(JsonlStorage.open(path, mode="read")):
            pass

    stalls = await _while_beating(work)
    size = f"{path.stat().st_size / 1e6:.0f} MB"
    return [
        Figure(f"stall while opening {size}, p99", percentile(stalls, 0.99), "ms", 1),
        Figure(f"stall while opening {size}, worst", max(stalls), "ms", 10),
    ]


async def building(path: Path) -> list[Figure]:
    """Building the context of a whole session."""
    async with Session.open(JsonlStorage.open(path, mode="read")) as session:

        async def work() -> None:
            for _ in range(5):
                await session.build_context()

        stalls = await _while_beating(work)
        count = len(session.log.index)
    return [Figure(f"stall while building a context of {count:,}, p99", percentile(stalls, 0.99), "ms", 5)]
