"""Exact replacements in a text: each must be found once and only once, all are made or none."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from storage.errors import ToolError

_MAX_PLACES = 10
_MAX_NEAREST = 3
_LEAST_RATIO = 0.6
_LOOKED_AT_LINES = 10_000
_LOOKED_AT_CHARACTERS = 200


class Replacement(BaseModel):
    """One exact replacement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old: str = Field(
        description="text that is in the file once, exactly as it is there; as many lines as make it unique"
    )
    new: str = Field(description="what to put in its place")


def apply_edits(text: str, edits: Sequence[Replacement], path: str) -> str:
    """The text with all ``edits`` made. Each is looked for in ``text`` itself, not in what others make of it.

    Raises:
        ToolError: one is not there (the nearest lines are named), is there more than once (the lines are named),
            overlaps another, or all together change nothing. What is wrong with any of them is told at once.
    """
    if not edits:
        raise ToolError(f"{path}: no edit was given")
    places: list[tuple[int, int, str]] = []
    problems: list[str] = []
    for number, edit in enumerate(edits, 1):
        name = "" if len(edits) == 1 else f"edit {number}: "
        starts = _starts(text, edit.old)
        if not edit.old:
            problems.append(f"{name}old is empty; use write to make a file or to replace all of it")
        elif not starts:
            problems.append(f"{name}old is not in the file{_nearest(text, edit.old)}")
        elif len(starts) > 1:
            problems.append(f"{name}old is there {_times(text, starts)}; give more of the text around it")
        else:
            places.append((starts[0], starts[0] + len(edit.old), edit.new))
    places.sort()
    for (_, end, _), (start, _, _) in pairwise(places):
        if start < end:
            problems.append(f"two edits overlap at line {_line(text, start):,}; make one of them")
    if problems:
        raise ToolError("\n".join(f"{path}: {problem}" for problem in [*problems, "nothing was changed"]))
    edited = _made(text, places)
    if edited == text:
        raise ToolError(f"{path}: these edits change nothing; old and new are the same")
    return edited


def _made(text: str, places: Sequence[tuple[int, int, str]]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end, new in places:
        pieces += text[done:start], new
        done = end
    return "".join([*pieces, text[done:]])


def _starts(text: str, old: str) -> list[int]:
    """Where ``old`` is, also where its places overlap; at most a few more than are told."""
    starts: list[int] = []
    at = text.find(old) if old else -1
    while at >= 0 and len(starts) <= _MAX_PLACES:
        starts.append(at)
        at = text.find(old, at + 1)
    return starts


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _times(text: str, starts: list[int]) -> str:
    lines = ", ".join(f"{_line(text, at):,}" for at in starts[:_MAX_PLACES])
    if len(starts) > _MAX_PLACES:
        return f"more than {_MAX_PLACES} times, first at lines {lines}"
    return f"{len(starts)} times, at lines {lines}"


def _nearest(text: str, old: str) -> str:
    """Words about lines that are like ``old``, for a model to see what it took wrong."""
    lines = text.split("\n")
    wanted = old.strip("\n").split("\n")
    same = _same_but_for_whitespace(lines, wanted)
    if same:
        return f", but lines {same:,} to {same + len(wanted) - 1:,} differ from it in whitespace only; read them again"
    line = next((line.strip() for line in wanted if line.strip()), "")[:_LOOKED_AT_CHARACTERS]
    if not line:
        return ""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(line)
    rated: list[tuple[float, int]] = []
    for number, candidate in enumerate(lines[:_LOOKED_AT_LINES], 1):
        matcher.set_seq1(candidate.strip()[:_LOOKED_AT_CHARACTERS])
        # The cheap upper bounds first: most lines are nothing like it.
        if matcher.real_quick_ratio() >= _LEAST_RATIO and matcher.quick_ratio() >= _LEAST_RATIO:
            rated.append((-matcher.ratio(), number))
    nearest = [number for ratio, number in sorted(rated)[:_MAX_NEAREST] if -ratio >= _LEAST_RATIO]
    if not nearest:
        return ", nor is any line like it; read the file again"
    shown = "".join(f"\n  line {number:,}: {lines[number - 1][:_LOOKED_AT_CHARACTERS]}" for number in nearest)
    return f"; the lines most like its first are:{shown}"


def _same_but_for_whitespace(lines: list[str], wanted: list[str]) -> int:
    """The line where ``wanted`` is but for its whitespace, counted from 1; 0 if it is nowhere, or in many places."""
    bare = ["".join(line.split()) for line in wanted]
    if not any(bare):
        return 0
    text = ["".join(line.split()) for line in lines[:_LOOKED_AT_LINES]]
    found = [at for at in range(len(text) - len(bare) + 1) if text[at : at + len(bare)] == bare]
    return found[0] + 1 if len(found) == 1 else 0
