"""What a path offers to the model before any budget: R18 (which entries), R19 (pairing), R20 (what is left out)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.properties.record import edits, latest_compaction, openers, role_of
from tests.properties.wire import Json, blank, blank_part, calls_of, parts_of, text_of, without_blanks

FAILED = ("error", "aborted")


@dataclass
class Answer:
    """What follows a call: the entry of its result and that result, or nothing of it (``result`` is None)."""

    call: Json
    entry_id: str | None = None
    result: Json | None = None
    state: str | None = None
    """Where it can be told without doubt: ``not run``, ``unknown`` or ``waiting``."""


@dataclass
class Item:
    """One thing the path offers: a message, or an assistant message with the answers to all its calls."""

    entry_id: str
    kind: str
    """summary, user, assistant, custom, branch or bash."""
    content: Any
    """The exact content to show, where the rules fix it; for summaries and bash a list of texts that must occur."""
    message: Json | None = None
    """The whole message, without blank parts, where it is shown as itself."""
    answers: list[Answer] = field(default_factory=list[Answer])
    optional: bool = False
    """Whether the rules leave open if this is shown (a reply of thinking alone, an empty summary)."""
    opener: int | None = None
    """The index of the item that opened its turn."""
    tail_opener: int | None = None
    """The index of the retained tail's last user message before it: after a compaction in mid-turn, the rules leave
    open whether that stands for the opener."""


@dataclass
class Offer:
    """All items in the order in which they are shown, and the results that must be listed as dropped."""

    items: list[Item]
    orphans: list[str]
    """Results that answer no call that could be shown, by entry id: R20 wants them in ``dropped``."""
    compaction: Json | None
    lost_first_kept: bool
    """Whether the compaction names a first kept entry that is not on its path."""


@dataclass
class _Source:
    """A message of the shown stretch: from the path (``position``), or from the retained tail (``position`` None)."""

    entry: Json
    position: int | None
    message: Json
    """With the context edit of the path made."""
    recorded: Json
    hidden: bool = False


def offer(path: list[Json]) -> Offer:
    """Everything that ``path`` offers to the model, by R18 and R20."""
    at = latest_compaction(path)
    if at is None:
        return _Builder(path, None, _sources(path, 0, len(path))).build()
    compaction = path[at]
    after = _sources(path, at + 1, len(path))
    tail = compaction.get("retainedTail")
    if tail is not None:
        kept = [_Source(compaction, None, message, message) for message in tail if _offered(message)]
        return _Builder(path, compaction, kept + after).build()
    first = compaction.get("firstKeptEntryId")
    if first is None or first == compaction["id"]:
        return _Builder(path, compaction, after).build()
    start = next((position for position in range(at) if path[position]["id"] == first), None)
    if start is None:
        return _Builder(path, compaction, after).build(lost=True)
    return _Builder(path, compaction, _sources(path, start, at) + after).build()


def _offered(message: Json) -> bool:
    return message["role"] != "system" and not message.get("excludeFromContext")


def _sources(path: list[Json], start: int, end: int) -> list[_Source]:
    """The messages of a stretch of the path, with the context edits of the whole path made."""
    replaced = edits(path)
    result: list[_Source] = []
    for position in range(start, end):
        entry = path[position]
        match entry["type"]:
            case "message":
                message: Json = entry["message"]
            case "custom_message":
                message = {"role": "custom_message", "content": entry["content"]}
            case "branch_summary":
                message = {"role": "branch_summary", "content": entry.get("summary")}
            case _:
                continue
        if not _offered(message):
            continue
        recorded = message
        replacement = replaced.get(entry["id"])
        if replacement is not None:
            content = replacement.get("content")
            as_parts = message["role"] in ("assistant", "toolResult")
            message = {**message, "content": parts_of(content) if as_parts else content}
        hidden = entry["id"] in replaced and replacement is None
        result.append(_Source(entry, position, message, recorded, hidden))
    return result


def pair(messages: list[Json]) -> list[tuple[int, int] | None]:
    """R19: for each message, the place of the call it answers as (index of the message, index of the call), or None."""
    open_calls: list[list[str | None]] = []
    result: list[tuple[int, int] | None] = []
    for message in messages:
        open_calls.append([call["id"] for call in calls_of(message)])
        found: tuple[int, int] | None = None
        if message["role"] == "toolResult":
            for candidate in range(len(open_calls) - 1, -1, -1):
                if message["toolCallId"] in open_calls[candidate]:
                    found = (candidate, open_calls[candidate].index(message["toolCallId"]))
                    open_calls[candidate][found[1]] = None
                    break
        result.append(found)
    return result


class _Builder:
    """Makes the items of a stretch of messages; ``index_of`` tells which item a source became."""

    def __init__(self, path: list[Json], compaction: Json | None, sources: list[_Source]) -> None:
        self.path = path
        self.sources = sources
        self.compaction = compaction
        self.items: list[Item] = []
        self.index_of: dict[int, int] = {}

    def build(self, *, lost: bool = False) -> Offer:
        if self.compaction is not None:
            summary = self.compaction.get("summary")
            self.items.append(Item(self.compaction["id"], "summary", [summary or ""], optional=blank(summary)))
        # Pairing goes by what was recorded: a call that an edit hides or replaces still had its result.
        pairs = pair([source.recorded for source in self.sources])
        orphans: list[str] = []
        for index, source in enumerate(self.sources):
            if source.message["role"] == "toolResult":
                if pairs[index] is None and not source.hidden:
                    orphans.append(source.entry["id"])
                continue
            answers = {place[1]: at for at, place in enumerate(pairs) if place is not None and place[0] == index}
            item = None if source.hidden else self._item(source, answers)
            if item is not None:
                self.index_of[index] = len(self.items)
                self.items.append(item)
        self._set_openers()
        return Offer(self.items, orphans, self.compaction, lost)

    def _item(self, source: _Source, answers: dict[int, int]) -> Item | None:
        message, entry_id = source.message, source.entry["id"]
        content = without_blanks(message.get("content"))
        match message["role"]:
            case "user":
                return Item(entry_id, "user", content, {**message, "content": content}) if content else None
            case "custom_message" | "custom":
                return Item(entry_id, "custom", content) if content else None
            case "branch_summary":
                return Item(entry_id, "branch", [message["content"] or ""], optional=not content)
            case "branchSummary" | "compactionSummary":
                return Item(entry_id, "branch", [message["summary"] or ""], optional=blank(message["summary"]))
            case "bashExecution":
                return Item(entry_id, "bash", [message["command"], message.get("output") or ""])
            case "assistant":
                return self._reply(source, answers)
            case role:
                raise AssertionError(f"a role the rules do not name: {role}")

    def _reply(self, source: _Source, answers: dict[int, int]) -> Item | None:
        message = source.message
        parts = [part for part in parts_of(message.get("content")) if not blank_part(part)]
        shown = {**message, "content": parts}
        calls = calls_of(shown)
        if message.get("stopReason") in FAILED and blank(text_of(shown)) and not (calls and answers):
            return None
        if not any(part["type"] != "thinking" or not blank(part.get("thinking")) for part in parts):
            return None
        item = Item(source.entry["id"], "assistant", parts, shown)
        item.optional = all(part["type"] == "thinking" for part in parts)
        for number, call in enumerate(calls):
            at = answers.get(number)
            if at is None:
                item.answers.append(Answer(call, state=self._state(source, call)))
            elif self.sources[at].hidden:
                item.answers.append(Answer(call))
            else:
                item.answers.append(Answer(call, self.sources[at].entry["id"], self.sources[at].message))
        return item

    def _state(self, source: _Source, call: Json) -> str | None:
        """What a made-up result must say; None where repeated ids leave it open."""
        calls = [other for entry in self.path if role_of(entry) for other in calls_of(entry["message"])]
        if source.position is None or sum(other["id"] == call["id"] for other in calls) != 1:
            return None
        about = [entry["type"] for entry in self.path[source.position :] if entry.get("callId") == call["id"]]
        if about.count("approval_requested") > about.count("approval_resolved"):
            return "waiting"
        return "unknown" if "tool_start" in about else "not run"

    def _set_openers(self) -> None:
        by_position = openers(self.path)
        index_of_position = {
            source.position: at for at, source in enumerate(self.sources) if source.position is not None
        }
        tail_opener: int | None = None
        for index, source in enumerate(self.sources):
            if source.position is None:
                tail_opener = index if source.message["role"] == "user" else tail_opener
                opener = tail_opener
            else:
                place = by_position[source.position]
                opener = None if place is None else index_of_position.get(place)
            if index in self.index_of:
                item = self.items[self.index_of[index]]
                item.opener = self.index_of.get(opener) if opener is not None else None
                item.tail_opener = self.index_of.get(tail_opener) if tail_opener is not None else None
