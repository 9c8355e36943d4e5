"""The terminal's keyboard while an answer is shown: keys wait, unseen, for whoever reads them next."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager

PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
"""Asks a terminal to mark what is pasted, so that its line ends are not taken for the Enter key."""


def keyboard() -> int | None:
    """The descriptor of the terminal on standard input, or ``None`` where there is none that can be waited for."""
    if sys.platform == "win32":
        return None
    try:
        return sys.stdin.fileno() if sys.stdin.isatty() else None
    except (AttributeError, ValueError, OSError):  # closed, or none at all
        return None


@contextmanager
def kept_quiet(descriptor: int | None) -> Generator[None]:
    """Typed keys are neither echoed into what is shown, nor held until Enter; Ctrl-C stays a signal.

    To be used on the main thread.
    """
    if descriptor is None:
        yield
        return
    import termios

    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:  # the window was closed
        yield
        return
    quiet = termios.tcgetattr(descriptor)
    quiet[0] &= ~termios.ICRNL  # or Enter would read as Ctrl-J, which is a line end inside a prompt
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
    # A shell gives the terminal back, after Ctrl-Z and fg, as it likes it.
    handler = signal.signal(signal.SIGCONT, lambda _number, _frame: _set(descriptor, quiet))
    _set(descriptor, quiet)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, handler)
        _set(descriptor, before)


def drop_typed(descriptor: int | None) -> None:
    """Forget the keys that nobody has read yet: what was typed before a question is no answer to it."""
    if descriptor is None:
        return
    import termios

    try:
        termios.tcflush(descriptor, termios.TCIFLUSH)
    except (OSError, termios.error):
        return


def _set(descriptor: int, attributes: list[object]) -> None:
    import termios

    try:
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return  # in the background: the terminal is somebody else's
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)  # pyright: ignore[reportArgumentType] - its own
    except (OSError, termios.error):
        return
