"""A pseudo-terminal with the command on it, as tests press keys and read what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.cli.conftest import Command

CTRL_C, CTRL_D = b"\x03", b"\x04"
PASTE_BEGINS, PASTE_ENDS = b"\x1b[200~", b"\x1b[201~"
ALT_ENTER, CTRL_J, UP, TAB = b"\x1b\r", b"\n", b"\x1b[A", b"\t"

OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""So that Ctrl-C on it becomes a signal."""


class Terminal:
    """A pseudo-terminal with a command on it."""

    def __init__(
        self,
        command: Command,
        *arguments: str,
        columns: int = 80,
        line: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", OWN_TERMINAL, *(line or command.line(*arguments))],
            cwd=command.folder,
            env=command.environment({"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", **(environment or {})}),
            stdin=follower,
            stdout=follower if output is None else output,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        self.raw = b""
        self._seen = 0

    @property
    def text(self) -> str:
        """Everything it showed, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r", "", self.raw.decode("utf-8", "replace"))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._leader, keys)

    def expect(self, text: str, timeout: float = 60) -> None:
        """Wait until it shows ``text``, after what was waited for before."""
        end = time.monotonic() + timeout
        while (place := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < end and self._read(0.2), f"no {text!r} in {self.text!r}"
        self._seen = place + len(text)

    def ask(self, text: str, then: str) -> None:
        """Type a line, wait for what is said of it, and for the next prompt."""
        self.type(text.encode() + b"\r")
        self.expect(then)
        self.expect("\n>")

    def until(self, condition: Callable[[], object]) -> None:
        """Read what it shows while something else is waited for."""
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end and self._read(0.02), f"it did not happen; this is shown: {self.text!r}"

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        """Read to the end, and the exit code."""
        end = time.monotonic() + 60
        while self._read(0.2):
            assert time.monotonic() < end, self.text
        return self._process.wait(60)

    def hang_up(self) -> int:
        """Close the window, and the exit code."""
        os.close(self._leader)
        self._leader = -1
        return self._process.wait(60)

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._leader >= 0:
            os.close(self._leader)

    def _read(self, timeout: float) -> bool:
        ready, _, _ = select.select([self._leader], [], [], timeout)
        if not ready:
            return True
        try:
            piece = os.read(self._leader, 65536)
        except OSError:  # nobody has the other side open any more
            return False
        self.raw += piece
        return bool(piece)


def chat(command: Command, terminals: list[Terminal], *arguments: str, **options: Any) -> Terminal:
    """``branchline chat`` on a terminal that is closed after the test, at its first prompt."""
    terminal = Terminal(command, "chat", *arguments, **options)
    terminals.append(terminal)
    terminal.expect("/help helps")
    terminal.expect("\n>")
    return terminal
