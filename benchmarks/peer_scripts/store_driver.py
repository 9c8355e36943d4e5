"""How a store of conversations is measured: the same code for ours and for the peers', in a process of its own each.

Nothing but the standard library is imported here, since each peer has an environment of its own. A script makes a
``Store`` and calls ``run``; the command line is ``script PLACE PLAN``: a folder, and a ``Plan`` as JSON. The figures are
printed as one line of JSON, all times in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT = 50
_BLOCKS, _BLOCK = 5, 10
_BEAT = 0.001


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how much of it."""

    text: str
    parts: tuple[str, ...]
    """Which of ``grow``, ``side``, ``stall``, ``read``, ``fork`` and ``weigh``; or ``count`` alone."""
    sizes: tuple[int, ...] = (100, 1_000, 10_000)
    large: int = 100_000
    """The entries of the session whose last 50 are asked for."""
    rounds: int = 3
    count: int = 20
    """Appends of each session side by side."""
    stall_seconds: float = 1.0
    """How long appends are awaited while the event loop is watched."""
    weighed: int = 1_000
    """Awaited appends before the bytes on disk are looked at."""
    sessions: int = 1
    """With ``count``: how many sessions append ``count`` entries each, while somebody else counts the syncs."""
    dsn: str | None = None
    """The address of an empty PostgreSQL database, for stores that want one."""


class Store(ABC):
    """One way of keeping conversations. A session is whatever the store needs to know of it.

    It is started and stopped several times on the same place, and a session that was made before is opened by ``reopen``.
    """

    def __init__(self) -> None:
        self.text: str = ""
        self.dsn: str | None = None

    @abstractmethod
    async def start(self, place: Path) -> None:
        """Ready to be used; what was kept in ``place`` before is there."""

    @abstractmethod
    async def create(self, name: str) -> Any:
        """A new session."""

    @abstractmethod
    async def append(self, session: Any) -> None:
        """Append a message of ``text``; it is kept when this returns."""

    async def extend(self, session: Any, count: int) -> Any:
        """Append so many in the quickest way there is; the session to go on with."""
        for _ in range(count):
            await self.append(session)
        return session

    async def close(self, session: Any) -> None:  # noqa: B027 - most have nothing to close
        """Close the session, where that means something."""

    async def reopen(self, session: Any) -> Any:
        """Open a session that was made before, after the store was started anew."""
        return session

    async def glance(self, session: Any) -> Any:
        """The same, where ``last`` is all that will be asked for."""
        return await self.reopen(session)

    async def whole(self, session: Any) -> int:
        """Read the whole conversation; how many messages it has."""
        raise NotImplementedError

    async def last(self, session: Any, count: int) -> int:
        """Read the last so many; how many there were."""
        raise NotImplementedError

    async def fork(self, session: Any) -> None:
        """A new session with all of this one; ``NotImplementedError`` where there is no such thing."""
        raise NotImplementedError

    async def stop(self) -> None:  # noqa: B027
        """Let go of everything."""


def run(store: Store, floor: Store | None, place: Path, plan: Plan) -> None:
    """Measure and print."""
    print(json.dumps(asyncio.run(_measure(store, floor, place, plan))))


def plan_from(text: str) -> Plan:
    """The plan that ``json.dumps(asdict(plan))`` wrote."""
    values: dict[str, Any] = json.loads(text)
    values |= {name: tuple(values[name]) for name in ("parts", "sizes")}
    return Plan(**values)


async def _measure(store: Store, floor: Store | None, place: Path, plan: Plan) -> dict[str, Any]:
    for one in (store, floor):
        if one is not None:
            one.text, one.dsn = plan.text, plan.dsn
    if "count" in plan.parts:
        return await _appends_alone(store, place, plan)
    found: dict[str, Any] = {}
    if "weigh" in plan.parts:
        found["bytes"] = await _weighed(store, place, plan)
    ours, least = place / "store", place / "floor"
    for folder in (ours, least):
        folder.mkdir()
    await store.start(ours)
    if floor is not None:
        await floor.start(least)
    try:
        if "grow" in plan.parts:
            found["grow"] = await _growing(store, floor, plan)
        if "side" in plan.parts:
            found["side"] = {count: await _side_by_side(store, floor, count, plan) for count in (1, 16, 64)}
        if "stall" in plan.parts:
            found["stall"] = {count: await _stalls(store, count, plan) for count in (1, 64)}
    finally:
        if floor is not None:
            await floor.stop()
    if "read" in plan.parts:
        found |= await _reading(store, ours, plan)
    if "fork" in plan.parts:
        found["fork"] = await _forking(store, plan)
    await store.stop()
    return found


async def _appends_alone(store: Store, place: Path, plan: Plan) -> dict[str, Any]:
    """So many awaited appends and nothing else, for somebody who counts from outside."""
    await store.start(place)
    sessions = [await store.create(f"counted-{number}") for number in range(plan.sessions)]
    await asyncio.gather(*(_append(store, session, plan.count) for session in sessions))
    for session in sessions:
        await store.close(session)
    await store.stop()
    return {}


