"""How a harness works: its limits, and what it asks of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from compaction.settings import CompactionSettings
from compaction.tokens import TokenEstimator, is_estimator
from harness.tools.text import MAX_RESULT_CHARACTERS
from storage.errors import SettingsError
from storage.setting_checks import SettingChecks, check_whole

_LARGEST_RESERVE = 4_096
_REPLY_LIMITS = ("max_tokens", "max_completion_tokens")
"""The options by which vendors are told how long a reply may be."""

QueueMode = Literal["one-at-a-time", "all"]
"""How many of the waiting messages are delivered at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The limits of a harness. All have defaults that work; None means no limit, unless it says otherwise.

    Raises ``SettingsError`` for a value that cannot be, naming the setting and what to give.
    """

    max_steps: int = 50
    """Requests to the model in one turn. A turn that would go on after that ends as failed."""
    max_turn_seconds: float | None = None
    """Seconds for a whole turn, from its first request; what still runs then is cancelled, and it ends as failed."""
    max_turn_tokens: int | None = None
    """Tokens of all requests and replies of a turn together, as the provider counts them. A turn that would go on after
    that ends as failed. A provider that reports no usage is not held to it."""
    steering_mode: QueueMode = "one-at-a-time"
    """How many steers are delivered before a request."""
    follow_up_mode: QueueMode = "one-at-a-time"
    """How many follow-ups are delivered when the turn would stop."""
    max_chars: int | None = None
    """The character budget of a request's messages. What does not fit is left out, oldest first; nothing is summarised."""
    max_tokens: int | None = None
    """The token budget of a request: system prompt, tools and messages. None: the model's window less the reserve, or
    no limit where the window is not known. With a window, summaries are made within it (``compaction``); without one, what
    does not fit is left out, oldest first."""
    reserve_tokens: int | None = None
    """What is left of the window for the reply. None: a quarter of the window, at most 4,096; or as many tokens as the
    request's options allow the reply (``max_tokens``), up to half of the window, since a provider counts both together."""
    compaction: CompactionSettings | bool = True
    """When a summary takes the place of the older part of the context, and down to what. True: as ``CompactionSettings``
    have it, where the model says what its window is; where it does not, only once the provider says that a request is
    too long. Settings of one's own with no window anywhere assume 32,768 tokens. False: never; then what does not fit is
    left out, oldest first."""
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
        checks = SettingChecks(self, SettingsError)
        checks.whole("max_steps", "max_result_chars")
        checks.whole("max_turn_tokens", "max_chars", "max_tokens", none="for no limit")
        checks.whole("reserve_tokens", least=0, none="for a quarter of the window")
        checks.number("max_turn_seconds", "tool_timeout", none="for no limit")
        checks.choice("steering_mode", "follow_up_mode", among=get_args(QueueMode))
        checks.kind("compaction", CompactionSettings, bool, expected="CompactionSettings, True or False")
        estimator = self.estimator
        checks.require(
            estimator is None or is_estimator(estimator), "estimator", "a TokenEstimator", "for the usual one"
        )
        checks.kind("thinking_level", str, expected="a word such as 'high'", none="for the session's own")
        level = self.thinking_level
        checks.require(
            level is None or bool(level.strip()), "thinking_level", "a word such as 'high'", "for the session's own"
        )
        checks.kind("options", Mapping, expected="a mapping of names to values")
        checks.kind("working_directory", Path, expected="a Path", none="for the session's own")

    def check_window(self, context_window: int | None, *, model_id: str) -> None:
        """Raise ``SettingsError`` if a model's window is no number of tokens, or leaves no room for any request."""
        check_whole(f"the model {model_id!r:.100}", "context_window", context_window, none="where it is not known")
        budget = self.token_budget(context_window or None)
        if budget is not None and budget < 1:
            raise SettingsError(
                f"{model_id!r} has a window of {context_window} tokens, and {self.reserve_tokens} are reserved for the "
                "reply, so no request fits; lower reserve_tokens",
                setting="reserve_tokens",
                value=self.reserve_tokens,
                expected=f"less than {context_window}",
            )

    def token_budget(self, context_window: int | None, options: Mapping[str, Any] | None = None) -> int | None:
        """How many tokens a request with these options may have for a model with that window."""
        if self.max_tokens is not None or context_window is None:
            return self.max_tokens
        return context_window - self.reserve(context_window, options)

    def reserve(self, context_window: int, options: Mapping[str, Any] | None = None) -> int:
        """How many tokens of that window are left for the reply."""
        if self.reserve_tokens is not None:
            return self.reserve_tokens
        asked = [(options or {}).get(name) for name in _REPLY_LIMITS]
        longest = max((limit for limit in asked if isinstance(limit, int)), default=0)
        usual = min(_LARGEST_RESERVE, context_window // 4)
        return max(usual, min(longest, context_window // 2))
