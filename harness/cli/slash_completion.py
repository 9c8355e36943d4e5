"""Completion of slash commands, and of what they may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from harness.cli.plain_text import neutral_line
from harness.cli.slash_commands import Choices


class SlashCompleter(Completer):
    """Completes the command's name, then its first value (or each, where it takes many)."""

    def __init__(self, choices: Callable[[], Choices]) -> None:
        self._choices = choices

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        """What the text before the cursor may become."""
        text = document.text_before_cursor
        if not text.startswith("/") or text.startswith("//") or "\n" in text:
            return
        name, space, rest = text.partition(" ")
        choices = self._choices()
        if not space:
            for command, says in choices.commands.items():
                if command.startswith(name):
                    yield _completion(command, says, name)
            return
        word = rest.rpartition(" ")[2] if name in choices.many else rest
        for value, says in choices.values.get(name, ()):
            if value.startswith(word):
                yield _completion(value, says, word)


def _completion(value: str, says: str, typed: str) -> Completion:
    return Completion(value, -len(typed), display=neutral_line(value), display_meta=neutral_line(says))
