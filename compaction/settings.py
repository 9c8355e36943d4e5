"""How far a context may grow, and how much of it is kept when it is compacted. Settings that cannot work are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

from compaction.refusals import refusal
from storage.setting_checks import SettingChecks

DEFAULT_CONTEXT_WINDOW: Final = 32_768
"""The window of a model that does not say what it has. Too small costs an early summary, too large costs a request."""

_LARGEST_RESERVE: Final = 4_096
_LARGEST_SUMMARY: Final = 4_096
_SUMMARY_SHARE: Final = 0.4
_MOST_RATIO: Final = 0.95
"""The estimate of what came since the provider's count may be low by a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When to compact, and down to what. Sizes are in tokens; all have defaults that work for any window.

    *Usable* for messages is the window less system prompt, tools and ``reserve_tokens``. Raises
    ``CompactionSettingsError`` for what can never work: it is a ``SettingsError`` and a ``CompactionError``.
    """

    context_window: int | None = None
    """What the model can take. None or 0: it is not known, and 32,768 is assumed."""
    trigger_ratio: float = 0.8
    """More than this part of what is usable is compacted."""
    target_ratio: float = 0.3
    """What is shown afterwards is at most this part of what is usable, as far as the newest unit lets it."""
    keep_recent_turns: int = 10
    """At most so many of the newest turns are kept whole, the running one included. ``target_ratio`` goes before it."""
    reserve_tokens: int | None = None
    """What is left of the window for the reply. None: a quarter of it, at most 4,096."""
    max_summary_tokens: int | None = None
    """How long a summary may be. None: two fifths of what is aimed for, at most 4,096."""
    summarizer_window: int | None = None
    """The window of the model that summarises. None: the same as ``context_window``."""
    summary_timeout: float | None = 300.0
    """Seconds that a summary may take. None: no limit."""
    shorten_ratio: float | None = 0.6
    """First old, large tool results are shortened; if that comes down to this part of what is usable, nothing is
    summarised yet. Lower than ``trigger_ratio``, so that it lasts a while. None: never."""
    shortened_chars: int = 2_000
    """Characters that are left of a tool result that is shortened; 500 at least."""

    def __post_init__(self) -> None:
        checks = SettingChecks(self, partial(refusal, "settings"))
        checks.whole("context_window", least=0, none="where it is not known")
        checks.whole("reserve_tokens", least=0, none="for a quarter of the window")
        checks.whole("summarizer_window", least=0, none="for the same as context_window")
        checks.whole("keep_recent_turns")  # the newest turn is always kept
        checks.whole("max_summary_tokens", none="for two fifths of the aim")
        checks.whole("shortened_chars", least=500)
        checks.number("trigger_ratio", "target_ratio", most=_MOST_RATIO)
        checks.number("shorten_ratio", most=_MOST_RATIO, none="for never")
        checks.number("summary_timeout", none="for no limit")
        if self.reserve >= self.window:
            raise refusal(
                "settings",
                f"the reserve for the reply ({self.reserve}) takes all of the context window ({self.window}); "
                "lower reserve_tokens",
                setting="reserve_tokens",
                value=self.reserve,
                expected=f"less than {self.window}",
                window=self.window,
                reserve=self.reserve,
            )
        if self.target_ratio >= self.trigger_ratio:
            raise refusal(
                "settings",
                f"target_ratio is {self.target_ratio} and trigger_ratio {self.trigger_ratio}; the aim must be below the "
                "trigger",
                setting="target_ratio",
                value=self.target_ratio,
                expected=f"less than {self.trigger_ratio}",
            )
        if self.shorten_ratio is not None and self.shorten_ratio >= self.trigger_ratio:
            raise refusal(
                "settings",
                f"shorten_ratio is {self.shorten_ratio} and trigger_ratio {self.trigger_ratio}; it must be below the "
                "trigger, or None",
                setting="shorten_ratio",
                value=self.shorten_ratio,
                expected=f"less than {self.trigger_ratio}, or None for never",
            )

    @property
    def window(self) -> int:
        """The context window, or the one that is assumed."""
        return self.context_window or DEFAULT_CONTEXT_WINDOW

    @property
    def reserve(self) -> int:
        """What is left of the window for the reply."""
        return min(_LARGEST_RESERVE, self.window // 4) if self.reserve_tokens is None else self.reserve_tokens

    def check(self, system_tokens: int, tool_tokens: int) -> int:
        """Tokens that are usable for messages beside this system prompt and these tools.

        Raises ``CompactionSettingsError`` naming the four numbers if there are none, or not enough for the summary that
        ``max_summary_tokens`` allows. To be called at start: no compaction can help later.
        """
        usable = self.window - system_tokens - tool_tokens - self.reserve
        sizes = {"window": self.window, "system": system_tokens, "tools": tool_tokens, "reserve": self.reserve}
        if usable <= 0:
            raise refusal(
                "settings",
                f"nothing is left for messages: the context window is {self.window}, of which the system prompt takes "
                f"{system_tokens}, the tools {tool_tokens} and the reserve for the reply {self.reserve}; use a model with "
                "a larger window, fewer tools, a shorter prompt or a smaller reserve",
                setting="context_window",
                value=self.window,
                expected=f"more than {system_tokens + tool_tokens + self.reserve}",
                **sizes,
            )
        if self.max_summary_tokens is not None and self.max_summary_tokens >= usable * self.target_ratio:
            raise refusal(
                "settings",
                f"a summary of {self.max_summary_tokens} tokens does not fit into the {int(usable * self.target_ratio)} "
                f"that are aimed for: the context window is {self.window}, of which the system prompt takes "
                f"{system_tokens}, the tools {tool_tokens} and the reserve for the reply {self.reserve}; lower "
                "max_summary_tokens or raise target_ratio",
                setting="max_summary_tokens",
                value=self.max_summary_tokens,
                expected=f"less than {int(usable * self.target_ratio)}",
                **sizes,
            )
        return usable

    def trigger_tokens(self, usable: int) -> int:
        """Messages of more tokens are compacted."""
        return int(usable * self.trigger_ratio)

    def target_tokens(self, usable: int) -> int:
        """What the messages are to have afterwards, the summary and the working memory included."""
        return int(usable * self.target_ratio)

    def summary_tokens(self, usable: int) -> int:
        """How long a summary may be."""
        if self.max_summary_tokens is not None:
            return self.max_summary_tokens
        return max(1, min(_LARGEST_SUMMARY, int(self.target_tokens(usable) * _SUMMARY_SHARE)))

    def after_overflow(self, tokens: int) -> Self:
        """Settings for a model that refused a context of so many tokens as too long: its window is no larger than that.

        ``reserve_tokens`` is as the smaller window wants it where the given one does not fit.
        """
        window = max(2, min(self.window, tokens))
        fits = self.reserve_tokens is None or self.reserve_tokens < window
        return replace(self, context_window=window, reserve_tokens=self.reserve_tokens if fits else None)
