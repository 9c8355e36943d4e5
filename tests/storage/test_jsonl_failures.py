"""Short writes, failed cuts and failed syncs of a JSONL file, at the seam of its file operations (R9, R10, R12)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from storage import EntryLog, PendingWrite, StaleSessionError, StorageError, files
from tests.storage.places import JsonlPlace, assert_chain, said, texts

pytestmark = pytest.mark.anyio


class FileSystem:
    """The file operations, recorded; a write takes so many bytes, and then there is no room."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.room: int | None = None
        self._write = files.write
        for name in ("write", "truncate", "sync_data", "sync_folder"):
            patch.setattr(files, name, self._recorded(name, getattr(files, name)))
        patch.setattr(files, "write", self.write)

    def _recorded(self, name: str, operation: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            self.calls.append(name)
            operation(*arguments)

        return call

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write as much as there is room for."""
        self.calls.append("write")
        if self.room is None:
            return self._write(descriptor, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = self._write(descriptor, data[: self.room])
        self.room -= count
        return count


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FileSystem:
    """The file operations, to break."""
    return FileSystem(monkeypatch)


async def outcomes(writes: list[PendingWrite]) -> list[bool]:
    """Which of them succeeded."""
    found: list[bool] = []
    for write in writes:
        try:
            await write
        except StorageError:
            found.append(False)
        else:
            found.append(True)
    return found


async def test_every_short_write(jsonl: JsonlPlace, disk: FileSystem) -> None:
    """R10: cut off by a full disk after any number of bytes, the whole lines stay and succeed, the rest is gone."""
    log = await jsonl.new_log()
    await log.append_message(said("before"))
    length = len(jsonl.lines()[0]) + len(f',"parentId":"{"x" * 36}"') - len(',"parentId":null') + 2
    for room in range(0, 3 * length, 7):
        size = jsonl.path.stat().st_size
        before = len(jsonl.lines())
        disk.room = room
        writes = [log.append_message(said("xxxxxx")) for _ in range(3)]
        found = await outcomes(writes)
        assert found == sorted(found, reverse=True)
        data = jsonl.path.read_bytes()
        assert data.endswith(b"\n")
        assert len(data) - size <= room
        assert len(jsonl.lines()) == before + sum(found)
        disk.room = None
        await log.append_message(said("there is room again"))
    await log.aclose()
    assert_chain(jsonl.entries())
    log = await jsonl.log(on_torn_tail="raise")
    assert len(log.index) == len(jsonl.lines())
    await log.aclose()


async def test_kept_lines_are_synced_after_the_cut(jsonl: JsonlPlace, disk: FileSystem) -> None:
    """R10: under fsync the whole lines of a short write are synced before their writes succeed; without any, nothing is."""
    log = await jsonl.new_log(durability="fsync")
    first = await log.append_message(said("before"))
    for room, expected, calls in (
        (300, 1, ["write", "write", "truncate", "sync_data"]),
        (5, 0, ["write", "write", "truncate"]),
    ):
        disk.room = room
        disk.calls.clear()
        found = await outcomes([log.append_message(said("x" * 10)) for _ in range(3)])
        assert sum(found) == expected
        assert disk.calls == calls
    disk.room = None
    assert (await log.entry(first)).id == first
    await log.aclose()


async def test_a_cut_that_did_nothing_taints(
    jsonl: JsonlPlace, disk: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: the length is verified after the cut; if the half line is still there, the log is tainted at once."""
    log = await jsonl.new_log()
    await log.append_message(said("before"))
    monkeypatch.setattr(files, "truncate", lambda *_: None)
    disk.room = 50
    assert await outcomes([log.append_message(said("late"))]) == [False]
    assert not log.writable
    disk.room = None
    with pytest.raises(StorageError):
        log.append_message(said("later"))
    await log.aclose()
    assert not jsonl.path.read_bytes().endswith(b"\n")
    monkeypatch.undo()
    log = await jsonl.log(on_torn_tail="repair")
    assert len(log.index) == 1
    await log.aclose()


async def test_a_stale_append_does_not_even_try(jsonl: JsonlPlace, disk: FileSystem) -> None:
    """R12: when the file was changed before the append, no write is made at all."""
    log = await jsonl.new_log()
    await log.append_message(said("before"))
    with jsonl.path.open("ab") as file:
        file.write(b"theirs\n")
    disk.calls.clear()
    with pytest.raises(StaleSessionError):
        await log.append_message(said("late"))
    assert disk.calls == []
    await log.aclose()


async def test_os_durability_never_syncs(jsonl: JsonlPlace, disk: FileSystem) -> None:
    """R9: with durability="os" nothing is ever synced, at creating, appending, failing or closing."""
    log = await jsonl.new_log(durability="os")
    await log.append_message(said("x"))
    disk.room = 250
    await outcomes([log.append_message(said("x")) for _ in range(3)])
    disk.room = None
    await log.append_message(said("y"))
    await log.aclose()
    assert "sync_data" not in disk.calls
    assert "sync_folder" not in disk.calls
    assert texts(jsonl.entries())[-1] == "y"


async def test_a_failed_repair_changes_nothing(jsonl: JsonlPlace, disk: FileSystem) -> None:
    """R13, R15: when the side file cannot be written, the repair is given up, and the log keeps its tail."""
    log = await jsonl.new_log()
    await log.append_message(said("before"))
    await log.aclose()
    with jsonl.path.open("ab") as file:
        file.write(b"the tail")
    before = jsonl.path.read_bytes()
    disk.room = 3
    with pytest.raises(StorageError, match="No space left"):
        await jsonl.open(on_torn_tail="repair")
    assert jsonl.path.read_bytes() == before
    disk.room = None
    log = await EntryLog.open(await jsonl.open(on_torn_tail="repair"))
    assert len(log.index) == 1
    await log.aclose()
    sides = [path.read_bytes() for path in jsonl.path.parent.glob("*.torn-*")]
    assert b"the tail" in sides
