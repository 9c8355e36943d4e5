"""What a hostile reader of the library once broke: each of these was a fault."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.session import Session
from storage import files
from storage.entries import CustomEntry, Entry, LabelEntry, MessageEntry
from storage.entry_files import EntryFileStorage
from storage.errors import (
    BranchlineError,
    InvalidEntryError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StaleSessionError,
    StorageError,
)
from storage.jsonl import JsonlStorage
from storage.line_scan import LineScan
from storage.memory import MemoryStorage
from storage.messages import AssistantMessage, ToolCall, ToolResultMessage, UserMessage
from storage.pending_write import PendingWrite

pytestmark = pytest.mark.anyio


async def test_a_cancelled_refresh_loses_no_entries(tmp_path: Path) -> None:
    """R12: refresh goes on from the last entry it accepted, wherever the one before was cancelled."""
    path = tmp_path / "chat.jsonl"
    async with (
        Session.open(JsonlStorage.create(path, durability="os")) as writer,
        Session.open(JsonlStorage.open(path, mode="read")) as reader,
    ):
        for number in range(2500):
            writer.append_message(UserMessage(content=str(number)))
        await writer.flush()
        for _ in range(30):
            with anyio.move_on_after(0.002):
                await reader.refresh()
        await reader.refresh()
        assert len(await reader.branch()) == 2500


async def test_forking_while_others_label(tmp_path: Path) -> None:
    """A fork takes what is there at its call, whatever is appended meanwhile."""
    async with Session.open(MemoryStorage.create()) as session:
        first = await session.append_message(UserMessage(content="one"))
        for number in range(600):
            session.append_entry(CustomEntry(custom_type="x", data=number))
            session.append_label(
                first if number == 0 else session.append_message(UserMessage(content="x")).entry_id, "l"
            )
        await session.flush()

        async def label() -> None:
            while True:
                message = await session.append_message(UserMessage(content="more"))
                await session.append_entry(LabelEntry(target_id=message, label="more"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(label)
            for number in range(5):
                target = partial(JsonlStorage.create, tmp_path / f"{number}.jsonl", durability="os")
                there = len(said_in(await session.branch()))
                async with await session.fork(into=target) as fork:
                    found = said_in(await fork.branch())
                assert len(found) >= there
                assert found == said_in(await session.branch())[: len(found)]
            tasks.cancel_scope.cancel()


def said_in(path: Sequence[Entry]) -> list[str]:
    """The ids of the messages on a path."""
    return [entry.id for entry in path if isinstance(entry, MessageEntry)]


@pytest.mark.parametrize("backend", [JsonlStorage, EntryFileStorage])
async def test_a_creation_whose_last_sync_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    """Made whole or not at all: nobody was told of it, so it is not there, and can be made again."""
    place = tmp_path / "session"
    with monkeypatch.context() as patched:

        def fail(_: str) -> None:
            raise OSError(5, "Input/output error")

        patched.setattr(files, "sync_folder", fail)
        with pytest.raises(StorageError):
            await backend.create(place)
    assert not place.exists()
    (await backend.create(place)).close()


def test_a_session_can_be_closed_when_its_loop_is_gone(tmp_path: Path) -> None:
    """R12: a lock does not outlive its owner: a session of an ended loop can be closed on another one, or dropped."""
    path = tmp_path / "chat.jsonl"
    kept: list[Session] = []

    async def open_it() -> None:
        kept.append(await Session.open(JsonlStorage.open_or_create(path)))

    for backend in ("asyncio", "trio"):
        anyio.run(open_it, backend=backend)
        anyio.run(kept.pop().aclose)
        anyio.run(open_it, backend=backend)
        with pytest.warns(ResourceWarning):
            kept.clear()
            gc.collect()
        storage = asyncio.run(JsonlStorage.open(path))
        storage.close()


async def test_behind_a_symlink_lies_the_real_file(tmp_path: Path) -> None:
    """``open_or_create`` through a link makes and locks the real file, and leaves the link a link."""
    real, link = tmp_path / "real" / "chat.jsonl", tmp_path / "link.jsonl"
    real.parent.mkdir()
    real.write_bytes(b"half")
    link.symlink_to(real)
    async with Session.open(JsonlStorage.open_or_create(link)) as session:
        await session.append_message(UserMessage(content="hello"))
        with pytest.raises(SessionLockedError):
            await JsonlStorage.open(real)
    assert link.is_symlink()
    assert real.stat().st_size > 100


async def test_an_odd_parent_is_refused_at_the_call() -> None:
    """R5, R7: what cannot be a parent is refused at once, and its neighbours are written."""
    async with Session.open(MemoryStorage.create()) as session:
        before = session.append_message(UserMessage(content="one"))
        odd = CustomEntry(custom_type="x").model_copy(update={"parent_id": ["x"]})
        with pytest.raises(InvalidEntryError):
            session.append_entry(odd)
        after = session.append_message(UserMessage(content="two"))
        with anyio.fail_after(60):
            await before
            await after


@pytest.mark.parametrize(
    "message",
    [
        UserMessage(content="x").model_copy(update={"timestamp": None}),
        UserMessage(content="x").model_copy(update={"content": 5}),
        UserMessage(content="x").model_copy(update={"role": "tool"}),
        UserMessage(content="x").model_copy(update={"role": "assistant"}),
        ToolResultMessage(tool_call_id="a", tool_name="b", content="c").model_copy(update={"tool_call_id": None}),
        ToolResultMessage(tool_call_id="a", tool_name="b", content="c").model_copy(update={"is_error": None}),
        AssistantMessage(content=[ToolCall(id="1", name="n", arguments={}).model_copy(update={"arguments": None})]),
        AssistantMessage(content=[ToolCall(id="1", name="n", arguments={}).model_copy(update={"id": None})]),
    ],
)
async def test_no_message_makes_a_session_unreadable(tmp_path: Path, message: Any) -> None:
    """R5: a copy that pydantic does not check is refused at the call, also after good ones of its kind."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path, durability="os")) as session:
        await session.append_message(UserMessage(content="x"))
        await session.append_message(ToolResultMessage(tool_call_id="a", tool_name="b", content="c"))
        await session.append_message(AssistantMessage(content=[ToolCall(id="1", name="n", arguments={})]))
        with pytest.raises(InvalidEntryError):
            session.append_message(message)
    async with Session.open(JsonlStorage.open(path)) as session:
        assert len(await session.entries()) == 3


