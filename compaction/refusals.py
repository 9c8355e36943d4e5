"""Why a compaction was refused: one error, with a word to match on in ``details["reason"]``."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from storage.errors import CompactionError, CompactionSettingsError

CompactionReason: TypeAlias = Literal[
    "settings",
    "does_not_fit",
    "no_progress",
    "summarizer_failed",
    "timed_out",
    "empty",
    "cut_off",
    "tool_call",
    "too_long",
    "not_smaller",
    "nothing_to_summarize",
    "cancelled",
]
"""``details["reason"]`` of a ``CompactionError``.

``settings`` that cannot work (``CompactionSettingsError``) · what must be shown ``does_not_fit`` and nothing can be
summarised · ``no_progress`` twice in a row · the summariser raised or said that it failed (``summarizer_failed``),
``timed_out``, or answered nothing (``empty``), a part (``cut_off``), a ``tool_call``, more than it may (``too_long``), no
less than it got (``not_smaller``) · where a person asked for it, there is ``nothing_to_summarize`` · a hook
``cancelled`` it.
"""


def refusal(reason: CompactionReason, message: str, **details: Any) -> CompactionError:
    """The error. ``details`` holds the sizes by name, in tokens; ``entry_id`` names the place."""
    kind = CompactionSettingsError if reason == "settings" else CompactionError
    return kind(message, reason=reason, **details)
