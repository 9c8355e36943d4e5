"""The lines of a text file of any size and encoding, one at a time, without ever holding more than a piece of it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from storage.errors import ToolError

MAX_LINE_CHARACTERS = 5_000
"""What is kept of a line; the rest of it is only counted."""

_CHUNK_BYTES = 1 << 16
_LOOKED_AT_BYTES = 8_192
# The longer mark first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its newline, at most ``MAX_LINE_CHARACTERS`` of it; ``length`` is all of it, in characters."""

    text: str
    length: int

    def __str__(self) -> str:
        if self.length == len(self.text):
            return self.text
        return f"{self.text} [… {self.length - len(self.text):,} more characters in this line]"


def text_lines(stream: BinaryIO, *, stopped: Callable[[], bool] = lambda: False) -> Iterator[Line] | None:
    """The lines of ``stream``, split on LF alone, or ``None`` if its beginning holds a NUL: no text.

    A byte order mark tells UTF-8, UTF-16 and UTF-32; anything else is read as UTF-8, and bytes that are none become
    U+FFFD. Raises ``ToolError`` between two pieces once ``stopped()`` is true, and ``OSError``.
    """
    beginning = stream.read(_LOOKED_AT_BYTES) or b""
    encoding = next((name for mark, name in _MARKS if beginning.startswith(mark)), None)
    if encoding is None and b"\0" in beginning:
        return None
    return _split(_decoded(stream, beginning, encoding or "utf-8", stopped))


def _decoded(stream: BinaryIO, piece: bytes, encoding: str, stopped: Callable[[], bool]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while piece:
        if stopped():
            raise ToolError("stopped before the end of the file")
        yield decoder.decode(piece)
        piece = stream.read(_CHUNK_BYTES) or b""
    yield decoder.decode(b"", final=True)


def _split(pieces: Iterator[str]) -> Iterator[Line]:
    kept, length = "", 0
    for piece in pieces:
        *ended, rest = piece.split("\n")
        for end in ended:
            if length:
                yield Line(kept + end[: MAX_LINE_CHARACTERS - len(kept)], length + len(end))
                kept, length = "", 0
            else:
                yield Line(end[:MAX_LINE_CHARACTERS], len(end))
        kept += rest[: MAX_LINE_CHARACTERS - len(kept)]
        length += len(rest)
    if length:
        yield Line(kept, length)