async def test_after_a_cancelled_open_the_lock_is_free(tmp_path: Path) -> None:
    """Cancelled, opening leaves nothing open: the next one gets the lock at once."""
    path = tmp_path / "chat.jsonl"
    (await JsonlStorage.create(path)).close()
    for number in range(40):
        with anyio.move_on_after(number * 0.0001):
            (await JsonlStorage.open(path)).close()
        (await JsonlStorage.open(path)).close()


async def test_a_pipe_is_no_session(tmp_path: Path) -> None:
    """A FIFO in a session's place is an error at once, not a wait for ever."""
    path = tmp_path / "pipe.jsonl"
    os.mkfifo(path)
    with anyio.fail_after(60):
        for mode in ("read", "write"):
            with pytest.raises(StorageError):
                await JsonlStorage.open(path, mode=mode)


async def test_whoever_closes_waits_for_the_end_of_it(tmp_path: Path) -> None:
    """Two tasks that close one session: for each, the lock is free afterwards."""
    path = tmp_path / "chat.jsonl"
    for _ in range(5):
        session = await Session.open(JsonlStorage.open_or_create(path))
        session.append_message(UserMessage(content="x" * 100_000))

        async def close_and_open(session: Session = session) -> None:
            await session.aclose()
            (await JsonlStorage.open(path, lock_timeout=60)).close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close_and_open)
            tasks.start_soon(close_and_open)


async def test_a_storage_carries_one_open_session(tmp_path: Path) -> None:
    """Section 4: a second session on one storage object is refused; after the first is closed it is closed too."""
    storage = await JsonlStorage.create(tmp_path / "chat.jsonl")
    async with Session.open(storage):
        with pytest.raises(SessionLockedError):
            await Session.open(storage)


