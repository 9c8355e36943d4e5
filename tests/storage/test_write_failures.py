"""What a failed write does to its batch, to the queue, and to everything after it (R10); faults injected at the storage."""

from __future__ import annotations

import errno
from collections.abc import Callable

import anyio
import pytest

from storage import EntryLog, PendingWrite, StaleSessionError, StorageError
from storage.testing import FaultyStorage
from tests.storage.places import JsonlPlace, Place, assert_chain, said, texts
from tests.storage.waiting import faulty_log

pytestmark = pytest.mark.anyio


def no_space() -> OSError:
    """A full disk."""
    return OSError(errno.ENOSPC, "No space left on device")


async def outcomes(writes: list[PendingWrite]) -> list[BaseException | None]:
    """What became of each: ``None``, or what it raised."""
    found: list[BaseException | None] = []
    for write in writes:
        try:
            await write
        except StorageError as error:
            found.append(error)
        else:
            found.append(None)
    return found


@pytest.mark.parametrize("keep", range(5))
async def test_whole_records_stay_and_the_rest_fails(where: Place, keep: int) -> None:
    """R10: of a batch that failed after k records, the first k succeed.

    The rest and all that was queued fail with one and the same cause; later calls are tried again, and go on from
    there.
    """
    log, storage = await faulty_log(where)
    await log.append_message(said("before"))
    first = no_space()
    storage.fail_commit(first, keep=keep)
    writes = [log.append_message(said(f"{number}")) for number in range(300)]
    found = await outcomes(writes)
    failed = [error for error in found if error is not None]
    assert found[:keep] == [None] * keep
    assert len(failed) == 300 - keep
    assert all(error.__cause__ is first for error in failed)
    assert len({id(error) for error in failed}) == len(failed)
    assert storage.count("commit") == 2
    assert log.writable
    assert len(log.index) == 1 + keep
    assert log.leaf_id == (writes[keep - 1].entry_id if keep else where.entries()[0]["id"])
    await log.append_message(said("after"))
    assert storage.count("commit") == 3
    await log.aclose()
    assert texts(where.entries()) == ["before", *[f"{number}" for number in range(keep)], "after"]
    assert_chain(where.entries())


async def test_what_is_called_after_the_failure_is_tried(where: Place) -> None:
    """R10: writes that are called while the failed batch is under way are queued, and fail; the next call is not."""
    log, storage = await faulty_log(where)
    storage.fail_commit(no_space(), keep=0)
    gate = storage.hold("commit")
    writes = [log.append_message(said("first"))]
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            assert [error is None for error in await outcomes(writes[:1])] == [False]

        group.start_soon(wait)
        while not gate.reached.is_set():
            await anyio.sleep(0.001)
        writes.append(log.append_message(said("queued meanwhile")))
        gate.open()
    assert [error is None for error in await outcomes(writes)] == [False, False]
    await log.append_message(said("after"))
    await log.aclose()
    assert texts(where.entries()) == ["after"]


async def test_the_disk_stays_full_for_a_while(where: Place) -> None:
    """R10: three failures in a row, each told to its caller, then room: no gap, no half entry."""
    log, storage = await faulty_log(where)
    await log.append_message(said("before"))
    for attempt in range(3):
        storage.fail_commit(no_space(), keep=0)
        with pytest.raises(StorageError, match="No space left") as caught:
            await log.append_message(said(f"attempt {attempt}"))
        assert isinstance(caught.value, OSError)
        assert [entry.id for entry in await log.entries()] == [log.leaf_id]
    await log.append_message(said("after"))
    await log.aclose()
    assert texts(where.entries()) == ["before", "after"]
    assert_chain(where.entries())


UNKNOWN: dict[str, Callable[[FaultyStorage, BaseException], None]] = {
    "commit, nothing written": lambda storage, error: storage.fail_commit(error),
    "commit, all written": lambda storage, error: storage.fail_commit(error, written=True),
}


@pytest.mark.parametrize("how", UNKNOWN)
async def test_an_unknown_outcome_taints(where: Place, how: str) -> None:
    """R10: when nobody knows what the store holds, all appends and reads raise that same first error.

    No I/O is tried again, not even at closing; opening anew starts from the disk.
    """
    log, storage = await faulty_log(where)
    done = await log.append_message(said("before"))
    first = OSError(errno.EIO, "Input/output error")
    UNKNOWN[how](storage, first)
    writes = [log.append_message(said(f"{number}")) for number in range(300)]
    found = await outcomes(writes)
    assert all(error is not None and error.__cause__ is first for error in found)
    await assert_tainted(log, storage, first, done)
    await log.aclose()
    assert storage.count("close") == 1
    expected = ["before", *[f"{number}" for number in range(256)]] if "all written" in how else ["before"]
    again = await where.log()
    assert len(again.index) == len(expected)
    await again.append_message(said("after"))
    await again.aclose()
    assert texts(where.entries()) == [*expected, "after"]
    assert_chain(where.entries())


