"""A turn on the screen: the answer on standard output as it comes, what the tools do on standard error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from harness.cli.entry_lines import describe_call
from harness.cli.json_facts import json_facts
from harness.cli.plain_text import NeutralStream, preview
from harness.cli.screen import Screen, Span
from harness.events import AgentEvent, MessageFinished, ToolFinished, ToolProgress, ToolStarted
from harness.models.events import TextDelta

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class TurnScreen:
    """Shows one turn's events; with ``--json`` each is a line of its own, after one about the session."""

    def __init__(self, screen: Screen, session_facts: Callable[[], dict[str, Any]]) -> None:
        """``session_facts`` is asked when the first event comes: before it, there may be no session yet."""
        self._screen = screen
        self._session_facts = session_facts
        self._begun = False
        self._stream = NeutralStream()
        self._open_line = False
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
            case MessageFinished():
                self._end_line()
                self._new_message = self._spoken
                if event.message.stop_reason == "length":
                    self._screen.note("the answer was cut off at the model's limit")
            case ToolStarted():
                self._screen.note([Span("-> ", "cyan"), Span(describe_call(event.call), "dim")])
            case ToolProgress():
                self._screen.note([Span("   ", ""), Span(preview(event.message, 200), "dim")])
            case ToolFinished() if event.result.is_error:
                failed = f"{event.call.name} failed: {preview(event.result.text, 200)}"
                self._screen.note([Span("   ", ""), Span(failed, "yellow")])
            case _:
                pass

    def finish(self) -> None:
        """The turn is over: end the line."""
        self._end_line()

    def abandon(self) -> None:
        """The turn was stopped: end the line if standard output still takes it."""
        try:
            self._end_line()
        except OSError:
            return

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._new_message:
            # A second message of the same turn is a paragraph of its own.
            text = "\n" + text.lstrip("\n")
            self._new_message = False
        self._spoken = True
        self._open_line = not text.endswith("\n")
        self._screen.show_text(text)

    def _end_line(self) -> None:
        if self._screen.as_json:
            return
        self._write(self._stream.finish())
        if self._open_line:
            self._open_line = False
            self._screen.show_text("\n")


def facts_of(event: AgentEvent) -> dict[str, Any]:
    """An event as JSON: ``type`` is its name in lower case with underscores, and its fields follow."""
    kind = _CAPITAL.sub("_", type(event).__name__).lower()
    return {"type": kind, **json_facts(event)}
