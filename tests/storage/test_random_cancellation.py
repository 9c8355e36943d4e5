"""Many tasks, cancelled at random instants; and openings that are cancelled (R8, R12)."""

from __future__ import annotations

import asyncio
import random

import anyio
import pytest

from harness import Session
from storage import EntryLog
from storage.testing import FaultyStorage
from tests.storage.places import JsonlPlace, Place, assert_chain, said
from tests.storage.waiting import Waiter, Way

pytestmark = pytest.mark.anyio


def ways(loop: str) -> list[Way]:
    """How one can cancel on an event loop; trio knows scopes only."""
    return ["scope", "native"] if loop == "asyncio" else ["scope"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_random_instants(jsonl: JsonlPlace, anyio_backend_name: str, seed: int, durability: str) -> None:
    """R8: many tasks, cancelled at random instants: what was acknowledged is there, in order, once; it opens again."""
    chooser = random.Random(seed)
    storage = FaultyStorage(await jsonl.create(durability=durability), inline=durability == "os" and seed % 2 == 0)
    if not storage.info.inline:
        storage.slow_down("commit", 0.0007)
        storage.slow_down("sync", 0.0003)
    log = await EntryLog.open(storage)
    called: list[str] = []
    waiters: list[Waiter] = []
    async with anyio.create_task_group() as group:
        for number in range(150):
            write = log.append_message(said(f"{number}" * chooser.choice((1, 1, 5000))))
            called.append(write.entry_id)
            waiter = Waiter(write, chooser.choice(ways(anyio_backend_name)))
            waiters.append(waiter)
            waiter.start(group)
            while chooser.random() < 0.5:
                await anyio.sleep(chooser.random() * 0.001)
            if chooser.random() < 0.7:
                chooser.choice(waiters[-8:]).cancel()
        with anyio.fail_after(60):
            for waiter in waiters:
                await waiter.ended.wait()
    acknowledged = [waiter.write.entry_id for waiter in waiters if waiter.outcome == "acknowledged"]
    assert "cancelled" in {waiter.outcome for waiter in waiters}
    before_closing = [entry["id"] for entry in jsonl.entries()]
    assert set(acknowledged) <= set(before_closing)
    with anyio.fail_after(60):
        last = await log.append_message(said("last"))
        await log.aclose()
    assert storage.overlaps == 0
    assert [entry["id"] for entry in jsonl.entries()] == [*called, last]
    assert_chain(jsonl.entries())
    log = await jsonl.log()
    assert len(log.index) == 151
    await log.aclose()


async def test_opening_cancelled_leaves_nothing_open(on_disk: Place, anyio_backend_name: str) -> None:
    """R8, R12: opening or creating that is cancelled at random instants leaves no lock and no half session behind."""
    log = await on_disk.new_log()
    writes = [log.append_message(said("x" * 200)) for _ in range(200)]
    await writes[-1]
    await log.aclose()
    chooser = random.Random(1)
    for _ in range(30):
        scope = anyio.CancelScope()
        ended = anyio.Event()
        opened: list[EntryLog] = []

        async def opening(scope: anyio.CancelScope, ended: anyio.Event, opened: list[EntryLog]) -> None:
            try:
                with scope:
                    storage = await on_disk.open()
                    try:
                        opened.append(await EntryLog.open(storage))
                    except BaseException:
                        storage.close()
                        raise
            finally:
                ended.set()

        async with anyio.create_task_group() as group:
            task = None
            if chooser.choice(ways(anyio_backend_name)) == "native":
                task = asyncio.get_running_loop().create_task(opening(scope, ended, opened))
            else:
                group.start_soon(opening, scope, ended, opened)
            await anyio.sleep(chooser.random() * 0.012)
            if task is not None:
                task.cancel()
            else:
                scope.cancel()
            with anyio.fail_after(60):
                await ended.wait()
        for log in opened:
            await log.aclose()
        again = await on_disk.log(lock_timeout=60)
        assert len(again.index) == 200
        await again.aclose()


async def test_a_session_cancelled_anywhere(on_disk: Place, anyio_backend_name: str) -> None:
    """R8, R12: opening, appending, reading and leaving a session, cancelled at random instants, always closes it."""
    (await on_disk.create()).close()
    chooser = random.Random(2)
    acknowledged: list[str] = []

    async def converse(scope: anyio.CancelScope, ended: anyio.Event) -> None:
        try:
            with scope:
                async with Session.open(on_disk.open(durability=chooser.choice(("os", "fsync")))) as session:
                    while True:
                        writes = [session.append_message(said("x" * 50)) for _ in range(3)]
                        acknowledged.append(await writes[0])
                        await session.entries(limit=5)
        finally:
            ended.set()

    longest = 0.06 if on_disk.name == "postgres" else 0.015
    rounds = 0
    while rounds < 40 or len(acknowledged) <= 5:
        rounds += 1
        scope, ended = anyio.CancelScope(), anyio.Event()
        async with anyio.create_task_group() as group:
            task = None
            if chooser.choice(ways(anyio_backend_name)) == "native":
                task = asyncio.get_running_loop().create_task(converse(scope, ended))
                task.add_done_callback(lambda _, ended=ended: ended.set())
            else:
                group.start_soon(converse, scope, ended)
            await anyio.sleep(chooser.random() * longest * max(1, rounds / 40))  # more, where so much is not enough
            if task is not None:
                task.cancel()
            else:
                scope.cancel()
            with anyio.fail_after(60):
                await ended.wait()
    log = await on_disk.log(on_torn_tail="raise")
    found = log.index.names
    assert [entry_id for entry_id in found if entry_id in set(acknowledged)] == acknowledged
    assert len(found) % 3 == 0  # leaving writes what is queued
    await log.aclose()
    assert_chain(on_disk.entries())