async def assert_tainted(log: EntryLog, storage: FaultyStorage, first: BaseException, entry_id: str) -> None:
    """Every append and read raises with ``first`` as its cause, and the storage is not asked again."""
    assert not log.writable
    calls = len(storage.calls)
    for action in (
        lambda: log.entry(entry_id),
        log.entries,
        log.path,
        log.flush,
        log.refresh,
        lambda: _append(log),
        lambda: _append(log),
    ):
        with pytest.raises(StorageError) as caught:
            await action()
        assert caught.value.__cause__ is first
    assert len(storage.calls) == calls


async def _append(log: EntryLog) -> None:
    await log.append_message(said())


@pytest.mark.parametrize("at", [1, 2])
async def test_a_failed_sync_taints(in_files: Place, at: int) -> None:
    """R10: after a sync that failed nothing is cut or retried: its writes and all queued fail, and the log is tainted."""
    log, storage = await faulty_log(in_files, durability="fsync")
    first = OSError(errno.EIO, "Input/output error")
    storage.fail_sync(first, at=at)
    writes: list[PendingWrite] = [log.append_message(said(f"{number}")) for number in range(257)]
    found = await outcomes(writes)
    failing = 0 if at == 1 else 256
    assert [error is None for error in found] == [True] * failing + [False] * (257 - failing)
    assert all(error is None or error.__cause__ is first for error in found)
    assert storage.count("sync") == at
    await assert_tainted(log, storage, first, writes[0].entry_id)
    await log.aclose()
    assert storage.count("sync") == at
    again = await in_files.log()
    assert len(again.index) == (256 if at == 1 else 257)
    await again.aclose()


async def test_what_was_kept_is_synced_before_it_succeeds(in_files: Place) -> None:
    """R10: whole lines that stay after a failure are synced first; if that sync fails, they fail too, and it taints."""
    log, storage = await faulty_log(in_files, durability="fsync")
    storage.fail_commit(no_space(), keep=2)
    writes = [log.append_message(said(f"{number}")) for number in range(4)]
    found = await outcomes(writes)
    assert [error is None for error in found] == [True, True, False, False]
    assert [call.name for call in storage.calls[-2:]] == ["commit", "sync"]
    storage.fail_commit(no_space(), keep=1)
    storage.fail_sync(OSError(errno.EIO, "Input/output error"))
    found = await outcomes([log.append_message(said("x")), log.append_message(said("y"))])
    assert all(error is not None for error in found)
    assert not log.writable
    await log.aclose()


async def test_stale_is_stale_for_everybody(where: Place) -> None:
    """R12: when the store says that somebody else wrote, the write, the queue, and all later calls are stale."""
    log, storage = await faulty_log(where)
    await log.append_message(said("before"))
    storage.fail_commit(StaleSessionError("somebody else was here"))
    found = await outcomes([log.append_message(said("x")) for _ in range(3)])
    assert [type(error) for error in found] == [StaleSessionError] * 3
    for action in (log.entries, log.flush, lambda: _append(log)):
        with pytest.raises(StaleSessionError, match="somebody else was here"):
            await action()
    await log.aclose()


@pytest.mark.parametrize("error", [ValueError("a bug"), MemoryError(), AssertionError("odd"), StorageError("odd")])
async def test_whatever_a_backend_raises(where: Place, error: BaseException) -> None:
    """R10: any exception but CommitFailed leaves it unknown: it is the cause of a StorageError, and taints."""
    log, storage = await faulty_log(where)
    storage.fail_commit(error)
    with pytest.raises(StorageError) as caught:
        await log.append_message(said())
    assert caught.value.__cause__ is error
    assert not log.writable
    await log.aclose()


async def test_a_failure_on_the_event_loop(jsonl: JsonlPlace) -> None:
    """R10: the same where a small batch is committed on the event loop itself."""
    storage = FaultyStorage(await jsonl.create(), inline=True)
    log = await EntryLog.open(storage)
    storage.fail_commit(no_space(), keep=1)
    found = await outcomes([log.append_message(said(f"{number}")) for number in range(3)])
    assert [error is None for error in found] == [True, False, False]
    await log.append_message(said("after"))
    storage.fail_commit(no_space())
    found = await outcomes([log.append_message(said("x")) for _ in range(3)])
    assert all(error is not None for error in found)
    assert not log.writable
    await log.aclose()
    assert texts(jsonl.entries()) == ["0", "after"]


@pytest.mark.parametrize("keep", [0, None])
async def test_closing_after_a_failure_closes(where: Place, keep: int | None) -> None:
    """R8, R10: whatever fails while it closes, closing raises it, closes the storage, and gives the lock back."""
    log, storage = await faulty_log(where)
    storage.fail_commit(no_space(), keep=keep)
    log.append_message(said())
    with pytest.raises(StorageError):
        await log.aclose()
    assert storage.count("close") == 1
    again = await where.log()
    assert again.writable
    await again.aclose()
