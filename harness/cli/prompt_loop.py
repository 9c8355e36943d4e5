"""What a person types at a terminal: prompts of any number of lines, lines into a running answer, and answers.

On a terminal that can move its cursor, with line editing, history and completion; on any other, line by line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness.cli.keys import drop_typed, keyboard
from harness.cli.plain_text import given_text
from harness.cli.screen import Screen, is_dumb_terminal
from harness.cli.slash_commands import Choices

PROMPT = "> "


class Prompts(Protocol):
    """**Protocol:** where prompts come from. Ctrl-C is ``KeyboardInterrupt``, but for one that clears a typed prompt."""

    can_steer: bool
    """Whether ``steer`` may be called while an answer is shown."""

    def ask(self, default: str = "") -> str | None:
        """The next prompt, empty or not; ``None`` at Ctrl-D. It begins as ``default``, to be edited."""
        ...

    def steer(self) -> str | None:
        """What is typed while an answer runs; ``None`` at Ctrl-D or where the terminal is gone."""
        ...

    def forget_typed(self) -> None:
        """Drop the keys that nobody has read: what was typed before a question was shown is no answer to it."""
        ...

    def answer(self, question: str) -> str | None:
        """One line; ``None`` at Ctrl-D."""
        ...


def prompts_from_terminal(screen: Screen, choices: Callable[[], Choices]) -> Prompts:
    """Prompts from the terminal on standard input. ``choices`` are what a slash command may name, asked for when needed."""
    if is_dumb_terminal():
        return PlainPrompts(screen)
    from harness.cli.edited_prompts import EditedPrompts
    from harness.cli.prompt_history import history_path

    return EditedPrompts(screen, choices, history_path())


class PlainPrompts:
    """Line by line, as the terminal itself edits them; a backslash at the end of a line goes on with the next."""

    can_steer = False

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def ask(self, default: str = "") -> str | None:  # noqa: ARG002 - nothing can be put into the terminal's own line
        """See ``Prompts``."""
        text = ""
        while (line := self._screen.ask(PROMPT.rstrip() if not text else "...")) is not None:
            if not line.endswith("\\"):
                return text + given_text(line)
            text += given_text(line[:-1]) + "\n"
        return text or None

    def steer(self) -> str | None:
        """See ``Prompts``."""
        return None

    def forget_typed(self) -> None:
        """See ``Prompts``."""
        drop_typed(keyboard())

    def answer(self, question: str) -> str | None:
        """See ``Prompts``."""
        line = self._screen.ask(question)
        return None if line is None else given_text(line)
