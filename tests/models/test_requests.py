"""Sending a request: retries, timeouts, cancellation, connections, and servers that refuse."""

from __future__ import annotations

import gc
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from harness.models import ModelRequest, OpenAIChatModel, RetryPolicy, TextDelta, Timeouts
from harness.testing import HttpAnswer, Reply, ScriptedServer
from storage.errors import ContextOverflowError, ModelError
from storage.messages import UserMessage
from tests.models.asking import asking, events, model_at, reply, request_of, running_out, stream_of

pytestmark = pytest.mark.anyio


def failing(status: int, **headers: str) -> HttpAnswer:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status, {"error": {"message": "not now"}}, names)


@pytest.fixture
def unused_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listened on
        yield taken.getsockname()[1]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
async def test_failures_that_pass_are_tried_again(status: int) -> None:
    """429, 5xx and overload are tried again, with the same bytes."""
    with ScriptedServer([failing(status), failing(status), "Yes."]) as server:
        assert (await reply(model_at(server))).text == "Yes."
    assert len({request.raw for request in server.requests}) == 1
    assert len(server.requests) == 3


async def test_overload_is_recognised_under_any_status() -> None:
    """Overload is tried again where it comes as 400, or as the first event of a stream."""
    told = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    rate = {"error": {"code": 429, "message": "slow down"}}
    with ScriptedServer([HttpAnswer(400, told), HttpAnswer(200, [told]), HttpAnswer(200, [rate]), "Yes."]) as server:
        assert (await reply(model_at(server, retry=RetryPolicy(3, 0.01)))).text == "Yes."


async def test_retries_end() -> None:
    """After so many retries the last error is raised, with its status and the server's words."""
    with ScriptedServer(lambda _: failing(503, Retry_After="0")) as server:
        with pytest.raises(ModelError, match="not now") as caught:
            await reply(model_at(server))
        assert len(server.requests) == 3
    assert (caught.value.details["status"], caught.value.details["retry_after"]) == (503, 0)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
async def test_failures_that_stay_are_not_tried_again(status: int) -> None:
    """What will be refused again is asked once."""
    with ScriptedServer([failing(status), "never"]) as server:
        with pytest.raises(ModelError, match="not now") as caught:
            await reply(model_at(server))
        assert len(server.requests) == 1
    assert caught.value.details["status"] == status


async def test_an_empty_account_is_not_tried_again() -> None:
    """429 for want of money is no reason to wait."""
    told = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota."}}
    with ScriptedServer([HttpAnswer(429, told), "never"]) as server:
        with pytest.raises(ModelError, match="quota"):
            await reply(model_at(server))
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "0.2"},
        {"retry-after-ms": "200", "Retry-After": "900"},
        {"Retry-After": "3600"},
        {"Retry-After": formatdate(time.time() + 3600, usegmt=True)},
    ],
)
async def test_the_servers_delay_counts_and_is_capped(headers: dict[str, str]) -> None:
    """Retry-After is waited for, in seconds, milliseconds or as a date, but never longer than the longest delay."""
    with ScriptedServer([HttpAnswer(429, {"error": "x"}, headers), "Yes."]) as server:
        begun = time.monotonic()
        assert (await reply(model_at(server, retry=RetryPolicy(1, 0.0, 0.2)))).text == "Yes."
        waited = time.monotonic() - begun
    assert 0.19 <= waited < 60


@pytest.mark.parametrize("value", ["-5", "nan", "soon", "Thu, 01 Jan 1970 00:00:00 GMT", ""])
async def test_a_senseless_delay(value: str) -> None:
    """A Retry-After in the past, or that is none, holds nothing up."""
    with ScriptedServer([HttpAnswer(503, {"error": "x"}, {"Retry-After": value}), "Yes."]) as server:
        assert (await reply(model_at(server))).text == "Yes."


async def test_a_connection_lost_before_the_answer_is_tried_again() -> None:
    """A connection that breaks before the first piece of an answer has lost nothing."""
    with ScriptedServer([HttpAnswer(200, [], cut=True), HttpAnswer(503, b"x", cut=True), "Yes."]) as server:
        assert (await reply(model_at(server))).text == "Yes."
        assert len(server.requests) == 3


