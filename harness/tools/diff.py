"""What changed between two texts, as a unified diff: for the model, for the record, and for who decides on a change."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal

MAX_DIFF_CHARACTERS = 20_000
"""A longer diff is cut, and says so."""

_CONTEXT = 3
_MAX_COMPARED_LINES = 4_000
_MAX_LINE_CHARACTERS = 500
_NO_NEWLINE = "\\ No newline at end of file"


def unified_diff(before: str, after: str, path: str, *, limit: int = MAX_DIFF_CHARACTERS) -> str:
    """The diff without a final newline, or ``""`` if nothing changed. Lines end at LF alone.

    It is for reading: lines above 500 characters are cut in it, and so is the whole at ``limit`` characters; texts that
    differ over more than 4,000 lines are shown as replaced from the first to the last of these.
    """
    if before == after:
        return ""
    lines = [f"--- {path}", f"+++ {path}"]
    room = limit
    hunks = _hunks(_lines(before), _lines(after))
    for line in hunks:
        room -= len(line) + 1
        if room < 0:
            left = 1 + sum(1 for _ in hunks)
            lines.append(f"[… {left:,} more lines of this diff]")
            break
        lines.append(line)
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    """The lines with their LF, so that a last one without it differs from one with it."""
    ended = text.split("\n")
    rest = ended.pop()
    return [f"{line}\n" for line in ended] + ([rest] if rest else [])


def _hunks(before: list[str], after: list[str]) -> Iterator[str]:
    for group in _Changes(before, after).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@"
        for kind, before_from, before_to, after_from, after_to in group:
            if kind == "equal":
                yield from _shown(" ", before[before_from:before_to])
            else:
                yield from _shown("-", before[before_from:before_to])
                yield from _shown("+", after[after_from:after_to])


_Change = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


class _Changes(difflib.SequenceMatcher[str]):
    """difflib's comparison, given only what lies between the lines with which both texts begin and end.

    Its time can be quadratic, and an edit mostly leaves a long file alike.
    """

    def __init__(self, before: list[str], after: list[str]) -> None:
        shorter = min(len(before), len(after))
        head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
        shorter -= head
        tail = next((at for at in range(shorter) if before[-1 - at] != after[-1 - at]), shorter)
        super().__init__(None, before[head : len(before) - tail], after[head : len(after) - tail])
        self._head = head
        self._tail = tail
        self._ends = (len(before), len(after))

    def get_opcodes(self) -> list[_Change]:
        head, (before_end, after_end) = self._head, self._ends
        before_to, after_to = before_end - self._tail, after_end - self._tail
        if max(before_to, after_to) - head > _MAX_COMPARED_LINES:
            middle: list[_Change] = [("replace", head, before_to, head, after_to)]
        else:
            middle = [(kind, i + head, j + head, k + head, m + head) for kind, i, j, k, m in super().get_opcodes()]
        same_head: _Change = ("equal", 0, head, 0, head)
        same_tail: _Change = ("equal", before_to, before_end, after_to, after_end)
        changes = [same_head, *middle, same_tail]
        return [change for change in changes if change[1] < change[2] or change[3] < change[4]]


def _range(start: int, end: int) -> str:
    """Lines as a hunk's head names them: counted from 1, and an empty range by the line before it."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _shown(sign: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        text = line.removesuffix("\n")
        if len(text) > _MAX_LINE_CHARACTERS:
            text = f"{text[:_MAX_LINE_CHARACTERS]} [… {len(text) - _MAX_LINE_CHARACTERS:,} more characters]"
        yield sign + text
        if not line.endswith("\n"):
            yield _NO_NEWLINE