async def test_a_reader_does_not_delete_under_a_writer(tmp_path: Path) -> None:
    """R12: deleting is writing."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as writer:
        reader = await Session.open(JsonlStorage.open(path, mode="read"))
        with pytest.raises(SessionLockedError):
            await reader.delete()
        await writer.append_message(UserMessage(content="still here"))
    assert path.exists()


def test_a_long_line_is_read_in_linear_time() -> None:
    """R17: bytes without a newline are joined once, not with each piece; and blank lines pause as others do."""
    piece = b"x" * (1024 * 1024)
    scan = LineScan()
    began = time.process_time()
    for _ in range(200):
        for _ in scan.feed(piece, lambda _: None):
            pass
    joining = time.process_time() - began
    began = time.process_time()
    assert len(scan.tail) == 200 * len(piece)
    assert joining < 20 * (time.process_time() - began)
    pauses = sum(1 for _ in LineScan().feed(b"\n" * 1600, lambda _: None))
    assert pauses == 100


@pytest.mark.parametrize("tail", ["read_only", "raise", "repair"])
async def test_an_empty_file_is_no_session_yet(tmp_path: Path, tail: Any) -> None:
    """R15: ``open_or_create`` begins a session in it, whatever is to be done about tails."""
    path = tmp_path / "chat.jsonl"
    path.touch()
    with pytest.raises(SessionNotFoundError):
        await JsonlStorage.open(path)
    with pytest.raises(SessionExistsError):
        await JsonlStorage.create(path)
    async with Session.open(JsonlStorage.open_or_create(path, on_torn_tail=tail)) as session:
        assert session.writable


async def test_a_repair_on_a_full_disk_leaves_no_empty_side_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the bytes cannot be set aside, the file is as it was, and nothing lies beside it."""
    path = tmp_path / "chat.jsonl"
    (await JsonlStorage.create(path)).close()
    with path.open("ab") as file:
        file.write(b'{"half')
    before = path.read_bytes()
    real = files.write

    def full(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    for _ in range(3):
        with pytest.raises(StorageError):
            await JsonlStorage.open(path, on_torn_tail="repair")
    monkeypatch.setattr(files, "write", real)
    assert path.read_bytes() == before
    assert [name for name in os.listdir(tmp_path) if "torn" in name] == []


def test_a_child_may_not_hang_on_exit(tmp_path: Path) -> None:
    """A program that drops its session without closing it ends all the same."""
    code = (
        "import anyio\nfrom harness import *\n"
        "async def main():\n"
        f"    session = await Session.open(JsonlStorage.open_or_create({str(tmp_path / 'chat.jsonl')!r}))\n"
        "    await session.append_message(UserMessage(content='x'))\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_cancellation_is_not_replaced_by_a_forgotten_write() -> None:
    """R24: the cancellation goes on up; what closing has to say is a note on it."""
    with anyio.move_on_after(0.05) as scope:
        async with Session.open(MemoryStorage.create()) as session:
            session.append_entry(CustomEntry(custom_type="x", parent_id="nowhere"))
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(InvalidEntryError, match="nowhere"):
        async with Session.open(MemoryStorage.create()) as session:
            session.append_entry(CustomEntry(custom_type="x", parent_id="nowhere"))


async def test_who_is_cancelled_waits_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: a task of a cancelled scope waits for its write once more, not again in each turn of the loop.

    anyio cancels a task of a cancelled scope in each turn. Whoever answered each time would keep the interpreter from the
    worker that writes, for seconds on end.
    """
    registered = 0
    register = PendingWrite.register

    def counted(write: PendingWrite, wake: Any) -> None:
        nonlocal registered
        registered += 1
        register(write, wake)

    begun, cancelled = threading.Event(), threading.Event()

    def slow(descriptor: int, sync: Any = files.sync_data) -> None:
        begun.set()
        cancelled.wait(60)
        time.sleep(0.2)
        sync(descriptor)

    async with Session.open(JsonlStorage.create(tmp_path / "chat.jsonl")) as session:
        monkeypatch.setattr(files, "sync_data", slow)
        monkeypatch.setattr(PendingWrite, "register", counted)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.append_message(UserMessage(content="x")).wait)
                while not begun.is_set():
                    await anyio.sleep(0.001)
                scope.cancel()
                cancelled.set()
        assert scope.cancelled_caught
        assert 1 <= registered <= 3
        assert len(await session.entries()) == 1


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_file_that_goes_while_we_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    """R12: the place is looked at after the write too: nothing is acknowledged that is in no session."""
    path, moved = tmp_path / "chat.jsonl", tmp_path / "moved.jsonl"
    session = await Session.open(JsonlStorage.create(path, durability=durability))
    before = path.read_bytes()
    real = files.write

    def write(descriptor: int, data: Any) -> int:
        if path.exists():
            path.rename(moved)
        return real(descriptor, data)

    monkeypatch.setattr(files, "write", write)
    with pytest.raises(StaleSessionError):
        await session.append_message(UserMessage(content="x"))
    await session.aclose()
    if durability == "os":
        assert moved.read_bytes() == before


async def test_closed_storages_and_impossible_paths_have_errors_of_their_own(tmp_path: Path) -> None:
    """Every error of this library is a ``BranchlineError``."""
    storage = await JsonlStorage.create(tmp_path / "chat.jsonl")
    storage.close()
    with pytest.raises(BranchlineError):
        await Session.open(storage)
    for backend in (JsonlStorage, EntryFileStorage):
        for make in (backend.open, backend.create, backend.open_or_create):
            with pytest.raises(BranchlineError):
                await make(f"{tmp_path}/a\0b")