async def test_no_server(unused_port: int) -> None:
    """A server that is not there is one clear error, after the retries."""
    model = OpenAIChatModel("m", base_url=f"http://127.0.0.1:{unused_port}/v1", retry=RetryPolicy(1, 0.01))
    with pytest.raises(ModelError, match="cannot be reached") as caught:
        await reply(model)
    assert f"127.0.0.1:{unused_port}" in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "answer", "words"),
    [
        (lambda limit: Timeouts(first_event=limit), Reply("Yes.", delay=60), "before it answered"),
        (lambda limit: Timeouts(first_event=limit), HttpAnswer(200, [": ping\n\n", 0.05] * 1000), "before it answered"),
        (
            lambda limit: Timeouts(first_event=limit, between_events=60),
            HttpAnswer(200, [*stream_of({"role": "assistant", "content": ""}, finish=None, done=False), 60.0]),
            "before it answered",
        ),
        (
            lambda limit: Timeouts(between_events=limit),
            HttpAnswer(200, [*stream_of({"content": "Yes, "}, finish=None, done=False), 60.0]),
            "in the middle",
        ),
        (
            lambda limit: Timeouts(between_events=limit),
            HttpAnswer(200, [*stream_of({"content": "x"}, finish=None, done=False)] + [": ping\n\n", 0.05] * 1000),
            "in the middle",
        ),
    ],
    ids=["before", "comments before", "nothing said", "between", "comments between"],
)
async def test_each_phase_has_its_time(limits: Callable[[float], Timeouts], answer: Any, words: str) -> None:
    """A server that falls silent, or sends keep-alive comments alone, is an error in time; it is not asked again."""
    await running_out(lambda server, timeouts: model_at(server, timeouts=timeouts), answer, limits, words)


async def test_usage_is_not_waited_for_long() -> None:
    """After the finish reason a server that says no more does not hold the reply up."""
    with ScriptedServer([HttpAnswer(200, [*stream_of({"content": "x"}, done=False), 600.0])]) as server:
        with anyio.fail_after(60):
            message = await reply(model_at(server, timeouts=Timeouts(after_finish=0.1)))
    assert (message.text, message.usage) == ("x", None)


@pytest.mark.parametrize("when", ["before the answer", "in the answer"])
async def test_cancelling_closes_the_connection(when: str) -> None:
    """A cancelled request is gone from the server as well, before an answer and in the middle of one."""
    in_it = HttpAnswer(200, [*stream_of({"content": "x"}, finish=None, done=False), 60.0])
    script = Reply("Hello, world", delay=60) if when == "before the answer" else in_it
    heard = anyio.Event()

    async def ask(model: OpenAIChatModel) -> None:
        async with model.stream(asking()) as stream:
            async for _ in stream:
                heard.set()

    with ScriptedServer([script]) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, model_at(server))
            while not server.requests:
                await anyio.sleep(0.01)
            if when == "in the answer":
                await heard.wait()
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(server.wait_for_hang_up, 1, 60)


async def test_cancelling_in_the_middle_of_sending_leaves_nothing_to_the_collector() -> None:
    """No generator of the request's body is left behind, which the garbage collector would have trio warn of."""
    large = UserMessage(content="x" * 8_000_000)  # more than the sockets hold
    with socket.create_server(("127.0.0.1", 0)) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = OpenAIChatModel("any", base_url=f"http://127.0.0.1:{server.getsockname()[1]}/v1", api_key="any")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reply, model, ModelRequest(None, [large]))
            connection, _ = await anyio.to_thread.run_sync(server.accept)
            with connection:
                head = b""
                while b"xxx" not in head:  # the body is on its way, and the rest is never taken
                    head += await anyio.to_thread.run_sync(connection.recv, 1_000)
                tasks.cancel_scope.cancel()
                await anyio.lowlevel.checkpoint_if_cancelled()
        gc.collect()
    assert [str(warning.message) for warning in caught if "ByteStream" in str(warning.message)] == []


