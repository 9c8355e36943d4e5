"""An entry in a few words, for lists and trees."""

from __future__ import annotations

import json
from typing import Any

from harness.cli.plain_text import preview
from storage.entries import (
    ActiveToolsChangeEntry,
    ApprovalRequestedEntry,
    ApprovalResolvedEntry,
    BranchSummaryEntry,
    CompactionEntry,
    ContextEditEntry,
    CustomEntry,
    CustomMessageEntry,
    DeliveredEntry,
    Entry,
    LabelEntry,
    LeafEntry,
    MessageEntry,
    MetadataEntry,
    ModelChangeEntry,
    QueuedEntry,
    RequestHeaderEntry,
    SessionInfoEntry,
    ThinkingLevelChangeEntry,
    ToolStartEntry,
    TurnEndEntry,
    TurnStartEntry,
    UnknownMessageEntry,
    UsageEntry,
    WorkingMemoryEntry,
)
from storage.messages import (
    AssistantMessage,
    BashExecutionMessage,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
)

SPOKEN = frozenset({"message", "custom_message", "branch_summary", "compaction"})
"""Entry types that are part of the conversation; the others are the bookkeeping around it."""


_SHORT_KINDS = {
    "toolResult": "tool",
    "bashExecution": "shell",
    "custom_message": "custom",
    "branch_summary": "branch",
    "compaction": "summary",
}


def word_for(kind: str) -> str:
    """A kind as lists and trees name it, in a narrow column."""
    return _SHORT_KINDS.get(kind, kind)


def kind_of(entry: Entry) -> str:
    """The word an entry goes by: the role of its message, else its type."""
    if isinstance(entry, MessageEntry):
        return entry.message.role
    if isinstance(entry, UnknownMessageEntry):
        return str(entry.message.get("role", "message"))
    return entry.type


def is_spoken(entry: Entry) -> bool:
    """Whether an entry is part of the conversation, or else bookkeeping; ends of turns that failed are told as well."""
    return entry.type in SPOKEN or (isinstance(entry, TurnEndEntry) and entry.reason != "completed")


def describe(entry: Entry, length: int = 72) -> str:
    """What an entry says, on one line of at most ``length`` characters."""
    if isinstance(entry, MessageEntry):
        return describe_message(entry.message, length)
    return preview(_says(entry), length)


def describe_message(message: Message, length: int = 72) -> str:
    """What a message says, on one line of at most ``length`` characters."""
    return preview(_message_says(message), length)


def describe_call(call: ToolCall, length: int = 200) -> str:
    """A tool call on one line of at most ``length`` characters."""
    return preview(_call(call), length)


def _call(call: ToolCall) -> str:
    if call.raw_arguments is not None:
        return f"{call.name}({call.raw_arguments[:80]})"
    return f"{call.name}({_arguments(call.arguments)})"


def _message_says(message: Message) -> str:
    match message:
        case AssistantMessage():
            calls = [f"-> {_call(call)}" for call in message.tool_calls]
            trouble = (
                [f"[{message.stop_reason}: {message.error_message or 'no reason given'}]"]
                if (message.stop_reason in ("error", "aborted"))
                else []
            )
            return " ".join(part for part in (message.text, *calls, *trouble) if part)
        case ToolResultMessage():
            return f"{message.tool_name}{' failed' if message.is_error else ''}: {_text_of(message.content)}"
        case BashExecutionMessage():
            return f"$ {message.command} {message.text}"
        case _:
            return _text_of(getattr(message, "content", None))


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    pieces: list[str] = []
    for part in content or ():
        if isinstance(part, TextContent):
            pieces.append(part.text or "")
        elif isinstance(part, ImageContent):
            pieces.append(f"[{part.mime_type}]")
    return " ".join(pieces)


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short_json(value)}" for name, value in arguments.items())


def _short_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def _says(entry: Entry) -> str:
    match entry:
        case CustomMessageEntry():
            return f"{entry.custom_type}: {_text_of(entry.content)}"
        case BranchSummaryEntry() | CompactionEntry():
            return entry.summary or ""
        case ModelChangeEntry():
            return f"{entry.provider}/{entry.model_id}"
        case ThinkingLevelChangeEntry():
            return entry.thinking_level
        case ActiveToolsChangeEntry():
            return ", ".join(entry.active_tool_names) or "none"
        case RequestHeaderEntry():
            return f"model {_short_json(entry.model)}, {len(entry.tools or ())} tools"
        case TurnStartEntry():
            return f"turn {entry.turn}"
        case TurnEndEntry():
            return f"turn {entry.turn} {entry.reason}"
        case ToolStartEntry():
            return f"{entry.name}({_arguments(entry.arguments)})"
        case WorkingMemoryEntry():
            return f"{entry.op} {entry.key or ''} {_short_json(entry.value) if entry.op == 'set' else ''}"
        case QueuedEntry():
            return f"{entry.kind}: {_message_says(entry.message)}"
        case DeliveredEntry():
            return entry.entry_id
        case ApprovalRequestedEntry():
            return entry.call_id
        case ApprovalResolvedEntry():
            return f"{entry.call_id}: {entry.decision}"
        case UsageEntry():
            return f"{entry.usage.total_tokens if entry.usage else 0} tokens"
        case ContextEditEntry():
            return f"{'replaces' if entry.replacement else 'hides'} {entry.target_id}"
        case MetadataEntry():
            return f"{entry.key} = {_short_json(entry.value)}"
        case CustomEntry():
            return entry.custom_type
        case LabelEntry():
            return f"{entry.label or 'no label'} on {entry.target_id}"
        case LeafEntry():
            return f"to {entry.target_id or 'the beginning'}"
        case SessionInfoEntry():
            return entry.name or ""
        case _:
            return ""
