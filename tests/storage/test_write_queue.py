"""The queue: group commit, no background task, limits, and who may use it (R8)."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from storage import (
    AssistantMessage,
    CustomEntry,
    PendingWrite,
    QueueFullError,
    SessionClosedError,
    StorageError,
    ToolCall,
    WrongEventLoopError,
    workers,
)
from storage.entry_log import EntryLog
from storage.testing import FaultyStorage
from tests.storage.places import JsonlPlace, Place, assert_chain, said

pytestmark = pytest.mark.anyio

MEBIBYTE = 1024 * 1024


async def faulty_log(place: Place, **options: Any) -> tuple[EntryLog, FaultyStorage]:
    """A log over a new session, with its storage to break and to count."""
    storage = FaultyStorage(await place.create(**options))
    return await EntryLog.open(storage), storage


def batches(storage: FaultyStorage) -> list[int]:
    """The sizes of the batches so far."""
    return [call.records for call in storage.calls if call.name == "commit"]


async def test_64_side_by_side_are_one_batch_and_one_sync(jsonl: JsonlPlace) -> None:
    """R8: 64 appends called side by side are committed with exactly one write and one sync."""
    log, storage = await faulty_log(jsonl, durability="fsync")
    async with anyio.create_task_group() as group:
        for number in range(64):
            group.start_soon(log.append_message(said(f"{number}")).wait)
    assert batches(storage) == [64]
    assert storage.count("sync") == 1
    await log.aclose()


async def test_64_tasks_that_append_and_wait_are_one_batch(jsonl: JsonlPlace) -> None:
    """R8: so are 64 tasks that each append and await: the checkpoint comes before the drain."""
    log, storage = await faulty_log(jsonl, durability="fsync")

    async def append() -> None:
        await log.append_message(said())

    async with anyio.create_task_group() as group:
        for _ in range(64):
            group.start_soon(append)
    assert batches(storage) == [64]
    assert storage.count("sync") == 1
    await log.aclose()


async def test_a_batch_has_at_most_256_writes(where: Place) -> None:
    """R8: at most 256 writes in a batch."""
    log, storage = await faulty_log(where)
    writes = [log.append_message(said()) for _ in range(600)]
    await writes[-1]
    assert batches(storage) == [256, 256, 88]
    await log.aclose()
    assert_chain(where.entries())


async def test_a_batch_has_at_most_one_mebibyte(jsonl: JsonlPlace) -> None:
    """R8: at most 1 MiB in a batch; a single longer entry goes alone."""
    log, storage = await faulty_log(jsonl)
    for _ in range(5):
        log.append_message(said("x" * (300 * 1024)))
    log.append_message(said("x" * (3 * MEBIBYTE)))
    log.append_message(said())
    await log.flush()
    assert batches(storage) == [3, 2, 1, 1]
    await log.aclose()


async def test_nothing_is_written_until_somebody_waits(where: Place) -> None:
    """R8: there is no background task: what nobody waits for stays queued, and goes with the next that is awaited."""
    log, storage = await faulty_log(where)
    first = log.append_message(said("first"))
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    await anyio.sleep(0.01)
    assert batches(storage) == []
    assert not first.is_done()
    assert "queued" in repr(first)
    await log.append_message(said("second"))
    assert first.is_done()
    await log.aclose()
    assert len(where.lines()) == 2


DRAINS: dict[str, Callable[[EntryLog], Any]] = {
    "flush": lambda log: log.flush(),
    "entries": lambda log: log.entries(),
    "path": lambda log: log.path(),
    "settled": lambda log: log.settled(),
    "refresh": lambda log: log.refresh(),
    "aclose": lambda log: log.aclose(),
}


@pytest.mark.parametrize("how", DRAINS)
async def test_reads_and_closing_drain(where: Place, how: str) -> None:
    """R7, R8: reads, flush and closing wait for the writes that were called before them."""
    log = await where.new_log()
    writes = [log.append_message(said()) for _ in range(300)]
    await DRAINS[how](log)
    assert all(write.is_done() for write in writes)
    await log.aclose()
    assert len(where.lines()) == 300


async def test_a_read_sees_what_was_called_before_it(where: Place) -> None:
    """R7: an entry that was only called can be read at once."""
    log, storage = await faulty_log(where)
    storage.slow_down("commit", 0.01)
    write = log.append_message(said("mine"))
    assert (await log.entry(write.entry_id)).id == write.entry_id
    await log.aclose()


async def test_every_awaited_append_is_a_checkpoint(where: Place) -> None:
    """R8: awaiting a write lets others run, also when it is settled already."""
    log = await where.new_log()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        await anyio.lowlevel.checkpoint()
        write = log.append_message(said())
        before = beats
        for _ in range(40):
            await write
        assert beats - before >= 20  # trio shuffles who runs first in a turn
        before = beats
        for _ in range(40):
            await log.append_message(said())
        assert beats - before >= 20
        group.cancel_scope.cancel()
    await log.aclose()


async def test_the_queue_has_a_limit(where: Place) -> None:
    """R8: over 16 MiB queued, append raises QueueFullError at the call and queues nothing; later it goes on."""
    log = await where.new_log()
    taken: list[PendingWrite] = []
    with pytest.raises(QueueFullError, match="nothing was queued") as caught:
        for _ in range(20):
            taken.append(log.append_message(said("x" * MEBIBYTE)))
    assert len(taken) == 15
    assert caught.value.details["limit"] == 16 * MEBIBYTE
    small = log.append_message(said("there is room for a small one"))
    with pytest.raises(QueueFullError):
        log.append(CustomEntry(custom_type="x", data="x" * MEBIBYTE))
    await taken[-1]
    last = log.append_message(said("x" * MEBIBYTE))
    await log.aclose()
    assert [entry["id"] for entry in where.entries()] == [write.entry_id for write in [*taken, small, last]]


async def test_an_empty_queue_takes_any_one_entry(where: Place) -> None:
    """R8: one entry that is larger than the whole limit is taken when nothing waits."""
    log = await where.new_log()
    huge = log.append_message(said("x" * (17 * MEBIBYTE)))
    with pytest.raises(QueueFullError):
        log.append_message(said())
    await huge
    await log.append_message(said())
    await log.aclose()
    assert len(where.lines()) == 2


async def test_the_limit_counts_what_is_queued_not_what_is_under_way(jsonl: JsonlPlace) -> None:
    """R8: while a batch is being written, the queue behind it has its whole limit."""
    log, storage = await faulty_log(jsonl)
    gate = storage.hold("commit")
    later: list[PendingWrite] = []
    async with anyio.create_task_group() as group:
        group.start_soon(log.append_message(said("x" * (10 * MEBIBYTE))).wait)
        while not gate.reached.is_set():
            await anyio.sleep(0.001)
        later.append(log.append_message(said("x" * (15 * MEBIBYTE))))
        gate.open()
    await later[0]
    await log.aclose()


# --- from elsewhere


CALLS: dict[str, Callable[[EntryLog, PendingWrite], Any]] = {
    "append_message": lambda log, _: log.append_message(said()),
    "append": lambda log, _: log.append(CustomEntry(custom_type="x")),
    "await a write": lambda _, write: write.wait(),
    "entry": lambda log, write: log.entry(write.entry_id),
    "entries": lambda log, _: log.entries(),
    "path": lambda log, _: log.path(),
    "flush": lambda log, _: log.flush(),
    "refresh": lambda log, _: log.refresh(),
    "aclose": lambda log, _: log.aclose(),
}


async def _call(action: Callable[[], Any]) -> None:
    result = action()
    if not isinstance(result, PendingWrite):
        await result


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("what", CALLS)
async def test_another_event_loop_is_refused(where: Place, what: str, loop: str) -> None:
    """R8: from another event loop, of either kind, in another thread: WrongEventLoopError, and nothing is touched."""
    log = await where.new_log()
    done = await log.append_message(said("done"))
    write = log.append_message(said("queued"))
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            anyio.run(_call, partial(CALLS[what], log, write), backend=loop)
        except BaseException as error:  # noqa: BLE001 - looked at below
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    while thread.is_alive():
        await anyio.sleep(0.001)
    assert [type(error) for error in caught] == [WrongEventLoopError]
    assert not write.is_done()
    await write
    await log.aclose()
    assert [entry["id"] for entry in where.entries()] == [done, write.entry_id]


async def test_a_thread_without_a_loop_is_refused(where: Place) -> None:
    """R8: the same from a worker thread that has no loop of its own."""
    log = await where.new_log()
    for action in (partial(log.append_message, said()), partial(log.append, CustomEntry(custom_type="x"))):
        with pytest.raises(WrongEventLoopError):
            await anyio.to_thread.run_sync(action)
    await log.aclose()
    assert where.lines() == []


async def test_a_thread_may_ask_the_loop(where: Place) -> None:
    """What a tool in a thread does instead: it has the loop call."""
    log = await where.new_log()

    async def append() -> str:
        return await log.append_message(said("from a thread"))

    entry_id = await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(append))
    await log.aclose()
    assert [entry["id"] for entry in where.entries()] == [entry_id]


# --- the end


async def test_a_dropped_log_warns(where: Place) -> None:
    """R8: a log that is dropped with writes still queued is a ResourceWarning that says how many."""
    log = await where.new_log()
    storage = log.storage
    log.append_message(said())
    log.append_message(said())
    with pytest.warns(ResourceWarning, match="2 entries that were never written"):
        del log
        gc.collect()
    storage.close()


async def test_a_log_with_nothing_queued_is_dropped_in_silence(where: Place) -> None:
    """R8: without queued writes there is no such warning, closed or not."""
    log = await where.new_log()
    storage = log.storage
    await log.append_message(said())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del log
        gc.collect()
    storage.close()


async def test_a_closed_log_takes_nothing(where: Place) -> None:
    """After closing, every call raises SessionClosedError; closing again does nothing; settled writes stay known."""
    log, storage = await faulty_log(where)
    write = log.append_message(said())
    await log.aclose()
    await log.aclose()
    assert storage.count("close") == 1
    assert await write == write.entry_id
    for action in (lambda: log.append_message(said()), lambda: log.append(CustomEntry(custom_type="x"))):
        with pytest.raises(SessionClosedError):
            action()
    for what in ("entries", "path", "flush", "refresh", "entry"):
        with pytest.raises(SessionClosedError):
            await CALLS[what](log, write)
    assert not log.writable


async def test_a_failure_that_nobody_saw_is_told_once(where: Place) -> None:
    """R8: the first failed write that nobody waited for is raised by flush, or by closing; not twice."""
    log, storage = await faulty_log(where)
    storage.fail_commit(OSError(28, "No space left on device"), keep=0)
    log.append_message(said())
    with pytest.raises(StorageError, match="No space left"):
        await log.flush()
    await log.flush()
    storage.fail_commit(OSError(28, "No space left on device"), keep=0)
    seen = log.append_message(said())
    with pytest.raises(StorageError):
        await seen
    await log.flush()
    storage.fail_commit(OSError(28, "No space left on device"), keep=0)
    log.append_message(said())
    with pytest.raises(StorageError):
        await log.aclose()
    await log.aclose()
    assert storage.count("close") == 1


async def test_one_call_at_a_time(where: Place) -> None:
    """A backend is called from one thread at a time: opening, commits, syncs, reading anew and closing never overlap."""
    log, storage = await faulty_log(where)
    storage.slow_down("commit", 0.002)
    storage.slow_down("sync", 0.001)
    async with anyio.create_task_group() as group:
        for _ in range(30):
            group.start_soon(log.append_message(said()).wait)
            group.start_soon(log.entries)
            group.start_soon(log.flush)
            await anyio.lowlevel.checkpoint()
    await log.aclose()
    assert storage.overlaps == 0


async def test_closing_waits_for_a_reader_that_reads(on_disk: Place) -> None:
    """A backend is called from one thread at a time: closing waits until a refresh that is under way has ended."""
    log = await on_disk.new_log()
    storage = FaultyStorage(await on_disk.open(mode="read"))
    reader = await EntryLog.open(storage)
    await log.append_message(said())
    started = threading.Event()
    read = storage.inner.read

    def slow_read(**options: Any) -> Any:
        started.set()
        threading.Event().wait(0.05)
        return read(**options)

    storage.inner.read = slow_read  # pyright: ignore[reportAttributeAccessIssue]
    async with anyio.create_task_group() as group:
        group.start_soon(_refresh, reader)
        while not started.is_set():
            await anyio.sleep(0.001)
        await reader.aclose()
    assert storage.overlaps == 0
    await log.aclose()


async def _refresh(log: EntryLog) -> None:
    try:
        await log.refresh()
    except SessionClosedError:
        return


async def test_without_a_thread_it_still_writes(jsonl: JsonlPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: where the system gives no more threads, nothing hangs: the write is made, or fails."""
    log, _ = await faulty_log(jsonl, durability="fsync")

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "_idle", [])
        patch.setattr(threading.Thread, "start", no_thread)
        write = log.append_message(said())
        with anyio.fail_after(2):
            try:
                await write
            except (StorageError, RuntimeError):
                pass
    with anyio.fail_after(2):
        await log.aclose()
    assert len(jsonl.lines()) == (1 if write.error is None else 0)


