"""Cancelling a write in every phase: it is written once or stays queued, nobody hangs, the log goes on (R8).

On asyncio by a native ``task.cancel()`` and by scopes, on trio by scopes. Slow and held storages stop the clock where it
matters.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import anyio
import anyio.lowlevel
import pytest

from storage import StorageError
from storage.testing import Gate
from tests.storage.places import JsonlPlace, Place, assert_chain, said, texts
from tests.storage.waiting import Waiter, Way, a_few_turns, faulty_log, reached

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["asyncio, by scope", "asyncio, natively", "trio, by scope"])
def loop_and_way(request: pytest.FixtureRequest) -> str:
    """An event loop, and how to cancel on it; trio knows scopes only."""
    return request.param


@pytest.fixture(scope="module")
def anyio_backend(loop_and_way: str) -> tuple[str, dict[str, object]]:
    """The event loop."""
    return loop_and_way.split(",", maxsplit=1)[0], {}


@pytest.fixture
def way(loop_and_way: str) -> Way:
    """How to cancel."""
    return "native" if loop_and_way.endswith("natively") else "scope"


async def test_cancelled_before_its_turn(where: Place, way: Way) -> None:
    """R8: cancelled at the checkpoint before anything is written, the write stays queued and goes with the next."""
    log, storage = await faulty_log(where)
    first = Waiter(log.append_message(said("first")), way)
    async with anyio.create_task_group() as group:
        first.start(group)
        if way == "native":
            await anyio.lowlevel.checkpoint()  # a task that has not begun would only be dropped
        first.cancel()
        await first.ended.wait()
        assert first.outcome == "cancelled"
        assert not first.write.is_done()
        assert storage.count("commit") == 0
        await log.append_message(said("second"))
    assert first.write.is_done()
    await log.aclose()
    assert texts(where.entries()) == ["first", "second"]
    assert_chain(where.entries())


async def test_cancelled_while_others_are_written(where: Place, way: Way) -> None:
    """R8: cancelled while it is queued behind a batch that is under way, it is let go at once and stays queued."""
    log, storage = await faulty_log(where)
    gate = storage.hold("commit")
    async with anyio.create_task_group() as group:
        under_way = Waiter(log.append_message(said("under way")), way)
        under_way.start(group)
        await reached(gate)
        queued = Waiter(log.append_message(said("queued")), way)
        queued.start(group)
        await a_few_turns()
        queued.cancel()
        with anyio.fail_after(60):
            await queued.ended.wait()
        assert queued.outcome == "cancelled"
        assert not queued.write.is_done()
        gate.open()
        with anyio.fail_after(60):
            await under_way.ended.wait()
        assert under_way.outcome == "acknowledged"
    await log.aclose()
    assert texts(where.entries()) == ["under way", "queued"]


@pytest.mark.parametrize("step", ["commit", "sync"])
async def test_cancelled_while_it_is_written(jsonl: JsonlPlace, way: Way, step: Literal["commit", "sync"]) -> None:
    """R8: cancelled while it is written or synced, the awaiter waits for the outcome, then lets it through; once written."""
    log, storage = await faulty_log(jsonl, durability="fsync")
    gate = storage.hold(step)
    waiter = Waiter(log.append_message(said("first")), way)
    async with anyio.create_task_group() as group:
        waiter.start(group)
        await reached(gate)
        waiter.cancel()
        await anyio.sleep(0.01)
        waiter.cancel()
        await anyio.sleep(0.01)
        assert waiter.outcome == "waiting"
        assert not waiter.write.is_done()
        gate.open()
        with anyio.fail_after(60):
            await waiter.ended.wait()
        assert waiter.outcome == "cancelled"
        assert waiter.write.is_done()
    assert log.leaf_id == waiter.write.entry_id
    assert await waiter.write == waiter.write.entry_id
    await log.append_message(said("second"))
    await log.aclose()
    assert texts(jsonl.entries()) == ["first", "second"]
    assert_chain(jsonl.entries())


@pytest.mark.parametrize("step", ["commit", "sync"])
async def test_the_drainer_is_cancelled_and_others_wait(
    jsonl: JsonlPlace, way: Way, step: Literal["commit", "sync"]
) -> None:
    """R8: the task that started the batch is cancelled while others wait for later batches: they are all served."""
    log, storage = await faulty_log(jsonl, durability="fsync")
    gate = storage.hold(step)
    async with anyio.create_task_group() as group:
        drainer = Waiter(log.append_message(said("0")), way)
        drainer.start(group)
        await reached(gate)
        others = [Waiter(log.append_message(said(f"{number}")), way) for number in range(1, 300)]
        for other in others[::10]:
            other.start(group)
        await a_few_turns()
        drainer.cancel()
        await a_few_turns()
        gate.open()
        with anyio.fail_after(60):
            for waiter in [drainer, *others[::10]]:
                await waiter.ended.wait()
        assert {waiter.outcome for waiter in others[::10]} == {"acknowledged"}
    await log.aclose()
    assert texts(jsonl.entries()) == [f"{number}" for number in range(300)]


async def test_everybody_is_cancelled_but_one(where: Place, way: Way) -> None:
    """R8: of many that wait behind a slow batch, all but the last are cancelled: the last is served, in order."""
    log, storage = await faulty_log(where)
    gate = storage.hold("commit")
    async with anyio.create_task_group() as group:
        waiters = [Waiter(log.append_message(said(f"{number}")), way) for number in range(20)]
        waiters[0].start(group)
        await reached(gate)
        waiters += [Waiter(log.append_message(said(f"{number}")), way) for number in range(20, 40)]
        for waiter in waiters[1:]:
            waiter.start(group)
        await a_few_turns()
        for waiter in waiters[:-1]:
            waiter.cancel()
        gate.open()
        with anyio.fail_after(60):
            for waiter in waiters:
                await waiter.ended.wait()
        assert waiters[-1].outcome == "acknowledged"
    await log.aclose()
    assert texts(where.entries()) == [f"{number}" for number in range(40)]


async def test_cancelled_in_the_tick_in_which_it_is_settled(where: Place, way: Way) -> None:
    """R8: whatever the distance between the outcome and the cancellation, the next in line is served."""
    for turns in range(8):
        log, storage = await faulty_log(where if turns == 0 else where.another(turns))
        gate = storage.hold("commit")
        async with anyio.create_task_group() as group:
            first = Waiter(log.append_message(said("first")), way)
            first.start(group)
            await reached(gate)
            second = Waiter(log.append_message(said("second")), way)
            second.start(group)
            await a_few_turns()
            gate.open()
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            first.cancel()
            with anyio.fail_after(60):
                await first.ended.wait()
                await second.ended.wait()
            assert second.outcome == "acknowledged"
            assert first.write.is_done()
        await log.aclose()


async def test_a_failed_write_of_a_cancelled_task_is_told_to_flush(where: Place, way: Way) -> None:
    """R8, R10: a write that fails while its only awaiter is being cancelled is not forgotten: flush raises it."""
    log, storage = await faulty_log(where)
    storage.fail_commit(OSError(28, "No space left on device"), keep=0)
    gate = storage.hold("commit")
    waiter = Waiter(log.append_message(said()), way)
    async with anyio.create_task_group() as group:
        waiter.start(group)
        await reached(gate)
        waiter.cancel()
        gate.open()
        await waiter.ended.wait()
    assert waiter.outcome == "cancelled"
    with pytest.raises(StorageError, match="No space left"):
        await log.flush()
    await log.append_message(said("after"))
    await log.aclose()
    assert texts(where.entries()) == ["after"]


@pytest.mark.parametrize("what", ["flush", "entries", "path", "aclose"])
async def test_cancelling_who_reads_or_closes(where: Place, way: Way, what: str) -> None:
    """R8: a read, flush or close that is cancelled while it drains leaves a usable (or closed) log, and every entry once."""
    log, storage = await faulty_log(where)
    gate = storage.hold("commit")
    writes = [log.append_message(said(f"{number}")) for number in range(300)]
    ended = anyio.Event()
    scope = anyio.CancelScope()

    async def call() -> None:
        try:
            with scope:
                await getattr(log, what)()
        except anyio.get_cancelled_exc_class():
            pass
        finally:
            ended.set()

    async with anyio.create_task_group() as group:
        task: asyncio.Task[None] | None = None
        if way == "native":
            task = asyncio.get_running_loop().create_task(call())
        else:
            group.start_soon(call)
        await reached(gate)
        if task is not None:
            task.cancel()
        else:
            scope.cancel()
        await a_few_turns()
        gate.open()
        with anyio.fail_after(60):
            await ended.wait()
    if what != "aclose":
        await writes[-1]
    assert all(write.is_done() for write in writes)
    await log.aclose()
    assert storage.overlaps == 0
    assert texts(where.entries()) == [f"{number}" for number in range(300)]


async def test_leaving_cancelled_closes_all_the_same(where: Place, way: Way) -> None:
    """R8: closing in a task that is cancelled already writes what is queued, closes the storage, and gives the lock back."""
    log, storage = await faulty_log(where)
    ended = anyio.Event()

    async def work() -> None:
        log.append_message(said("queued"))
        try:
            await anyio.sleep(60)
        finally:
            try:
                await log.aclose()
            finally:
                ended.set()

    async def run(scope: anyio.CancelScope) -> None:
        with scope:
            await work()

    task: asyncio.Task[None] | None = None
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        if way == "native":
            task = asyncio.get_running_loop().create_task(work())
        else:
            group.start_soon(run, scope)
        await anyio.sleep(0.005)
        if task is not None:
            task.cancel()
        else:
            scope.cancel()
        with anyio.fail_after(60):
            await ended.wait()
    if task is not None:
        with pytest.raises(asyncio.CancelledError):
            await task
    assert storage.count("close") == 1
    again = await where.log()
    assert len(again.index) == 1
    await again.aclose()


async def test_timeouts_time_out(jsonl: JsonlPlace) -> None:
    """R8: anyio's timeouts end as timeouts, after the write that was under way is settled; nothing is lost or doubled."""
    log, storage = await faulty_log(jsonl)
    async with anyio.create_task_group() as group:

        async def let_go(scope: anyio.CancelScope, gate: Gate) -> None:
            while not scope.cancel_called:
                await anyio.sleep(0.001)
            gate.open()

        with anyio.move_on_after(0.005) as scope:
            group.start_soon(let_go, scope, storage.hold("commit"))
            await log.append_message(said("moved on"))
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.005) as scope:
                group.start_soon(let_go, scope, storage.hold("commit"))
                await log.append_message(said("timed out"))
    with anyio.move_on_after(60) as scope:
        await log.append_message(said("in time"))
    assert not scope.cancelled_caught
    await log.aclose()
    assert texts(jsonl.entries()) == ["moved on", "timed out", "in time"]


async def test_the_loop_runs_on_while_a_cancelled_task_stays(jsonl: JsonlPlace, way: Way) -> None:
    """R8: a task that has to stay with a slow write does not keep the others from running."""
    log, storage = await faulty_log(jsonl)
    gate = storage.hold("commit")

    async with anyio.create_task_group() as group:
        waiter = Waiter(log.append_message(said()), way)
        waiter.start(group)
        await reached(gate)
        waiter.cancel()
        for _ in range(20):
            await anyio.sleep(0.002)
        assert waiter.outcome == "waiting"
        gate.open()
        await waiter.ended.wait()
    await log.aclose()
