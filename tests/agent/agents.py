"""What the tests of the agent share: a history in short words, and what must hold in any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.session import Session
from storage.entries import (
    Entry,
    MessageEntry,
    ModelChangeEntry,
    ThinkingLevelChangeEntry,
    ToolStartEntry,
    TurnEndEntry,
    TurnStartEntry,
)
from storage.messages import AssistantMessage, ToolResultMessage


def short(entry: Entry) -> str:
    """An entry in a few words: ``user: hi``, ``call add(c1)``, ``result c1: 3``, ``error c1: …``, ``turn_end completed``."""
    match entry:
        case MessageEntry(message=ToolResultMessage() as result):
            return f"{'error' if result.is_error else 'result'} {result.tool_call_id}: {result.text}"
        case MessageEntry(message=AssistantMessage() as reply):
            calls = " ".join(f"{call.name}({call.id})" for call in reply.tool_calls)
            return " ".join(filter(None, [f"assistant {reply.stop_reason}:", reply.text, calls]))
        case MessageEntry():
            return f"{entry.message.role}: {entry.message.text}"
        case TurnStartEntry():
            return f"turn_start {entry.turn}"
        case TurnEndEntry():
            return f"turn_end {entry.turn} {entry.reason}"
        case ToolStartEntry():
            return f"tool_start {entry.call_id}"
        case ModelChangeEntry():
            return f"model_change {entry.provider}/{entry.model_id}"
        case ThinkingLevelChangeEntry():
            return f"thinking_level_change {entry.thinking_level}"
        case _:
            return entry.type


async def history(session: Session, *, after: int = -1) -> list[str]:
    """All entries in the order they were committed, in short words."""
    return [short(entry) for entry in await session.entries(after_seq=after)]


async def results(session: Session) -> dict[str, ToolResultMessage]:
    """The tool results of a session, by call id; fails if a call has two."""
    found: dict[str, ToolResultMessage] = {}
    for entry in await session.entries():
        if isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage):
            assert entry.message.tool_call_id not in found, "two results for one call"
            found[entry.message.tool_call_id] = entry.message
    return found


def check_well_formed(entries: Sequence[Entry]) -> None:
    """One chain; each call has exactly one result after it; each turn has one end; nothing is open."""
    parent: str | None = None
    turn: int | None = None
    open_calls: list[str] = []
    for entry in entries:
        assert entry.parent_id == parent
        parent = entry.id
        if isinstance(entry, TurnStartEntry):
            assert turn is None
            turn = entry.turn
        elif isinstance(entry, TurnEndEntry):
            assert turn == entry.turn
            assert open_calls == []
            turn = None
        elif isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage):
            assert open_calls == []
            open_calls = [call.id for call in entry.message.tool_calls]
            assert len(set(open_calls)) == len(open_calls)
            assert all(open_calls)
        elif isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage):
            open_calls.remove(entry.message.tool_call_id)
        elif isinstance(entry, ToolStartEntry):
            assert entry.call_id in open_calls
    assert turn is None
    assert open_calls == []


def roles(messages: Sequence[Any]) -> list[str]:
    """The roles of messages, in order."""
    return [message.role for message in messages]
