"""The judge of contexts: written from rules R18 to R22 alone, in the standard library, without the code it judges.

``check`` takes the raw entries of a session (as ``json.loads`` gives them), a leaf and a context in plain data, and
returns every violation it finds. A context under a budget is judged against the one without a budget (which ``check``
judges by the entries): the wording of summaries, placeholders and made-up results is not fixed by the rules, so it is
read off there, while everything that the rules fix is computed from the entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.properties.items import Answer, Item, Offer, offer
from tests.properties.record import State, fold, path_to
from tests.properties.wire import Json, blank, blank_part, calls_of, characters, compact, parts_of, text_of


class Violation(NamedTuple):
    """A rule that does not hold, in a word that tests can match, and what was seen."""

    rule: str
    what: str


@dataclass
class Plain:
    """A context in plain data: what the rules speak of, and nothing of the code that made it."""

    messages: list[Json]
    entry_ids: list[str | None]
    chars: int
    tokens: int | None = None
    system_prompt: str | None = None
    model: tuple[str | None, str | None] | None = None
    thinking_level: str | None = None
    active_tools: list[str] | None = None
    dropped: list[str] = field(default_factory=list[str])
    compaction_id: str | None = None
    warnings: int = 0


@dataclass
class Group:
    """An item as it is shown: its messages, with the entry each came from."""

    item: Item
    messages: list[Json]
    entry_ids: list[str | None]


@dataclass
class Shown:
    """A context without a budget, taken apart."""

    pinned: list[Group]
    """The summary, if there is one."""
    groups: list[Group]
    memory: Json | None
    placeholder: Json | None
    offer: Offer


def check(entries: list[Json], leaf: str | None, context: Plain) -> list[Violation]:
    """Every violation in a context that was built without a budget."""
    return take_apart(entries, leaf, context)[1]


def take_apart(entries: list[Json], leaf: str | None, context: Plain) -> tuple[Shown, list[Violation]]:
    """The parts of a context that was built without a budget, and every violation in it."""
    path = path_to(entries, leaf)
    state = fold(path)
    found = check_form(context, state, path)
    offered = offer(path)
    shown = Shown([], [], None, None, offered)
    messages, ids = list(context.messages), list(context.entry_ids)
    if len(messages) != len(ids):
        return shown, found
    if state.working_memory and messages:
        shown.memory = messages.pop()
        ids.pop()
    if messages and ids[0] is None:
        shown.placeholder = messages.pop(0)
        ids.pop(0)
    at = 0
    for item in offered.items:
        size, complaint = _match(item, messages[at:], ids[at:])
        if complaint is None:
            group = Group(item, messages[at : at + size], ids[at : at + size])
            (shown.pinned if item.kind == "summary" else shown.groups).append(group)
            at += size
        elif not item.optional:
            found.append(complaint)
            return shown, found
    if at < len(messages):
        found.append(Violation("R18 not offered", f"{ids[at:]}: {compact(messages[at])[:200]}"))
    missing = [entry_id for entry_id in offered.orphans if entry_id not in context.dropped]
    if missing:
        found.append(Violation("R20 orphan not listed", f"{missing} not in {context.dropped}"))
    compaction_id = offered.compaction["id"] if offered.compaction else None
    if context.compaction_id != compaction_id:
        found.append(Violation("R18 compaction id", f"{context.compaction_id} for {compaction_id}"))
    if context.warnings and not offered.lost_first_kept:
        found.append(Violation("R18 needless warning", "a warning, though every kept entry is there"))
    if offered.lost_first_kept and not context.warnings:
        found.append(Violation("R18 no warning", "the first kept entry is not on the path, and nothing says so"))
    return shown, found


def check_form(context: Plain, state: State, path: list[Json]) -> list[Violation]:
    """What holds for every context, with a budget or without: R20, R21, R22 and the list of entry ids."""
    found: list[Violation] = []
    messages, ids = context.messages, context.entry_ids
    if len(ids) != len(messages):
        return [Violation("entry ids", f"{len(ids)} ids for {len(messages)} messages")]
    size = characters(messages)
    if context.chars != size:
        found.append(Violation("R21 characters", f"says {context.chars}, has {size}"))
    found.extend(_check_sendable(messages, ids))
    if messages and messages[0].get("role") != "user":
        found.append(Violation("R20 first message", f"is of role {messages[0].get('role')}"))
    found.extend(_check_ids(messages, ids, state, path))
    if state.working_memory:
        found.extend(_check_memory(messages, state.working_memory, path))
    for name in ("model", "thinking_level", "active_tools", "system_prompt"):
        expected, actual = getattr(state, name), getattr(context, name)
        if actual != expected and not (name == "thinking_level" and expected is None and actual == "off"):
            found.append(Violation("R22 state", f"{name}: {actual!r} for {expected!r}"))
    return found


def _check_sendable(messages: list[Json], ids: list[str | None]) -> list[Violation]:
    found: list[Violation] = []
    open_calls: list[Json] = []
    caller: str | None = None
    for message, entry_id in zip(messages, ids, strict=True):
        role = message.get("role")
        if role == "toolResult":
            if not open_calls:
                found.append(Violation("R20 result without call", f"{message.get('toolCallId')!r} of {entry_id}"))
                continue
            call = open_calls.pop(0)
            if (message.get("toolCallId"), message.get("toolName")) != (call["id"], call["name"]):
                found.append(Violation("R20 call order", f"{message.get('toolCallId')!r} answers {call['id']!r}"))
        elif open_calls:
            found.append(Violation("R20 call without result", f"{[call['id'] for call in open_calls]} of {caller}"))
            open_calls = []
        if role not in ("user", "assistant", "toolResult"):
            found.append(Violation("R20 role", f"{role!r} of {entry_id}"))
        content = message.get("content")
        empty = not parts_of(content) or any(blank_part(part) for part in parts_of(content))
        if empty:
            found.append(Violation("R20 empty text", f"{compact(content)} of {entry_id}"))
        if role == "assistant":
            open_calls, caller = calls_of(message), entry_id
    if open_calls:
        found.append(Violation("R20 call without result", f"{[call['id'] for call in open_calls]} of {caller}"))
    return found


def _check_ids(messages: list[Json], ids: list[str | None], state: State, path: list[Json]) -> list[Violation]:
    known = {entry["id"] for entry in path}
    last = len(ids) - 1
    found = [
        Violation("entry ids", f"{entry_id} is not on the path") for entry_id in ids if entry_id not in {*known, None}
    ]
    for at, entry_id in enumerate(ids):
        memory = at == last and bool(state.working_memory)
        if entry_id is None and at > 0 and not memory:
            found.append(Violation("entry ids", f"none for message {at}: {compact(messages[at])[:200]}"))
    if ids and ids[0] is None and not (last == 0 and state.working_memory):
        if messages[0].get("role") != "user":
            found.append(Violation("R20 placeholder", "is not a user's"))
        following = messages[1].get("role") if last > 0 else None
        if following == "user":
            found.append(Violation("R20 placeholder", "stands before a user's message"))
    return found


def _check_memory(messages: list[Json], memory: dict[str, Any], path: list[Json]) -> list[Violation]:
    if not messages or messages[-1].get("role") != "user":
        return [Violation("R18 working memory", "is not the last message")]
    text = text_of(messages[-1])
    found: list[Violation] = []
    for key, value in memory.items():
        wanted = value if isinstance(value, str) else compact(value)
        if key not in text or (wanted not in text and compact(wanted) not in text):
            found.append(Violation("R22 working memory", f"{key}={wanted!r} is not in {text!r}"))
    gone = {entry["key"] for entry in path if entry["type"] == "working_memory" and entry.get("key")} - memory.keys()
    found.extend(
        Violation("R22 working memory", f"{key} was taken away, and is in {text!r}") for key in gone if key in text
    )
    return found


def _match(item: Item, messages: list[Json], ids: list[str | None]) -> tuple[int, Violation | None]:
    """How many of the next messages are ``item`` as the rules want it shown, or what is wrong with them."""
    if not messages:
        return 0, Violation("R18 missing", f"{item.kind} of {item.entry_id} is not shown")
    message, entry_id = messages[0], ids[0]
    if entry_id != item.entry_id:
        return 0, Violation("R18 order", f"{item.kind} of {item.entry_id} expected, {entry_id} is shown")
    if message.get("role") != ("assistant" if item.kind == "assistant" else "user"):
        return 0, Violation("R18 role", f"{item.kind} of {item.entry_id} is shown as {message.get('role')}")
    match item.kind:
        case "summary" | "branch" | "bash":
            text = text_of(message)
            if not all(blank(piece) or piece in text for piece in item.content) or text in item.content:
                return 0, Violation("R18 text", f"{text!r} for {item.content!r}")
        case "custom":
            if parts_of(message.get("content")) != parts_of(item.content):
                return 0, Violation("R18 text", f"{compact(message)} for {item.content!r}")
        case _:
            if _comparable(message) != _comparable(item.message or {}):
                return 0, Violation("R18 text", f"{compact(message)} for {compact(item.message)}")
    size = 1 + len(item.answers)
    for answer, result, result_id in zip(item.answers, messages[1:size], ids[1:size], strict=False):
        complaint = _match_answer(item, answer, result, result_id)
        if complaint is not None:
            return 0, complaint
    if len(messages) < size:
        return 0, Violation("R20 call without result", f"{size - len(messages)} of {item.entry_id}")
    return size, None


def _match_answer(item: Item, answer: Answer, message: Json, entry_id: str | None) -> Violation | None:
    if message.get("role") != "toolResult":
        return Violation("R20 call without result", f"{answer.call['id']!r} of {item.entry_id}")
    if answer.result is None:
        if entry_id != item.entry_id:
            return Violation("entry ids", f"the made-up result of {item.entry_id} says {entry_id}")
        if answer.state is not None and answer.state not in text_of(message):
            return Violation("R20 state of call", f"{text_of(message)!r} does not say {answer.state!r}")
        return None
    if entry_id != answer.entry_id:
        return Violation("R19 pairing", f"{answer.call['id']!r} of {item.entry_id}: {entry_id} for {answer.entry_id}")
    expected = _comparable(answer.result)
    actual = _comparable(message)
    if all(blank_part(part) for part in parts_of(answer.result.get("content"))):
        expected["content"] = actual["content"]  # some words stand for a result that says nothing
    if actual != expected:
        return Violation("R18 text", f"{compact(message)} for {compact(answer.result)}")
    return None


def _comparable(message: Json) -> Json:
    """The message without blank texts and blank thinking; whether a text is a string or one part is no difference."""
    parts = [
        part
        for part in parts_of(message.get("content"))
        if not blank_part(part) and not (part.get("type") == "thinking" and blank(part.get("thinking")))
    ]
    return {**message, "content": parts}
