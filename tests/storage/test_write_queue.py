"""The queue: group commit, no background task, limits, and who may use it (R8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from storage import (
    CustomEntry,
    PendingWrite,
    QueueFullError,
)
from storage.entry_log import EntryLog
from storage.testing import FaultyStorage
from tests.storage.places import JsonlPlace, Place, assert_chain, said
from tests.storage.waiting import faulty_log

pytestmark = pytest.mark.anyio

MEBIBYTE = 1024 * 1024


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
