"""How a harness works: its limits, and what it asks of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction.tokens import TokenEstimator
from harness.tools.text import MAX_RESULT_CHARACTERS

_LARGEST_RESERVE = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The limits of a harness. All have defaults that work; None means no limit, unless it says otherwise."""

    max_steps: int = 50
    """Requests to the model in one turn. A turn that still calls tools then ends as failed."""
    max_chars: int | None = None
    """The character budget of a request's messages."""
    max_tokens: int | None = None
    """The token budget of a request: system prompt, tools and messages. None: the model's window less the reserve, or
    no limit where the window is not known."""
    reserve_tokens: int | None = None
    """What is left of the window for the reply. None: a quarter of the window, at most 4,096."""
    estimator: TokenEstimator | None = None
    """Counts tokens. None: the estimate that is anchored on the provider's own counts."""
    thinking_level: str | None = None
    """Recorded where it differs from the session's. None: the session's own."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What goes to the provider under its own names: ``temperature``, ``max_tokens``, … They win over the model's own."""
    tool_timeout: float | None = None
    """Seconds for a call of a tool that has no timeout of its own."""
    max_result_chars: int = MAX_RESULT_CHARACTERS
    """Characters that are kept of a tool's text."""
    working_directory: Path | None = None
    """What tools are told. None: the session's own."""

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; a turn needs at least one request")
        if self.max_result_chars < 1:
            raise ValueError(f"max_result_chars is {self.max_result_chars}; give a positive number")

    def token_budget(self, context_window: int | None) -> int | None:
        """How many tokens a request may have for a model with that window."""
        if self.max_tokens is not None or context_window is None:
            return self.max_tokens
        reserve = self.reserve_tokens
        return context_window - (min(_LARGEST_RESERVE, context_window // 4) if reserve is None else reserve)
