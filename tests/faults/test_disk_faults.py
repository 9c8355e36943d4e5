"""A disk that fails on purpose, under the real session: full at each byte, each call failing once, short and slow (R10)."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness import Session
from storage import BranchlineError, SessionNotFoundError, StorageError, UserMessage
from storage.testing import FaultyDisk
from tests.faults.crash_scripts import BACKENDS, backend_of, place_of, unsynced
from tests.faults.disk_scripts import check_used, use

pytestmark = pytest.mark.anyio

EVERYTHING = ("open", "write", "fsync", "rename", "link", "unlink", "mkdir")


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A backend on disk."""
    return request.param


async def test_full_at_every_byte(kind: str, tmp_path: Path, anyio_backend: Any) -> None:
    """R10: the disk is full after any number of bytes of a batch of three: whole entries stay, the rest is gone.

    What was acknowledged is there when it is opened again, nothing else, and the same session goes on when there is room.
    """
    size = 800
    step = 3 if kind == "jsonl" else 11
    start = step * ("asyncio", "trio").index(anyio_backend[0])  # each loop has its share of the bytes
    with unsynced(), FaultyDisk(tmp_path) as disk:
        place = place_of(kind, tmp_path, "chat")
        session = await Session.open(backend_of(kind).create(place))
        expected = [await session.append_message(UserMessage(content="before"))]
        for room in range(start, size, 2 * step):
            disk.room = room
            writes = [session.append_message(UserMessage(content=f"{number}")) for number in range(3)]
            outcomes = await outcomes_of(writes)
            assert outcomes == sorted(outcomes, reverse=True)
            expected += [write.entry_id for write, fine in zip(writes, outcomes, strict=True) if fine]
            disk.room = None
            expected.append(await session.append_message(UserMessage(content="there is room again")))
            assert session.writable
        await session.aclose()
        async with Session.open(backend_of(kind).open(place, on_torn_tail="raise")) as session:
            assert [entry.id for entry in await session.entries(limit=10_000)] == expected
            assert session.warnings == ()


async def outcomes_of(writes: list[Any]) -> list[bool]:
    """Which succeeded; the others failed with one and the same cause."""
    found: list[bool] = []
    causes: set[BaseException | None] = set()
    for write in writes:
        try:
            await write
            found.append(True)
        except StorageError as error:
            found.append(False)
            causes.add(error.__cause__)
    assert len(causes) <= 1
    assert all(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in causes)
    return found


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
async def test_each_call_fails_once(kind: str, tmp_path: Path, code: int) -> None:
    """R10: whichever one call to the system fails, with whatever error: a typed error, and nothing acknowledged is lost.

    From the creation of a session, over entries and blobs, to a fork of it.
    """
    with FaultyDisk(tmp_path) as disk:
        (tmp_path / "first").mkdir()
        assert (await use(kind, tmp_path / "first")).errors == []
        counts = dict(disk.counts)
    calls = [(call, at) for call in EVERYTHING for at in range(1, counts.get(call, 0) + 1)]
    assert len(calls) > 40
    with unsynced() if code != errno.EIO else FaultyDisk(tmp_path):
        for number, (call, at) in enumerate(calls):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            with FaultyDisk(folder) as disk:
                disk.fail(call, OSError(code, os.strerror(code)), at=at)  # type: ignore[arg-type]
                used = await use(kind, folder)
            try:
                await check_used(kind, folder, used)
            except BaseException as error:
                error.add_note(f"{call} number {at} failed; {used}")
                raise
            shutil.rmtree(folder)


async def test_deleting_fails(kind: str, tmp_path: Path) -> None:
    """R1, R10: a deletion of which one call fails is a typed error; the session is whole or gone, and can be deleted."""
    at = 0
    failed = True
    while failed:
        at += 1
        folder = tmp_path / f"{at}"
        folder.mkdir()
        await use(kind, folder)
        place = place_of(kind, folder, "chat")
        session = await Session.open(backend_of(kind).open(place))
        failed = False
        with FaultyDisk(folder, quiet=()) as disk:
            for call in ("unlink", "rename", "rmdir"):
                disk.fail(call, OSError(errno.EIO, "Input/output error"), at=at)  # type: ignore[arg-type]
            try:
                await session.delete()
            except BranchlineError:
                failed = True
        try:
            async with Session.open(backend_of(kind).open(place)) as session:
                assert len(session.log.index) == 5
                await session.delete()
        except SessionNotFoundError:
            pass
        assert not place.exists()
    assert at > 2


