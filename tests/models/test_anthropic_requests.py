"""Sending to Anthropic's API: its headers and addresses, retries, timeouts, refusals, and keys that stay secret."""

from __future__ import annotations

import io
import json
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness import AgentHarness, AgentSettings, MemoryStorage, Session, ToolResultMessage
from harness.models import AnthropicModel, ModelRequest, RetryPolicy, Timeouts
from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from storage.errors import ContextOverflowError, ModelError
from storage.messages import AssistantMessage
from tests.models.anthropic_rules import refused
from tests.models.asking import asking, events, reply, running_out
from tests.models.asking_anthropic import KEY, begun, claude, claude_at, ended, said, text, thought

pytestmark = pytest.mark.anyio


def told(kind: str, message: str = "not now") -> dict[str, Any]:
    """An error as the API tells it."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


async def test_what_goes_out_is_the_payload() -> None:
    """The bytes that a server gets are those of ``payload``, with the key and the version in the vendor's headers."""
    with ScriptedServer(["Yes."]) as server:
        model = claude_at(server, headers={"anthropic-beta": "some-feature-2026"})
        await reply(model, asking("Grüße"))
        (request,) = server.requests
    assert request.raw == model.payload(asking("Grüße"))
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["anthropic-beta"] == "some-feature-2026"
    assert "authorization" not in request.headers


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/v1/messages", "/v1?beta=true"])
async def test_base_urls(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base URL may leave ``/v1`` out, name the whole path, or carry a query; it and the key may be in the environment."""
    with ScriptedServer(["Yes."]) as server:
        root = server.base_url.removesuffix("/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", root + ending)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-from-the-environment")
        model = AnthropicModel("m")
        await reply(model)
        assert server.requests[0].path == "/v1/messages" + ("?beta=true" if "?" in ending else "")
        assert server.requests[0].headers["x-api-key"] == "sk-ant-from-the-environment"
        assert model.base_url == root


async def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anthropic is not asked without a key, and the message says where to put one; another server is sent none."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match=r"Anthropic wants an API key: set ANTHROPIC_API_KEY"):
        await reply(AnthropicModel("claude-opus-4-6"))
    with ScriptedServer(["Yes."]) as server:
        assert (await reply(AnthropicModel("m", base_url=server.base_url))).text == "Yes."
        assert "x-api-key" not in server.requests[0].headers


@pytest.mark.parametrize(
    "failure",
    [
        HttpAnswer(529, told("overloaded_error", "Overloaded")),
        HttpAnswer(429, told("rate_limit_error"), {"Retry-After": "0"}),
        HttpAnswer(500, told("api_error", "Internal server error")),
        HttpAnswer(504, "<html>gateway</html>"),
        HttpAnswer(200, [told("overloaded_error", "Overloaded")]),
        HttpAnswer(200, [begun(), {"type": "ping"}, told("overloaded_error", "Overloaded")]),
        HttpAnswer(200, [begun(), told("api_error", "Internal server error")]),
        HttpAnswer(200, told("rate_limit_error")),
        HttpAnswer(200, [begun()], cut=True),
    ],
)
async def test_failures_that_pass_are_tried_again(failure: HttpAnswer) -> None:
    """Overload, limits and broken servers are tried again, under any status, until a piece of the answer has come."""
    with ScriptedServer([failure, failure, "Yes."]) as server:
        assert (await reply(claude_at(server))).text == "Yes."
    assert len({request.raw for request in server.requests}) == 1


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (400, "invalid_request_error", "messages: text content blocks must be non-empty"),
        (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        (401, "authentication_error", "invalid x-api-key"),
        (403, "permission_error", "no access"),
        (404, "not_found_error", "model: claude-nothing"),
        (
            400,
            "invalid_request_error",
            "max_tokens: 99999 > 64000, which is the maximum allowed number of output tokens",
        ),
        (400, "invalid_request_error", "messages.0.content.0.image.source: image exceeds 5 MB maximum"),
    ],
)
async def test_failures_that_stay_are_not_tried_again(status: int, kind: str, message: str) -> None:
    """What will be refused again is asked once, and raised in the vendor's words; it is no overflow."""
    with ScriptedServer([HttpAnswer(status, told(kind, message)), "never"]) as server:
        with pytest.raises(ModelError) as caught:
            await reply(claude_at(server))
        assert len(server.requests) == 1
    assert type(caught.value) is ModelError
    assert message.rstrip(".") in caught.value.message
    assert (caught.value.details["status"], caught.value.details["vendor_code"]) == (status, kind)


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "0.2"}, {"Retry-After": formatdate(time.time() + 3600, usegmt=True)}]
)
async def test_the_servers_delay_counts_and_is_capped(headers: dict[str, str]) -> None:
    """Retry-After is waited for, in seconds or as a date, but never longer than the longest delay."""
    with ScriptedServer([HttpAnswer(429, told("rate_limit_error"), headers), "Yes."]) as server:
        begin = time.monotonic()
        assert (await reply(claude_at(server, retry=RetryPolicy(1, 0.0, 0.2)))).text == "Yes."
        waited = time.monotonic() - begin
    assert 0.19 <= waited < 60


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 178 + 64 > 200, decrease input length or `max_tokens`",
        ),
        (413, "request_too_large", "Request exceeds the maximum size"),
        (413, "", ""),
        (400, "invalid_request_error", "Input is too long for requested model."),
        (400, "invalid_request_error", "too many total text bytes: 9100000 > 9000000"),
    ],
)
async def test_too_long(status: int, kind: str, message: str) -> None:
    """A request that is too long is told by any of the ways in which the vendor and its resellers say so."""
    with ScriptedServer([HttpAnswer(status, told(kind, message)), "never"]) as server:
        with pytest.raises(ContextOverflowError):
            await reply(claude_at(server))
        assert len(server.requests) == 1


