"""Whatever a model, a server, a tool or a client does: a well-formed history, a clear message, and the next prompt works.

Through the real adapters, over a real socket, into a real file.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness import (
    AgentHarness,
    AgentSettings,
    AnthropicModel,
    ContextOverflowError,
    JsonlStorage,
    ModelError,
    ModelTimeoutError,
    OpenAIChatModel,
    RetryPolicy,
    Session,
    TextDelta,
    Timeouts,
)
from harness.models import http_chat
from harness.testing import Answer, HttpAnswer, ReceivedRequest, Reply, ScriptedServer, tool_call
from storage.messages import ImageContent
from tests.agent.agents import history
from tests.agent.bad_input import KINDS, Kind, check, check_next, echo_tool, model_at
from tests.models.asking import stream_of
from tests.models.asking_anthropic import begun, ended, said

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Failure:
    """What a server does, and what comes of it."""

    openai: Callable[[], list[Any]]
    anthropic: Callable[[], list[Any]] | None = None
    """None: the same in both protocols."""
    error: type[ModelError] = ModelError
    says: str = ""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    heard: str = ""
    """The text that is kept of half a reply."""


def half(*more: Any, cut: bool = False) -> Callable[[], list[Any]]:
    """OpenAI's half of a reply."""
    return lambda: [HttpAnswer(200, [*stream_of({"content": "Half a"}, finish=None, done=False), *more], cut=cut)]


def half_block(*more: Any, cut: bool = False) -> Callable[[], list[Any]]:
    """Anthropic's half of a reply."""
    return lambda: [HttpAnswer(200, [begun(), *said("Half a")[:2], *more], cut=cut)]


def once(answer: Any) -> Callable[[], list[Any]]:
    return lambda: [answer]


def echo(request: Any) -> HttpAnswer:
    """A refusal that repeats the key, as some servers do."""
    key = request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer ")
    return HttpAnswer(401, {"error": {"message": f"Incorrect API key provided: {key}", "type": "authentication_error"}})


BURNS = {"type": "error", "error": {"type": "api_error", "message": "it burns"}}
LIMITED = HttpAnswer(429, {"error": {"message": "Slow down."}}, {"Retry-After": "0.02"})

