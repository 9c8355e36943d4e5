"""The session's own words: branching, forking, labels, names, closing."""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.session import Session
from storage.entries import (
    BranchSummaryEntry,
    CustomEntry,
    LeafEntry,
    MessageEntry,
    TurnEndEntry,
    TurnStartEntry,
    UnknownEntry,
)
from storage.errors import (
    BrokenPathError,
    BusyError,
    EntryNotFoundError,
    NotOnPathError,
    ReadOnlySessionError,
    SessionClosedError,
    SessionNotFoundError,
    StaleSessionError,
)
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import AssistantMessage, TextContent, UserMessage

pytestmark = pytest.mark.anyio


def said(text: str) -> UserMessage:
    return UserMessage(content=text)


def replied(text: str) -> AssistantMessage:
    return AssistantMessage(content=[TextContent(text=text)], provider="test", model="one", stop_reason="stop")


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with Session.open(MemoryStorage.create()) as opened:
        yield opened


def texts(entries: list[Any]) -> list[str]:
    return [entry.message.text for entry in entries if isinstance(entry, MessageEntry)]


async def test_opening_takes_a_storage_or_what_makes_one(tmp_path: Path) -> None:
    """``Session.open`` of a storage and of its awaitable, awaited and entered, are the same session."""
    async with Session.open(JsonlStorage.open_or_create(tmp_path / "chat.jsonl")) as first:
        await first.append_message(said("hello"))
        session_id = first.id
    second = await Session.open(await JsonlStorage.open(tmp_path / "chat.jsonl"))
    assert second.id == session_id
    assert texts(await second.branch()) == ["hello"]
    await second.aclose()
    await second.aclose()
    with pytest.raises(SessionClosedError):
        second.append_message(said("too late"))


async def test_a_failed_opening_closes_the_storage(tmp_path: Path) -> None:
    """When the record is refused, the writer's lock is free again."""
    path = tmp_path / "chat.jsonl"
    storage = await JsonlStorage.create(path)
    storage.read = lambda **_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        await Session.open(storage)
    async with Session.open(JsonlStorage.open(path)) as session:
        assert session.writable


async def test_moving_writes_one_entry_that_pi_can_follow(session: Session) -> None:
    """``move_to`` writes a leaf whose parent is its target; with a summary, a branch summary under the target."""
    first = await session.append_message(said("one"))
    second = await session.append_message(replied("two"))
    moved = await session.move_to(first)
    leaf = await session.entry(moved)
    assert isinstance(leaf, LeafEntry)
    assert (leaf.parent_id, leaf.target_id, session.leaf_id) == (first, first, first)
    await session.append_message(said("other"))
    assert texts(await session.branch()) == ["one", "other"]
    left = session.leaf_id
    summary = await session.entry(await session.move_to(second, "went elsewhere"))
    assert (summary.type, summary.parent_id, getattr(summary, "from_id", None)) == ("branch_summary", second, left)
    assert session.leaf_id == summary.id
    await session.move_to(None)
    assert session.leaf_id is None
    assert await session.branch() == []


async def test_the_leaf_that_is_left_is_the_one_at_commit_time(session: Session) -> None:
    """A summary queued behind an append names that append as the leaf that was left."""
    first = session.append_message(said("one"))
    second = session.append_message(said("two"))
    summary = session.move_to(first.entry_id, "left two")
    await summary
    assert getattr(await session.entry(summary.entry_id), "from_id", None) == second.entry_id


async def test_moving_to_nowhere_fails_alone(session: Session) -> None:
    """A missing target is that write's failure; the leaf stays."""
    first = await session.append_message(said("one"))
    with pytest.raises(EntryNotFoundError, match="nowhere"):
        await session.move_to("nowhere")
    assert session.leaf_id == first
    await session.append_message(said("two"))


async def test_labels_and_names_count_session_wide(session: Session) -> None:
    """The last label of an entry and the last name count, on whatever branch; blank takes them away."""
    first = await session.append_message(said("one"))
    await session.append_label(first, "start\nhere")
    await session.append_session_name("My  talk\r\nabout trees")
    await session.move_to(first)
    assert await session.label(first) == "start here"
    assert await session.labels() == {first: "start here"}
    assert await session.name() == "My  talk about trees"
    await session.append_label(first, " ")
    await session.append_session_name(None)
    assert await session.label(first) is None
    assert await session.labels() == {}
    assert await session.name() is None
    with pytest.raises(EntryNotFoundError):
        await session.append_label("nobody", "x")


async def test_a_compaction_keeps_to_the_branch_it_was_made_for(session: Session) -> None:
    """R18: a first kept entry that is not on the path at commit time is refused, and nothing is written."""
    first = await session.append_message(said("one"))
    second = await session.append_message(said("two"))
    session.move_to(first)
    refused = session.append_compaction("sum", first_kept_entry_id=second, tokens_before=10)
    with pytest.raises(NotOnPathError, match=second):
        await refused
    count = len(await session.entries())
    await session.append_compaction("sum", first_kept_entry_id=first, tokens_before=10)
    assert len(await session.entries()) == count + 1