async def test_leaving_early_closes_the_connection() -> None:
    """Who leaves the stream after the first piece ends the request."""
    with ScriptedServer([Reply("Hello, world", chunk_size=1, pause=0.05)]) as server:
        async with model_at(server).stream(asking()) as stream:
            async for event in stream:
                assert isinstance(event, TextDelta)
                break
        assert await anyio.to_thread.run_sync(server.wait_for_hang_up, 1, 60)


async def test_an_error_of_the_reader_closes_the_connection() -> None:
    """What the reader raises inside the stream goes through unchanged, and ends the request."""
    with ScriptedServer([Reply("Hello, world", chunk_size=1, pause=0.05)]) as server:
        with pytest.raises(LookupError, match="mine"):
            async with model_at(server).stream(asking()) as stream:
                async for _ in stream:
                    raise LookupError("mine")
        assert await anyio.to_thread.run_sync(server.wait_for_hang_up, 1, 60)


async def test_cancelling_a_wait_between_retries() -> None:
    """A wait for the next try ends at once when it is cancelled."""
    with ScriptedServer([failing(503, Retry_After="60")]) as server:
        with anyio.fail_after(60), anyio.move_on_after(0.2) as scope:
            await reply(model_at(server, retry=RetryPolicy()))
        assert scope.cancelled_caught


async def test_many_streams_at_once() -> None:
    """One model serves many requests side by side, each with its own answer."""

    def echo(request: Any) -> Any:
        return Reply(request.messages[-1]["content"], pause=0.01)

    texts: dict[int, str] = {}
    with ScriptedServer(echo) as server:
        model = model_at(server)

        async def ask(number: int) -> None:
            texts[number] = (await reply(model, asking(f"this is number {number}"))).text

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(ask, number)
    assert texts == {number: f"this is number {number}" for number in range(8)}


def test_one_model_on_several_loops() -> None:
    """A model works on one event loop after another, asyncio and trio, also with connections kept."""
    with ScriptedServer(lambda _: "Yes.") as server:
        model = model_at(server)

        async def ask() -> str:
            async with model:
                await reply(model)
                return (await reply(model)).text

        for backend in ("asyncio", "trio", "asyncio"):
            assert anyio.run(ask, backend=backend) == "Yes."
    assert len(server.requests) == 6


async def test_connections_are_kept_inside_async_with_alone() -> None:
    """``async with model`` keeps the connection for the next request; without it none stays open."""
    with ScriptedServer(lambda _: "Yes.") as server:
        model = model_at(server)
        await reply(model)
        await reply(model)
        assert len({request.client for request in server.requests}) == 2
        async with model:
            await reply(model)
            await reply(model)
        assert len({request.client for request in server.requests}) == 3


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_refuses_stream_options(status: int) -> None:
    """A server that refuses to be asked for usage is asked without, at once, and from then on."""

    def strict(request: Any) -> Any:
        if "stream_options" in request.body:
            return HttpAnswer(status, {"error": {"message": "Unrecognized request argument: stream_options"}})
        return "Yes."

    with ScriptedServer(strict) as server:
        model = model_at(server, retry=RetryPolicy(0))
        before = model.payload(asking())
        assert (await reply(model)).text == "Yes."
        assert (await reply(model)).text == "Yes."
        assert model.payload(asking()) == before
        again = await reply(model)
        assert again.model_extra is not None
        assert again.model_extra["sentOptions"] == {"include_usage": False}
    assert ["stream_options" in request.body for request in server.requests] == [True, False, False, False]


@pytest.mark.parametrize("status", [400, 500])
async def test_a_server_that_wants_roles_to_alternate(status: int) -> None:
    """A chat template that refuses two user messages in a row is asked with one, at once, and from then on."""

    def strict(request: Any) -> Any:
        roles = [message["role"] for message in request.messages]
        if roles != ["user"]:
            told = "Conversation roles must alternate user/assistant/user/assistant/..."
            return HttpAnswer(status, {"error": {"message": told}})
        return "Yes."

    request = request_of(UserMessage(content="a"), UserMessage(content="b"))
    with ScriptedServer(strict) as server:
        model = model_at(server, retry=RetryPolicy(0))
        for _ in range(2):
            said = (await reply(model, request)).model_extra or {}
            assert said["sentOptions"] == {"alternate_roles": True}
    assert [len(request.messages) for request in server.requests] == [2, 1, 1]


