"""Two summarisers: the second one where the first one fails."""

from __future__ import annotations

import logging

import anyio

from compaction.summary_checks import check_reply
from compaction.summary_request import Summarizer, SummaryReply, SummaryRequest
from storage.errors import BranchlineError

_log = logging.getLogger("branchline.compaction")


class FallbackSummarizer:
    """Asks ``first``, and ``second`` where that raises, takes too long, or answers what is no summary.

    ::

        FallbackSummarizer(ModelSummarizer(model), ExtractiveSummarizer())

    ``seconds`` is how long the first one may take; less than ``CompactionSettings.summary_timeout``, which is for both.
    What a refused answer of the first one cost is told with the second one's, where that costs nothing.
    """

    def __init__(self, first: Summarizer, second: Summarizer, *, seconds: float | None = 120.0) -> None:
        self._first = first
        self._second = second
        self._seconds = seconds

    @property
    def context_window(self) -> int | None:
        """The first one's, where it has one: what the request is cut to."""
        window: object = getattr(self._first, "context_window", None)
        return window if isinstance(window, int) else None

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        """The first good summary. Raises what the second one raises."""
        reply = None
        try:
            with anyio.move_on_after(self._seconds):
                reply = await self._first.summarize(request)
                check_reply(reply, request.max_tokens)
                return reply
            why = f"no summary after {self._seconds} seconds"
        except Exception as error:  # noqa: BLE001 - whatever it is, the other one is asked, and the log tells
            why = error.message if isinstance(error, BranchlineError) else f"a {type(error).__name__}"
        _log.warning("a summariser failed, the next one is asked: %s", why)
        second = await self._second.summarize(request)
        if second.usage is not None or reply is None or reply.usage is None:
            return second
        return SummaryReply(second.text, reply.usage, second.stop_reason, second.has_tool_calls, second.error_message)
