"""What only one event loop knows: asyncio's native cancellation and its counts, ``asyncio.timeout``, trio's Ctrl-C (R8)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from storage import EntryLog, JsonlStorage
from storage.testing import FaultyStorage
from tests.storage.places import JsonlPlace, assert_chain, said, texts


class Syncs:
    """The syncs of a log: held until they are let go, so that no cancellation comes too late on a slow machine."""

    def __init__(self, storage: FaultyStorage) -> None:
        self._storage = storage
        self.gate = storage.hold("sync")

    async def reached(self) -> None:
        """Wait until one is held."""
        while not self.gate.reached.is_set():
            await asyncio.sleep(0.0005)

    def let_go_in(self, seconds: float) -> None:
        """Let it go a little later; the next ones are not held."""
        asyncio.get_running_loop().call_later(seconds, self.gate.open)

    def let_go_when_cancelled(self, task: asyncio.Task[Any]) -> None:
        """Let it go once the task was cancelled, however late that is."""
        loop, gate = asyncio.get_running_loop(), self.gate

        def look() -> None:
            if task.cancelling():
                gate.open()
            else:
                loop.call_later(0.001, look)

        look()

    def hold_again(self) -> None:
        """Hold the next one."""
        self.gate = self._storage.hold("sync")


def with_log(place: JsonlPlace, work: Callable[[EntryLog, Syncs], Awaitable[None]]) -> list[str]:
    """Run ``work`` on asyncio with a log whose syncs it holds; the texts that are in the file afterwards."""

    async def run() -> None:
        storage = FaultyStorage(await place.create(durability="fsync"))
        log = await EntryLog.open(storage)
        syncs = Syncs(storage)
        try:
            await work(log, syncs)
        finally:
            syncs.gate.open()
            await log.aclose()
        assert storage.overlaps == 0

    asyncio.run(run())
    assert_chain(place.entries())
    return texts(place.entries())


def current() -> asyncio.Task[None]:
    """The running task."""
    task = asyncio.current_task()
    assert task is not None
    return task  # pyright: ignore[reportReturnType]


def test_asyncio_timeout_is_a_timeout(jsonl: JsonlPlace) -> None:
    """R8: asyncio.timeout around an append raises TimeoutError, after the write is settled, and leaves no count behind."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        for _attempt in range(3):
            syncs.hold_again()
            syncs.let_go_when_cancelled(current())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await log.append_message(said("timed out"))
            assert current().cancelling() == 0
        async with asyncio.timeout(60):
            await log.append_message(said("in time"))

    assert with_log(jsonl, work) == ["timed out"] * 3 + ["in time"]


def test_wait_for_is_a_timeout(jsonl: JsonlPlace) -> None:
    """R8: so does asyncio.wait_for."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        task = asyncio.create_task(log.append_message(said("timed out")).wait())
        syncs.let_go_when_cancelled(task)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.005)
        await log.append_message(said("after"))

    assert with_log(jsonl, work) == ["timed out", "after"]


def test_a_cancelled_task_stays_cancelled(jsonl: JsonlPlace) -> None:
    """R8: a native cancellation during the sync is let through at the end: the task is cancelled, and the count is right."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        counts: list[int] = []

        async def append() -> None:
            try:
                await log.append_message(said("first"))
            finally:
                counts.append(current().cancelling())

        task = asyncio.create_task(append())
        await syncs.reached()
        task.cancel("stop it")
        syncs.let_go_in(0.005)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert counts == [1]

    assert with_log(jsonl, work) == ["first"]


def test_cancelled_again_and_again(jsonl: JsonlPlace) -> None:
    """R8: cancelling the same task many times while it stays changes nothing but the count."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        task = asyncio.create_task(log.append_message(said("first")).wait())
        await syncs.reached()
        for _attempt in range(10):
            await asyncio.sleep(0.001)
            task.cancel()
        syncs.let_go_in(0.005)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 10
        await log.append_message(said("second"))

    assert with_log(jsonl, work) == ["first", "second"]


def test_a_task_that_takes_it_back_goes_on(jsonl: JsonlPlace) -> None:
    """R8: who catches the cancellation and calls uncancel can use the log at once, and wait for the same write."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        write = log.append_message(said("first"))

        async def append() -> str:
            try:
                return await write
            except asyncio.CancelledError:
                current().uncancel()
            assert write.is_done()
            await log.append_message(said("second"))
            return await write

        task = asyncio.create_task(append())
        await syncs.reached()
        task.cancel()
        syncs.let_go_in(0.005)
        assert await task == write.entry_id

    assert with_log(jsonl, work) == ["first", "second"]


