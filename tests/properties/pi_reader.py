"""A little reader of pi's version-3 files: written from the description of pi's format alone, in the standard library.

It knows nothing of our additions: types that pi does not know are links in their chains and nothing else. Two things are
the two programs' own: where one goes on when the file is opened (``leaf_of_harness``, ``leaf_of_coding_agent``).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

Json = dict[str, Any]


class PiMessage(NamedTuple):
    """A message of pi's context: the entry it came from, and its role for the model."""

    entry_id: str
    role: str
    texts: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The ids of an assistant's calls."""
    answers: str | None = None
    """The call that a tool's result names."""
    failed: bool = False
    summary: bool = False
    """Whether pi puts its own words around the text: a summary, or a shell command."""


def read(data: bytes) -> list[Json]:
    """The entries of a file, by pi's own checks at opening. Raises ``ValueError`` for what pi's harness refuses."""
    lines = [line for line in data.decode("utf-8").split("\n") if line.strip()]
    header = json.loads(lines[0])
    if header.get("type") != "session" or header.get("version") != 3:
        raise ValueError("no header of version 3")
    if not all(isinstance(header.get(name), str) and header[name] for name in ("id", "timestamp", "cwd")):
        raise ValueError("a header without id, timestamp or cwd")
    if not isinstance(header.get("parentSession"), str | None):
        raise ValueError("a parent session that is no text")  # noqa: TRY004 - it is the file that is wrong
    entries: list[Json] = []
    for line in lines[1:]:
        entry = json.loads(line)
        good = isinstance(entry, dict) and all(
            isinstance(entry.get(name), str) and entry[name] for name in ("type", "id", "timestamp")
        )
        if not good or not isinstance(entry.get("parentId"), str | None) or "parentId" not in entry:
            raise ValueError(f"an invalid entry: {line[:100]}")
        if entry["type"] == "leaf" and not isinstance(entry.get("targetId"), str | None):
            raise ValueError(f"an invalid leaf: {line[:100]}")
        entries.append(entry)
    return entries


def leaf_of_harness(entries: list[Json]) -> str | None:
    """pi-agent-core 0.83: after each entry in order the leaf is its id, and after a leaf entry its target."""
    leaf: str | None = None
    for entry in entries:
        leaf = entry["targetId"] if entry["type"] == "leaf" else entry["id"]
    return leaf


def leaf_of_coding_agent(entries: list[Json]) -> str | None:
    """pi-coding-agent: the last entry in the file, whatever it is."""
    return entries[-1]["id"] if entries else None


def label_of(entries: list[Json], target: str) -> str | None:
    """The last label for ``target`` wins; a blank one clears."""
    labels = [entry.get("label") for entry in entries if entry["type"] == "label" and entry["targetId"] == target]
    return (labels[-1] or "").strip() or None if labels else None


def name_of(entries: list[Json]) -> str | None:
    """The last name in file order."""
    names = [entry.get("name") for entry in entries if entry["type"] == "session_info"]
    return (names[-1] or "").strip() or None if names else None


def path_to(entries: list[Json], leaf: str | None) -> list[Json]:
    """From the root to ``leaf``, by ``parentId``."""
    by_id = {entry["id"]: entry for entry in entries}
    path: list[Json] = []
    while leaf is not None:
        path.insert(0, by_id[leaf])
        leaf = path[0]["parentId"]
    return path


def context(entries: list[Json], leaf: str | None) -> list[PiMessage]:
    """The messages that go to the model."""
    path = path_to(entries, leaf)
    selected = _selected(path)
    edits = {entry["targetId"]: entry["replacement"] for entry in selected if entry["type"] == "context_edit"}
    messages: list[PiMessage] = []
    for entry in selected:
        for message in _messages_of(entry):
            edited = _edited(message, edits[entry["id"]]) if entry["id"] in edits else message
            made = None if edited is None else _for_the_model(entry["id"], edited)
            if made is not None:
                messages.append(made)
    return messages


def calls_edited_away(entries: list[Json], leaf: str | None) -> set[str]:
    """The ids of calls that a context edit took out of their reply, so that pi shows their results without a call."""
    path = path_to(entries, leaf)
    edited = {entry["targetId"] for entry in path if entry["type"] == "context_edit"}
    messages = [entry["message"] for entry in path if entry["id"] in edited and entry["type"] == "message"]
    return {call for message in messages if message["role"] == "assistant" for call in _calls(message)}


def _calls(message: Json) -> tuple[str, ...]:
    parts = message["content"] if isinstance(message["content"], list) else []
    return tuple(part["id"] for part in parts if part["type"] == "toolCall")


def _selected(path: list[Json]) -> list[Json]:
    """The latest compaction, what it kept, what came after; a retained tail wins. Only the newest one speaks."""
    at = max((place for place, entry in enumerate(path) if entry["type"] == "compaction"), default=None)
    if at is None:
        return path
    compaction, before, after = path[at], path[:at], path[at + 1 :]
    kept: list[Json] = []
    if compaction.get("retainedTail") is None:
        first = next((p for p, entry in enumerate(before) if entry["id"] == compaction.get("firstKeptEntryId")), at)
        kept = [entry for entry in before[first:] if entry["type"] != "compaction"]
    return [compaction, *kept, *after]


def _messages_of(entry: Json) -> list[Json]:
    match entry["type"]:
        case "message":
            return [entry["message"]]
        case "custom_message":
            return [{"role": "custom", "content": entry["content"]}]
        case "compaction":
            summary = {"role": "compactionSummary", "summary": entry["summary"]}
            return [summary, *(entry.get("retainedTail") or [])]
        case "branch_summary" if entry["summary"]:
            return [{"role": "branchSummary", "summary": entry["summary"]}]
        case _:
            return []


def _edited(message: Json, replacement: Json | None) -> Json | None:
    if replacement is None:
        return None
    return {**message, "content": replacement["content"]}


def _for_the_model(entry_id: str, message: Json) -> PiMessage | None:
    match message["role"]:
        case "user" | "custom":
            return PiMessage(entry_id, "user", _texts(message))
        case "assistant":
            failed = message.get("stopReason") in ("error", "aborted")
            return PiMessage(entry_id, "assistant", _texts(message), _calls(message), failed=failed)
        case "toolResult":
            return PiMessage(entry_id, "toolResult", _texts(message), answers=message["toolCallId"])
        case "bashExecution":
            if message.get("excludeFromContext"):
                return None
            return PiMessage(entry_id, "user", (message["command"], message["output"]), summary=True)
        case "branchSummary" | "compactionSummary":
            return PiMessage(entry_id, "user", (message["summary"] or "",), summary=True)
        case _:
            return None


def _texts(message: Json) -> tuple[str, ...]:
    content = message["content"]
    if isinstance(content, str):
        return (content,)
    return tuple(part["text"] for part in content or [] if part["type"] == "text")
