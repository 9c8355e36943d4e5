"""A context as lines of text: what is shown, how large it is, and what is left out. Pure: facts in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from harness.cli.entry_lines import word_for
from harness.cli.screen import Line, Span

UNSET_THINKING: Final = "as the model does by itself"
"""What is said of the thinking level where nobody set one."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message as the model is shown it; ``entry_id`` is where it came from, ``None`` if the projection made it up."""

    entry_id: str | None
    role: str
    chars: int
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An entry on the path that says something and is not shown, and why."""

    entry_id: str
    kind: str
    why: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFacts:
    """All there is to tell of a context. A budget is ``None`` where none was given."""

    session: str
    leaf: str | None
    model: str | None
    thinking_level: str | None
    """What the record says; ``None`` where it says nothing."""
    tools: Sequence[str] | None
    system_prompt: str | None
    shown: Sequence[ShownMessage]
    left_out: Sequence[LeftOut]
    chars: int
    tokens: int
    max_chars: int | None
    max_tokens: int | None


def draw_context(facts: ContextFacts, *, short: Callable[[str], str] = str) -> Iterator[Line]:
    """The lines: what is in force, the messages in order, the totals, what is left out."""
    place = f" at {short(facts.leaf)}" if facts.leaf else " at its beginning"
    yield [Span(f"session {facts.session}", "bold"), Span(place)]
    yield [
        Span("model ", "dim"),
        Span(facts.model or "none yet"),
        Span(", thinking ", "dim"),
        Span(facts.thinking_level or UNSET_THINKING),
        Span(", tools ", "dim"),
        Span(", ".join(facts.tools) if facts.tools else "none"),
    ]
    if facts.system_prompt:
        yield [Span("system prompt ", "dim"), Span(facts.system_prompt)]
    yield [Span(f"{'entry':<10} {'role':<9} {'characters':>10} {'tokens':>8}  text", "dim")]
    for message in facts.shown:
        name = short(message.entry_id) if message.entry_id is not None else "-"
        yield [
            Span(f"{name:<10} ", "yellow"),
            Span(f"{word_for(message.role):<9} ", "bold"),
            Span(f"{message.chars:>10,} {message.tokens:>8,}  ", "cyan"),
            Span(message.text),
        ]
    yield [Span(f"{_count(len(facts.shown), 'message')}: {_totals(facts)}", "bold")]
    if facts.left_out:
        count = _count(len(facts.left_out), "entry", "entries")
        yield [Span(f"left out: {count} of this path", "bold")]
    for entry in facts.left_out:
        yield [
            Span(f"{short(entry.entry_id):<10} ", "dim"),
            Span(f"{word_for(entry.kind):<9} ", "dim"),
            Span(f"({entry.why}) ", "magenta"),
            Span(entry.text, "dim"),
        ]


def _totals(facts: ContextFacts) -> str:
    chars = f"{facts.chars:,} characters" + (f" of {facts.max_chars:,}" if facts.max_chars is not None else "")
    tokens = f"about {facts.tokens:,} tokens" + (f" of {facts.max_tokens:,}" if facts.max_tokens is not None else "")
    return f"{chars}, {tokens} (system prompt and tools included)"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
