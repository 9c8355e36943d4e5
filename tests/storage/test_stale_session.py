"""A file that somebody else changed under its writer: deleted, replaced, cut, grown, before the write or during it (R12)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from storage import EntryLog, SessionLockedError, StaleSessionError, files
from tests.storage.lines import message
from tests.storage.places import JsonlPlace, Place, assert_chain, said, texts

pytestmark = pytest.mark.anyio

OTHER_LINE = (message("theirs", None, "theirs") + "\n").encode()


def grow(path: Path, data: bytes = OTHER_LINE) -> None:
    """What pi does, which takes no lock: it appends a line."""
    with path.open("ab") as file:
        file.write(data)


def cut(path: Path) -> None:
    """Somebody cuts the last line off."""
    data = path.read_bytes()
    os.truncate(path, data[:-1].rindex(b"\n") + 1)


def replace(path: Path) -> None:
    """An editor saves: another file takes the name."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.with_name("moved")),
    "replaced": replace,
    "cut": cut,
    "emptied": lambda path: os.truncate(path, 0),
    "grown": grow,
    "grown by half a line": lambda path: grow(path, b'{"half'),
}


def found_in(folder: Path) -> dict[str, bytes]:
    """All files but locks, and their bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".lock")}


@pytest.mark.parametrize("how", CHANGES)
async def test_changed_before_the_write(jsonl: JsonlPlace, how: str) -> None:
    """R12: the next append is StaleSessionError and writes nothing, no new headerless file, no fork in silence.

    After that this log writes no more, even if the file were put back; opening anew does.
    """
    log = await jsonl.new_log()
    await log.append_message(said("first"))
    await log.append_message(said("second"))
    before = jsonl.path.read_bytes()
    CHANGES[how](jsonl.path)
    changed = found_in(jsonl.path.parent)
    with pytest.raises(StaleSessionError):
        await log.append_message(said("late"))
    assert found_in(jsonl.path.parent) == changed
    jsonl.path.write_bytes(before)
    for _ in range(2):
        with pytest.raises(StaleSessionError):
            await log.append_message(said("later"))
    assert not log.writable
    await log.aclose()
    assert jsonl.path.read_bytes() == before
    log = await jsonl.log()
    await log.append_message(said("third"))
    await log.aclose()
    assert texts(jsonl.entries()) == ["first", "second", "third"]


@pytest.mark.parametrize("how", ["grown", "grown by half a line", "cut", "emptied"])
async def test_changed_between_the_look_and_the_write(
    jsonl: JsonlPlace, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12: it is looked at again after the write; what we wrote is the file's end, so it is cut, and only that."""
    log = await jsonl.new_log()
    await log.append_message(said("first"))
    await log.append_message(said("second"))
    expected = b""
    write = files.write

    def late(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal expected
        CHANGES[how](jsonl.path)
        expected = jsonl.path.read_bytes()
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", late)
        with pytest.raises(StaleSessionError):
            await log.append_message(said("late"))
    assert jsonl.path.read_bytes() == expected
    with pytest.raises(StaleSessionError):
        await log.append_message(said("later"))
    await log.aclose()
    assert jsonl.path.read_bytes() == expected


async def test_changed_before_and_after_the_write(jsonl: JsonlPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: where others wrote before and behind our line, it is left: cutting it would cut theirs."""
    log = await jsonl.new_log()
    await log.append_message(said("first"))
    write = files.write

    def between(descriptor: int, data: bytes | memoryview) -> int:
        grow(jsonl.path)
        count = write(descriptor, data)
        grow(jsonl.path)
        return count

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", between)
        with pytest.raises(StaleSessionError):
            await log.append_message(said("late"))
    assert jsonl.path.read_bytes().count(OTHER_LINE) == 2
    assert texts(jsonl.entries()) == ["first", "theirs", "late", "theirs"]
    await log.aclose()


async def test_deleted_while_it_is_written(jsonl: JsonlPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: a file that is deleted between the look and the sync is stale: an entry in no file is not acknowledged."""
    log = await jsonl.new_log(durability="fsync")
    await log.append_message(said("first"))
    write = files.write

    def late(descriptor: int, data: bytes | memoryview) -> int:
        jsonl.path.unlink()
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", late)
        with pytest.raises(StaleSessionError):
            await log.append_message(said("late"))
    await log.aclose()
    assert not jsonl.path.exists()


async def test_a_kernel_that_lies(jsonl: JsonlPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: when a write says it wrote and nothing is there, it is not acknowledged, and nothing that was there is cut."""
    log = await jsonl.new_log()
    await log.append_message(said("first"))
    before = jsonl.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", lambda _, data: len(data))
        with pytest.raises(StaleSessionError):
            await log.append_message(said("late"))
    await log.aclose()
    assert jsonl.path.read_bytes() == before


async def test_two_writers_in_one_process(where: Place) -> None:
    """R12: the second writer gets SessionLockedError naming the owner; when the first has closed, it is let in."""
    log = await where.new_log()
    await log.append_message(said("first"))
    for _ in range(2):
        with pytest.raises(SessionLockedError) as caught:
            await where.open()
        assert caught.value.details["owner"]["pid"] == os.getpid()
        assert isinstance(caught.value, BlockingIOError)
    await log.append_message(said("second"))
    await log.aclose()
    log = await where.log()
    await log.append_message(said("third"))
    await log.aclose()
    assert_chain(where.entries())


HOLDER = """
import os, sys, anyio
from storage import EntryFileStorage, EntryLog, JsonlStorage, PostgresStorage, SqliteStorage, UserMessage

async def main():
    where = sys.argv[2]
    backend = {".jsonl": JsonlStorage, ".sqlite": SqliteStorage}.get(os.path.splitext(where)[1], EntryFileStorage)
    if len(sys.argv) == 4:
        storage = await PostgresStorage.open(where, session_id=sys.argv[3], durability="os")
    else:
        storage = await backend.open(where, durability="os")
    log = await EntryLog.open(storage)
    await log.append_message(UserMessage(content="theirs"))
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    if sys.argv[1] == "close":
        await log.aclose()

anyio.run(main)
"""


@pytest.mark.parametrize("end", ["close", "drop", "kill"])
async def test_two_writers_in_two_processes(on_disk: Place, end: str) -> None:
    """R12: a writer in another process is named; once it has closed, ended or been killed, it blocks nobody."""
    log = await on_disk.new_log()
    await log.append_message(said("first"))
    await log.aclose()
    holder = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLDER, end, *on_disk.address()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert await anyio.to_thread.run_sync(holder.stdout.readline) == b"ready\n"
    with pytest.raises(SessionLockedError) as caught:
        await on_disk.open()
    assert caught.value.details["owner"]["pid"] == holder.pid
    reader = await on_disk.log(mode="read")
    assert len(reader.index) == 2
    await reader.aclose()

    def finish() -> None:
        if end == "kill":
            holder.kill()
        holder.communicate(b"\n")

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, finish)
        log = await EntryLog.open(await on_disk.open(lock_timeout=60))
    await log.append_message(said("third"))
    await log.aclose()
    assert texts(on_disk.entries()) == ["first", "theirs", "third"]
    assert_chain(on_disk.entries())


async def test_waiting_for_the_lock_can_be_cancelled(on_disk: Place) -> None:
    """R12: who waits for the lock for a minute can be cancelled at once, and holds nothing afterwards."""
    log = await on_disk.new_log()
    with anyio.fail_after(60):
        with anyio.move_on_after(0.05) as scope:
            await on_disk.open(lock_timeout=60)
    assert scope.cancelled_caught
    await log.append_message(said())
    await log.aclose()
    again = await on_disk.log()
    await again.aclose()


async def test_pi_appends_beside_us(jsonl: JsonlPlace) -> None:
    """R12: a process without a lock and a writer of ours append to one file at the same time.

    What we acknowledged is there, every line is whole, and the file opens again.
    """
    log = await jsonl.new_log()
    acknowledged = [await log.append_message(said("first"))]
    stop, written = threading.Event(), threading.Event()

    def foreign_writer() -> None:
        number = 0
        while not stop.wait(0.003):
            with jsonl.path.open("ab", buffering=0) as file:
                file.write((message(f"theirs{number}", acknowledged[0], "x" * 100) + "\n").encode())
            number += 1
            written.set()

    thread = threading.Thread(target=foreign_writer)
    thread.start()
    try:
        rounds = 0
        while rounds < 15 or not written.is_set():
            rounds += 1
            try:
                for _attempt in range(50):
                    acknowledged.append(await log.append_message(said("ours")))
                    await anyio.sleep(0.0005)
            except StaleSessionError:
                await log.aclose()
                log = await jsonl.log()
                continue
    finally:
        stop.set()
        thread.join()
    await log.aclose()
    log = await jsonl.log(on_torn_tail="raise")
    found = [entry.id for entry in await log.entries(limit=100_000)]
    assert [entry_id for entry_id in found if not entry_id.startswith("theirs")] == acknowledged
    assert any(entry_id.startswith("theirs") for entry_id in found)
    await log.aclose()
