"""The path through a record and what the rules read off it: turns (R19), state (R22), the latest compaction (R18)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.properties.wire import Json


def path_to(entries: list[Json], leaf: str | None) -> list[Json]:
    """The entries from the root to ``leaf``. Raises ``LookupError`` where a parent is missing, ``ValueError`` on a cycle."""
    by_id = {entry["id"]: entry for entry in entries}
    path: list[Json] = []
    seen: set[str] = set()
    current = leaf
    while current is not None:
        if current in seen:
            raise ValueError(f"cycle at {current}")
        seen.add(current)
        entry = by_id[current]
        path.append(entry)
        current = entry.get("parentId")
    path.reverse()
    return path


def role_of(entry: Json) -> str:
    """The message's role of a ``message`` entry, else the empty text."""
    return entry["message"]["role"] if entry["type"] == "message" else ""


def openers(path: list[Json]) -> list[int | None]:
    """For each position, the position of the user message that opened the turn it belongs to.

    A turn begins at a ``turn_start`` (and its opener is the first user message after that), else at a user message.
    Between ``turn_start`` and ``turn_end`` further user messages are steers. What was queued and delivered begins none,
    wherever it stands. A turn lasts until the next one begins.
    """
    result: list[int | None] = []
    announced: set[str] = set()
    opener: int | None = None
    inside = False
    for position, entry in enumerate(path):
        if entry["type"] == "turn_start":
            opener, inside = None, True
        elif entry["type"] == "turn_end":
            inside = False
        elif entry["type"] == "delivered":
            announced.add(entry.get("messageId", ""))
        elif role_of(entry) == "user" and (opener is None or not inside) and entry["id"] not in announced:
            opener = position
        result.append(opener)
    return result


def before(path: list[Json]) -> str | None:
    """Where one stands before the last entry of ``path``: before a user message means before the turn that it opened."""
    earlier = path[:-1]
    if openers(path)[-1] == len(earlier):
        turn = next(
            (at for at in range(len(earlier) - 1, -1, -1) if earlier[at]["type"] in ("turn_start", "turn_end")), None
        )
        if turn is not None and earlier[turn]["type"] == "turn_start":
            earlier = earlier[:turn]
    return earlier[-1]["id"] if earlier else None


def waiting(path: list[Json]) -> list[str]:
    """The ``queued`` entries that wait at the end of ``path``, oldest first.

    One has left where a ``delivered`` entry of it names no message (it was taken back), or one that came. What a crash
    cut off between the two waits on.
    """
    waits: dict[str, None] = {}
    announced: dict[str, str] = {}
    for entry in path:
        if entry["type"] == "queued":
            waits[entry["id"]] = None
        elif entry["type"] == "delivered" and entry.get("messageId") is None:
            waits.pop(entry["entryId"], None)
        elif entry["type"] == "delivered":
            announced[entry["messageId"]] = entry["entryId"]
        elif entry["id"] in announced:
            waits.pop(announced[entry["id"]], None)
    return [*waits]


def latest_compaction(path: list[Json]) -> int | None:
    """The position of the last compaction on the path."""
    return max((position for position, entry in enumerate(path) if entry["type"] == "compaction"), default=None)


def edits(path: list[Json]) -> dict[str, Json | None]:
    """Per target the replacement that counts: the last edit on the path; ``None`` hides."""
    return {entry["targetId"]: entry["replacement"] for entry in path if entry["type"] == "context_edit"}


@dataclass(frozen=True)
class State:
    """What R22 folds along the whole path. ``model`` is provider and model id."""

    model: tuple[str, str] | None
    thinking_level: str | None
    active_tools: list[str] | None
    system_prompt: str | None
    working_memory: dict[str, Any]


def fold(path: list[Json]) -> State:
    """R22: along the whole path, across compactions, and along nothing else."""
    model: tuple[str, str] | None = None
    thinking_level: str | None = None
    active_tools: list[str] | None = None
    system_prompt: str | None = None
    memory: dict[str, Any] = {}
    for entry in path:
        match entry["type"]:
            case "model_change":
                model = (entry["provider"], entry["modelId"])
            case "message" if role_of(entry) == "assistant":
                message = entry["message"]
                if message.get("provider") is not None and message.get("model") is not None:
                    model = (message["provider"], message["model"])
            case "thinking_level_change":
                thinking_level = entry["thinkingLevel"]
            case "active_tools_change":
                active_tools = entry["activeToolNames"]
            case "request_header":
                system_prompt = entry.get("systemPrompt")
            case "working_memory":
                if entry["op"] == "set":
                    memory[entry["key"]] = entry.get("value")
                elif entry["op"] == "delete":
                    memory.pop(entry["key"], None)
                else:
                    memory.clear()
            case _:
                pass
    return State(model, thinking_level, active_tools, system_prompt, memory)