FAILURES: dict[str, Failure] = {
    "garbage": Failure(once(HttpAnswer(200, ["data: \x00\x1b]0;x\x07 {oops\n\n"])), says="is no"),
    "a login page": Failure(once(HttpAnswer(200, "<html>Log in</html>", {"Content-Type": "text/html"})), says="is no"),
    "an empty body": Failure(once(HttpAnswer(200, b"")), says="without saying anything"),
    "an empty object": Failure(once(HttpAnswer(200, {})), says="is no"),
    "an error under 200": Failure(once(HttpAnswer(200, BURNS)), says="it burns", settings={"retry": RetryPolicy(0)}),
    "nothing but an opening": Failure(
        once(HttpAnswer(200, stream_of({"role": "assistant"}, finish=None, done=False))),
        once(HttpAnswer(200, [begun()])),
        says="without saying anything",
    ),
    "it stops half-way": Failure(half(), half_block(), says="in the middle", heard="Half a"),
    "the connection breaks half-way": Failure(half(cut=True), half_block(cut=True), says="broke in", heard="Half a"),
    "an error half-way": Failure(half(BURNS), half_block(BURNS), says="it burns", heard="Half a"),
    "garbage half-way": Failure(half("data: <p>\n\n"), half_block("data: <p>\n\n"), says="is no", heard="Half a"),
    "silence half-way": Failure(
        half(60.0),
        half_block(60.0),
        ModelTimeoutError,
        "fell silent",
        {"timeouts": Timeouts(between_events=0.5)},
        heard="Half a",
    ),
    "silence": Failure(
        once(Reply("x", delay=60)),
        error=ModelTimeoutError,
        says="before it answered",
        settings={"timeouts": Timeouts(first_event=0.1)},
    ),
    "it drips for ever": Failure(
        once(Reply("x" * 2_000, chunk_size=1, pause=0.02)),
        error=ModelTimeoutError,
        says="fell silent",
        settings={"timeouts": Timeouts(whole=3)},  # time enough to hear it begin
        heard="x",
    ),
    "it talks for ever": Failure(once("la " * 10_000), says="without an end", heard="la la"),
    "it calls for ever": Failure(once([tool_call("echo", text="la " * 10_000)]), says="without an end"),
    "it is filtered": Failure(
        lambda: [HttpAnswer(200, stream_of({"content": "Half a"}, finish="content_filter"))],
        lambda: [HttpAnswer(200, [begun(), *said("Half a"), *ended("refusal")])],
        says="gave up its answer",
        heard="Half a",
    ),
    "a wrong key that is echoed": Failure(once(echo), says="HTTP 401"),
    "a wrong key that is echoed under 200": Failure(
        once(lambda request: HttpAnswer(200, [json.dumps(echo(request).body)], {"Content-Type": "application/json"})),
        says="Incorrect API key",
    ),
    "not allowed": Failure(once(HttpAnswer(403, {"error": {"message": "Not for you."}})), says="Check the API key"),
    "no such model": Failure(once(HttpAnswer(404, {"error": {"message": "No model."}})), says="Check the model's name"),
    "no money": Failure(
        once(HttpAnswer(429, {"error": {"code": "insufficient_quota", "message": "Pay first."}})), says="Pay first"
    ),
    "limited for ever": Failure(lambda: [LIMITED, LIMITED], says="Slow down"),
    "down for ever": Failure(lambda: [HttpAnswer(503), HttpAnswer(503)], says="HTTP 503"),
    "it hangs up": Failure(lambda: [HttpAnswer(0), HttpAnswer(0)], says="broke before"),
    "too long": Failure(
        once(HttpAnswer(400, {"error": {"message": "prompt is too long: 201 tokens > 200 maximum"}})),
        error=ContextOverflowError,
        says="too long for the model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAILURES)
async def test_models_that_fail(
    name: str, kind: Kind, chat: Session, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn fails with one message; what was heard of the reply is kept; the next prompt works."""
    monkeypatch.setattr(http_chat, "LARGEST_REPLY", 10_000)
    case = FAILURES[name]
    make = case.anthropic if case.anthropic is not None and kind is AnthropicModel else case.openai
    with ScriptedServer([*make(), "It works again."]) as server:
        model = model_at(kind, server.base_url, **case.settings)
        harness = AgentHarness(chat, model, tools=[echo_tool], settings=AgentSettings(max_steps=3))
        with anyio.fail_after(60), pytest.raises(case.error, match=case.says) as caught:
            await harness.prompt("Hello?")
        await check(chat, place, caught.value)
        last = (await chat.build_context()).messages[-1]
        assert last.text.startswith(case.heard) if case.heard else last.role == "user"
        if "timeouts" in case.settings:  # a server that answers may take longer than one that does not
            await harness.set_model(model_at(kind, server.base_url))
        await check_next(chat, harness)


@pytest.mark.parametrize("name", ["a login page", "an error half-way", "it is filtered", "it calls for ever"])
async def test_streamed_and_plain_turns_leave_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches a turn that fails, and who does not, have the same history; the watcher is told the error once."""
    monkeypatch.setattr(http_chat, "LARGEST_REPLY", 10_000)
    histories: list[list[str]] = []
    for way in ("prompt", "stream"):
        with ScriptedServer([*FAILURES[name].openai(), "It works again."]) as server:
            async with Session.open(JsonlStorage.create(tmp_path / f"{way}.jsonl")) as session:
                harness = AgentHarness(session, model_at(OpenAIChatModel, server.base_url), tools=[echo_tool])
                with pytest.raises(ModelError):
                    if way == "prompt":
                        await harness.prompt("Hello?")
                    else:
                        async with harness.stream("Hello?") as events:
                            async for _ in events:
                                pass
                await check_next(session, harness)
                histories.append(await history(session))
    assert histories[0] == histories[1]


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A port of this machine that refuses."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A port that takes no connection and refuses none: its queue is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        for each in waiting:
            each.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["a port that refuses", "a host that does not exist", "a black hole"])
async def test_no_network(way: str, kind: Kind, chat: Session, place: Path, nowhere: str, black_hole: str) -> None:
    """No way to the server: one message that names it, soon; and with a server the same conversation goes on."""
    url = {"a port that refuses": nowhere, "a black hole": black_hole}.get(way, "http://nowhere.invalid")
    model = model_at(kind, url, timeouts=Timeouts(connect=0.1))
    async with AgentHarness(chat, model) as harness:
        with anyio.fail_after(60), pytest.raises(ModelError, match="cannot be reached") as caught:
            await harness.prompt("Hello?")
        assert url.removeprefix("http://") in str(caught.value)
        await check(chat, place, caught.value)
    with ScriptedServer(["It works again."]) as server:
        async with AgentHarness(chat, model_at(kind, server.base_url)) as harness:
            await check_next(chat, harness)


@pytest.mark.parametrize(
    ("kind", "variable"), [(OpenAIChatModel, "OPENAI_API_KEY"), (AnthropicModel, "ANTHROPIC_API_KEY")]
)
async def test_no_key(kind: Kind, variable: str, chat: Session, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key nothing is sent to a vendor: the message names the variable, and with a key it goes on."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    async with AgentHarness(chat, kind("any")) as harness:
        with pytest.raises(ModelError, match=variable) as caught:
            await harness.prompt("Hello?")
    await check(chat, place, caught.value)
    with ScriptedServer(["It works again."]) as server:
        async with AgentHarness(chat, model_at(kind, server.base_url)) as harness:
            await check_next(chat, harness)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["at the first word", "at once"])
async def test_a_client_that_goes_away(kind: Kind, when: str, chat: Session, place: Path) -> None:
    """Who leaves the stream cancels the turn: the server sees it, what was heard is kept, and the next prompt works."""
    with ScriptedServer([Reply("Hello, world", chunk_size=2, pause=0.05), "It works again."]) as server:
        harness = AgentHarness(chat, model_at(kind, server.base_url))
        async with harness.stream("Hello?") as events:
            async for event in events:
                if when == "at once" or isinstance(event, TextDelta):
                    break
        await check(chat, place)
        if when == "at the first word":
            assert await anyio.to_thread.run_sync(server.wait_for_hang_up, 1, 60)
            assert (await chat.build_context()).messages[-1].text.startswith("He")
            await check_next(chat, harness)


@pytest.mark.parametrize(
    "settings", [{}, {"options": {"max_tokens": 900}}, {"options": {"max_completion_tokens": 900}}]
)
@pytest.mark.parametrize("is_compacting", [True, False], ids=["summarising", "leaving out"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_window_that_prompt_and_reply_share(
    kind: Kind, is_compacting: bool, settings: dict[str, Any], chat: Session, place: Path
) -> None:
    """The longest reply that is asked for and the prompt fit the window together, however long the conversation.

    By leaving out as well as by summarising: a summary has a request of its own, which fits too.
    """
    window = 2_000
    refused: list[ReceivedRequest] = []

    def strict(request: ReceivedRequest) -> Answer:
        reply = max(request.body.get(name, 0) for name in ("max_tokens", "max_completion_tokens"))
        size = len(request.raw) // 5  # what is around the texts is hardly a token
        if size + reply > window:
            refused.append(request)
            return HttpAnswer(400, {"error": {"message": f"{size} + {reply} > {window}: exceed context limit"}})
        return "y" * 400

    with ScriptedServer(strict) as server:
        model = model_at(kind, server.base_url, context_window=window, **settings)
        harness = AgentHarness(chat, model, settings=AgentSettings(compaction=is_compacting))
        for number in range(10):
            await harness.prompt(f"{number} " + "x" * 400)
    await check(chat, place)
    assert refused == []
    assert len(server.requests) == 10 or is_compacting


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_that_is_refused_can_be_left_behind(kind: Kind, chat: Session, place: Path) -> None:
    """What a provider will never take is in the way until one branches from before it, as the message says."""

    def strict(request: ReceivedRequest) -> Answer:
        if len(request.raw) > 100_000:
            return HttpAnswer(
                400, {"error": {"type": "invalid_request_error", "message": "image exceeds 5 MB maximum"}}
            )
        return "It works again."

    with ScriptedServer(strict) as server:
        harness = AgentHarness(chat, model_at(kind, server.base_url))
        await harness.prompt("Hello?")
        before = chat.leaf_id
        for prompt in ([ImageContent(data="AAAA" * 50_000, mime_type="image/png")], "And now?"):
            with pytest.raises(ModelError, match="branch from before it") as caught:
                await harness.prompt(prompt)
            await check(chat, place, caught.value)
        await chat.move_to(before)
        assert (await harness.prompt("And now?")).text == "It works again."