async def test_a_hard_window() -> None:
    """The scripted server's window speaks this protocol, and uses up none of the script."""
    with ScriptedServer(["Yes."], context_window=100) as server:
        with pytest.raises(ContextOverflowError, match="prompt is too long"):
            await reply(claude_at(server), asking("long " * 200))
        assert (await reply(claude_at(server))).text == "Yes."


PINGS: Sequence[Any] = [{"type": "ping"}, 0.05] * 1000


@pytest.mark.parametrize(
    ("limits", "answer", "words"),
    [
        (lambda limit: Timeouts(first_event=limit), Reply("Yes.", delay=60), "before it answered"),
        (lambda limit: Timeouts(first_event=limit), HttpAnswer(200, [begun(), *PINGS]), "before it answered"),
        (
            lambda limit: Timeouts(between_events=limit),
            HttpAnswer(200, [begun(), *said("Hel"), 60.0]),
            "in the middle",
        ),
        (
            lambda limit: Timeouts(first_event=limit, between_events=limit / 2),
            HttpAnswer(200, [begun(), *said("Hel"), *PINGS]),
            "in the middle",
        ),
    ],
    ids=["before", "pings before", "between", "pings between"],
)
async def test_each_phase_has_its_time(limits: Callable[[float], Timeouts], answer: Any, words: str) -> None:
    """A server that falls silent, or only pings, is an error in time; it is not asked again."""
    await running_out(lambda server, timeouts: claude_at(server, timeouts=timeouts), answer, limits, words)


async def test_pings_keep_an_answer_alive() -> None:
    """A server that pings while it makes a long piece has as long for it as for the first one."""
    answer = [begun(), *said("Hel"), *PINGS[:20], *said("lo", index=1), *ended()]
    with ScriptedServer([HttpAnswer(200, answer)]) as server:
        seen = await reply(claude_at(server, timeouts=Timeouts(first_event=60, between_events=0.5)))
    assert seen.text == "Hello"


async def test_leaving_early_closes_the_connection() -> None:
    """Who leaves the stream after the first piece ends the request."""
    with ScriptedServer([Reply("Hello, world", chunk_size=1, pause=0.05)]) as server:
        async with claude_at(server).stream(asking()) as stream:
            async for _ in stream:
                break
        assert await anyio.to_thread.run_sync(server.wait_for_hang_up, 1, 60)


async def test_connections_are_kept_inside_async_with_alone() -> None:
    """``async with model`` keeps the connection for the next request: this API ends its streams with an event, too."""
    with ScriptedServer(lambda _: "Yes.") as server:
        async with claude_at(server) as model:
            await reply(model)
            await reply(model)
        await reply(model)
        assert len({request.client for request in server.requests}) == 2


