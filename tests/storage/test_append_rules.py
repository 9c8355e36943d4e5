"""Appending through the log, on every backend: snapshots, order, chains, and writes that fail alone (R1, R2, R6, R7)."""

from __future__ import annotations

import inspect

import anyio
import pytest

from storage import (
    AssistantMessage,
    CustomEntry,
    EntryNotFoundError,
    InvalidEntryError,
    LabelEntry,
    MessageEntry,
    PendingWrite,
    StorageError,
    TextContent,
    ToolCall,
    UnknownEntry,
)
from storage.entry_log import EntryLog
from tests.storage.places import Place, assert_chain, said, texts

pytestmark = pytest.mark.anyio


async def test_the_snapshot_is_taken_at_the_call(where: Place) -> None:
    """R6: changing a message after the call, deep inside too, changes nothing of what is recorded."""
    log = await where.new_log()
    call = ToolCall(id="c", name="t", arguments={"deep": [1, {"x": "before"}]})
    message = AssistantMessage(content=[TextContent(text="before"), call], provider="p", model="m")
    entry = CustomEntry(custom_type="x", data={"list": ["before"]})
    writes = [log.append_message(message), log.append(entry)]
    call.arguments["deep"][1]["x"] = "after"
    assert message.content is not None
    message.content.clear()
    message.model = "after"
    entry.data["list"].append("after")
    for write in writes:
        await write
    await log.aclose()
    first, second = where.entries()
    assert first["message"]["content"][0]["text"] == "before"
    assert first["message"]["content"][1]["arguments"] == {"deep": [1, {"x": "before"}]}
    assert first["message"]["model"] == "m"
    assert second["data"] == {"list": ["before"]}


async def test_append_is_a_plain_function(where: Place) -> None:
    """R6: append returns a PendingWrite at once, which can be awaited any number of times and knows its id before."""
    log = await where.new_log()
    assert not inspect.iscoroutinefunction(EntryLog.append)
    assert not inspect.iscoroutinefunction(EntryLog.append_message)
    write = log.append_message(said())
    assert isinstance(write, PendingWrite)
    assert log.leaf_id is None
    assert await write == await write == await write.wait() == write.entry_id
    assert log.leaf_id == write.entry_id
    assert "committed" in repr(write)
    await log.aclose()
    assert [entry["id"] for entry in where.entries()] == [write.entry_id]


async def test_ten_side_by_side_make_a_chain(where: Place) -> None:
    """R7: ten appends called side by side form a chain of ten, in the order of the calls."""
    log = await where.new_log()
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(log.append_message(said(f"{number}")).wait)
    await log.aclose()
    assert texts(where.entries()) == [f"{number}" for number in range(10)]
    assert_chain(where.entries())


async def test_ten_tasks_make_a_chain(where: Place) -> None:
    """R7: so do ten tasks that each append and wait, whatever the order in which the loop runs them."""
    log = await where.new_log()
    called: list[str] = []

    async def append(number: int) -> None:
        await anyio.sleep(0.0001 * (number % 3))
        write = log.append_message(said(f"{number}"))
        called.append(write.entry_id)
        await write

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(append, number)
    await log.aclose()
    assert [entry["id"] for entry in where.entries()] == called
    assert_chain(where.entries())


async def test_the_last_is_awaited_first(where: Place) -> None:
    """R7: awaiting a late write commits the earlier ones before it."""
    log = await where.new_log()
    writes = [log.append_message(said(f"{number}")) for number in range(5)]
    await writes[-1]
    assert [write.is_done() for write in writes] == [True] * 5
    assert len(where.lines()) == 5
    for write in reversed(writes):
        assert await write == write.entry_id
    await log.aclose()
    assert_chain(where.entries())


async def test_a_missing_parent_fails_alone(where: Place) -> None:
    """R7: a write whose parent is missing fails alone; the writes before and after it succeed."""
    log = await where.new_log()
    before = log.append_message(said("before"))
    orphan = log.append(MessageEntry(message=said("orphan"), parent_id="nobody"))
    after = log.append_message(said("after"))
    with pytest.raises(InvalidEntryError, match="'nobody', which is no entry") as caught:
        await orphan
    assert caught.value.entry_id == orphan.entry_id
    with pytest.raises(InvalidEntryError):
        await orphan
    await before
    await after
    await log.aclose()
    assert texts(where.entries()) == ["before", "after"]
    assert_chain(where.entries())


async def test_a_child_of_a_failed_write_fails_with_it(where: Place) -> None:
    """R7: an entry that names a parent which failed in the same batch fails too: nothing hangs in the air."""
    log = await where.new_log()
    parent = CustomEntry(custom_type="x", parent_id="nobody")
    child = CustomEntry(custom_type="x", parent_id=parent.id)
    writes = [log.append(parent), log.append(child)]
    for write in writes:
        with pytest.raises(InvalidEntryError):
            await write
    await log.append_message(said())
    await log.aclose()
    assert_chain(where.entries())


