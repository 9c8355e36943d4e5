"""Settings that cannot be are refused where they are made: one error, with the setting, its value and what to give."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from harness import (
    AgentHarness,
    AgentSettings,
    BranchlineError,
    CompactionError,
    CompactionSettings,
    MemoryStorage,
    RetryPolicy,
    Session,
    SettingsError,
    Timeouts,
    UserMessage,
)
from harness.testing import ScriptedModel

pytestmark = pytest.mark.anyio

NO_NUMBERS: list[Any] = ["3", True, False, math.nan, -1, [], b"1"]
"""What is no number that anything can be set to. None is, in some places."""

WHOLE: list[tuple[type, str]] = [
    (AgentSettings, "max_steps"),
    (AgentSettings, "max_result_chars"),
    (AgentSettings, "max_turn_tokens"),
    (AgentSettings, "max_chars"),
    (AgentSettings, "max_tokens"),
    (AgentSettings, "reserve_tokens"),
    (CompactionSettings, "context_window"),
    (CompactionSettings, "reserve_tokens"),
    (CompactionSettings, "summarizer_window"),
    (CompactionSettings, "keep_recent_turns"),
    (CompactionSettings, "max_summary_tokens"),
    (CompactionSettings, "shortened_chars"),
    (RetryPolicy, "retries"),
]
NUMBERS: list[tuple[type, str]] = [
    (AgentSettings, "max_turn_seconds"),
    (AgentSettings, "tool_timeout"),
    (CompactionSettings, "trigger_ratio"),
    (CompactionSettings, "target_ratio"),
    (CompactionSettings, "shorten_ratio"),
    (CompactionSettings, "summary_timeout"),
    (Timeouts, "connect"),
    (Timeouts, "write"),
    (Timeouts, "first_event"),
    (Timeouts, "between_events"),
    (Timeouts, "after_finish"),
    (Timeouts, "whole"),
    (RetryPolicy, "first_delay"),
    (RetryPolicy, "longest_delay"),
]
OTHERS: list[tuple[type, str, Any]] = [
    (AgentSettings, "max_steps", None),
    (AgentSettings, "max_steps", 0),
    (AgentSettings, "max_turn_seconds", 0),
    (AgentSettings, "steering_mode", "some"),
    (AgentSettings, "follow_up_mode", None),
    (AgentSettings, "compaction", None),
    (AgentSettings, "compaction", "no"),
    (AgentSettings, "estimator", len),
    (AgentSettings, "estimator", "gpt-5-mini"),
    (AgentSettings, "thinking_level", 3),
    (AgentSettings, "thinking_level", " "),
    (AgentSettings, "options", [("temperature", 1)]),
    (AgentSettings, "working_directory", "/tmp"),
    (CompactionSettings, "keep_recent_turns", None),
    (CompactionSettings, "trigger_ratio", 1.0),
    (Timeouts, "connect", None),
    (RetryPolicy, "retries", None),
]
WRONG = [
    *((kind, name, value) for kind, name in [*WHOLE, *NUMBERS] for value in NO_NUMBERS),
    *((kind, name, value) for kind, name in WHOLE for value in (1.5, math.inf)),
    *OTHERS,
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG, ids=lambda each: getattr(each, "__name__", repr(each)))
def test_a_setting_that_cannot_be(kind: type, name: str, value: Any) -> None:
    """Never a bare ``TypeError``, and nothing that is found out in the middle of a turn."""
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: {name} is .*; give ") as caught:
        kind(**{name: value})
    error = caught.value
    assert isinstance(error, SettingsError)
    assert isinstance(error, CompactionError) is (kind is CompactionSettings)
    facts = cast("BranchlineError", error).details
    assert facts["setting"] == name
    assert facts["value"] is value
    assert facts["expected"] in str(error)
    assert repr(value) in str(error)


def test_settings_that_can_be() -> None:
    """The bounds themselves, and what None and infinity stand for."""
    AgentSettings(max_steps=1, max_turn_seconds=math.inf, reserve_tokens=0, max_tokens=None, compaction=False)
    CompactionSettings(
        context_window=0, trigger_ratio=0.95, shortened_chars=500, shorten_ratio=None, summary_timeout=None
    )
    Timeouts(whole=math.inf, connect=1)
    RetryPolicy(retries=0, first_delay=0, longest_delay=0)


async def test_settings_that_are_none() -> None:
    """A harness takes nothing else for its settings, and no window that is no number, such as an environment variable."""
    async with Session.open(MemoryStorage.create()) as session:
        settings: Any = {"max_steps": 3}
        with pytest.raises(SettingsError, match="give AgentSettings"):
            AgentHarness(session, ScriptedModel([]), settings=settings)
        for window in cast("list[Any]", ["8192", math.nan, True, -1]):
            with pytest.raises(SettingsError, match="context_window is .*; give a whole number"):
                AgentHarness(session, ScriptedModel([], context_window=window))
            harness = AgentHarness(session, ScriptedModel([]))
            with pytest.raises(SettingsError, match="context_window"):
                await harness.set_model(ScriptedModel([], context_window=window))
        assert await session.entries() == []


async def test_a_window_of_0_is_one_that_is_not_known() -> None:
    """Some servers say 0 where they do not know."""
    async with Session.open(MemoryStorage.create()) as session:
        async with AgentHarness(session, ScriptedModel(["Hello."], context_window=0)) as harness:
            assert (await harness.prompt("Hello?")).text == "Hello."


async def test_a_budget_that_is_no_number() -> None:
    """``build_context`` says so, and does not take it for no budget, or for none left."""
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_message(UserMessage(content="Hello."))
        for name in ("max_chars", "max_tokens"):
            for value in NO_NUMBERS:
                budget: Any = {name: value}
                with pytest.raises(SettingsError, match=f"{name} is .*; give a whole number"):
                    await session.build_context(**budget)