async def test_usage_that_is_not_wanted() -> None:
    """``include_usage=False`` does not ask for it."""
    with ScriptedServer(["Yes."]) as server:
        assert (await reply(model_at(server, include_usage=False))).usage is None
        assert "stream_options" not in server.requests[0].body


async def test_what_goes_out_is_the_payload() -> None:
    """The bytes that a server gets are those of ``payload``, at the path under the base URL."""
    with ScriptedServer(["Yes."]) as server:
        model = model_at(server, headers={"X-Title": "tests"})
        await reply(model, asking("Grüße"))
        (request,) = server.requests
    assert request.raw == model.payload(asking("Grüße"))
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-secret-key-1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-title"] == "tests"


@pytest.mark.parametrize("ending", ["", "/", "/chat/completions", "?api-version=1"])
async def test_base_urls(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base URL may end in a slash, name the whole path, or carry a query; and may come from the environment."""
    with ScriptedServer(["Yes."]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url + ending)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment")
        model = OpenAIChatModel("m")
        await reply(model)
        assert server.requests[0].path == "/v1/chat/completions" + (ending if ending.startswith("?") else "")
        assert server.requests[0].headers["authorization"] == "Bearer sk-from-the-environment"
        assert model.base_url == server.base_url


@pytest.mark.parametrize("url", ["localhost:8080/v1", "ftp://host/v1", "/v1", "http://", "http://h:x/v1", "nothing"])
def test_base_urls_that_are_none(url: str) -> None:
    """An address that is none is refused when the model is made."""
    with pytest.raises(ModelError, match="base URL"):
        OpenAIChatModel("m", base_url=url)


async def test_no_key_for_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key and a base URL one message says how to choose; nothing is sent."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        await reply(OpenAIChatModel("gpt-5-mini"))


async def test_no_key_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that wants no key is sent none."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ScriptedServer(["Yes."]) as server:
        await reply(OpenAIChatModel("m", base_url=server.base_url))
        assert "authorization" not in server.requests[0].headers


async def test_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch, unused_port: int) -> None:
    """A server on this machine is reached directly, whatever proxy the environment names."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port}")
    with ScriptedServer(["Yes."]) as server:
        assert (await reply(model_at(server))).text == "Yes."


async def test_a_hard_window() -> None:
    """A request that the server finds too long is a ``ContextOverflowError``, and uses up none of the script."""
    with ScriptedServer(["Yes."], context_window=200) as server:
        model = model_at(server)
        with pytest.raises(ContextOverflowError, match="too long"):
            await reply(model, asking("long " * 200))
        assert (await reply(model)).text == "Yes."


async def test_a_large_error_page() -> None:
    """A page of megabytes under an error status is read in part, and shown in short."""
    with ScriptedServer(
        [HttpAnswer(404, "<style>x{}</style><h1>Not here</h1>" + "<p>so sorry</p>" * 200_000)]
    ) as server:
        with pytest.raises(ModelError, match="Not here so sorry") as caught:
            await reply(model_at(server))
    assert len(str(caught.value)) < 1_000


async def test_entering_waits_for_the_answer_and_events_follow() -> None:
    """An error before the first piece is raised on entering, so that a reader sees it once."""
    with ScriptedServer([failing(400)]) as server:
        stream = model_at(server).stream(asking())
        with pytest.raises(ModelError):
            await stream.__aenter__()


async def test_closing_twice() -> None:
    """``aclose`` may be called at any time, and again; the model works on."""
    with ScriptedServer(lambda _: "Yes.") as server:
        model = model_at(server)
        await model.aclose()
        assert len(await events(model)) == 2
        await model.aclose()
        await model.aclose()
        assert len(await events(model)) == 2
