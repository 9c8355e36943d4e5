"""Claude's thinking: asked for as each model takes it, and sent back unchanged to the model that made it, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from harness.models import ModelRequest
from storage.messages import AssistantMessage, Message, UserMessage
from tests.models.anthropic_rules import refused
from tests.models.asking import READ, asking
from tests.models.asking_anthropic import body_of, call, called, claude, result, text, thought

USER = UserMessage(content="Hello?")


def own(*content: Any, **members: Any) -> AssistantMessage:
    made_by: dict[str, Any] = {
        "api": "anthropic-messages",
        "provider": "anthropic",
        "model": "claude-opus-4-6",
        **members,
    }
    return AssistantMessage(content=list(content), **made_by)


def sent_back(reply: AssistantMessage) -> list[dict[str, Any]]:
    sent = body_of(ModelRequest(None, [USER, reply, *(result(c.id) for c in reply.tool_calls), USER], [READ]))
    assert refused(sent) == []
    return [block for message in sent["messages"] if message["role"] == "assistant" for block in message["content"]]


def test_thinking_goes_back_unchanged() -> None:
    """To the model that made it thinking goes back byte for byte and in its place, hidden thinking as well."""
    reply = own(
        thought("one \u2028 ", "sig+/1=="), thought("", "data==", redacted=True), text("So."), thought("", "s2"), call()
    )
    assert sent_back(reply) == [
        {"type": "thinking", "thinking": "one \u2028 ", "signature": "sig+/1=="},
        {"type": "redacted_thinking", "data": "data=="},
        {"type": "text", "text": "So."},
        {"type": "thinking", "thinking": "", "signature": "s2"},
        {"type": "tool_use", "id": "c1", "name": "read", "input": {}},
    ]


@pytest.mark.parametrize(
    "other", [{"model": "claude-opus-4-7"}, {"provider": "elsewhere"}, {"api": "openai-completions"}, {"model": None}]
)
def test_thinking_goes_to_no_other_model(other: dict[str, Any]) -> None:
    """Thinking of another model, provider or API is left out whole."""
    reply = own(thought(), text("a"), thought("", "data", redacted=True), call(), **other)
    assert [block["type"] for block in sent_back(reply)] == ["text", "tool_use"]


@pytest.mark.parametrize(
    "content",
    [
        [thought(), text("a"), thought(signature=None), call()],
        [thought(), text("a"), thought("", "", redacted=True), call()],
        [thought(), text("a"), thought()],
        [thought(), text("a"), thought(), text(" ")],
    ],
    ids=["unsigned", "no data", "at the end", "before a blank"],
)
def test_thinking_that_would_be_refused_is_left_out_whole(content: list[Any]) -> None:
    """One part without a signature, or at the end of the reply, and none of its thinking is sent."""
    assert {block["type"] for block in sent_back(own(*content))} <= {"text", "tool_use"}


@pytest.mark.parametrize(
    ("model_id", "level", "thinking", "effort"),
    [
        ("claude-opus-4-6", None, None, None),
        ("claude-opus-4-6", "off", None, None),
        ("claude-opus-4-6", "minimal", "adaptive", "low"),
        ("claude-sonnet-5", "high", "adaptive", "high"),
        ("claude-mythos-preview", "medium", "adaptive", "medium"),
        ("claude-sonnet-4-5-20250929", "minimal", 1024, None),
        ("claude-opus-4-20250514", "low", 4096, None),
        ("claude-3-7-sonnet-20250219", "high", 8192, None),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "medium", 8192, None),
        ("claude-3-5-sonnet-20241022", "high", None, None),
        ("kimi-k2", "low", 4096, None),
    ],
)
def test_thinking_levels(model_id: str, level: str | None, thinking: Any, effort: str | None) -> None:
    """A level is an effort to models that know one, a budget of at most half the reply to older ones, else nothing."""
    sent = body_of(asking(thinking_level=level), claude(model_id, max_tokens=16_384))
    asked = sent.get("thinking") or {}
    assert asked.get("budget_tokens", asked.get("type")) == thinking
    assert sent.get("output_config", {}).get("effort") == effort


def test_thinking_that_the_caller_asks_for() -> None:
    """An option that says how to think wins over the level; and where there is no room to think, it is not asked for."""
    old = claude("claude-opus-4-5", max_tokens=2000)
    assert "thinking" not in body_of(asking(thinking_level="high"), old)
    disabled = {"type": "disabled"}
    sent = body_of(asking(thinking_level="high", options={"thinking": disabled}))
    assert (sent["thinking"], sent.get("output_config")) == (disabled, None)


def test_no_budget_in_the_middle_of_thoughtless_calls() -> None:
    """Results of calls that were not thought about are refused along with a budget: it waits for the next question."""
    old = claude("claude-opus-4-5")
    made_by = {"provider": "anthropic", "model": "claude-opus-4-5"}

    def asks(*messages: Message, model: Any = old) -> bool:
        return "thinking" in body_of(ModelRequest(None, messages, [READ], thinking_level="low"), model)

    assert not asks(USER, called(call()), result())
    assert asks(USER, called(call()), result(), model=claude())
    assert asks(USER, called(thought(), call(), **made_by), result())
    assert asks(USER, called(call()), result(), called(text("Done.")), USER)
