"""From a plan and a summariser to what is appended. Nothing is written here, so whatever fails, the history is as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import anyio

from compaction.breathing import run_with_pauses
from compaction.preparation import CompactionPlan
from compaction.refusals import refusal
from compaction.summary_checks import check_summary
from compaction.summary_request import Summarizer, SummaryReply, SummaryRequest, summary_request
from compaction.tokens import TokenEstimator
from storage.errors import CompactionError
from storage.messages import Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What ``Session.append_compaction`` takes.

    ``details`` holds ``readFiles`` and ``modifiedFiles``, which the next compaction carries on, and ``splitTurn`` where a
    turn was cut in two. ``usage`` is what the summary cost.
    """

    summary: str
    first_kept_entry_id: str
    tokens_before: int
    details: dict[str, Any]
    usage: Usage | None = None


async def compact(
    plan: CompactionPlan,
    summarizer: Summarizer,
    *,
    instructions: str | None = None,
    estimator: TokenEstimator | None = None,
) -> CompactionResult:
    """Have the summary of ``plan`` made, and check it. ``instructions`` are the person's own, added to the request.

    Raises ``CompactionError`` if the summariser raises, takes longer than ``summary_timeout``, or answers what
    ``check_summary`` refuses. Cancelled, it goes away at once. In every case nothing was changed.
    """
    settings = plan.settings
    request = await run_with_pauses(
        summary_request(
            "compaction",
            plan.messages,
            window=settings.summarizer_window or settings.window,
            max_tokens=plan.summary_tokens,
            previous_summary=plan.previous_summary,
            files=plan.files,
            turn_prefix=plan.turn_prefix,
            instructions=instructions,
            estimator=estimator,
        )
    )
    reply = await ask(summarizer, request, settings.summary_timeout)
    summary = checked(lambda: check_summary(reply, plan, estimator), reply)
    details = plan.files.details()
    if plan.turn_prefix:
        details["splitTurn"] = True
    return CompactionResult(summary, plan.first_kept_entry_id, plan.tokens_before, details, reply.usage)


async def ask(summarizer: Summarizer, request: SummaryRequest, seconds: float | None) -> SummaryReply:
    """The reply to ``request``. Raises ``CompactionError`` from whatever the summariser raises, and after ``seconds``."""
    scope = anyio.CancelScope(deadline=anyio.current_time() + seconds) if seconds is not None else anyio.CancelScope()
    try:
        with scope:
            reply: object = await summarizer.summarize(request)
            return _as_reply(reply)
    except CompactionError:
        raise
    except Exception as error:
        raise refusal(
            "summarizer_failed", f"the summariser failed: {error}; nothing was changed, try again later"
        ) from error
    raise refusal(
        "timed_out",
        f"no summary after {seconds} seconds; nothing was changed, try again later or raise summary_timeout",
        seconds=seconds,
    )


def _as_reply(reply: object) -> SummaryReply:
    """What the summariser answered, if it kept to the protocol."""
    if not isinstance(reply, SummaryReply):
        raise TypeError(f"it answered a {type(reply).__name__}, not a SummaryReply")
    text, usage = cast("object", reply.text), cast("object", reply.usage)
    if not isinstance(text, str) or not (usage is None or isinstance(usage, Usage)):
        raise TypeError("its SummaryReply has no text, or a usage that is no Usage")
    return reply


def checked(check: Callable[[], T], reply: SummaryReply) -> T:
    """What ``check`` returns. Its ``CompactionError`` then tells what the refused summary cost (``details["usage"]``)."""
    try:
        return check()
    except CompactionError as error:
        error.details["usage"] = reply.usage
        raise
