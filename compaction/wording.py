"""The words that the projection itself says to a model. All of them stand here, so that a change is seen as one.

A change of any of them changes what is sent, and so needs a new ``PROJECTION_VERSION`` (R26).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compaction.compact_json import compact_json

PLACEHOLDER = "(The beginning of this conversation is not shown.)"
"""Precedes a context whose first message is not a user's."""

NO_OUTPUT = "(no output)"
"""Stands for a tool result without any text."""

NOT_RUN = "(This tool call was not run on this branch.)"
OUTCOME_UNKNOWN = "(This tool call was begun, outcome unknown: it may or may not have taken effect.)"
MEMORY_CHARACTERS = 4_000
"""How long the working memory is at most, as it is shown: about a thousand tokens in each request."""

MEMORY_VALUE_CHARACTERS = 1_000
"""How much of one value is shown, as JSON."""

MEMORY_KEY_CHARACTERS = 100

_NAMES_CHARACTERS = 500
"""How much is shown of the names of what is not shown."""

WAITING = "(This tool call is waiting for approval; it has no result yet.)"
TAKEN_OUT = "(The result of this tool call was taken out of the context.)"


def compaction_summary(summary: str | None) -> str:
    """What stands for the messages before a compaction."""
    if summary is None or not summary.strip():
        return "The earlier part of this conversation is no longer shown, and there is no summary of it."
    return f"The earlier part of this conversation is no longer shown. This is a summary of it:\n\n{summary}"


def branch_summary(summary: str) -> str:
    """What stands for a branch that was left."""
    return f"Another branch of this conversation was tried and then left. This is a summary of it:\n\n{summary}"


def shell_command(
    command: str, output: str, *, exit_code: int | None, cancelled: bool, truncated: bool, full_output_path: str | None
) -> str:
    """A shell command that the person ran, with what came out of it."""
    lines = ["The user ran a shell command:", f"$ {command}", "", output if output.strip() else NO_OUTPUT]
    if cancelled:
        lines.append("(The command was cancelled.)")
    elif exit_code:
        lines.append(f"(The command ended with exit code {exit_code}.)")
    if truncated:
        lines.append(f"(The output was cut{f'; all of it is in {full_output_path}' if full_output_path else ''}.)")
    return "\n".join(lines)


def working_memory(memory: Mapping[str, Any], newest_last: Iterable[str] | None = None) -> str:
    """The working memory as it stands, a line for each key, values as JSON; at most about ``MEMORY_CHARACTERS``.

    ``newest_last`` has the keys in the order in which they were set last (that of ``memory``, unless given): where not all
    fit, the oldest are left out, and it is said which.
    """
    lines = {key: _memory_line(key, value) for key, value in memory.items()}
    order = list(memory if newest_last is None else newest_last)
    room, kept = MEMORY_CHARACTERS, set[str]()
    for key in reversed(order):
        room -= len(lines[key]) + 1
        if room < 0:
            break
        kept.add(key)
    shown = [line for key, line in lines.items() if key in kept]
    missing = [_one_line(key) for key in order if key not in kept]
    if missing:
        names = ", ".join(missing)
        if len(names) > _NAMES_CHARACTERS:
            names = f"{names[:_NAMES_CHARACTERS]}…"
        shown.append(f"({len(missing)} older, not shown for want of room: {names})")
    return "\n".join(["Working memory, as it stands now:", *shown])


def _memory_line(key: str, value: Any) -> str:
    text = compact_json(value)
    if len(text) > MEMORY_VALUE_CHARACTERS:
        text = f"{text[:MEMORY_VALUE_CHARACTERS]}… ({len(text):,} characters in all)"
    return f"{_one_line(key)}: {text}"


def _one_line(key: str) -> str:
    """A key that could not pose as another line."""
    line = " ".join(key.split()) if not key.isprintable() else key
    return line if len(line) <= MEMORY_KEY_CHARACTERS else f"{line[:MEMORY_KEY_CHARACTERS]}…"
