"""Readers: isolation, paging, refresh beside a writer, and what a reader may not do (R11, R12, R17)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage import (
    AssistantMessage,
    CustomEntry,
    DamagedSessionError,
    EntryLog,
    EntryNotFoundError,
    MemoryStorage,
    MessageEntry,
    ReadOnlySessionError,
    Record,
    SessionClosedError,
    StaleSessionError,
    StorageError,
    TextContent,
    ToolCall,
)
from storage.session_streams import stream_of
from storage.testing import FaultyStorage
from storage.testing.subject import chain
from tests.storage.lines import header, message, write
from tests.storage.places import JsonlPlace, Place, said

pytestmark = pytest.mark.anyio


async def test_what_is_read_shares_nothing(where: Place) -> None:
    """R11: changing what any read returned changes neither the store nor what the next read returns."""
    log = await where.new_log()
    call = ToolCall(id="c", name="n", arguments={"deep": [1]})
    entry_id = await log.append_message(AssistantMessage(content=[TextContent(text="x"), call]))
    before = where.lines()

    async def reads() -> list[Any]:
        path = await log.path()
        return [await log.entry(entry_id), (await log.entries())[0], path.entry(0), path.entry(0)]

    for entry in await reads():
        assert isinstance(entry, MessageEntry)
        assert isinstance(entry.message, AssistantMessage)
        assert entry.message.text == "x"
        assert entry.message.tool_calls[0].arguments == {"deep": [1]}
        entry.message.tool_calls[0].arguments["deep"].append(2)
        assert entry.message.content is not None
        entry.message.content.clear()
        entry.parent_id = "changed"
    assert [entry.message.text for entry in await reads()] == ["x"] * 4
    await log.aclose()
    assert where.lines() == before


async def test_what_a_storage_gives_is_not_its_own_list(where: Place) -> None:
    """R11: clearing the list of records that a storage returned empties nothing."""
    log = await where.new_log()
    await log.append_message(said())
    await log.aclose()
    storage = await where.open()
    records = storage.read()
    if isinstance(records, list):
        records.clear()
    storage.close()
    log = await where.log()
    assert len(log.index) == 1
    await log.aclose()


async def test_pages(where: Place) -> None:
    """entries() gives pages in commit order; odd limits are refused; an unknown id is a LookupError."""
    log = await where.new_log()
    ids = [await log.append(CustomEntry(custom_type="x", data=number)) for number in range(25)]
    page: list[str] = []
    after = -1
    while found := await log.entries(after_seq=after, limit=10):
        assert len(found) <= 10
        page += [entry.id for entry in found]
        assert found[-1].seq is not None
        after = found[-1].seq
    assert page == ids
    assert await log.entries(limit=0) == []
    assert await log.entries(after_seq=24) == []
    assert await log.entries(after_seq=1000) == []
    for options in ({"limit": -1}, {"after_seq": -2}):
        with pytest.raises(ValueError, match="limit"):
            await log.entries(**options)
    with pytest.raises(EntryNotFoundError) as caught:
        await log.entry("nobody")
    assert isinstance(caught.value, LookupError)
    await log.aclose()


async def test_a_reader_beside_a_writer(where: Place) -> None:
    """R12: readers are let in beside the writer; refresh shows what was added, leaf and all, once; they write nothing."""
    log = await where.new_log()
    first = await log.append_message(said("first"))
    readers = [await where.log(mode="read") for _ in range(2)]
    for reader in readers:
        assert reader.leaf_id == first
        assert not reader.writable
        with pytest.raises(ReadOnlySessionError):
            reader.append_message(said())
        with pytest.raises(ReadOnlySessionError):
            reader.append(CustomEntry(custom_type="x"))
    ids = [first]
    for count in (0, 1, 3, 700):
        writes = [log.append_message(said(f"{number}")) for number in range(count)]
        await log.flush()
        ids += [pending.entry_id for pending in writes]
        for reader in readers:
            await reader.refresh()
            assert reader.leaf_id == ids[-1]
            path = await reader.path()
            assert [path.entry_id(position) for position in range(len(path))] == ids
    for reader in readers:
        await reader.aclose()
    await log.append_message(said())
    await log.aclose()
    assert len(where.lines()) == len(ids) + 1


async def test_a_storage_that_was_closed(on_disk: Place) -> None:
    """It is closed again without harm, and says so to whoever reads it."""
    storage = await on_disk.create()
    storage.close()
    storage.close()
    with pytest.raises(SessionClosedError):
        storage.read()


async def test_a_storage_that_may_not_write_says_why(where: Place) -> None:
    """One that was closed, and one that was opened to read, are told apart from one that somebody else has taken."""
    writer = await where.create()
    records = chain(2)
    writer.commit(records[:1])
    reader = await where.open(mode="read")
    with pytest.raises(ReadOnlySessionError, match="opened for reading"):
        reader.commit(records[1:])
    reader.close()
    writer.close()
    with pytest.raises(SessionClosedError):
        writer.commit(records[1:])
    again = await where.open(mode="read")
    assert len(again.read()) == 1
    again.close()


async def test_a_storage_that_cannot_be_closed_keeps_nobody_out(jsonl: JsonlPlace) -> None:
    """Whatever closing the file raises, the writer's lock is given up."""
    storage: Any = await jsonl.create()
    os.close(storage._descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        storage.close()
    (await jsonl.open()).close()


async def test_refreshing_a_writer_does_nothing(where: Place) -> None:
    """R12: a writer refreshes too: it flushes, and reads nothing twice."""
    log = await where.new_log()
    log.append_message(said())
    assert await log.refresh() == []
    assert len(log.index) == 1
    await log.aclose()


class HeldReads:
    """A storage whose reads, from now on, are slow."""

    def __init__(self, storage: FaultyStorage, seconds: float) -> None:
        self._read = storage.inner.read
        self._seconds = seconds
        storage.inner.read = self.read  # pyright: ignore[reportAttributeAccessIssue]

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """Read, and take long over it."""
        records = self._read(after_seq=after_seq, limit=limit)
        time.sleep(self._seconds)
        return records


async def test_a_refresh_that_was_cancelled(where: Place) -> None:
    """R8, R12: a refresh that is cancelled at any instant loses nothing: the next one shows all that was added."""
    log = await where.new_log()
    first = await log.append_message(said("first"))
    readers: list[EntryLog] = []
    for _ in range(4):
        storage = FaultyStorage(await where.open(mode="read"))
        readers.append(await EntryLog.open(storage))
        HeldReads(storage, 0.005)
    writes = [log.append_message(said(f"{number}")) for number in range(700)]
    await writes[-1]
    for reader, delay in zip(readers, (0.0, 0.001, 0.006, 0.012), strict=True):
        with anyio.move_on_after(delay):
            await reader.refresh()
        await reader.refresh()
        assert len(reader.index) == len(log.index)
        path = await reader.path()
        assert path.entry_id(0) == first
        assert len(path) == len(log.index)
        assert reader.warnings == ()
        await reader.aclose()
    await log.aclose()


async def test_two_refreshes_at_once(where: Place) -> None:
    """R12: two tasks that refresh one reader at the same time add nothing twice."""
    log = await where.new_log()
    storage = FaultyStorage(await where.open(mode="read"))
    reader = await EntryLog.open(storage)
    writes = [log.append_message(said()) for _ in range(600)]
    await writes[-1]
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(reader.refresh)
    assert len(reader.index) == 600
    assert storage.overlaps == 0
    await reader.aclose()
    await log.aclose()


async def test_a_tail_that_grows_into_a_line(jsonl: JsonlPlace) -> None:
    """R12, R13: a reader that met half a line shows it, whole, as soon as its newline is there."""
    write(jsonl.path, header(), message("a", None, seq=0))
    line = message("b", "a", "ä" * 50, seq=1).encode()
    reader = await jsonl.log(mode="read")
    written = 0
    for end in (1, 10, 130, 131, len(line)):
        with jsonl.path.open("ab") as file:
            file.write(line[written:end])
        written = end
        await reader.refresh()
        assert reader.leaf_id == "a"
    with jsonl.path.open("ab") as file:
        file.write(b"\n" + message("c", "b", seq=2).encode() + b"\n" + message("d", "c", seq=3).encode()[:9])
    await reader.refresh()
    assert reader.leaf_id == "c"
    assert len(await reader.path()) == 3
    await reader.aclose()


async def test_a_reader_that_opened_on_a_tail(jsonl: JsonlPlace) -> None:
    """R12, R13: the same for one that opened while the line was half there: it was warned, and goes on."""
    line = message("b", "a", seq=1)
    write(jsonl.path, header(), message("a", None, seq=0), end="\n" + line[:20])
    reader = await jsonl.log(mode="read")
    assert [warning.code for warning in reader.warnings] == ["unterminated_tail"]
    with jsonl.path.open("a") as file:
        file.write(line[20:] + "\n")
    await reader.refresh()
    assert reader.leaf_id == "b"
    await reader.aclose()


@pytest.mark.parametrize("bad", ["not json", message("c", "b", seq=7), message("a", "b", seq=2), "null"])
async def test_a_bad_line_that_is_added(jsonl: JsonlPlace, bad: str) -> None:
    """R12, R14: a refresh that meets a bad line or a gap raises, shows nothing wrong, and reads it again the next time.

    When it has become good, it goes on.
    """
    write(jsonl.path, header(), message("a", None, seq=0))
    reader = await jsonl.log(mode="read")
    good = jsonl.path.read_bytes() + message("b", "a", seq=1).encode() + b"\n"
    jsonl.path.write_bytes(good + bad.encode() + b"\n")
    for _ in range(3):
        with pytest.raises(DamagedSessionError) as caught:
            await reader.refresh()
        assert caught.value.line == 4
        assert reader.leaf_id in ("a", "b")
    mended = message("c", "b", seq=2).encode() + b"\n"
    with jsonl.path.open("r+b") as file:
        file.write(good + mended)
        file.truncate()
    await reader.refresh()
    assert reader.leaf_id == "c"
    assert [entry.id for entry in await reader.entries()] == ["a", "b", "c"]
    await reader.aclose()


async def test_a_file_that_became_shorter(jsonl: JsonlPlace) -> None:
    """R12: a file that lost what was read before is StaleSessionError at the refresh."""
    data = write(jsonl.path, header(), message("a", None, seq=0), message("b", "a", seq=1))
    reader = await jsonl.log(mode="read")
    os.truncate(jsonl.path, len(data) - 3)
    with pytest.raises(StaleSessionError):
        await reader.refresh()
    await reader.aclose()


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_is_gone(jsonl: JsonlPlace, how: str) -> None:
    """R12: a file that was removed, or replaced by another, is StaleSessionError at the refresh."""
    data = write(jsonl.path, header(), message("a", None, seq=0))
    reader = await jsonl.log(mode="read")
    if how == "removed":
        jsonl.path.unlink()
    else:
        other = jsonl.path.with_name("other")
        other.write_bytes(data + message("b", "a", seq=1).encode() + b"\n")
        os.replace(other, jsonl.path)
    with pytest.raises(StaleSessionError):
        await reader.refresh()
    await reader.aclose()


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_reader_salvages_what_is_added(jsonl: JsonlPlace, wrapped: bool) -> None:
    """R14: opened with on_corrupt="skip", a refresh skips a bad line that was added, and keeps its place."""
    write(jsonl.path, header(), message("a", None, seq=0), "bad")
    storage = await jsonl.open(mode="read", on_corrupt="skip")
    reader = await EntryLog.open(FaultyStorage(storage) if wrapped else storage)
    with jsonl.path.open("a") as file:
        file.write(message("c", "a", seq=2) + "\nbad again\n" + message("e", "c", seq=4) + "\n")
    await reader.refresh()
    assert [entry.id for entry in await reader.entries()] == ["a", "c", "e"]
    assert [entry.seq for entry in await reader.entries()] == [0, 2, 4]
    await reader.aclose()


class Generates(MemoryStorage):
    """A backend that reads by and by, once it ``is_lazy``."""

    is_lazy = True

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Any:
        found = super().read(after_seq=after_seq, limit=limit)
        return (record for record in found) if self.is_lazy else found


async def test_a_backend_that_reads_with_a_generator() -> None:
    """Of a generator nobody sees that nothing is left, so opening and refreshing would never end: refused at once."""
    memory = await MemoryStorage.create()
    with (
        pytest.raises(StorageError, match=r"read\(\) gave a generator; give a list or a tuple") as caught,
        anyio.fail_after(30),
    ):
        await EntryLog.open(Generates(memory.memory, writable=False))
    assert caught.value.path == "memory"
    reader = Generates(memory.memory, writable=False)
    reader.is_lazy = False
    log = await EntryLog.open(reader)
    reader.is_lazy = True
    with pytest.raises(StorageError, match="give a list"), anyio.fail_after(30):
        await log.refresh()
    with pytest.raises(StorageError, match="give a list"):
        list(stream_of(reader).records)
    reader.is_lazy = False
    assert await log.refresh() == []  # it was the read that failed, and nothing else
    await log.aclose()


async def test_writers_and_readers_side_by_side(where: Place) -> None:
    """R12: while one appends, another refreshes all the time: it sees a growing beginning of the same chain, never a gap."""
    log = await where.new_log()
    reader = await where.log(mode="read")
    ids: list[str] = []

    async def append() -> None:
        for number in range(150):
            writes = [log.append_message(said(f"{number}")) for _ in range(1 + number % 3)]
            ids.extend([pending.entry_id for pending in writes])
            await writes[-1]

    seen = 0
    async with anyio.create_task_group() as group:
        group.start_soon(append)
        for _ in range(40):
            await reader.refresh()
            found = reader.index.names
            assert found == ids[: len(found)]
            assert len(found) >= seen
            seen = len(found)
            await anyio.sleep(0.001)
    await reader.refresh()
    assert reader.index.names == ids
    assert reader.index.broken == []
    await reader.aclose()
    await log.aclose()


async def test_an_append_costs_the_same_in_a_long_session(jsonl: JsonlPlace, tmp_path: Path) -> None:
    """R17: an append does not look at what is there: behind 6,000 others it costs about what it costs behind a few."""
    (tmp_path / "short").mkdir()
    short, long = await JsonlPlace(tmp_path / "short").new_log(), await jsonl.new_log()
    writes = [long.append_message(said("x" * 200)) for _ in range(6000)]
    await writes[-1]

    async def cost(log: EntryLog) -> float:
        start = time.process_time()  # what else runs on this machine does not count
        for _ in range(50):
            await log.append_message(said("x" * 200))
        return time.process_time() - start

    first = last = math.inf
    for number in range(40):  # by turns, and as often as it takes to find the machine undisturbed
        first, last = min(first, await cost(short)), min(last, await cost(long))
        if number >= 4 and last < first * 2.5:
            break
    assert last < first * 2.5
    await short.aclose()
    await long.aclose()
