"""How much each model takes: what it says of itself, what the settings say, and what an overflow has taught."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from compaction.settings import CompactionSettings
from harness.models.protocol import ChatModel, own_options
from harness.settings import AgentSettings
from storage.errors import ContextOverflowError

_LARGEST_SCALE: Final = 16.0


@dataclass(frozen=True, slots=True)
class _Learnt:
    """What a model that refused a request has taught. ``scale``: by how much it counts more than the estimate."""

    window: int
    scale: float


class CompactionLimits:
    """The settings of a compaction for each model of one harness."""

    def __init__(self, settings: AgentSettings, summarizer_window: int | None) -> None:
        self._settings = settings
        self._summarizer_window = summarizer_window
        self._learnt: dict[tuple[str, str], _Learnt] = {}

    @property
    def is_off(self) -> bool:
        """Whether the app does without compaction."""
        return self._settings.compaction is False

    def of(self, model: ChatModel, *, is_counted: bool = True) -> CompactionSettings | None:
        """The settings for ``model``; ``None`` where nothing is known of its window, or without compaction.

        ``is_counted``: whether the provider has counted what they are held against, and it is not an estimate.
        Raises ``CompactionSettingsError`` for a window and a reserve that cannot work together.
        """
        given = self._settings.compaction
        learnt = self._learnt.get(_key(model))
        if given is False:
            return None
        asked = CompactionSettings() if given is True else given
        windows = [window for window in (asked.context_window, model.context_window) if window]
        if learnt is not None:
            windows.append(learnt.window if is_counted else max(2, int(learnt.window / learnt.scale)))
        if not windows and given is True:
            return None
        return self._in_window(asked, min(windows, default=asked.window), model)

    def by_hand(self, model: ChatModel) -> CompactionSettings:
        """The settings where a person wants a compaction: in any case, and only the newest turn is kept whole."""
        settings = self.of(model) or self._in_window(CompactionSettings(), CompactionSettings().window, model)
        return replace(settings, keep_recent_turns=1)

    def token_budget(self, model: ChatModel, settings: CompactionSettings | None) -> int | None:
        """How many tokens a request may have; ``settings`` are what ``of`` gave."""
        if settings is None:
            return self._settings.token_budget(model.context_window or None, self._options(model))
        return settings.window - settings.reserve

    def learn(self, model: ChatModel, error: ContextOverflowError, tokens: int) -> None:
        """``model`` refused a request that has ``tokens`` by our count as too long."""
        told_tokens, told_window = _number(error, "tokens"), _number(error, "context_window")
        before = self._learnt.get(_key(model))
        window = told_window or told_tokens or tokens
        scale = max(1.0, max(told_tokens or 0, window) / max(1, tokens), before.scale if before is not None else 1.0)
        self._learnt[_key(model)] = _Learnt(window, min(scale, _LARGEST_SCALE))

    def forget(self, model: ChatModel) -> bool:
        """Forget what ``model`` taught, where nothing can work with that; whether there was anything."""
        return self._learnt.pop(_key(model), None) is not None

    def _in_window(self, asked: CompactionSettings, window: int, model: ChatModel) -> CompactionSettings:
        reserve = asked.reserve_tokens
        if reserve is None:
            reserve = self._settings.reserve(window, self._options(model))
        if reserve > window // 2 and _key(model) in self._learnt:
            reserve = window // 4  # it was meant for the window that the model was thought to have
        if self._settings.max_tokens is not None:
            window = min(window, self._settings.max_tokens + reserve)
        summarizer_window = asked.summarizer_window or self._summarizer_window
        return replace(
            asked, context_window=window, reserve_tokens=reserve, summarizer_window=summarizer_window or None
        )

    def _options(self, model: ChatModel) -> dict[str, Any]:
        own = own_options(model)
        return {**own, **self._settings.options}


def _key(model: ChatModel) -> tuple[str, str]:
    return model.provider, model.model_id


def _number(error: ContextOverflowError, name: str) -> int | None:
    value = error.details.get(name)
    return value if isinstance(value, int) and value > 0 else None
