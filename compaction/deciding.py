"""Whether to compact, and when to give up: both tell from sizes alone."""

from __future__ import annotations

from typing import Final

from compaction.measured_context import ContextFacts
from compaction.refusals import refusal
from compaction.settings import CompactionSettings

IN_VAIN_LIMIT: Final = 2
"""So many compactions in a row that leave the context over the trigger are an error."""


def should_compact(facts: ContextFacts, settings: CompactionSettings) -> bool:
    """Whether the messages have more tokens than ``settings`` allow.

    Raises ``CompactionError`` naming the four numbers where nothing is left for messages: no compaction can help then.
    """
    usable = settings.check(facts.system_tokens, facts.tool_tokens)
    return facts.message_tokens > settings.trigger_tokens(usable)


def require_progress(before: ContextFacts, after: ContextFacts, settings: CompactionSettings, in_vain: int = 0) -> int:
    """How many compactions in a row were in vain, once one made ``before`` into ``after``: 0 if this one was not.

    One is in vain if the context is still over the trigger, or no smaller than before. ``in_vain`` is what this returned
    for the one before. Raises ``CompactionError`` (``no_progress``) at the second in a row, so that nobody compacts for
    ever; it names the sizes.
    """
    if after.tokens < before.tokens and not should_compact(after, settings):
        return 0
    if in_vain + 1 < IN_VAIN_LIMIT:
        return in_vain + 1
    usable = settings.check(after.system_tokens, after.tool_tokens)
    raise refusal(
        "no_progress",
        f"{IN_VAIN_LIMIT} compactions in a row did not help: the messages had {before.message_tokens} tokens and have "
        f"{after.message_tokens}, which is over the {settings.trigger_tokens(usable)} that start a compaction; of the "
        f"context window of {settings.window} the system prompt takes {after.system_tokens}, the tools "
        f"{after.tool_tokens} and the reserve for the reply {settings.reserve}; use a larger window, or raise "
        "trigger_ratio",
        before=before.message_tokens,
        after=after.message_tokens,
        trigger=settings.trigger_tokens(usable),
        window=settings.window,
        system=after.system_tokens,
        tools=after.tool_tokens,
        reserve=settings.reserve,
    )
