"""Blobs: what a tool keeps beside the record is whole or not there, and goes where its session goes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness import (
    BlobNotFoundError,
    BlobStore,
    EntryFileRepository,
    EntryFileStorage,
    InvalidEntryError,
    InvalidIdError,
    JsonlRepository,
    JsonlStorage,
    MemoryRepository,
    MemoryStorage,
    MessageEntry,
    ReadOnlySessionError,
    Session,
    SessionClosedError,
    SessionError,
    SqliteRepository,
    SqliteStorage,
    StaleSessionError,
    StorageError,
    ToolResultMessage,
    UserMessage,
)
from storage import files
from storage.blobs import blob_names_in
from storage.testing import FaultyStorage
from tests.storage.places import Place

pytestmark = pytest.mark.anyio

DATA = bytes(range(256)) * 2000


def result(*blobs: str, **more: Any) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id="c", tool_name="bash", content="cut", blobs=list(blobs), **more)


async def new_session(where: Place) -> Session:
    return await Session.open(where.create())


def blob_store(session: Session) -> BlobStore:
    assert isinstance(session.storage, BlobStore)
    return session.storage


def _keeps_blobs(folder: str) -> bool:
    return folder == "blobs" or folder.endswith((".blobs", ".blobs-folder"))


def blob_files(root: Path) -> list[Path]:
    """All files under ``root`` that lie in a folder of blobs."""
    return sorted(path for path in root.rglob("*") if path.is_file() and _keeps_blobs(path.parent.name))


# --- writing and reading


async def test_a_blob_comes_back_and_the_result_names_it(where: Place) -> None:
    """Written, named in the record, read; and again after reopening, by a reader too. The record holds just its name."""
    async with await new_session(where) as session:
        name = await session.write_blob(DATA)
        entry_id = await session.append_message(result(name))
        assert await session.read_blob(name) == DATA
    lines = where.lines()
    assert len(lines) == 1
    assert b'"blobs":["%b"]' % name.encode() in lines[0]
    for mode in ("write", "read"):
        async with Session.open(await where.open(mode=mode)) as again:
            entry = await again.entry(entry_id)
            assert isinstance(entry, MessageEntry)
            assert isinstance(entry.message, ToolResultMessage)
            assert entry.message.blobs == [name]
            assert await again.read_blob(name) == DATA


async def test_the_member_round_trips_exactly(where: Place) -> None:
    """Absent stays absent, an empty list stays one; what is no list of texts is refused at the call."""
    async with await new_session(where) as session:
        for message in (result("a", "b"), result(), ToolResultMessage(tool_call_id="c", tool_name="t", content="x")):
            entry = await session.entry(await session.append_message(message))
            assert isinstance(entry, MessageEntry)
            assert entry.message == message
            assert entry.message.model_dump(exclude_unset=True) == message.model_dump(exclude_unset=True)
        for wrong in ([1], ["a", None], ("a",), "a", [["a"]]):
            message: Any = result()
            message.__dict__["blobs"] = wrong  # past the check of assignments
            with pytest.raises(InvalidEntryError):
                session.append_message(message)
        assert len(await session.entries()) == 3
    assert [("blobs" in entry["message"]) for entry in where.entries()] == [True, True, False]


async def test_an_empty_blob_and_many_at_once(where: Place) -> None:
    """Nothing at all is a blob too; and ten side by side, with appends between them, disturb nobody."""
    async with await new_session(where) as session:
        names: list[str] = []

        async def keep(number: int) -> None:
            names.append(await session.write_blob(bytes([number]) * number))
            await session.append_message(result(names[-1]))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(keep, number)
        assert sorted([len(await session.read_blob(name)) for name in names]) == list(range(10))
        assert len(await session.entries()) == 10
        assert [*blob_store(session).blob_names()] == sorted(names)


async def test_what_cannot_be_kept_is_refused(where: Place) -> None:
    """No text, no unsafe names, no missing ones: typed errors, and nothing is made."""
    async with await new_session(where) as session:
        with pytest.raises(InvalidEntryError, match="a str is no bytes"):
            await session.write_blob("text")  # pyright: ignore[reportArgumentType]
        for name in ("../chat", "", ".hidden", "a/b", "x" * 129):
            with pytest.raises(InvalidIdError):
                await session.read_blob(name)
        with pytest.raises(BlobNotFoundError, match="no blob 'nobody'") as caught:
            await session.read_blob("nobody")
        assert isinstance(caught.value, LookupError)
        assert caught.value.code == "blob_not_found"
        assert [*blob_store(session).blob_names()] == []


async def test_a_read_only_session_writes_none(where: Place) -> None:
    """Opened for reading: blobs are read, and none is written."""
    async with await new_session(where) as session:
        name = await session.write_blob(DATA)
    async with Session.open(await where.open(mode="read")) as reader:
        assert await reader.read_blob(name) == DATA
        with pytest.raises(ReadOnlySessionError):
            await reader.write_blob(b"x")
        with pytest.raises(ReadOnlySessionError):
            blob_store(reader).write_blob("x", b"x")
        assert [*blob_store(reader).blob_names()] == [name]


async def test_a_closed_session_takes_and_gives_none(where: Place) -> None:
    """After closing it: SessionClosedError, for both."""
    session = await new_session(where)
    name = await session.write_blob(DATA)
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await session.write_blob(b"x")
    with pytest.raises(SessionClosedError):
        await session.read_blob(name)


async def test_a_storage_without_blobs_says_so() -> None:
    """A backend that keeps none: an error that says what to do, and the session goes on."""
    async with Session.open(FaultyStorage(await MemoryStorage.create())) as session:
        with pytest.raises(SessionError, match="FaultyStorage keeps no blobs"):
            await session.write_blob(b"x")
        with pytest.raises(SessionError, match="keeps no blobs"):
            await session.read_blob("x")
        await session.append_message(UserMessage(content="on"))


async def test_closing_waits_for_a_blob_that_is_being_written(in_files: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage is not closed, and its lock not given up, while somebody writes under it."""
    session = await new_session(in_files)
    reached, go, closing = threading.Event(), threading.Event(), threading.Event()
    real_rename, real_close = files.rename, session.storage.close

    def slow(source: str, target: str) -> None:
        reached.set()
        go.wait(60)
        real_rename(source, target)

    def close() -> None:
        closing.set()
        real_close()

    monkeypatch.setattr(files, "rename", slow)
    monkeypatch.setattr(session.storage, "close", close)
    async with anyio.create_task_group() as group:
        group.start_soon(session.write_blob, DATA)
        assert await anyio.to_thread.run_sync(reached.wait, 10)
        group.start_soon(session.aclose)
        assert not await anyio.to_thread.run_sync(closing.wait, 0.1)
        go.set()
    assert closing.is_set()


