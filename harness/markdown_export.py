"""A conversation as a page to read: Markdown in which nothing that was said can pass for part of the page.

What people and models wrote stands in block quotes, untouched, since it is mostly Markdown itself: headings, fences and
HTML in it end with the quote. What tools took and gave stands in fences longer than any inside. Names are escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from harness.context import CURRENT
from harness.session import Session
from storage.assembling import LEAF
from storage.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    ContextEditEntry,
    CustomMessageEntry,
    Entry,
    MessageEntry,
    ModelChangeEntry,
    TurnEndEntry,
    UnknownEntry,
    UnknownMessageEntry,
)
from storage.event_loops import in_slices
from storage.messages import (
    AssistantMessage,
    BashExecutionMessage,
    CustomMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

_LINE_END = re.compile(r"\r\n|\n|\r")
_BACKTICKS = re.compile("`+")
_MARKS = re.compile(r"([\\`*_\[\]<>#|!&~$])")
_SPACE = re.compile(r"\s+")


async def export_markdown(session: Session, *, leaf_id: str | object | None = CURRENT) -> str:
    """The path from the root to ``leaf_id`` as Markdown, ending with a newline.

    Everything that was said is in it, what a compaction summarised too, with thinking, calls, results, summaries, labels
    and how turns ended; images are named, not shown. Control characters are as they were recorded: who prints it to a
    terminal neutralises them. Raises ``EntryNotFoundError`` and ``BrokenPathError``.
    """
    path = await session.log.path(LEAF if leaf_id is CURRENT else leaf_id)
    labels = await session.labels()
    title = await session.name() or session.id
    blocks = [f"# {escaped(title)}", _facts(session)]

    def write() -> Iterable[None]:
        for position in range(len(path)):
            entry = path.entry(position)
            blocks.extend(_blocks_of(entry))
            if entry.id in labels:
                blocks.append(f"*Label: {escaped(labels[entry.id])}*")
            yield

    await in_slices(write())
    return "\n\n".join(block for block in blocks if block) + "\n"


def _facts(session: Session) -> str:
    header = session.header
    facts = [f"Session {code(header.id)}"]
    if header.timestamp:
        facts.append(f"begun {code(header.timestamp)}")
    if header.cwd:
        facts.append(f"in {code(header.cwd)}")
    if header.parent_session:
        facts.append(f"forked from {code(header.parent_session)}")
    return ", ".join(facts)


def _blocks_of(entry: Entry) -> list[str]:
    match entry:
        case MessageEntry():
            return _message(entry.message)
        case CustomMessageEntry():
            return [f"## {escaped(entry.custom_type)}", *_content(entry.content)]
        case CompactionEntry():
            return ["## Summary of what came before", quote(entry.summary or "(no summary)")]
        case BranchSummaryEntry():
            return ["## Summary of a branch that was left", quote(entry.summary or "(no summary)")]
        case ModelChangeEntry():
            return [f"*Model: {escaped(f'{entry.provider}/{entry.model_id}')}*"]
        case ContextEditEntry():
            what = "hidden from the model" if entry.replacement is None else "replaced for the model"
            return [f"*Entry {code(entry.target_id)} was {what} from here on*"]
        case TurnEndEntry() if entry.reason != "completed":
            return [f"*Turn {entry.turn} ended: {escaped(entry.reason)}*"]
        case UnknownEntry():
            return [f"*An entry of a type that this program does not know: {escaped(entry.type)}*"]
        case UnknownMessageEntry():
            return [f"*A message that this program does not know: {escaped(str(entry.message.get('role')))}*"]
        case _:
            return []


def _message(message: Message) -> list[str]:
    match message:
        case UserMessage():
            return ["## User", *_content(message.content)]
        case AssistantMessage():
            return _reply(message)
        case ToolResultMessage():
            what = "Error" if message.is_error else "Result"
            blobs = (
                [f"*All of it: {', '.join(code(f'blob:{name}') for name in message.blobs)}*"] if message.blobs else []
            )
            return [f"### {what} of {code(message.tool_name)}", *_content(message.content, _text_fence), *blobs]
        case BashExecutionMessage():
            return ["## User ran a command", fence(message.command, "sh"), _text_fence(message.output or "")]
        case SystemMessage():
            texts = [message.content, *(message.sections or {}).values()]
            return ["## System", *(quote(text) for text in texts if text and text.strip())]
        case CustomMessage():
            return [f"## {escaped(message.custom_type)}", *_content(message.content)]
        case _:
            return [f"## {escaped(message.role)}", quote(message.text)]


def _reply(message: AssistantMessage) -> list[str]:
    by = "/".join(name for name in (message.provider, message.model) if name)
    blocks = [f"## Assistant{f' ({escaped(by)})' if by else ''}"]
    for part in message.content or ():
        match part:
            case TextContent():
                blocks.append(quote(part.text or ""))
            case ThinkingContent():
                blocks += ["*Thinking:*", quote(part.thinking)] if part.thinking and part.thinking.strip() else []
            case ToolCall():
                blocks += [f"### Call of {code(part.name)}", _arguments(part)]
    if message.stop_reason in ("error", "aborted", "length"):
        why = f": {message.error_message}" if message.error_message else ""
        blocks.append(f"*Ended with {escaped(message.stop_reason + why)}*")
    return blocks


def _arguments(call: ToolCall) -> str:
    if call.raw_arguments is not None:
        return fence(call.raw_arguments, "text")
    return fence(json.dumps(call.arguments, ensure_ascii=False, indent=2), "json")


def _text_fence(text: str) -> str:
    return fence(text, "text")


def _content(content: str | list[Any] | None, write: Callable[[str], str] | None = None) -> list[str]:
    write = write or quote
    if content is None or isinstance(content, str):
        return [write(content)] if content else []
    blocks: list[str] = []
    for part in content:
        if isinstance(part, ImageContent):
            blocks.append(f"*An image, {escaped(part.mime_type)}, {len(part.data) * 3 // 4:,} bytes*")
        elif isinstance(part, TextContent) and part.text:
            blocks.append(write(part.text))
    return blocks


def quote(text: str) -> str:
    """``text`` as a block quote: every line of it begins with ``>``, whatever ends a line for Markdown."""
    return "\n".join(f"> {line}" if line else ">" for line in _LINE_END.split(text)) if text.strip() else ""


def fence(text: str, kind: str) -> str:
    """``text`` in a fence that nothing inside can close."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    mark = "`" * max(3, longest + 1)
    body = "\n".join(_LINE_END.split(text))
    return f"{mark}{kind}\n{body}\n{mark}"


def code(text: str) -> str:
    """``text`` as a code span on one line."""
    text = _SPACE.sub(" ", text)
    mark = "`" * (max((len(run) for run in _BACKTICKS.findall(text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{mark}{pad}{text}{pad}{mark}" if text.strip() else "(no name)"


def escaped(text: str) -> str:
    """``text`` on one line, each mark that Markdown could take for its own behind a backslash."""
    return _MARKS.sub(r"\\\1", _SPACE.sub(" ", text)).strip()
