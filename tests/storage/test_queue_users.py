"""Who may use a log, from which loop and thread; what runs where; and how it ends (R8)."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from storage import (
    AssistantMessage,
    CustomEntry,
    PendingWrite,
    SessionClosedError,
    SessionStorage,
    StorageError,
    ToolCall,
    WrongEventLoopError,
    workers,
)
from storage.entry_log import EntryLog
from storage.testing import FaultyStorage, StorageCall
from tests.storage.places import JsonlPlace, Place, assert_chain, said
from tests.storage.waiting import faulty_log

pytestmark = pytest.mark.anyio


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


class Threads(FaultyStorage):
    """Notes in which threads it is called."""

    def __init__(self, storage: SessionStorage) -> None:
        super().__init__(storage, inline=True)
        self.here: dict[str, list[bool]] = {"commit": [], "sync": [], "read": [], "close": []}

    def enter(self, call: StorageCall) -> None:
        """Note it."""
        self.here[call.name].append(threading.current_thread() is threading.main_thread())
        super().enter(call)


async def test_what_is_done_on_the_event_loop(jsonl: JsonlPlace) -> None:
    """R8: a commit of at most 64 KiB is made where the drain runs, a larger one, a sync, a read and closing never."""
    storage = Threads(await jsonl.create(durability="fsync"))
    log = await EntryLog.open(storage)
    await log.append_message(said("x" * (63 * 1024)))
    await log.append_message(said("x" * (65 * 1024)))
    writes = [log.append_message(said("x" * 1024)) for _ in range(70)]
    await writes[-1]
    await log.aclose()
    assert storage.here["commit"] == [True, False, False]
    assert storage.here["sync"] == [False] * 3
    assert storage.here["close"] == [False]
    assert not any(storage.here["read"])


async def test_one_that_is_not_inline_is_never_called_on_the_loop(folder: Place) -> None:
    """R8: a backend that does not say that it is quick is called in workers alone."""
    storage = Threads(await folder.create())
    log = await EntryLog.open(storage)
    await log.append_message(said())
    await log.aclose()
    assert not any(here for calls in storage.here.values() for here in calls)


async def test_a_slow_storage_holds_up_nobody_else(where: Place, tmp_path: Path) -> None:
    """R8: while one log's storage hangs, another one writes, reads, opens and closes."""
    log, storage = await faulty_log(where)
    gate = storage.hold("commit")
    (tmp_path / "other").mkdir()
    other = JsonlPlace(tmp_path / "other")
    async with anyio.create_task_group() as group:
        group.start_soon(log.append_message(said()).wait)
        while not gate.reached.is_set():
            await anyio.sleep(0.001)
        try:
            with anyio.fail_after(60):
                second = await other.new_log(durability="fsync")
                await second.append_message(said())
                await second.aclose()
                second = await other.log()
                assert len(await second.entries()) == 1
                await second.aclose()
        finally:
            gate.open()
    await log.aclose()


async def test_without_a_thread_it_still_writes(jsonl: JsonlPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: where the system gives no more threads, nothing hangs: the write is made, or fails."""
    log, _ = await faulty_log(jsonl, durability="fsync")

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "_idle", [])
        patch.setattr(threading.Thread, "start", no_thread)
        write = log.append_message(said())
        with anyio.fail_after(60):
            try:
                await write
            except (StorageError, RuntimeError):
                pass
    with anyio.fail_after(60):
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

    with anyio.fail_after(60):
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