@pytest.mark.parametrize("most", [1, 7, 100])
async def test_short_writes(kind: str, tmp_path: Path, most: int) -> None:
    """R10: a system that takes a few bytes at a time changes nothing at all."""
    with FaultyDisk(tmp_path) as disk:
        disk.most_at_once = most
        used = await use(kind, tmp_path)
    assert used.errors == []
    assert len(used.acknowledged) == 5
    assert disk.counts["write"] > 10
    await check_used(kind, tmp_path, used)


async def test_a_slow_disk_holds_up_nobody_else(kind: str, tmp_path: Path) -> None:
    """R8: while a sync takes its time the event loop goes on, and a cancelled append is there all the same."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.sleep(0.002)

    async with Session.open(backend_of(kind).create(place_of(kind, tmp_path, "chat"))) as session:
        ids: list[str] = []
        for seconds in (0.05, 1, 10):  # until this machine lets the event loop have its turns
            turns = 0
            with FaultyDisk(tmp_path) as disk:
                disk.slow_down("fsync", seconds)
                first = session.append_message(UserMessage(content="slow"))
                second = session.append_message(UserMessage(content="slow too"))
                ids += [first.entry_id, second.entry_id]
                async with anyio.create_task_group() as group:
                    group.start_soon(turn)
                    with anyio.move_on_after(0.01):
                        await first
                    await second
                    group.cancel_scope.cancel()
            if turns > 3:
                break
        assert turns > 3
        assert [entry.id for entry in await session.entries()] == ids


async def test_a_failed_sync_is_final(kind: str, tmp_path: Path) -> None:
    """R10: after a sync that failed nothing is tried again; opened anew, what had been acknowledged is there."""
    place = place_of(kind, tmp_path, "chat")
    session = await Session.open(backend_of(kind).create(place))
    kept = await session.append_message(UserMessage(content="kept"))
    with FaultyDisk(tmp_path) as disk:
        disk.fail("fsync", OSError(errno.EIO, "Input/output error"))
        for _ in range(3):
            with pytest.raises(StorageError):
                await session.append_message(UserMessage(content="not known"))
        assert (disk.counts["fsync"], disk.counts["write"]) == (1, 1)
        with pytest.raises(StorageError):
            await session.build_context()
        await session.aclose()
    async with Session.open(backend_of(kind).open(place, on_torn_tail="repair")) as session:
        assert kept in [entry.id for entry in await session.entries()]
        await session.append_message(UserMessage(content="it goes on"))


def test_calls_with_names_for_what_they_are_given(tmp_path: Path) -> None:
    """A backend may call the system as Python allows it: by names, and with writes at an offset that come out short."""
    with FaultyDisk(tmp_path) as disk:
        os.mkdir(path=tmp_path / "folder")
        descriptor = os.open(path=tmp_path / "old", flags=os.O_WRONLY | os.O_CREAT)
        disk.most_at_once = 3
        assert os.pwrite(descriptor, b"abcdef", 2) == 3
        disk.most_at_once, disk.room = None, 2
        assert os.pwrite(descriptor, b"xyz", 5) == 2
        with pytest.raises(OSError, match="No space left"):
            os.pwrite(descriptor, b"z", 7)
        os.ftruncate(fd=descriptor, length=6)  # pyright: ignore[reportCallIssue] - Python takes it
        os.fsync(fd=descriptor)
        os.close(fd=descriptor)
        os.link(src=tmp_path / "old", dst=tmp_path / "new")
        os.replace(src=tmp_path / "new", dst=tmp_path / "folder" / "new")
        os.symlink(src="old", dst=tmp_path / "way")
        os.unlink(path=tmp_path / "way")
        os.remove(path=tmp_path / "old")
        counts = dict(disk.counts)
    assert (tmp_path / "folder" / "new").read_bytes() == b"\0\0abcx"
    names = {"mkdir": 1, "open": 1, "ftruncate": 1, "fsync": 1, "close": 1, "link": 1, "rename": 1, "symlink": 1}
    assert counts == {**names, "write": 3, "unlink": 2}
