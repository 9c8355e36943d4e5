"""Prompts from a terminal: line editing, history, and a pasted text of many lines as one prompt."""

from __future__ import annotations

from collections.abc import Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from harness.cli.plain_text import given_text


def prompts_from_terminal() -> Iterator[str]:
    """Prompts that are not empty, until Ctrl-D. Ctrl-C clears the line; on an empty one it is ``KeyboardInterrupt``."""
    keys = KeyBindings()

    @keys.add("c-c")
    def clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    # Where the answer is piped away, the prompt still has to be seen: then it goes to the terminal behind stderr.
    session: PromptSession[str] = PromptSession(key_bindings=keys, output=create_output(always_prefer_tty=True))
    while True:
        try:
            text = session.prompt("> ")
        except EOFError:
            return
        if text.strip():
            yield given_text(text)
