"""One entry, whole, as lines and blocks of text. Pure: the members of its line in, lines out.

It goes by the JSON and not by the types, so that what this version does not know is shown as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from harness.cli.entry_lines import word_for
from harness.cli.plain_text import neutral
from harness.cli.screen import Line, Span

_ENVELOPE = frozenset({"seq", "id", "parentId", "timestamp", "type", "message"})
_OF_MESSAGE = frozenset({"role", "content", "timestamp"})
_ON_ONE_LINE = 100
"""A text of more characters than this, or of several lines, is a block of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFacts:
    """An entry and its place. ``entry`` are the members of its line; ids of others come with their kinds."""

    session: str
    entry: Mapping[str, Any]
    kind: str
    label: str | None
    number: int
    """Which one it is of all, counted from 1."""
    of: int
    depth: int
    """Steps from the root."""
    active: bool
    leaf: bool
    parent: tuple[str, str] | None
    children: Sequence[tuple[str, str]]


class Block(NamedTuple):
    """A text with a title. The text is neutralised, and may have any number of lines."""

    title: str
    text: str


def draw_facts(facts: EntryFacts, *, short: Callable[[str], str] = str) -> Iterator[Line]:
    """What is told of the entry before its content, a line each; other entries by their ``short`` ids."""
    entry = facts.entry
    yield [Span(f"entry {entry.get('id')}", "bold"), Span(f" ({word_for(facts.kind)})")]
    yield _fact("session", facts.session)
    steps = f"{facts.depth:,} {'step' if facts.depth == 1 else 'steps'} from the root" if facts.depth else "the root"
    way = "on the active path" if facts.active else "on a branch that was left"
    here = ", where the conversation goes on" if facts.leaf else ""
    yield _fact("place", f"entry {facts.number:,} of {facts.of:,}, {steps}, {way}{here}")
    missing = "" if facts.parent or entry.get("parentId") is None else f"{entry['parentId']} (missing)"
    yield _fact("parent", _other(facts.parent, short) if facts.parent else missing or "none")
    yield _fact("children", ", ".join(_other(each, short) for each in facts.children) or "none")
    if facts.label is not None:
        yield _fact("label", facts.label)
    yield _fact("time", str(entry.get("timestamp")))
    for name, value in _members(entry):
        if _is_short(value):
            yield _fact(name, _short(value))


def blocks_of(entry: Mapping[str, Any]) -> Iterator[Block]:
    """What the entry says: each piece of its text, its calls and results, and its larger members."""
    message = _object(entry.get("message"))
    yield from _content(message.get("content"), str(message.get("role", "")))
    for name, value in _members(entry):
        if _is_short(value):
            continue
        if name == "content":
            yield from _content(value, "")
        else:
            yield Block(name, neutral(value) if isinstance(value, str) else _json(value))


def _content(content: Any, role: str) -> Iterator[Block]:
    said = "result" if role == "toolResult" else "text"
    if isinstance(content, str):
        yield Block(said, neutral(content))
        return
    for part in cast("list[Any]", content) if isinstance(content, list) else ():
        yield _part(_object(part), said)


def _part(part: Mapping[str, Any], said: str) -> Block:
    match part.get("type"):
        case "text" if isinstance(part.get("text"), str):
            return Block(said, neutral(part["text"]))
        case "thinking" if isinstance(part.get("thinking"), str):
            return Block("thinking", neutral(part["thinking"]))
        case "image" if isinstance(part.get("data"), str):
            return Block("image", neutral(f"{part.get('mimeType')}, about {len(part['data']) * 3 // 4:,} bytes"))
        case "toolCall":
            raw = part.get("rawArguments")
            arguments = neutral(raw) if isinstance(raw, str) else _json(part.get("arguments"))
            wrong = " (no JSON object, never run)" if isinstance(raw, str) else ""
            return Block(f"call {part.get('name')} ({part.get('id')}){wrong}", arguments)
        case _:
            return Block(str(part.get("type", "part")), _json(part))


def _members(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entry's own members and those of its message, without what is shown elsewhere."""
    for name, value in _object(entry.get("message")).items():
        if name == "usage":
            yield name, {each: _object(count).get("total", count) for each, count in _object(value).items()}
        elif name not in _OF_MESSAGE:
            yield name, value
    yield from ((name, value) for name, value in entry.items() if name not in _ENVELOPE)


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _ON_ONE_LINE and "\n" not in value
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).values()
        return len(inner) <= 8 and not any(isinstance(each, str | dict | list) for each in inner)
    return not isinstance(value, list)


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{name} {_json(inner)}" for name, inner in cast("dict[str, Any]", value).items())
    return _json(value)


def _json(value: Any) -> str:
    return neutral(json.dumps(value, ensure_ascii=False, indent=2))


def _fact(name: str, value: str) -> Line:
    return [Span(f"  {name:<12} ", "dim"), Span(value)]


def _other(other: tuple[str, str], short: Callable[[str], str]) -> str:
    return f"{short(other[0])} {word_for(other[1])}"


def _object(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