async def test_a_cancelled_write_ends_and_is_let_through(on_disk: Place) -> None:
    """The cancellation comes through; what is there is whole."""
    async with await new_session(on_disk) as session:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await session.write_blob(DATA)
        assert scope.cancelled_caught
        store = blob_store(session)
        assert all(store.read_blob(name) == DATA for name in store.blob_names())


# --- on disk


async def test_blobs_are_as_private_as_the_session(in_files: Place, tmp_path: Path) -> None:
    """Files 0600, their folder 0700."""
    async with await new_session(in_files) as session:
        await session.write_blob(DATA)
    (path,) = blob_files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_what_is_acknowledged_was_synced(in_files: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes before the rename, then the folder, and with the first blob the name of the folder itself."""
    async with Session.open(in_files.create(durability="fsync")) as session:
        calls: list[str] = []
        for name in ("sync_data", "sync_folder", "rename"):
            real = getattr(files, name)

            def noted(*args: Any, name: str = name, real: Any = real) -> None:
                calls.append(f"{name} {Path(args[0]).name}" if name == "sync_folder" else name)
                real(*args)

            monkeypatch.setattr(files, name, noted)
        await session.write_blob(DATA)
        first = [*calls]
        calls.clear()
        await session.write_blob(DATA)
    folder = first[2].split()[1]
    assert "blobs" in folder
    assert first[:3] == ["sync_data", "rename", f"sync_folder {folder}"]
    assert len(first) == 4
    assert calls == first[:3]


async def test_a_full_disk_leaves_nothing(in_files: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A StorageError, no half blob, and the session goes on; the next blob is kept."""
    async with await new_session(in_files) as session:
        with monkeypatch.context() as broken:

            def full(descriptor: int, data: bytes | memoryview) -> int:
                if len(data) > 1000:
                    return os.write(descriptor, data[:1000])
                raise OSError(errno.ENOSPC, "No space left on device")

            broken.setattr(files, "write", full)
            with pytest.raises(StorageError, match="No space left"):
                await session.write_blob(DATA)
        assert blob_files(tmp_path) == []
        await session.append_message(UserMessage(content="on"))
        name = await session.write_blob(DATA)
        assert [path.name for path in blob_files(tmp_path)] == [name]


KILLED = """
import anyio, os, sys
from storage import JsonlStorage, EntryFileStorage, files
from harness import Session

kind, place = sys.argv[1:]
real = files.rename
def rename(source, target):
    print("here", flush=True)
    sys.stdin.readline()
    real(source, target)

async def main():
    backend = {"jsonl": JsonlStorage, "entry files": EntryFileStorage}[kind]
    async with Session.open(backend.open_or_create(place)) as session:
        files.rename = rename
        await session.write_blob(bytes(100_000))

anyio.run(main)
"""


@pytest.mark.parametrize("kind", ["jsonl", "entry files"])
async def test_a_kill_in_the_middle_leaves_no_half_blob(kind: str, tmp_path: Path) -> None:
    """Written, not yet renamed, killed: nothing is listed, nothing is read, and the session opens and goes on."""
    place = tmp_path / ("chat.jsonl" if kind == "jsonl" else "chat")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, kind, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(blob_files(tmp_path)) == 1  # the temporary
    backend: Any = JsonlStorage if kind == "jsonl" else EntryFileStorage
    async with Session.open(backend.open(place)) as session:
        assert session.writable
        assert [*blob_store(session).blob_names()] == []
        name = await session.write_blob(DATA)
        assert [*blob_store(session).blob_names()] == [name]
        await session.delete()
    assert blob_files(tmp_path) == []


async def test_a_link_among_the_blobs_is_not_followed(in_files: Place, tmp_path: Path) -> None:
    """Somebody else's session must not show other files of ours, nor have us write elsewhere."""
    secret = tmp_path / "secret"
    secret.write_text("key")
    async with await new_session(in_files) as session:
        await session.write_blob(DATA)
        folder = blob_files(tmp_path)[0].parent
        (folder / "evil").symlink_to(secret)
        with pytest.raises(BlobNotFoundError):
            await session.read_blob("evil")
        assert "evil" not in blob_store(session).blob_names()
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    async with Session.open(await in_files.open()) as session:
        with pytest.raises(StorageError, match="symbolic link"):
            await session.write_blob(b"x")
        assert [*blob_store(session).blob_names()] == []
        await session.delete()
    assert len([*elsewhere.iterdir()]) == 2
    assert secret.read_text() == "key"


async def test_nothing_is_written_beside_a_session_that_was_removed(in_folder: Place, tmp_path: Path) -> None:
    """Deleted by somebody else: StaleSessionError, and no folder of blobs without a session."""
    session = await new_session(in_folder)
    await session.append_message(UserMessage(content="x"))
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        if path.is_file() and not path.name.endswith(".lock"):
            path.unlink()
    with pytest.raises(StaleSessionError):
        await session.write_blob(DATA)
    assert blob_files(tmp_path) == []
    await session.aclose()


async def test_files_of_one_folder_never_share_their_blobs(tmp_path: Path) -> None:
    """``chat.jsonl`` and ``chat`` are two sessions: deleting one leaves the blobs of the other."""
    sessions = [await Session.open(JsonlStorage.create(tmp_path / name)) for name in ("chat.jsonl", "chat")]
    names = [await session.write_blob(DATA) for session in sessions]
    assert (tmp_path / "chat.blobs" / names[0]).is_file()
    await sessions[1].delete()
    assert await sessions[0].read_blob(names[0]) == DATA
    await sessions[0].aclose()


# --- deleting, listing


async def test_deleting_a_session_removes_its_blobs(where: Place, tmp_path: Path) -> None:
    """Nothing of it is left."""
    async with await new_session(where) as session:
        await session.write_blob(DATA)
        await session.delete()
    assert blob_files(tmp_path) == []
    if isinstance(session.storage, MemoryStorage):
        assert session.storage.memory.blobs == {}


@pytest.mark.parametrize("make", [JsonlRepository, EntryFileRepository])
async def test_a_listing_does_not_see_blobs_and_deletion_does(make: Any, tmp_path: Path) -> None:
    """One session, whatever lies beside it; deleted through the repository, all is gone."""
    repository = make(tmp_path)
    async with Session.open(repository.create("one")) as session:
        await session.append_message(result(await session.write_blob(DATA)))
    page = await repository.list(deep=True)
    assert [(summary.id, summary.problem, summary.entries) for summary in page] == [("one", None, 1)]
    assert await repository.find("o") == "one"
    await repository.delete("one")
    assert blob_files(tmp_path) == []
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


async def test_a_deletion_that_was_cut_off_is_finished_by_the_next(tmp_path: Path) -> None:
    """The file is gone and its blobs are not: deleting it again is no ``SessionNotFoundError``."""
    repository = JsonlRepository(tmp_path)
    async with Session.open(repository.create("one")) as session:
        await session.write_blob(DATA)
    (tmp_path / "one.jsonl").unlink()
    await repository.delete("one")
    assert blob_files(tmp_path) == []


# --- forking


def backends(folder: Path) -> dict[str, Any]:
    return {
        "memory": MemoryStorage.create,
        "jsonl": partial(JsonlStorage.create, folder / "fork.jsonl"),
        "entry files": partial(EntryFileStorage.create, folder / "fork"),
        "memory repository": MemoryRepository(),
        "jsonl repository": JsonlRepository(folder / "shelf"),
        "entry file repository": EntryFileRepository(folder / "folders"),
        "sqlite": partial(SqliteStorage.create, folder / "fork.sqlite"),
        "sqlite repository": SqliteRepository(folder / "shelf.sqlite"),
    }


@pytest.mark.parametrize("target", backends(Path()))
async def test_a_fork_takes_the_blobs_that_its_entries_name(where: Place, target: str, tmp_path: Path) -> None:
    """From every backend into every backend: those of the forked path, not those of another branch or of nobody."""
    async with await new_session(where) as session:
        root = await session.append_message(UserMessage(content="go"))
        mine, kept_twice = await session.write_blob(DATA), await session.write_blob(b"second")
        await session.append_message(result(mine, kept_twice))
        leaf = await session.append_message(result(kept_twice))
        await session.move_to(root)
        other = await session.write_blob(b"other branch")
        await session.append_message(result(other))
        unnamed = await session.write_blob(b"named by nobody")
        into = backends(tmp_path / "to")[target]
        async with await session.fork(leaf, into=into) as fork:
            assert [*blob_store(fork).blob_names()] == sorted([mine, kept_twice])
            assert await fork.read_blob(mine) == DATA
            assert await fork.read_blob(kept_twice) == b"second"
            for name in (other, unnamed):
                with pytest.raises(BlobNotFoundError):
                    await fork.read_blob(name)
        assert [*blob_store(session).blob_names()] == sorted([mine, kept_twice, other, unnamed])


async def test_a_fork_through_a_repository_takes_them_too(tmp_path: Path) -> None:
    """``repository.fork`` is the same fork."""
    async with Session.open(MemoryStorage.create()) as session:
        name = await session.write_blob(DATA)
        await session.append_message(result(name))
        repository = JsonlRepository(tmp_path)
        async with await repository.fork(session, session_id="copy") as fork:
            assert await fork.read_blob(name) == DATA
        assert (tmp_path / "copy.blobs" / name).read_bytes() == DATA


async def test_a_blob_that_was_lost_does_not_stop_a_fork(in_files: Place, tmp_path: Path) -> None:
    """The copy is as its source is."""
    async with await new_session(in_files) as session:
        lost, kept = await session.write_blob(b"lost"), await session.write_blob(b"kept")
        await session.append_message(result(lost, kept))
        next(path for path in blob_files(tmp_path) if path.name == lost).unlink()
        async with await session.fork(into=MemoryStorage.create) as fork:
            assert [*blob_store(fork).blob_names()] == [kept]


async def test_a_fork_to_where_no_blobs_are_kept_is_refused(where: Place) -> None:
    """They would be lost without a word; ``with_blobs=False`` says that one means it."""

    async def create(*, cwd: Any, parent_session: str, records: Any) -> FaultyStorage:
        return FaultyStorage(await MemoryStorage.create(cwd=cwd, parent_session=parent_session, records=records))

    async with await new_session(where) as session:
        name = await session.write_blob(DATA)
        await session.append_message(result("gone"))
        async with await session.fork(into=create):
            pass  # nothing on the path names a blob that there is
        await session.append_message(result(name))
        with pytest.raises(SessionError, match="name 1 blobs.*with_blobs=False"):
            await session.fork(into=create)
        async with await session.fork(into=create, with_blobs=False) as fork:
            assert len(await fork.branch()) == 2


@pytest.mark.parametrize("target", ["jsonl", "entry files"])
async def test_a_fork_is_made_whole_or_not_at_all(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the second blob: no session, no blob, nothing left; and then it works."""
    async with Session.open(MemoryStorage.create()) as session:
        names = [await session.write_blob(bytes([number]) * 5000) for number in range(3)]
        await session.append_message(result(*names))
        with monkeypatch.context() as broken:
            real, count = files.write, 0

            def full(descriptor: int, data: bytes | memoryview) -> int:
                nonlocal count
                count += len(data) == 5000
                if count == 2:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(descriptor, data)

            broken.setattr(files, "write", full)
            with pytest.raises(StorageError, match="No space left"):
                await session.fork(into=backends(tmp_path)[target])
        left = [path.name for path in tmp_path.rglob("*") if not path.name.endswith(".lock")]
        assert left == []
        async with await session.fork(into=backends(tmp_path)[target]) as fork:
            assert [*blob_store(fork).blob_names()] == sorted(names)


async def test_a_session_that_cannot_be_named_leaves_no_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file cannot get its name, when its blobs are there already: they go again, and with them their folder."""
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_message(result(await session.write_blob(DATA)))
        with monkeypatch.context() as broken:

            def link(source: str, target: str) -> None:
                assert blob_files(tmp_path)
                raise OSError(errno.EDQUOT, f"no room for {target}, made of {source}")

            broken.setattr(os, "link", link)
            with pytest.raises(StorageError, match="no room"):
                await session.fork(into=partial(JsonlStorage.create, tmp_path / "fork.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["fork.jsonl.lock"]


def test_names_are_found_wherever_a_result_stands() -> None:
    """In a message, in a retained tail, in a changed request; never in arguments, details of other roles, or as text."""
    tool = b'{"role":"toolResult","toolCallId":"c","toolName":"t","content":"","isError":false,"blobs":["%b"]}'
    lines = [
        b'{"type":"message","id":"1","message":%b}' % (tool % b"one"),
        b'{"type":"compaction","id":"2","retainedTail":[{"role":"user","content":""},%b]}' % (tool % b"two"),
        b'{"type":"message","id":"3","message":{"role":"assistant"},"request":{"edits":[{"at":0,"inserted":[%b]}]}}'
        % (tool % b"three"),
        b'{"type":"message","id":"4","message":{"role":"user","content":"\\"blobs\\":[\\"x\\"]","blobs":["x"]}}',
        b'{"type":"custom","id":"5","data":{"blobs":["y"]}}',
        tool % b"../z",
        tool % b"one",
    ]
    assert [*blob_names_in(lines)] == ["one", "two", "three"]