async def test_the_thread_limiter_may_be_exhausted(jsonl: JsonlPlace) -> None:
    """R8: with every token of anyio's shared limiter taken by tools that themselves wait for the log, nothing hangs."""
    log, _ = await faulty_log(jsonl, durability="fsync")
    tokens = int(anyio.to_thread.current_default_thread_limiter().total_tokens)

    async def append() -> str:
        return await log.append_message(said())

    def tool() -> str:
        return anyio.from_thread.run(append)

    ids: list[str] = []

    async def run() -> None:
        ids.append(await anyio.to_thread.run_sync(tool))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(tokens * 2):
                group.start_soon(run)
    await log.aclose()
    assert sorted(entry["id"] for entry in jsonl.entries()) == sorted(ids)
    assert len(ids) == tokens * 2


async def test_replies_of_many_writers_keep_their_calls(where: Place) -> None:
    """R7: several tasks that append several entries each: every task's entries stand in the order of its calls."""
    log, storage = await faulty_log(where)
    storage.slow_down("commit", 0.001)

    async def writer(name: str) -> None:
        for number in range(5):
            call = ToolCall(id=f"{name}{number}", name=name, arguments={})
            write = log.append_message(AssistantMessage(content=[call]))
            if number % 2:
                await write

    async with anyio.create_task_group() as group:
        for name in "abcde":
            group.start_soon(writer, name)
    await log.aclose()
    calls = [entry["message"]["content"][0]["id"] for entry in where.entries()]
    for name in "abcde":
        assert [call for call in calls if call.startswith(name)] == [f"{name}{number}" for number in range(5)]
    assert_chain(where.entries())
