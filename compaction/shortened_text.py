"""A long text in fewer characters: its head, its tail, and the lines between them that tell of errors.

A pure function of the text and the limit, so that what is shown is the same from request to request.
"""

from __future__ import annotations

import re
from typing import Final

_ERRORS: Final = re.compile(
    r"error|exception|\bfatal|\bfail(?:ed|ure)|\bpanic|\btraceback|\bdenied|\bnot found|\bcannot", re.IGNORECASE
)
_SEARCHED: Final = 50_000
"""How far back from the tail lines with errors are looked for."""

_LINE_SLACK: Final = 120
"""How far a cut may move to come to the end of a line."""

_LONGEST_LINE: Final = 200
"""How much is shown of one line with an error."""

LEAST_CHARS: Final = 200
"""The smallest limit: below it there is no room for the words about what is left out."""


def shorten_text(text: str, max_chars: int, source: str = "") -> str:
    """``text`` in at most ``max_chars`` characters (200 at least); as it is, if it has no more.

    ``source`` says where the whole is; it is part of the line that says how much is left out.
    """
    if len(text) <= max_chars:
        return text
    note = f"[… {{left}} of {len(text)} characters are left out here{f'; {source}' if source else ''} …]"
    room = max(0, max_chars - len(note) - len(str(len(text))) - 2)
    head = _head(text, room * 3 // 10)
    tail = _tail(text, room * 5 // 10)
    middle = text[max(len(head), len(text) - len(tail) - _SEARCHED) : len(text) - len(tail)]
    errors = _error_lines(middle, room - len(head) - len(tail) - 1)
    left = len(text) - len(head) - len(tail) - sum(map(len, errors))
    pieces = [head.rstrip("\n"), note.format(left=left), *errors, tail.strip("\n")]
    return "\n".join(piece for piece in pieces if piece)[:max_chars]


def _head(text: str, size: int) -> str:
    end = text.rfind("\n", max(0, size - _LINE_SLACK), size)
    return text[: end + 1] if end >= 0 else text[:size]


def _tail(text: str, size: int) -> str:
    begin = len(text) - size
    start = text.find("\n", begin, min(len(text), begin + _LINE_SLACK))
    return text[start + 1 :] if start >= 0 else text[begin:]


def _error_lines(middle: str, room: int) -> list[str]:
    """The newest lines that tell of errors, oldest first, as far as they fit."""
    found: list[str] = []
    for line in reversed(middle.splitlines()):
        if _ERRORS.search(line) is None:
            continue
        cut = line.strip()[:_LONGEST_LINE]
        if len(cut) + 1 > room:
            break
        room -= len(cut) + 1
        found.append(cut)
    found.reverse()
    return found
