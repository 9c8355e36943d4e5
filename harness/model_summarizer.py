"""A model as the summariser: the request as it is, no tools, and a limit on what it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from compaction.rough_tokens import RoughEstimator
from compaction.summary_request import SummaryReply, SummaryRequest
from harness.models.events import ReplyFinished
from harness.models.protocol import ChatModel, ModelRequest, own_options
from storage.errors import ModelError
from storage.messages import UserMessage

_THINKING_ROOM: Final = 8_192
"""Tokens that a model may think besides, where its window has them: many providers count that as part of the answer."""

_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""What vendors call the longest answer; the newer name first."""


class ModelSummarizer:
    """Has ``model`` make the summaries; the harness does so with its own model unless it is given another summariser.

    ``options`` go out under the provider's own names and win over the model's. ``thinking_level`` as in ``ModelRequest``.
    The model is not closed.
    """

    def __init__(
        self, model: ChatModel, *, options: Mapping[str, Any] | None = None, thinking_level: str | None = None
    ) -> None:
        self._model = model
        self._options = dict(options or {})
        self._thinking_level = thinking_level

    @property
    def context_window(self) -> int | None:
        """The model's: what the request is cut to."""
        return self._model.context_window

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        """The model's answer. Raises ``ModelError``, also ``ContextOverflowError`` where the request is too long for it."""
        asked = ModelRequest(
            system_prompt=request.system_prompt,
            messages=[UserMessage(content=request.prompt)],
            options={**self._limit(request), **self._options},
            thinking_level=self._thinking_level,
        )
        async with self._model.stream(asked) as events:
            async for event in events:
                if isinstance(event, ReplyFinished):
                    return SummaryReply.of(event.message)
        raise ModelError(f"the stream of the model {self._model.model_id!r} ended without a reply")

    def _limit(self, request: SummaryRequest) -> dict[str, int]:
        """As long as the summary may be, with room to think if the window has it."""
        model = self._model
        own = own_options(model)
        usual = "max_completion_tokens" if model.provider == "openai" else "max_tokens"
        name = next((name for name in _LIMITS if name in own), usual)
        room = request.max_tokens + _THINKING_ROOM
        if model.context_window:
            prompt = RoughEstimator().count(request.system_prompt + request.prompt)
            room = min(room, model.context_window - prompt - prompt // 4)
        return {name: max(request.max_tokens, room)}
