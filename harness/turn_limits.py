"""What a turn may use: requests, tokens and time. At a limit it ends as failed, in words that name the numbers."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager

import anyio

from harness.settings import AgentSettings
from storage.errors import TurnLimitError
from storage.messages import AssistantMessage, Usage


class TurnLimits:
    """The account of one turn."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._steps = 0
        self._tokens = 0

    def count(self, reply: AssistantMessage) -> None:
        """A request was answered."""
        self._steps += 1
        self.spend(reply.usage)

    def spend(self, usage: Usage | None) -> None:
        """Something else was asked of a model, a summary."""
        if usage is not None:
            self._tokens += max(usage.total_tokens, usage.input + usage.output + usage.cache_read + usage.cache_write)

    def check(self) -> None:
        """Raise ``TurnLimitError`` if there is nothing left for another request."""
        settings = self._settings
        if self._steps >= settings.max_steps:
            raise TurnLimitError(
                f"the turn reached its limit of {settings.max_steps} requests and would still go on; prompt again to go "
                "on, or raise max_steps",
                max_steps=settings.max_steps,
                steps=self._steps,
            )
        if settings.max_turn_tokens is not None and self._tokens >= settings.max_turn_tokens:
            raise TurnLimitError(
                f"the turn used {self._tokens} tokens, its limit is {settings.max_turn_tokens}, and it would still go on; "
                "prompt again to go on, or raise max_turn_tokens",
                max_turn_tokens=settings.max_turn_tokens,
                tokens=self._tokens,
            )

    @contextmanager
    def clock(self) -> Generator[None]:
        """Cancel what runs in it when the turn's time is over, and raise ``TurnLimitError``."""
        seconds = self._settings.max_turn_seconds
        deadline = math.inf if seconds is None else anyio.current_time() + seconds
        with anyio.CancelScope(deadline=deadline) as scope:
            yield
        if scope.cancelled_caught:
            raise TurnLimitError(
                f"the turn took longer than its limit of {seconds:g} seconds and was stopped; prompt again to go on, or "
                "raise max_turn_seconds",
                max_turn_seconds=seconds,
            )
