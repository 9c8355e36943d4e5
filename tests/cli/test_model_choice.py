"""Which model a name chooses."""

from __future__ import annotations

import pytest

from compaction.state import ModelChoice
from harness.cli.failures import CommandLineError
from harness.cli.model_choice import choose_model
from harness.testing import ScriptedServer
from tests.cli.conftest import Command

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
ROUTER = "http://127.0.0.1:9/v1"
OPENAIS = {"OPENAI_API_KEY": "sk-1"}
ANTHROPICS = {"ANTHROPIC_API_KEY": "sk-ant-1"}
ROUTERS = {"OPENAI_BASE_URL": ROUTER}


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    name: str | None,
    base_url: str | None = None,
    recorded: ModelChoice | None = None,
) -> str:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    model = choose_model(name=name, base_url=base_url, model_file=None, recorded=recorded)
    return f"{type(model).__name__} {model.model_id}"


@pytest.mark.parametrize(
    ("name", "environment", "base_url", "expected"),
    [
        ("claude-opus-4-6", ANTHROPICS, None, "AnthropicModel claude-opus-4-6"),
        ("anthropic/claude-opus-4-6", ANTHROPICS, None, "AnthropicModel claude-opus-4-6"),
        ("anthropic/any", {"ANTHROPIC_BASE_URL": ROUTER}, None, "AnthropicModel any"),
        ("claude-opus-4-6", OPENAIS | ANTHROPICS | ROUTERS, None, "AnthropicModel claude-opus-4-6"),
        ("anthropic/claude-opus-4-6", ANTHROPICS, ROUTER, "OpenAIChatModel anthropic/claude-opus-4-6"),
        ("anthropic/claude-opus-4-6", OPENAIS | ROUTERS, None, "OpenAIChatModel anthropic/claude-opus-4-6"),
        ("gpt-5-mini", OPENAIS | ANTHROPICS, None, "OpenAIChatModel gpt-5-mini"),
        ("my-claude-3", OPENAIS | ANTHROPICS, None, "OpenAIChatModel my-claude-3"),
    ],
)
def test_a_claude_is_anthropics(
    monkeypatch: pytest.MonkeyPatch, name: str, environment: dict[str, str], base_url: str | None, expected: str
) -> None:
    """``claude-…`` and ``anthropic/NAME`` are asked of Anthropic, but for a server that was named instead."""
    assert chosen(monkeypatch, environment, name, base_url) == expected


@pytest.mark.parametrize(
    ("provider", "model_id", "environment", "base_url", "expected"),
    [
        ("anthropic", "claude-opus-4-6", OPENAIS | ANTHROPICS, None, "AnthropicModel claude-opus-4-6"),
        ("anthropic", "any", ANTHROPICS | ROUTERS, None, "AnthropicModel any"),
        ("anthropic", "any", ANTHROPICS, ROUTER, "OpenAIChatModel any"),
        ("openai", "anthropic/any", ANTHROPICS | ROUTERS, None, "OpenAIChatModel anthropic/any"),
    ],
)
def test_a_session_goes_on_with_its_provider(
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    model_id: str,
    environment: dict[str, str],
    base_url: str | None,
    expected: str,
) -> None:
    """Without a name it is the recorded provider that counts, whatever the recorded name looks like."""
    recorded = ModelChoice(provider, model_id)
    assert chosen(monkeypatch, environment, None, base_url, recorded) == expected


@pytest.mark.parametrize("recorded", [None, ModelChoice("anthropic", "claude-opus-4-6")])
def test_a_claude_needs_its_key(monkeypatch: pytest.MonkeyPatch, recorded: ModelChoice | None) -> None:
    """Without Anthropic's key the message names it; OpenAI's is none for a Claude."""
    with pytest.raises(CommandLineError, match="ANTHROPIC_API_KEY") as caught:
        chosen(monkeypatch, OPENAIS, None if recorded else "claude-opus-4-6", recorded=recorded)
    assert any("ANTHROPIC_API_KEY" in hint for hint in caught.value.hints)


def test_chat_with_a_claude(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """``branchline chat --model claude-…`` speaks Anthropic's protocol, and the session goes on with it."""
    with ScriptedServer(["It is Branchline.", "Its authors."]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
        first = command("chat", "What is it called?", "--model", "claude-opus-4-6")
        assert (first.code, first.out) == (0, "It is Branchline.\n")
        second = command("chat", "-s", "last", "Who wrote it?")
        assert (second.code, second.out) == (0, "Its authors.\n")
    assert [request.path for request in server.requests] == ["/v1/messages"] * 2
    assert server.requests[0].headers["x-api-key"] == "sk-ant-1"
    assert [message["role"] for message in server.requests[1].messages] == ["user", "assistant", "user"]


def test_what_was_said_to_a_server_of_ones_own_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of one's own is recorded by its host; going on without naming it, or a model, sends nothing anywhere."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-anybody")
    with ScriptedServer(["Hello."]) as server:
        model = choose_model(name=None, base_url=server.base_url, model_file=None, recorded=None)
        host = server.base_url.split("/")[2]
        assert model.provider == host
    recorded = ModelChoice(host, "default")
    with pytest.raises(CommandLineError, match=host):
        choose_model(name=None, base_url=None, model_file=None, recorded=recorded)
    assert choose_model(name="gpt-5-mini", base_url=None, model_file=None, recorded=recorded).provider == "openai"
