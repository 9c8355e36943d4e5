"""The event log demo: a process dies in mid-turn; another one reads, closes the turn as interrupted, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import JsonlStorage, Session
from storage import (
    ApprovalRequestedEntry,
    AssistantMessage,
    DamagedSessionError,
    Entry,
    MessageEntry,
    RequestHeaderEntry,
    TextContent,
    ToolCall,
    ToolResultMessage,
    ToolStartEntry,
    TurnEndEntry,
    TurnStartEntry,
    UserMessage,
)

pytestmark = pytest.mark.anyio


def said(text: str) -> MessageEntry:
    return MessageEntry(message=UserMessage(content=text))


def called(*ids: str) -> MessageEntry:
    calls = [ToolCall(id=call, name="readFile", arguments={"path": "UserService"}) for call in ids]
    text = TextContent(text="I will inspect the file first.")
    return MessageEntry(message=AssistantMessage(content=[text, *calls], provider="demo", model="demo-model"))


def begun(call: str) -> ToolStartEntry:
    return ToolStartEntry(call_id=call, name="readFile", arguments={"path": "UserService"})


def found(call: str) -> MessageEntry:
    text = TextContent(text="class UserService { ... }")
    return MessageEntry(message=ToolResultMessage(tool_call_id=call, tool_name="readFile", content=[text]))


HEADER = RequestHeaderEntry(model={"id": "demo-model"}, system_prompt="You are a coding agent.", tools=[])
DEMO: list[Entry] = [HEADER, TurnStartEntry(turn=1), said("Check UserService."), called("c1"), begun("c1"), found("c1")]


async def process_a(path: Path, entries: list[Entry]) -> None:
    """Records ``entries`` and stops, without ``turn_end``."""
    async with Session.open(JsonlStorage.create(path)) as session:
        for entry in entries:
            await session.append_entry(entry)


def kinds(entries: list[Entry]) -> list[str]:
    return [f"{entry.type}:{entry.reason}" if isinstance(entry, TurnEndEntry) else entry.type for entry in entries]


async def test_the_turn_is_closed_as_interrupted_and_nothing_else_changes(tmp_path: Path) -> None:
    """The demo's own log: six facts become seven; the old bytes are a prefix; messages are what they were."""
    path = tmp_path / "demo.jsonl"
    await process_a(path, DEMO)
    before = path.read_bytes()
    async with Session.open(JsonlStorage.open(path)) as session:
        shown = await session.build_context()
        added = await session.recover()
        entries = await session.entries()
        assert kinds(entries) == [
            "request_header", "turn_start", "message", "message", "tool_start", "message", "turn_end:interrupted",
        ]  # fmt: skip
        assert [entry.seq for entry in entries] == list(range(7))
        assert added == [entries[-1].id]
        context = await session.build_context()
        assert context.messages == shown.messages
        assert [message.text for message in context.messages] == [
            "Check UserService.", "I will inspect the file first.", "class UserService { ... }",
        ]  # fmt: skip
        assert context.system_prompt == "You are a coding agent."
        assert context.model is not None
        assert context.model.model_id == "demo-model"
        assert await session.recover() == []
    assert path.read_bytes().startswith(before)


async def test_the_new_process_goes_on_with_a_second_turn(tmp_path: Path) -> None:
    """Process B knows nothing but the log: after recovery it appends a turn, and both are there."""
    path = tmp_path / "demo.jsonl"
    await process_a(path, DEMO)
    async with Session.open(JsonlStorage.open(path)) as session:
        await session.recover()
        reply = AssistantMessage(content=[TextContent(text="The previous tool result is still available.")])
        for entry in (TurnStartEntry(turn=2), said("Continue from the recovered state."), MessageEntry(message=reply),
                      TurnEndEntry(turn=2, reason="completed")):  # fmt: skip
            await session.append_entry(entry)
        texts = [message.text for message in (await session.build_context()).messages]
        assert texts[2:] == [
            "class UserService { ... }",
            "Continue from the recovered state.",
            "The previous tool result is still available.",
        ]
        assert await session.recover() == []


async def test_open_calls_get_one_error_result_each_that_says_how_far_they_came(tmp_path: Path) -> None:
    """Amended (R24): the finished sibling keeps its result; one was not started, of one the outcome is unknown."""
    path = tmp_path / "demo.jsonl"
    turn: list[Entry] = [
        TurnStartEntry(turn=1),
        said("go"),
        called("c1", "c2", "c3"),
        begun("c1"),
        begun("c2"),
        found("c2"),
    ]
    await process_a(path, turn)
    async with Session.open(JsonlStorage.open(path)) as session:
        added = [await session.entry(entry_id) for entry_id in await session.recover()]
        results = [entry.message for entry in added if isinstance(entry, MessageEntry)]
        assert all(isinstance(result, ToolResultMessage) and result.is_error for result in results)
        said_of = {result.tool_call_id: result.text for result in results if isinstance(result, ToolResultMessage)}
        assert sorted(said_of) == ["c1", "c3"]
        assert "unknown" in said_of["c1"]
        assert "not" in said_of["c3"]
        assert "unknown" not in said_of["c3"]
        assert kinds(added) == ["message", "message", "turn_end:interrupted"]
        order = [message.tool_call_id for message in (await session.build_context()).messages
                 if isinstance(message, ToolResultMessage)]  # fmt: skip
        assert order == ["c1", "c2", "c3"]


async def test_a_turn_that_waits_for_an_approval_stays_suspended(tmp_path: Path) -> None:
    """Amended (R24): with an approval open nothing is appended; the context says that the call waits."""
    path = tmp_path / "demo.jsonl"
    asked = ApprovalRequestedEntry(call_id="c1", ignorable=True)
    await process_a(path, [TurnStartEntry(turn=1), said("go"), called("c1"), asked])
    async with Session.open(JsonlStorage.open(path)) as session:
        assert await session.recover() == []
        last = (await session.build_context()).messages[-1]
        assert isinstance(last, ToolResultMessage)
        assert "waiting" in last.text


async def test_a_turn_that_ended_and_a_turn_that_was_left_are_not_touched(tmp_path: Path) -> None:
    """Nothing to do for a closed turn, nor where somebody went on with a message of their own."""
    await process_a(tmp_path / "closed.jsonl", [*DEMO, TurnEndEntry(turn=1, reason="completed")])
    second = [TurnStartEntry(turn=2), said("go"), TurnEndEntry(turn=2, reason="failed")]
    await process_a(tmp_path / "left.jsonl", [*DEMO, *second])
    for name in ("closed", "left"):
        path = tmp_path / f"{name}.jsonl"
        before = path.read_bytes()
        async with Session.open(JsonlStorage.open(path)) as session:
            assert await session.recover() == []
        assert path.read_bytes() == before


async def test_a_gap_in_the_places_is_refused_and_named(tmp_path: Path) -> None:
    """0, 1, 2, 4: nobody can tell whether 3 never happened or was lost. Line, expected and found are named."""
    path = tmp_path / "demo.jsonl"
    await process_a(path, DEMO)
    lines = path.read_bytes().split(b"\n")
    del lines[4]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DamagedSessionError, match=r"(?s)line 5.*3.*4"):
        await Session.open(JsonlStorage.open(path))
    assert path.read_bytes() == b"\n".join(lines)
