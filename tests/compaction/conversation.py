"""Conversations for tests, in a few words; each step becomes an entry whose id is given first."""

from __future__ import annotations

from typing import Any

from compaction import ListPath
from compaction.breathing import run_at_once
from compaction.projection import Projection, project
from storage.entries import (
    ApprovalRequestedEntry,
    ApprovalResolvedEntry,
    BranchSummaryEntry,
    CompactionEntry,
    ContextEditEntry,
    CustomMessageEntry,
    Entry,
    MessageEntry,
    Replacement,
    ToolStartEntry,
    TurnEndEntry,
    TurnStartEntry,
    WorkingMemoryEntry,
)
from storage.entry_path import EntryPath
from storage.messages import AssistantMessage, Message, TextContent, ToolCall, ToolResultMessage, Usage, UserMessage

TIME = "2026-01-01T00:00:00.000Z"


def call(call_id: str, name: str = "tool", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def reply_message(text: str = "", *calls: str | ToolCall, **more: Any) -> AssistantMessage:
    content: list[Any] = [TextContent(text=text)] if text else []
    content += [one if isinstance(one, ToolCall) else call(one) for one in calls]
    members: dict[str, Any] = {"stop_reason": "toolUse" if calls else "stop", **more}
    return AssistantMessage(content=content, timestamp=2, **members)


def result_message(call_id: str, text: str = "done", **more: Any) -> ToolResultMessage:
    content = more.pop("content", [TextContent(text=text)])
    return ToolResultMessage(tool_call_id=call_id, tool_name="tool", content=content, timestamp=3, **more)


def user_message(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def run(path: EntryPath, **options: Any) -> Projection:
    """The projection of a path, made at once."""
    return run_at_once(project(path, **options))


class Conversation:
    """Entries in a row, and what is shown of them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> Conversation:
        self.entries.append(entry.model_copy(update={"seq": len(self.entries)}))
        self.entries[-1].__pydantic_fields_set__.add("seq")
        return self

    def message(self, entry_id: str, message: Message) -> Conversation:
        return self.add(MessageEntry(id=entry_id, timestamp=TIME, message=message))

    def user(self, entry_id: str, text: str | None = None) -> Conversation:
        return self.message(entry_id, user_message(f"text of {entry_id}" if text is None else text))

    def reply(self, entry_id: str, *calls: str | ToolCall, text: str | None = None, **more: Any) -> Conversation:
        return self.message(entry_id, reply_message(f"text of {entry_id}" if text is None else text, *calls, **more))

    def result(self, entry_id: str, call_id: str, text: str | None = None, **more: Any) -> Conversation:
        return self.message(entry_id, result_message(call_id, f"text of {entry_id}" if text is None else text, **more))

    def compaction(self, entry_id: str, summary: str | None = "what was", **more: Any) -> Conversation:
        return self.add(CompactionEntry(id=entry_id, timestamp=TIME, summary=summary, **more))

    def branch_summary(self, entry_id: str, summary: str | None) -> Conversation:
        return self.add(BranchSummaryEntry(id=entry_id, timestamp=TIME, summary=summary, from_id="x"))

    def custom_message(self, entry_id: str, content: Any) -> Conversation:
        return self.add(CustomMessageEntry(id=entry_id, timestamp=TIME, custom_type="note", content=content))

    def memory(self, entry_id: str, op: Any, key: str | None = None, value: Any = None) -> Conversation:
        return self.add(WorkingMemoryEntry(id=entry_id, timestamp=TIME, op=op, key=key, value=value))

    def hide(self, entry_id: str, target: str) -> Conversation:
        return self.add(ContextEditEntry(id=entry_id, timestamp=TIME, target_id=target, replacement=None))

    def replace(self, entry_id: str, target: str, content: Any) -> Conversation:
        return self.add(
            ContextEditEntry(id=entry_id, timestamp=TIME, target_id=target, replacement=Replacement(content=content))
        )

    def turn_start(self, entry_id: str, turn: int = 1) -> Conversation:
        return self.add(TurnStartEntry(id=entry_id, timestamp=TIME, turn=turn))

    def turn_end(self, entry_id: str, turn: int = 1) -> Conversation:
        return self.add(TurnEndEntry(id=entry_id, timestamp=TIME, turn=turn, reason="completed"))

    def tool_start(self, entry_id: str, call_id: str) -> Conversation:
        return self.add(ToolStartEntry(id=entry_id, timestamp=TIME, call_id=call_id, name="tool", arguments={}))

    def approval(self, entry_id: str, call_id: str) -> Conversation:
        return self.add(ApprovalRequestedEntry(id=entry_id, timestamp=TIME, ignorable=True, call_id=call_id))

    def decision(self, entry_id: str, call_id: str) -> Conversation:
        return self.add(
            ApprovalResolvedEntry(id=entry_id, timestamp=TIME, ignorable=True, call_id=call_id, decision="approved")
        )

    @property
    def path(self) -> ListPath:
        return ListPath(self.entries)

    def project(self, **options: Any) -> Projection:
        return run(self.path, **options)

    def ids(self, **options: Any) -> list[str | None]:
        """The entries shown, by id."""
        return self.project(**options).entry_ids

    def shown(self, **options: Any) -> list[tuple[str, str]]:
        """Role and text of each message shown."""
        return [(message.role, message.text) for message in self.project(**options).messages]


def usage(total: int) -> Usage:
    return Usage(input=1, output=1, total_tokens=total)