@pytest.mark.parametrize("order", ["scope first", "native first", "both at once"])
def test_a_scope_and_a_native_cancellation(jsonl: JsonlPlace, order: str) -> None:
    """R8: an anyio scope must not swallow a native cancellation that came while the task stayed, in either order."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        scope = anyio.CancelScope()
        passed: list[str] = []

        async def append() -> None:
            with scope:
                await log.append_message(said("first"))
            passed.append("the scope")
            await asyncio.sleep(0)
            passed.append("the next checkpoint")

        task = asyncio.create_task(append())
        await syncs.reached()
        if order == "native first":
            task.cancel()
            await asyncio.sleep(0.002)
            scope.cancel()
        elif order == "scope first":
            scope.cancel()
            await asyncio.sleep(0.002)
            task.cancel()
        else:
            scope.cancel()
            task.cancel()
        syncs.let_go_in(0.005)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert "the next checkpoint" not in passed

    assert with_log(jsonl, work) == ["first"]


def test_an_outer_timeout_goes_through_an_inner_one(jsonl: JsonlPlace) -> None:
    """R8: nested timeouts: the outer one, which ran out, raises; the inner one does not claim it."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        inner = "nothing"
        syncs.let_go_when_cancelled(current())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                try:
                    async with asyncio.timeout(60):
                        await log.append_message(said("first"))
                except TimeoutError:
                    inner = "claimed"
        assert inner == "nothing"
        assert current().cancelling() == 0

    assert with_log(jsonl, work) == ["first"]


def test_a_task_group_that_fails(jsonl: JsonlPlace) -> None:
    """R8: an asyncio.TaskGroup that falls apart cancels its appends; the error comes out, the log goes on."""

    async def work(log: EntryLog, syncs: Syncs) -> None:
        async def fail() -> None:
            await syncs.reached()
            syncs.let_go_in(0.005)
            raise ValueError("fell apart")

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(log.append_message(said("first")).wait())
                group.create_task(fail())
        assert [type(error) for error in caught.value.exceptions] == [ValueError]
        await log.append_message(said("second"))

    assert with_log(jsonl, work) == ["first", "second"]


def test_the_loop_ends_while_a_write_is_under_way(jsonl: JsonlPlace) -> None:
    """R8: asyncio.run cancels what is left at the end; the write that is under way is waited for, and nothing hangs."""

    async def run() -> None:
        storage = FaultyStorage(await jsonl.create(durability="fsync"))
        log = await EntryLog.open(storage)
        gate = storage.hold("sync")
        task = asyncio.create_task(log.append_message(said("first")).wait())
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        assert not task.done()
        threading.Timer(0.05, gate.open).start()
        run.keep = log, task  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess]

    asyncio.run(run())
    assert texts(jsonl.entries()) == ["first"]
    log, _ = run.keep  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess]
    log.storage.close()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_ctrl_c_in_the_middle(tmp_path: Path, loop: str) -> None:
    """R8: Ctrl-C at random instants while entries are appended ends the program; the session opens, whole, each time."""
    program = textwrap.dedent("""
        import signal, sys, anyio
        from storage import EntryLog, JsonlStorage, UserMessage

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it

        async def main():
            log = await EntryLog.open(await JsonlStorage.open_or_create(sys.argv[1], durability="os"))
            try:
                print("ready", flush=True)
                while True:
                    print(await log.append_message(UserMessage(content="x")), flush=True)
            finally:
                await log.aclose()

        try:
            anyio.run(main, backend=sys.argv[2])
        except KeyboardInterrupt:
            sys.exit(130)
    """)
    path = tmp_path / "chat.jsonl"
    acknowledged: list[str] = []
    for delay in (0.0, 0.01, 0.05):
        child = subprocess.Popen([sys.executable, "-c", program, path, loop], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        trio.run(trio.sleep, delay)
        os.kill(child.pid, signal.SIGINT)
        with child:  # not communicate: it would pass over what readline has read ahead
            printed = child.stdout.read()
        assert child.returncode == 130
        acknowledged += printed.split("\n")[:-1]

    async def ids() -> list[str]:
        log = await EntryLog.open(await JsonlStorage.open(path, on_torn_tail="raise"))
        found = [entry.id for entry in await log.entries(limit=1_000_000)]
        await log.aclose()
        return found

    found = asyncio.run(ids())
    assert set(acknowledged) <= set(found)
    assert [entry_id for entry_id in found if entry_id in set(acknowledged)] == acknowledged


def test_trio_delivers_ctrl_c_after_the_write(jsonl: JsonlPlace) -> None:
    """R8: on trio, Ctrl-C during a write that is under way is raised after it is settled, and the log is whole."""

    async def run() -> None:
        storage = FaultyStorage(await jsonl.create())
        log = await EntryLog.open(storage)
        gate = storage.hold("commit")

        def interrupt() -> None:
            gate.reached.wait()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)
            gate.open()

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            await log.append_message(said("first"))
        finally:
            with trio.CancelScope(shield=True):
                await log.append_message(said("second"))
                await log.aclose()
            thread.join()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(run)
    finally:
        signal.signal(signal.SIGINT, before)
    assert texts(jsonl.entries()) == ["first", "second"]
