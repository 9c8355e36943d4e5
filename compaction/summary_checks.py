"""Whether a summary may take the place of what it summarises. What is refused changes nothing."""

from __future__ import annotations

from compaction.file_operations import with_files, without_files
from compaction.preparation import CompactionPlan
from compaction.refusals import refusal
from compaction.rough_tokens import RoughEstimator, fewest_of_text
from compaction.sendable import FAILED, is_blank
from compaction.summary_request import SummaryReply
from compaction.tokens import MESSAGE_TOKENS, TokenEstimator
from compaction.wording import compaction_summary

_LENGTH_SLACK = 1.5
"""By how much a summary may be longer than it may be by the estimate, which is not the summariser's own count."""


def check_reply(reply: SummaryReply, max_tokens: int, estimator: TokenEstimator | None = None) -> str:
    """The text of a summary. Raises ``CompactionError`` if it is no summary, or not a whole one, or far too long."""
    if reply.stop_reason in FAILED:
        raise refusal(
            "summarizer_failed",
            f"the summariser failed: {reply.error_message or reply.stop_reason}; nothing was changed, try again later",
        )
    if reply.has_tool_calls:
        raise refusal("tool_call", "the summariser called a tool instead of summarising; nothing was changed")
    if reply.stop_reason == "length":
        raise refusal(
            "cut_off",
            f"the summary was cut off at its limit of {max_tokens} tokens; nothing was changed, raise max_summary_tokens",
            limit=max_tokens,
        )
    text = without_files(reply.text)
    if is_blank(text):
        raise refusal("empty", "the summary is empty; nothing was changed")
    size = fewest_of_text(text)
    if size <= max_tokens * _LENGTH_SLACK:  # else it may be megabytes, which need no exact count
        size = (estimator or RoughEstimator()).count(text)
    if size > max_tokens * _LENGTH_SLACK:
        raise refusal(
            "too_long",
            f"the summary has {size} tokens, and may have {max_tokens}; nothing was changed, raise max_summary_tokens",
            size=size,
            limit=max_tokens,
        )
    return text


def check_summary(reply: SummaryReply, plan: CompactionPlan, estimator: TokenEstimator | None = None) -> str:
    """The summary as it is recorded, with the files named behind it.

    Raises ``CompactionError`` if the reply is empty, an error, cut off, a tool call, far longer than asked for, or, as it
    would be shown, not smaller than what it replaces (``details["reason"]`` says which). Nothing is changed then.
    """
    counting = estimator or RoughEstimator()
    summary = with_files(check_reply(reply, plan.summary_tokens, counting), plan.files, plan.summary_tokens)
    size = counting.count(compaction_summary(summary)) + MESSAGE_TOKENS
    if size >= plan.tokens_replaced:
        raise refusal(
            "not_smaller",
            f"the summary has {size} tokens, what it would replace has {plan.tokens_replaced}; nothing was changed",
            size=size,
            replaced=plan.tokens_replaced,
        )
    return summary
