"""What a command writes: all of it in a file, its beginning and end for the model, its lines for who watches."""

from __future__ import annotations

import codecs
import io
import tempfile
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

MAX_OUTPUT_BYTES = 64 << 20
"""A command that writes more is stopped."""

MAX_SHOWN_BYTES = 30_000
"""Longer output is shown by its beginning and its end."""

_HEAD_BYTES = 10_000
_IN_MEMORY_BYTES = 1 << 20
_SECONDS_BETWEEN_REPORTS = 0.1
_REPORTED_LINES = 20
_REPORTED_CHARACTERS = 500


class CommandOutput:
    """Takes a command's output. Memory holds at most a megabyte of it, the rest is in a file without a name."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - closed on leaving
        self._lines = _ReportedLines(report)
        self.size = 0
        """Bytes so far."""
        self.newlines = 0
        self._last = b""

    @property
    def line_count(self) -> int:
        """Lines so far, one without its newline included."""
        return self.newlines + (self._last not in (b"", b"\n"))

    def write(self, data: bytes) -> bool:
        """Take a piece; ``False`` once ``MAX_OUTPUT_BYTES`` are there, and what is above that is dropped."""
        kept = data[: MAX_OUTPUT_BYTES - self.size]
        if kept:
            self._file.write(kept)
            self.size += len(kept)
            self.newlines += kept.count(b"\n")
            self._last = kept[-1:]
            self._lines.feed(kept)
        return len(kept) == len(data)

    def look(self) -> None:
        """Report lines that are due."""
        self._lines.send()

    def finish(self) -> None:
        """Report the lines that are left."""
        self._lines.send(at_once=True)

    def data(self) -> bytes:
        """All of it."""
        return self._part(0, self.size)

    @property
    def is_shown_whole(self) -> bool:
        """Whether ``shown`` leaves nothing out."""
        return self.size <= MAX_SHOWN_BYTES

    def shown(self) -> str:
        """The text: all of it, or its first and last lines, and between them what is left out."""
        if self.is_shown_whole:
            return _text(self.data()).removesuffix("\n")
        head = _whole_lines(self._part(0, _HEAD_BYTES))
        tail = self._part(self.size - (MAX_SHOWN_BYTES - _HEAD_BYTES), self.size)
        _, newline, behind = tail.partition(b"\n")
        tail = behind if newline and behind else tail
        first = head.count(b"\n") + 1
        last = max(first, self.line_count - tail.removesuffix(b"\n").count(b"\n") - 1)
        lines = f"line {first:,}" if first == last else f"lines {first:,} to {last:,}"
        missing = self.size - len(head) - len(tail)
        note = f"[… {missing:,} of {self.size:,} bytes left out here: {lines} of {self.line_count:,} …]"
        return f"{_text(head).removesuffix(chr(10))}\n{note}\n{_text(tail).removesuffix(chr(10))}"

    def _part(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        data = self._file.read(end - start)
        self._file.seek(0, io.SEEK_END)
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class _ReportedLines:
    """Whole lines for who watches, not more often than they can be read; of many at once the last."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._waiting: deque[str] = deque(maxlen=_REPORTED_LINES)
        self._next = 0.0

    def feed(self, data: bytes) -> None:
        # Of a flood only the last lines are looked at.
        start = len(data)
        for _ in range(_REPORTED_LINES + 1):
            start = data.rfind(b"\n", 0, start)
            if start < 0:
                break
        else:
            data = data[start + 1 :]
            self._decoder.reset()
            self._rest = ""
        *ended, rest = self._decoder.decode(data).split("\n")
        if ended:
            self._waiting.extend(line[:_REPORTED_CHARACTERS] for line in [self._rest + ended[0], *ended[1:]])
            self._rest = ""
        self._rest = (self._rest + rest)[:_REPORTED_CHARACTERS]

    def send(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._waiting and (at_once or now >= self._next):
            self._next = now + _SECONDS_BETWEEN_REPORTS
            lines = "\n".join(self._waiting)
            self._waiting.clear()
            self._report(lines)


def _whole_lines(head: bytes) -> bytes:
    end = head.rfind(b"\n")
    return head[: end + 1] if end >= 0 else head


def _text(data: bytes) -> str:
    # No vendor takes NUL, and no database that we know of keeps it in a text.
    return data.decode(errors="replace").replace("\0", "\ufffd")
