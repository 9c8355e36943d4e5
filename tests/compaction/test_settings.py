"""What a compaction may be told: settings that cannot work are refused, with the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from compaction import CompactionSettings
from compaction.settings import DEFAULT_CONTEXT_WINDOW
from storage.errors import CompactionError, SettingsError


@pytest.mark.parametrize("window", [None, 0], ids=["unknown", "zero"])
def test_a_window_that_is_not_known_is_a_stated_default(window: int | None) -> None:
    """Neither nothing nor everything: 32,768, of which 4,096 are for the reply."""
    settings = CompactionSettings(context_window=window)
    assert settings.window == DEFAULT_CONTEXT_WINDOW == 32_768
    assert settings.reserve == 4_096
    assert settings.check(0, 0) == 32_768 - 4_096


def test_the_sizes_follow_from_what_is_usable() -> None:
    """Usable is the window less prompt, tools and reserve; trigger, aim and summary are parts of it."""
    settings = CompactionSettings(context_window=10_000, reserve_tokens=1_000)
    usable = settings.check(500, 1_500)
    assert usable == 7_000
    assert settings.trigger_tokens(usable) == 5_600
    assert settings.target_tokens(usable) == 2_100
    assert settings.summary_tokens(usable) == 840
    assert CompactionSettings(context_window=1_000_000).summary_tokens(996_000) == 4_096


@pytest.mark.parametrize(
    "impossible",
    [
        {"context_window": -1},
        {"context_window": 1_000, "reserve_tokens": 1_000},
        {"reserve_tokens": -5},
        {"summarizer_window": -5},
        {"trigger_ratio": 1.0},
        {"trigger_ratio": 0.3, "target_ratio": 0.3},
        {"target_ratio": 0.0},
        {"shorten_ratio": 0.8},
        {"keep_recent_turns": 0},
        {"max_summary_tokens": 0},
        {"summary_timeout": 0},
        {"shortened_chars": 10},
    ],
    ids=str,
)
def test_what_can_never_work_is_refused_at_once(impossible: dict[str, Any]) -> None:
    """The message names the member and its value."""
    with pytest.raises(SettingsError) as caught:
        CompactionSettings(**impossible)
    _check_refusal(caught.value, next(reversed(impossible)), next(reversed(impossible.values())))
    assert str(next(reversed(impossible.values()))) in str(caught.value)


def _check_refusal(error: SettingsError, setting: str, value: object) -> None:
    """It is what any other setting that cannot be is, and what any other compaction that was refused is."""
    assert isinstance(error, CompactionError)
    assert error.code == "compaction_settings" and error.details["reason"] == "settings"
    assert (error.details["setting"], error.details["value"]) == (setting, value)
    assert error.details["expected"]


def test_no_room_for_messages_is_refused_with_the_four_numbers() -> None:
    """Window 1,000, reserve 900, tools of 500 tokens: no compaction could ever help."""
    settings = CompactionSettings(context_window=1_000, reserve_tokens=900)
    with pytest.raises(SettingsError) as caught:
        settings.check(20, 500)
    _check_refusal(caught.value, "context_window", 1_000)
    assert all(number in str(caught.value) for number in ("1000", "900", "500", "20"))
    sizes = {"window": 1_000, "system": 20, "tools": 500, "reserve": 900}
    assert sizes.items() <= caught.value.details.items()
    assert settings.check(20, 79) == 1


def test_a_summary_that_leaves_no_room_is_refused_with_the_numbers() -> None:
    """It would be over the aim by itself."""
    settings = CompactionSettings(context_window=1_000, reserve_tokens=0, max_summary_tokens=300)
    with pytest.raises(SettingsError, match="300") as caught:
        settings.check(0, 0)
    _check_refusal(caught.value, "max_summary_tokens", 300)


def test_a_model_that_refused_a_context_has_no_larger_window() -> None:
    """The window narrows to what was refused, never widens; a reserve that no longer fits gives way."""
    settings = CompactionSettings(context_window=128_000, reserve_tokens=10_000)
    assert settings.after_overflow(50_000).window == 50_000
    assert settings.after_overflow(50_000).reserve == 10_000
    assert settings.after_overflow(500_000).window == 128_000
    assert settings.after_overflow(2_000).reserve == 500
    assert CompactionSettings().after_overflow(2_048).window == 2_048