async def test_a_fork_takes_the_path_with_its_ids_labels_and_name(session: Session, tmp_path: Path) -> None:
    """Ids stay, ``seq`` is counted anew, labels and the name come along, a leaf stands at the target."""
    first = await session.append_message(said("one"))
    second = await session.append_message(replied("two"))
    await session.move_to(first)
    other = await session.append_message(said("other"))
    await session.append_label(first, "start")
    await session.append_label(second, "not on the path")
    await session.append_session_name("forked")
    before = [entry.model_dump() for entry in await session.entries()]
    async with await session.fork(other, into=partial(JsonlStorage.create, tmp_path / "fork.jsonl")) as fork:
        entries = await fork.entries()
        assert [entry.id for entry in entries[:2]] == [first, other]
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert await fork.labels() == {first: "start"}
        assert await fork.name() == "forked"
        assert fork.leaf_id == other
        assert fork.header.parent_session == session.id
        assert fork.header.cwd == session.header.cwd
        await fork.append_message(said("goes on"))
    assert [entry.model_dump() for entry in await session.entries()] == before
    async with Session.open(JsonlStorage.open(tmp_path / "fork.jsonl")) as again:
        assert texts(await again.branch()) == ["one", "other", "goes on"]


async def test_forking_before_a_prompt_is_before_its_turn(session: Session) -> None:
    """``position="before"`` a user message leaves out the ``turn_start`` that it opened, but not what was before."""
    first = await session.append_message(said("one"))
    await session.append_entry(TurnStartEntry(turn=1))
    prompt = await session.append_message(said("two"))
    async with await session.fork(prompt, position="before", into=MemoryStorage.create) as fork:
        assert [entry.id for entry in await fork.branch()] == [first]
    async with await session.fork(first, position="before", into=MemoryStorage.create) as fork:
        assert await fork.branch() == []
        assert fork.leaf_id is None


async def test_a_crashed_fork_leaves_no_session(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made whole or not at all: when the disk fails on the way, nothing is there under the session's name."""
    await session.append_message(said("one"))

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("storage.files.sync_data", fail)
    with pytest.raises(OSError, match="Input/output"):
        await session.fork(into=partial(JsonlStorage.create, tmp_path / "fork.jsonl"))
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".lock")] == []
    with pytest.raises(SessionNotFoundError):
        await JsonlStorage.open(tmp_path / "fork.jsonl")