async def test_a_duplicate_id_fails_alone(where: Place) -> None:
    """R3, R7: an id that is taken, by a committed entry or one of the same batch, is refused, and only that write."""
    log = await where.new_log()
    first = await log.append(CustomEntry(custom_type="x", id="one"))
    again = log.append(CustomEntry(custom_type="x", id="one"))
    second = log.append(CustomEntry(custom_type="x", id="two"))
    twice = log.append(CustomEntry(custom_type="x", id="two"))
    last = log.append_message(said())
    for write in (again, twice):
        with pytest.raises(InvalidEntryError, match="is taken"):
            await write
    await log.aclose()
    assert [entry["id"] for entry in where.entries()] == [first, second.entry_id, last.entry_id]
    assert_chain(where.entries())


async def test_a_check_fails_alone(where: Place) -> None:
    """R7: a check that is made when the write's turn comes sees everything before it, and fails only its own write."""
    log = await where.new_log()
    target = log.append_message(said("target"))
    good = log.append(LabelEntry(target_id=target.entry_id, label="x"), check=lambda: _require(log, target.entry_id))
    bad = log.append(LabelEntry(target_id="nobody", label="x"), check=lambda: _require(log, "nobody"))
    after = log.append_message(said("after"))
    await good
    with pytest.raises(EntryNotFoundError):
        await bad
    await after
    await log.aclose()
    assert [entry["type"] for entry in where.entries()] == ["message", "label", "message"]


async def test_a_check_that_breaks_strands_nobody(where: Place) -> None:
    """R7: whatever a check raises, its write fails, nobody waits for ever, and the log goes on."""
    log = await where.new_log()
    before = log.append_message(said("before"))
    broken = log.append(CustomEntry(custom_type="x"), check=lambda: 1 // 0)  # pyright: ignore[reportArgumentType]
    with anyio.fail_after(60):
        with pytest.raises((StorageError, ZeroDivisionError)):
            await broken
        await before
        await log.append_message(said("after"))
    await log.aclose()
    assert texts(where.entries()) == ["before", "after"]
    assert_chain(where.entries())


def _require(log: EntryLog, entry_id: str) -> None:
    log.index.seq_of(entry_id)


async def test_a_parent_may_be_given(where: Place) -> None:
    """An entry with a parent of its own branches there; ``None`` makes a root; without one it hangs from the leaf."""
    log = await where.new_log()
    first = await log.append_message(said("first"))
    await log.append_message(said("second"))
    branch = await log.append(MessageEntry(message=said("branch"), parent_id=first))
    root = await log.append(MessageEntry(message=said("root"), parent_id=None))
    child = await log.append(MessageEntry(message=said("child")))
    await log.aclose()
    parents = {entry["id"]: entry["parentId"] for entry in where.entries()}
    assert parents[branch] == first
    assert parents[root] is None
    assert parents[child] == root


async def test_a_parent_in_the_same_batch(where: Place) -> None:
    """R7: a parent that is only queued, before its child, is as good as a committed one."""
    log = await where.new_log()
    parent = log.append_message(said("parent"))
    log.append_message(said("other"))
    child = log.append(MessageEntry(message=said("child"), parent_id=parent.entry_id))
    await child
    await log.aclose()
    assert where.entries()[2]["parentId"] == parent.entry_id


async def test_seq_is_first_and_counts_from_zero(where: Place) -> None:
    """R2: every line we write begins with its seq, 0, 1, 2 … in commit order, on across reopening."""
    log = await where.new_log()
    await log.append_message(said())
    await log.append(UnknownEntry(type="strange"))
    await log.aclose()
    log = await where.log()
    await log.append_message(said())
    await log.aclose()
    lines = where.lines()
    assert [line.startswith(b'{"seq":%d,' % seq) for seq, line in enumerate(lines)] == [True] * 3
    assert_chain(where.entries())


async def test_a_given_seq_is_not_believed(where: Place) -> None:
    """R2: the log counts; a seq that an entry brings along is not written."""
    log = await where.new_log()
    await log.append(CustomEntry(custom_type="x", seq=17))
    await log.aclose()
    assert [entry["seq"] for entry in where.entries()] == [0]


async def test_what_is_committed_stays(where: Place) -> None:
    """R1: nothing that later happens (branches, labels, failures, reopening) changes a committed line."""
    log = await where.new_log()
    first = await log.append_message(said("first"))
    before = where.lines()
    await log.append(LabelEntry(target_id=first, label="x"))
    await log.append(MessageEntry(message=said("branch"), parent_id=first))
    with pytest.raises(InvalidEntryError):
        await log.append(CustomEntry(custom_type="x", id=first))
    await log.aclose()
    log = await where.log()
    await log.append_message(said("more"))
    await log.aclose()
    assert where.lines()[:1] == before


async def test_what_is_no_entry_is_refused(where: Place) -> None:
    """Something that is no message or no entry is refused at the call, and nothing is queued."""
    log = await where.new_log()
    for wrong in ("text", None, {"role": "user"}, said().model_dump()):
        with pytest.raises(InvalidEntryError, match="is no message"):
            log.append_message(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidEntryError, match="is no entry"):
            log.append(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidEntryError):
        log.append(said())  # pyright: ignore[reportArgumentType]
    await log.aclose()
    assert where.lines() == []