async def test_an_agent_talks_to_it() -> None:
    """A whole turn with tools side by side: each request is one that the API takes, and thinking goes back signed."""

    def read(path: str) -> str:
        """Read a file."""
        if path == "b":
            raise FileNotFoundError(path)
        return f"this is {path}"

    calls = AssistantMessage(
        content=[thought("Two.", "sig"), tool_call("read", "t1", path="a"), tool_call("read", "t1", path="b")],
        stop_reason="toolUse",
    )
    with ScriptedServer([calls, "They differ.", "Good night."]) as server:
        async with Session.open(MemoryStorage.create()) as session:
            settings = AgentSettings(thinking_level="low")
            async with AgentHarness(session, claude_at(server), tools=[read], settings=settings) as harness:
                assert (await harness.prompt("Compare a and b.")).text == "They differ."
                assert (await harness.prompt("Thanks.")).text == "Good night."
            results = [m for m in (await session.build_context()).messages if isinstance(m, ToolResultMessage)]
    assert [result.is_error for result in results] == [False, True]
    bodies = [request.body for request in server.requests]
    assert [refused(body) for body in bodies] == [[], [], []]
    assert bodies[1]["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Two.", "signature": "sig"}
    ids = [block["tool_use_id"] for block in bodies[1]["messages"][2]["content"]]
    assert ids[0] == "t1"
    assert bodies[2]["messages"][:1] == [
        {"role": "user", "content": [text("Compare a and b.").model_dump(exclude_none=True)]}
    ]
    assert all(body["thinking"]["type"] == "adaptive" for body in bodies)


def shown_of(error: BaseException) -> str:
    """All that a log would show of an exception and its causes."""
    out = io.StringIO()
    traceback.TracebackException.from_exception(error).print(file=out)
    return out.getvalue() + repr(error) + repr(getattr(error, "details", ""))


ECHOES: dict[str, Any] = {
    "refused": lambda key: HttpAnswer(401, told("authentication_error", f"invalid x-api-key: {key}")),
    "as the kind": lambda key: HttpAnswer(400, told(f"error of {key}")),
    "with a page": lambda key: HttpAnswer(500, f"<html>{key}</html>"),
    "under 200": lambda key: HttpAnswer(200, told("api_error", key)),
    "in the stream": lambda key: HttpAnswer(200, [begun(), *said("x"), told("api_error", key)]),
    "no event": lambda key: HttpAnswer(200, [f"data: {key}\n\n"]),
    "a refusal": lambda key: HttpAnswer(
        200,
        [begun(), {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": {"explanation": key}}}],
    ),
    "torn": lambda _: HttpAnswer(200, [begun(), *said("x")], cut=True),
    "nothing": lambda _: HttpAnswer(200, b""),
}


@pytest.mark.parametrize("kind", ECHOES)
async def test_no_key_in_errors_and_logs(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a server repeats, the key stands in no exception, no cause, no log, no ``repr``."""
    caplog.set_level(logging.DEBUG)
    key = 'my-"very/secret+key="'
    with ScriptedServer(lambda request: ECHOES[kind](request.headers["x-api-key"])) as server:
        model = claude_at(server, api_key=key, retry=RetryPolicy(1, 0.01))
        with pytest.raises(ModelError) as caught:
            await events(model)
        assert server.requests[0].headers["x-api-key"] == key
    shown = shown_of(caught.value) + caplog.text + repr(model) + str(vars(model)) + model.payload(asking()).decode()
    for form in (key, json.dumps(key)[1:-1], "very/secret"):
        assert form not in shown


def test_a_key_that_no_header_can_carry() -> None:
    """Such a key is refused when the model is made, without being shown."""
    key = "sk-ant-broken\nkey"
    with pytest.raises(ModelError) as caught:
        claude(api_key=key)
    assert key not in shown_of(caught.value)


def test_it_says_what_it_is() -> None:
    """The ``repr`` names model and place; provider, id and window are those of the record."""
    model = claude(context_window=200_000)
    assert repr(model) == "AnthropicModel('claude-opus-4-6', provider='anthropic', base_url='http://127.0.0.1:1')"
    assert (model.provider, model.model_id, model.context_window) == ("anthropic", "claude-opus-4-6", 200_000)
    assert model.payload(ModelRequest(None, asking().messages))