@pytest.mark.parametrize("ignorable", [None, False, True])
async def test_what_pi_wrote_and_we_do_not_know_is_as_ignorable_in_a_fork(
    tmp_path: Path, ignorable: bool | None
) -> None:
    """R4: an unknown entry without ``seq`` keeps no context from being built, in the fork neither."""
    path = tmp_path / "pi.jsonl"
    stamp = "2026-01-01T00:00:00.000Z"
    novelty = {"type": "novelty", "id": "n", "parentId": None, "timestamp": stamp, "kept": 1}
    lines = [
        {"type": "session", "version": 3, "id": "pi", "timestamp": stamp, "cwd": "/"},
        novelty | ({} if ignorable is None else {"ignorable": ignorable}),
        {"type": "message", "id": "u", "parentId": "n", "timestamp": stamp, "message": said("one").model_dump()},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with Session.open(JsonlStorage.open(path)) as session:
        assert [message.text for message in (await session.build_context()).messages] == ["one"]
        await (await session.fork(into=partial(JsonlStorage.create, tmp_path / "fork.jsonl"))).aclose()
        async with Session.open(JsonlStorage.open(tmp_path / "fork.jsonl")) as fork:
            assert [message.text for message in (await fork.build_context()).messages] == ["one"]
            assert (await fork.entry("n")).model_dump()["kept"] == 1


async def test_a_healthy_path_of_a_damaged_tree_can_be_forked(tmp_path: Path) -> None:
    """R3: with an orphan the session is read-only, a path through the break raises, and a healthy one can be forked."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as session:
        await session.append_message(said("one"))
    with path.open("ab") as file:
        orphan = {"seq": 1, "type": "message", "id": "o", "parentId": "gone", "timestamp": "2026-01-01T00:00:00.000Z"}
        file.write(
            json.dumps(orphan | {"message": {"role": "user", "content": "lost", "timestamp": 1}}).encode() + b"\n"
        )
    async with Session.open(JsonlStorage.open(path)) as session:
        assert [warning.code for warning in session.warnings] == ["broken_link"]
        with pytest.raises(ReadOnlySessionError, match="gone"):
            session.append_message(said("no"))
        with pytest.raises(BrokenPathError, match="gone"):
            await session.branch()
        healthy = (await session.entries())[0].id
        async with await session.fork(healthy, into=MemoryStorage.create) as fork:
            await fork.append_message(said("yes"))
            assert texts(await fork.branch()) == ["one", "yes"]


async def test_readers_see_what_is_added_by_refresh(tmp_path: Path) -> None:
    """R12: readers always may; ``refresh`` shows what was added, and a file that was cut is stale."""
    path = tmp_path / "chat.jsonl"
    async with (
        Session.open(JsonlStorage.create(path)) as writer,
        Session.open(JsonlStorage.open(path, mode="read")) as reader,
    ):
        await writer.append_message(said("one"))
        assert await reader.entries() == []
        await reader.refresh()
        assert texts(await reader.branch()) == ["one"]
        os.truncate(path, 20)
        with pytest.raises(StaleSessionError):
            await reader.refresh()


async def test_deleting_leaves_nothing(tmp_path: Path) -> None:
    """All files of the session are gone, its lock too; used again, it is closed."""
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b"{half")
    session = await Session.open(JsonlStorage.open_or_create(path))
    await session.append_message(said("one"))
    assert len(os.listdir(tmp_path)) == 3
    await session.delete()
    assert os.listdir(tmp_path) == []
    with pytest.raises(SessionClosedError):
        await session.entries()


async def test_leaving_writes_what_is_queued(tmp_path: Path) -> None:
    """R8: leaving ``async with`` drains, also when it is left by an exception or a cancellation."""
    path = tmp_path / "chat.jsonl"
    with anyio.CancelScope() as scope:
        async with Session.open(JsonlStorage.create(path)) as session:
            session.append_message(said("queued"))
            scope.cancel()
            await anyio.sleep(1)
    assert scope.cancelled_caught
    async with Session.open(JsonlStorage.open(path)) as session:
        assert texts(await session.branch()) == ["queued"]


async def test_a_failure_that_nobody_awaited_is_told_at_flush(session: Session) -> None:
    """Nothing is swallowed: ``flush`` raises the first failure of a write that nobody awaited, once."""
    session.append_entry(CustomEntry(custom_type="x", parent_id="gone"))
    with pytest.raises(Exception, match="gone"):
        await session.flush()
    await session.flush()


async def test_a_dropped_session_with_queued_writes_warns() -> None:
    """R8: a log dropped with writes still queued is a ``ResourceWarning``."""
    session = await Session.open(MemoryStorage.create())
    session.append_message(said("never written"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del session
        gc.collect()
    assert any(
        issubclass(warning.category, ResourceWarning) and "1 entries" in str(warning.message) for warning in caught
    )


async def test_during_a_turn_nobody_else_moves_the_leaf(session: Session) -> None:
    """R25: ``move_to``, ``append_compaction`` and ``recover`` are refused to everyone else while a turn runs."""
    first = await session.append_message(said("one"))
    owner = object()
    turn = session.begin_turn(owner)
    with pytest.raises(BusyError):
        session.begin_turn(owner)
    with pytest.raises(BusyError):
        session.claim(object())
    with pytest.raises(BusyError):
        session.move_to(first)
    with pytest.raises(BusyError):
        session.append_compaction("s", tokens_before=1)
    with pytest.raises(BusyError):
        session.append_entry(LeafEntry(target_id=first))
    with pytest.raises(BusyError):
        await session.recover()
    await turn.append_message(said("from the turn"))
    await session.append_message(said("from another task"))
    turn.end()
    turn.end()
    await session.move_to(first)
    session.release(owner)
    session.claim(object())


async def test_during_a_turn_nobody_else_branches(session: Session) -> None:
    """R25: an entry with a place of its own is refused to everyone but the turn, and nothing is queued of it."""
    first = await session.append_message(said("one"))
    second = await session.append_message(said("two"))
    turn = session.begin_turn(object())
    copied = await session.entry(second)
    copied.id = "copied"
    root = CustomEntry(custom_type="x")
    root.parent_id = None  # given, and so a place
    for entry in (
        CustomEntry(custom_type="x", parent_id=first),
        CustomEntry(custom_type="x", parent_id=second),
        BranchSummaryEntry(summary="left", from_id=second, parent_id=first),
        MessageEntry(message=said("three"), parent_id=first),
        UnknownEntry(type="leaf"),
        UnknownEntry(type="compaction"),
        copied,
        root,
    ):
        with pytest.raises(BusyError, match="running turn"):
            session.append_entry(entry)
    await session.append_entry(BranchSummaryEntry(summary="told", from_id=first))
    await session.append_branch_summary("told again", first)
    await session.append_entry(CustomEntry(custom_type="x"))
    assert [entry.type for entry in await session.branch()] == [
        "message",
        "message",
        "branch_summary",
        "branch_summary",
        "custom",
    ]
    await turn.append_entry(CustomEntry(custom_type="x", parent_id=first))
    turn.end()
    await session.append_entry(CustomEntry(custom_type="x", parent_id=second))
    assert len(await session.branch()) == 3


async def test_recover_closes_an_interrupted_turn_once(session: Session) -> None:
    """R24: a turn without an end gets one; a second time there is nothing to do."""
    await session.append_entry(TurnStartEntry(turn=1))
    await session.append_message(said("question"))
    assert len(await session.recover()) == 1
    end = (await session.branch())[-1]
    assert isinstance(end, TurnEndEntry)
    assert end.reason == "interrupted"
    assert await session.recover() == []
