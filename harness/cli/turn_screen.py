"""A turn on the screen: the answer on standard output as it comes, what the tools do on standard error.

Where both are one terminal, each stays on lines of its own: before a line about the work, a line of the answer that is
not whole yet is ended, and begun again afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from harness.cli.entry_lines import describe_call
from harness.cli.json_facts import json_facts
from harness.cli.plain_text import NeutralStream, preview
from harness.cli.screen import Line, Screen, Span
from harness.events import (
    AgentEvent,
    CompactionFailed,
    CompactionFinished,
    CompactionStarted,
    MessageDelivered,
    MessageFinished,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from harness.models.events import TextDelta, ThinkingDelta

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")

_REPEATED = 60
"""Characters of a line that is begun again are shown again, at most; from the beginning of a word."""


class TurnScreen:
    """Shows one turn's events; with ``--json`` each is a line of its own, after one about the session."""

    def __init__(self, screen: Screen, session_facts: Callable[[], dict[str, Any]], *, thinking: bool = False) -> None:
        """``session_facts`` is asked when the first event comes: before it, there may be no session yet."""
        self._screen = screen
        self._session_facts = session_facts
        self._thinking = thinking
        self._begun = False
        self._stream = NeutralStream()
        self._thoughts = NeutralStream()
        self._open: Literal["answer", "thinking"] | None = None
        self._thought_open = False
        self._line = ""
        self._broken_off = ""
        self._spoken = False
        self._new_message = False

    def show(self, event: AgentEvent) -> None:
        """Show one event. Raises ``OSError`` where standard output does not take it."""
        if self._screen.as_json:
            if not self._begun:
                self._screen.show_json(self._session_facts())
            self._begun = True
            self._screen.show_json(facts_of(event))
            return
        match event:
            case TextDelta():
                self._write(self._stream.feed(event.text))
            case ThinkingDelta() if self._thinking:
                self._think(self._thoughts.feed(event.text))
            case MessageFinished():
                self._end_line()
                self._new_message = self._spoken
                if event.message.stop_reason == "length":
                    self._note([Span("the answer was cut off at the model's limit", "dim")])
            case MessageDelivered():
                self._note([Span("the model is told: ", "cyan"), Span(preview(event.message.text, 200), "dim")])
            case ToolStarted():
                self._note([Span("-> ", "cyan"), Span(describe_call(event.call), "dim")])
            case ToolProgress():
                self._note([Span("   ", ""), Span(preview(event.message, 200), "dim")])
            case ToolFinished() if event.result.is_error:
                failed = f"{event.call.name} failed: {preview(event.result.text, 200)}"
                self._note([Span("   ", ""), Span(failed, "yellow")])
            case CompactionStarted():
                self._note([Span("the older part is being summarised ", "cyan"), Span(_sizes(event), "dim")])
            case CompactionFinished():
                now = f"{event.tokens_before:,} tokens of context before, {event.tokens_after:,} now"
                self._note([Span("summarised; ", "cyan"), Span(now, "dim")])
            case CompactionFailed():
                self._note([Span(f"not summarised: {preview(event.message, 200)}", "yellow")])
            case _:
                pass

    def pause(self) -> None:
        """Something else is about to be written to the terminal: leave it a line of its own."""
        self._end_thinking()
        # An answer that goes elsewhere is not touched for what happens on the terminal.
        if self._open == "answer" and self._screen.is_terminal:
            self._broken_off, self._line, self._open = self._line, "", None
            self._screen.show_text("\n")

    def finish(self) -> None:
        """The turn is over: end the line."""
        self._end_line()

    def abandon(self) -> None:
        """The turn was stopped: end the line if standard output still takes it."""
        try:
            self._end_line()
        except OSError:
            return

    def _note(self, line: Line) -> None:
        self.pause()
        self._screen.note(line)

    def _write(self, text: str) -> None:
        if not text:
            return
        self._end_thinking()
        if self._new_message:
            # A second message of the same turn is a paragraph of its own.
            text = "\n" + text.lstrip("\n")
            self._new_message = False
        if self._broken_off:
            text, self._broken_off = _tail(self._broken_off) + text, ""
        self._spoken = True
        self._line = (self._line + text).rpartition("\n")[2][-4 * _REPEATED :]
        self._open = "answer" if self._line else None
        self._screen.show_text(text)

    def _think(self, text: str) -> None:
        if not text:
            return
        if self._open == "answer":
            self.pause()
        self._open = "thinking"
        self._screen.aside(text, "dim italic")
        self._thought_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._screen.as_json:
            return
        self._write(self._stream.finish())
        self._end_thinking()
        self._broken_off = ""
        if self._open == "answer":
            self._open, self._line = None, ""
            self._screen.show_text("\n")

    def _end_thinking(self) -> None:
        if self._open == "thinking":
            self._open = None
            rest = self._thoughts.finish()
            if rest or self._thought_open:
                self._screen.aside(rest + "\n", "dim italic")


def _sizes(event: CompactionStarted) -> str:
    """How much is summarised, and out of what."""
    return f"({event.messages} messages; the context has {event.tokens_before:,} tokens)"


def _tail(line: str) -> str:
    """The end of a line, so that what follows can be read on."""
    if len(line) <= _REPEATED:
        return line
    end = line[-_REPEATED:]
    return "..." + (end[end.find(" ") :] if " " in end else end)


def facts_of(event: AgentEvent) -> dict[str, Any]:
    """An event as JSON: ``type`` is its name in lower case with underscores, and its fields follow."""
    kind = _CAPITAL.sub("_", type(event).__name__).lower()
    return {"type": kind, **json_facts(event)}
