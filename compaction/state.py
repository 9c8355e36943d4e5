"""What is in force at a leaf: model, thinking level, tools, system prompt, working memory (R22).

Folded along the whole path, across compactions, and along nothing else, so that going back to a branch gives the state
it had. The path knows where the newest of each thing is; nothing else is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from storage.entries import (
    ActiveToolsChangeEntry,
    CompactionEntry,
    MessageEntry,
    ModelChangeEntry,
    RequestHeaderEntry,
    ThinkingLevelChangeEntry,
    WorkingMemoryEntry,
)
from storage.entry_path import EntryPath
from storage.messages import AssistantMessage, SystemMessage


class ModelChoice(NamedTuple):
    """A model, by its provider and its id there."""

    provider: str | None
    model_id: str | None


@dataclass(slots=True)
class PathState:
    """What is in force at the end of a path. ``thinking_level`` is "off", the others ``None``, where nothing set them.

    ``tools`` are the whole schemas as the newest request header has them. ``header_position`` and ``memory_position``
    are where on the path the prompt and the working memory changed last.
    """

    model: ModelChoice | None = None
    thinking_level: str = "off"
    active_tools: list[str] | None = None
    system_prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    header: RequestHeaderEntry | None = None
    header_position: int | None = None
    working_memory: Mapping[str, Any] = field(default_factory=dict[str, Any])
    memory_position: int | None = None
    memory_entry: WorkingMemoryEntry | None = None
    memory_order: list[str] = field(default_factory=list[str])
    """The keys of the working memory in the order in which they were set last, the newest at the end."""


def fold_state(path: EntryPath) -> PathState:
    """The state at the end of ``path``. Decodes one entry for each thing, and the working memory since its last clear."""
    level = _entry(path, path.thinking_level)
    tools = _entry(path, path.active_tools)
    memory = fold_memory(path)
    header = _entry(path, path.request_header)
    prompt = _Prompt()
    if isinstance(header, RequestHeaderEntry):
        prompt = _Prompt(header.system_prompt, header.tools, path.request_header)
    else:
        header = None
    _replay_system_messages(path, prompt)
    return PathState(
        model=_model(path),
        thinking_level=level.thinking_level if isinstance(level, ThinkingLevelChangeEntry) else "off",
        active_tools=tools.active_tool_names if isinstance(tools, ActiveToolsChangeEntry) else None,
        system_prompt=prompt.text,
        tools=prompt.tools,
        header=header,
        header_position=prompt.position,
        working_memory=memory.values,
        memory_position=memory.position,
        memory_entry=memory.newest,
        memory_order=[*memory.order],
    )


@dataclass(slots=True)
class FoldedMemory:
    """The working memory at the end of a path, and where it changed last.

    ``values`` has the keys in the order in which they were first set, ``order`` in the order in which they were set last.
    """

    values: dict[str, Any] = field(default_factory=dict[str, Any])
    order: dict[str, None] = field(default_factory=dict[str, None])
    position: int | None = None
    newest: WorkingMemoryEntry | None = None

    def take(self, entry: WorkingMemoryEntry) -> None:
        """The next change of it."""
        self.newest = entry
        key = entry.key or ""
        if entry.op == "clear":
            self.values.clear()
            self.order.clear()
            return
        self.order.pop(key, None)
        if entry.op == "delete":
            self.values.pop(key, None)
        else:
            self.values[key] = entry.value
            self.order[key] = None


def fold_memory(path: EntryPath) -> FoldedMemory:
    """The working memory at the end of ``path``. Decodes its changes since it was cleared last."""
    memory = FoldedMemory()
    for position in path.working_memory():
        memory.position = position
        entry = path.entry(position)
        if isinstance(entry, WorkingMemoryEntry):
            memory.take(entry)
    return memory


def _entry(path: EntryPath, position: int | None) -> Any:
    return None if position is None else path.entry(position)


def _model(path: EntryPath) -> ModelChoice | None:
    entry = _entry(path, path.model)
    if isinstance(entry, ModelChangeEntry):
        return ModelChoice(entry.provider, entry.model_id)
    if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage):
        return ModelChoice(entry.message.provider, entry.message.model)
    return None


@dataclass(slots=True)
class _Prompt:
    text: str | None = None
    tools: list[dict[str, Any]] | None = None
    position: int | None = None


def _replay_system_messages(path: EntryPath, prompt: _Prompt) -> None:
    """pi-coding-agent records prompt and tools as system messages; those newer than our newest header give both.

    The first is the base; later ones add instructions, replace named sections (``null`` takes one away), add and
    remove tools. A compaction may carry a message that stands for all before it.
    """
    since = -1 if prompt.position is None else prompt.position
    messages: list[tuple[int, SystemMessage]] = []
    compaction = path.compaction
    if compaction is not None and compaction > since and (whole := _carried(path, compaction)) is not None:
        messages.append((compaction, whole))
        since = compaction
    for position in path.system_messages():
        if position > since:
            entry = path.entry(position)
            if isinstance(entry, MessageEntry) and isinstance(entry.message, SystemMessage):
                messages.append((position, entry.message))
    if not messages:
        return
    contents: list[str] = []
    sections: dict[str, str] = {}
    tools: dict[str, dict[str, Any]] = {}
    for position, message in messages:
        prompt.position = position
        if message.content:
            contents.append(message.content)
        for name, text in (message.sections or {}).items():
            if text is None:
                sections.pop(name, None)
            else:
                sections[name] = text
        for tool in _objects(message.tools_removed):
            tools.pop(str(tool.get("name")), None)
        for tool in _objects(message.tools_added):
            tools[str(tool.get("name"))] = tool
    prompt.text = "\n\n".join([text for text in (*contents, *sections.values()) if text.strip()]) or None
    prompt.tools = list(tools.values())


def _carried(path: EntryPath, position: int) -> SystemMessage | None:
    if b'"systemMessage"' not in path.line(position):
        return None
    entry = path.entry(position)
    if not isinstance(entry, CompactionEntry) or entry.system_message is None:
        return None
    try:
        return SystemMessage.model_validate(entry.system_message, strict=True, by_name=False)
    except ValidationError:
        return None  # a free member that is no system message says nothing about the prompt


def _objects(values: list[Any] | None) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", value) for value in values or () if isinstance(value, dict)]
