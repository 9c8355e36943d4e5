"""The words that the projection itself says to a model. All of them stand here, so that a change is seen as one.

A change of any of them changes what is sent, and so needs a new ``PROJECTION_VERSION`` (R26).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compaction.compact_json import compact_json

PLACEHOLDER = "(The beginning of this conversation is not shown.)"
"""Precedes a context whose first message is not a user's."""

NO_OUTPUT = "(no output)"
"""Stands for a tool result without any text."""

NOT_RUN = "(This tool call was not run on this branch.)"
OUTCOME_UNKNOWN = "(This tool call was begun, outcome unknown: it may or may not have taken effect.)"
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


def working_memory(memory: Mapping[str, Any]) -> str:
    """The working memory as it stands, a line for each key, values as JSON."""
    return "\n".join(["Working memory, as it stands now:", *(f"{key}: {compact_json(memory[key])}" for key in memory)])