async def _append(store: Store, session: Any, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        await store.append(session)
    return time.perf_counter() - began


async def _growing(store: Store, floor: Store | None, plan: Plan) -> dict[int, dict[str, float | None]]:
    """The median of the 50 appends before the k-th, in blocks of ten, with the floor's after each block.

    The floor's own session does not grow: it costs the same at any size.
    """
    await _append(store, await store.create("warm"), _BLOCK)
    session = await store.create("growing")
    least = None if floor is None else await floor.create("growing")
    there = 0
    found: dict[int, dict[str, float | None]] = {}
    for size in plan.sizes:
        session = await store.extend(session, size - there - _BLOCKS * _BLOCK)
        times: list[float] = []
        ratios: list[float] = []
        for _ in range(_BLOCKS):
            block = [await _append(store, session, 1) for _ in range(_BLOCK)]
            times += block
            if floor is not None:
                lowest = [await _append(floor, least, 1) for _ in range(_BLOCK)]
                ratios.append(statistics.median(block) / statistics.median(lowest))
        found[size] = {"append": statistics.median(times), "ratio": statistics.median(ratios) if ratios else None}
        there = size
    await store.close(session)
    if floor is not None:
        await floor.close(least)
    return found


async def _side_by_side(store: Store, floor: Store | None, count: int, plan: Plan) -> dict[str, float | None]:
    """So many sessions, a task each, every append awaited: seconds per append, all appends counted."""
    each = plan.count if count > 1 else plan.count * 4

    async def round_of(one: Store, sessions: list[Any]) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(_append(one, session, each) for session in sessions))
        return (time.perf_counter() - began) / count / each

    sessions = [await store.create(f"side-{count}-{number}") for number in range(count)]
    lowest = [] if floor is None else [await floor.create(f"side-{count}-{number}") for number in range(count)]
    await asyncio.gather(*(_append(store, session, 1) for session in sessions))
    times: list[float] = []
    ratios: list[float] = []
    for _ in range(plan.rounds):
        times.append(await round_of(store, sessions))
        if floor is not None:
            ratios.append(times[-1] / await round_of(floor, lowest))
    for session in sessions:
        await store.close(session)
    if floor is not None:
        for session in lowest:
            await floor.close(session)
    return {"append": statistics.median(times), "ratio": statistics.median(ratios) if ratios else None}


async def _stalls(store: Store, count: int, plan: Plan) -> dict[str, float]:
    """How long a heartbeat of a millisecond is kept waiting while so many sessions append."""
    stalls: list[float] = []

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_BEAT)
            stalls.append(time.perf_counter() - began - _BEAT)

    sessions = [await store.create(f"stall-{count}-{number}") for number in range(count)]
    await asyncio.gather(*(_append(store, session, 1) for session in sessions))
    heart = asyncio.create_task(beat())
    await asyncio.sleep(0.05)
    stalls.clear()
    end = time.perf_counter() + plan.stall_seconds

    async def append_on(session: Any) -> None:
        while time.perf_counter() < end:
            await store.append(session)

    await asyncio.gather(*map(append_on, sessions))
    await asyncio.sleep(2 * _BEAT)  # the beat that the last append kept waiting
    heart.cancel()
    for session in sessions:
        await store.close(session)
    ordered = sorted(stalls)
    return {"p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], "worst": ordered[-1]}


async def _reading(store: Store, place: Path, plan: Plan) -> dict[str, float]:
    """Reopening with the whole conversation; the last 50 of a large one, the session open and from nothing."""
    size = plan.sizes[-1]
    session = await store.extend(await store.create("reloaded"), size)
    large = await store.extend(await store.create("large"), plan.large)
    await store.close(session)
    times: dict[str, list[float]] = {"reload": [], "last_from_nothing": [], "last": []}
    for _ in range(plan.rounds):
        await store.stop()
        began = time.perf_counter()
        await store.start(place)
        again = await store.reopen(session)
        assert await store.whole(again) == size
        times["reload"].append(time.perf_counter() - began)
        await store.close(again)
    await store.close(large)
    await store.stop()
    began = time.perf_counter()
    await store.start(place)
    large = await store.glance(large)
    await store.last(large, KEPT)
    times["last_from_nothing"].append(time.perf_counter() - began)
    for _ in range(plan.rounds * 3):
        began = time.perf_counter()
        assert await store.last(large, KEPT) == KEPT
        times["last"].append(time.perf_counter() - began)
    await store.close(large)
    return {name: statistics.median(taken) for name, taken in times.items()}


async def _forking(store: Store, plan: Plan) -> float | None:
    """A new session with all of one as large as the largest that was grown."""
    session = await store.extend(await store.create("forked"), plan.sizes[-1])
    times: list[float] = []
    for _ in range(plan.rounds):
        began = time.perf_counter()
        try:
            await store.fork(session)
        except NotImplementedError:
            return None
        times.append(time.perf_counter() - began)
    await store.close(session)
    return statistics.median(times)


async def _weighed(store: Store, place: Path, plan: Plan) -> float:
    """Bytes an entry takes when all is closed: with so many awaited appends, less what an empty session takes.

    A database is made ready by one empty session more, before; of PostgreSQL its tables are weighed, not its log.
    """
    weights: list[float] = []
    for name, count in (("first", 0), ("empty", 0), ("full", plan.weighed)):
        folder = place / name
        folder.mkdir()
        before = _weight(folder, plan.dsn)
        await store.start(folder)
        session = await store.create(f"weighed-{name}")
        await _append(store, session, count)
        await store.close(session)
        await store.stop()
        weights.append(_weight(folder, plan.dsn) - before)
    return (weights[-1] - weights[-2]) / plan.weighed


def _weight(folder: Path, dsn: str | None) -> int:
    if dsn is not None:
        import psycopg

        with psycopg.connect(dsn) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
            assert row is not None
            return int(row[0])
    os.sync()  # a file whose bytes were not written yet has no blocks
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
