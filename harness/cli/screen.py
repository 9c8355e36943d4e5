"""Where the command line writes: answers to standard output, everything about them to standard error.

All text passes through here and is neutralised here, so that no command can forget it. Styles and boxes are for
terminals only; a pipe gets plain text, and ``--json`` gets lines of ASCII JSON, the same in every locale.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from harness.cli.plain_text import neutral, neutral_line

if TYPE_CHECKING:
    from rich.console import Console


class Span(NamedTuple):
    """A piece of a line, and the style it has on a terminal (a style of rich's: ``bold``, ``dim``, ``green``, …)."""

    text: str
    style: str = ""


Line = list[Span]
"""One line on the screen."""

_DRAWN = "├─└│●○…"


def plain(line: Line) -> str:
    """The text of a line, neutralised, without styles."""
    return "".join(neutral_line(span.text) for span in line).rstrip()


def prepare_streams() -> None:
    """Make standard output and error safe to write to, whatever the locale and the caller did to them.

    A closed descriptor 0, 1 or 2 would be given to the next file that is opened (a session!), so each is opened on
    the null device. Characters that the encoding lacks are written as escapes instead of raising.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
        if getattr(sys, name) is None:
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", newline="\n")
    stdin: object = sys.stdin
    if isinstance(stdin, io.TextIOWrapper):
        stdin.reconfigure(errors="surrogateescape")  # ``given_text`` makes the best of it


def forget_stream(descriptor: int) -> None:
    """Send what is still buffered for it nowhere, so that the interpreter does not fail on it again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class Screen:
    """Standard output and standard error of one command."""

    def __init__(self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr
        self.is_terminal: bool = _is_terminal(self._out) and not as_json
        self.err_is_terminal: bool = _is_terminal(self._err)
        self.can_draw: bool = _can_write(self._out, _DRAWN)
        self.can_draw_asides: bool = _can_write(self._err, _DRAWN)
        self._consoles: dict[int, Console] = {}

    def show(self, line: Line, *, cut: bool = True) -> None:
        """Write one line to standard output; on a terminal styled, and cut to its width unless ``cut`` is false."""
        if not self.is_terminal:
            self._write(plain(line) + "\n")
            return
        self._print(self._out, line, cut=cut)

    def show_text(self, text: str) -> None:
        """Write text to standard output as it is (neutralised already), at once, without a line end."""
        self._write(text)
        self._out.flush()

    def show_json(self, value: Any) -> None:
        """Write one line of JSON to standard output, at once: ASCII, so that it cannot drive a terminal either."""
        self._write(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")
        self._out.flush()

    def show_file(self, data: bytes) -> None:
        """Write a file's bytes to standard output: UTF-8 whatever the locale says, and neutralised on a terminal."""
        self._out.flush()
        buffer = getattr(self._out, "buffer", None)
        if buffer is None or _is_terminal(self._out):
            self._write(neutral(data.decode("utf-8", "replace")))
        else:
            buffer.write(data)
        self._out.flush()

    def ask(self, question: str) -> str | None:
        """What a person answers, on one line; ``None`` at the end of input.

        Asked on standard error, so that an answer to something else can be piped. See ``can_ask``.
        """
        self._err.write(neutral_line(question) + " ")
        self._err.flush()
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            self.note("")
        return answer.strip() if answer else None

    @property
    def can_ask(self) -> bool:
        """Whether there is a person at a terminal who sees a question and can answer it."""
        return _is_terminal(self._err) and sys.stdin is not None and _is_terminal(sys.stdin)  # pyright: ignore[reportUnnecessaryComparison] - a closed one is None

    @property
    def console_for_progress(self) -> Console | None:
        """Where the progress of something long can be drawn; ``None`` where standard error is no terminal."""
        return self._console(self._err) if _is_terminal(self._err) else None

    def note(self, line: Line | str) -> None:
        """Write one line about the work to standard error. A standard error that is gone is no reason to fail."""
        self._tell([Span(line, "dim")] if isinstance(line, str) else line, cut=False)

    def tell(self, line: Line) -> None:
        """As ``note``, but on a terminal cut to its width: for lists, trees and tables."""
        self._tell(line, cut=True)

    def control(self, sequence: str) -> None:
        """Write a control sequence of ours to the terminal, if there is one."""
        stream = self._out if self.is_terminal else self._err if self.err_is_terminal else None
        if stream is not None:
            stream.write(sequence)
            stream.flush()

    def fitting(self, text: str, *, margin: int) -> list[str]:
        """``text`` in pieces that fit on a line of standard error after a margin; whole where that is no terminal."""
        if not self.err_is_terminal:
            return [text]
        from rich.cells import chop_cells

        return chop_cells(text, max(self._console(self._err).width - margin, 10)) or [""]

    def aside(self, text: str, style: str) -> None:
        """Write a piece of text (neutralised already) to standard error, at once, without a line end."""
        try:
            if self.err_is_terminal:
                from rich.text import Text

                self._console(self._err).print(Text(text, style=style), end="", soft_wrap=True)
            else:
                self._err.write(text)
            self._err.flush()
        except OSError:
            forget_stream(2)

    def notes(self, lines: Iterable[str]) -> None:
        """Several lines about the work."""
        for line in lines:
            self.note(line)

    def fail(self, message: str) -> None:
        """Write what went wrong to standard error, on one line, under the command's name."""
        self.note([Span("branchline: ", "bold red"), Span(message)])

    def flush(self) -> None:
        """Hand everything to the system. Raises ``OSError`` where standard output does not take it."""
        self._out.flush()

    def _tell(self, spans: Line, *, cut: bool) -> None:
        try:
            if self.err_is_terminal:
                self._print(self._err, spans, cut=cut)
            else:
                self._err.write(plain(spans) + "\n")
                self._err.flush()
        except OSError:
            forget_stream(2)

    def _write(self, text: str) -> None:
        self._out.write(text)

    def _print(self, stream: TextIO, line: Line, *, cut: bool) -> None:
        from rich.text import Text

        console = self._console(stream)
        text = Text()
        for span in line:
            text.append(neutral_line(span.text), style=span.style)
        if cut:
            console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            console.print(text, soft_wrap=True)

    def _console(self, stream: TextIO) -> Console:
        from rich.console import Console

        if id(stream) not in self._consoles:
            colours = None if is_dumb_terminal() else "auto"
            self._consoles[id(stream)] = Console(
                file=stream, highlight=False, markup=False, emoji=False, color_system=colours
            )
        return self._consoles[id(stream)]


def is_dumb_terminal() -> bool:
    """Whether the terminal, if there is one, can do no more than write one character after the other."""
    return os.environ.get("TERM", "").lower() in ("", "dumb", "unknown") and sys.platform != "win32"


def one_line(text: str) -> str:
    """A message of several lines on one, so that an error stays one line of a log."""
    return neutral(" ".join(text.split()))


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _can_write(stream: TextIO, characters: str) -> bool:
    try:
        characters.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
