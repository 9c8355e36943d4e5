"""Prompts with line editing, many lines, history and completion, on a terminal that can move its cursor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.filters import Condition
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from harness.cli.failures import message
from harness.cli.keys import drop_typed, keyboard
from harness.cli.plain_text import given_text
from harness.cli.prompt_history import PromptHistory
from harness.cli.prompt_loop import PROMPT
from harness.cli.screen import Screen
from harness.cli.slash_commands import Choices
from harness.cli.slash_completion import SlashCompleter

MORE, STEER = "  ", "steer> "


class EditedPrompts:
    """``Prompts`` with prompt_toolkit. Enter sends; Alt+Enter, Ctrl-J, or a backslash before Enter begin another line."""

    can_steer = True

    def __init__(self, screen: Screen, choices: Callable[[], Choices], history: Path | None) -> None:
        self._screen = screen
        self._history = PromptHistory(history)
        self._told = False
        self._choices: Choices | None = None

        def current() -> Choices:
            if self._choices is None:
                self._choices = choices()
            return self._choices

        # Where the answer is piped away, the prompt still has to be seen: then it goes to the terminal behind stderr.
        output = create_output(always_prefer_tty=True)
        self._prompts: PromptSession[str] = PromptSession(
            history=self._history,
            completer=SlashCompleter(current),
            complete_in_thread=True,
            complete_while_typing=Condition(self._is_command),
            reserve_space_for_menu=4,
            multiline=True,
            prompt_continuation=MORE,
            key_bindings=_keys(clear_first=True),
            output=output,
        )
        self._steering: PromptSession[str] = PromptSession(
            history=self._history,
            multiline=True,
            prompt_continuation=MORE,
            key_bindings=_keys(clear_first=False),
            output=output,
        )
        self._answers: PromptSession[str] = PromptSession(output=output)

    def ask(self, default: str = "") -> str | None:
        """See ``Prompts``."""
        self._choices = None
        try:
            return given_text(self._prompts.prompt(PROMPT, default=default))
        except EOFError:
            return None
        finally:
            self._tell_of_the_history()

    def steer(self) -> str | None:
        """See ``Prompts``."""
        try:
            return given_text(self._steering.prompt(STEER))
        except EOFError:
            return None

    def forget_typed(self) -> None:
        """See ``Prompts``."""
        drop_typed(keyboard())
        clear_typeahead(self._answers.app.input)

    def answer(self, question: str) -> str | None:
        """See ``Prompts``."""
        try:
            return given_text(self._answers.prompt(f"{question} "))
        except EOFError:
            return None

    def _is_command(self) -> bool:
        return self._prompts.default_buffer.text.startswith("/")

    def _tell_of_the_history(self) -> None:
        problem = self._history.problem
        if problem is not None and not self._told:
            self._told = True
            self._screen.note(f"prompts are not kept for the next time: {message(problem)}")


def _keys(*, clear_first: bool) -> KeyBindings:
    """The keys of a prompt; ``clear_first``: Ctrl-C only clears where something was typed."""
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def begin_another_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def clear_or_leave(event: KeyPressEvent) -> None:
        if clear_first and event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return keys
