"""Models that never stop, and ways that lead nowhere: each has its limit, with an error of its own type."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from harness.models import AnthropicModel, OpenAIChatModel, RetryPolicy, TextDelta, Timeouts, event_stream, http_chat
from harness.testing import HttpAnswer, ScriptedServer
from storage.errors import ModelError, ModelTimeoutError
from tests.models.asking import QUICK, asking, call_delta, events, model_at, reply, running_out, stream_of
from tests.models.asking_anthropic import begun, claude_at, said

pytestmark = pytest.mark.anyio

ROLE = stream_of({"role": "assistant", "content": ""}, finish=None, done=False)


PIECE = stream_of({"content": "x"}, finish=None, done=False)


@pytest.mark.parametrize(
    ("limits", "answer", "words", "phase"),
    [
        (lambda limit: Timeouts(first_event=limit), HttpAnswer(200, [60.0]), "before it answered", "first_event"),
        (lambda limit: Timeouts(whole=limit), HttpAnswer(200, [60.0]), "before it answered", "first_event"),
        (
            lambda limit: Timeouts(between_events=limit),
            HttpAnswer(200, [*PIECE, 60.0]),
            "in the middle",
            "between_events",
        ),
        (
            lambda limit: Timeouts(whole=limit),
            HttpAnswer(200, [*ROLE, *[*PIECE, 0.05] * 900]),
            "in the middle",
            "whole",
        ),
        (
            lambda limit: Timeouts(whole=limit),
            HttpAnswer(200, [{"id": "x"}, 0.05] * 900),
            "before it answered",
            "first_event",
        ),
    ],
    ids=["first", "whole before", "between", "drips", "drips nothing"],
)
async def test_each_time_that_runs_out_has_its_name(
    limits: Callable[[float], Timeouts], answer: Any, words: str, phase: str
) -> None:
    """A time that runs out is a ``ModelTimeoutError`` with the limit's name; a server that drips for ever is stopped."""
    error = await running_out(lambda server, timeouts: model_at(server, timeouts=timeouts), answer, limits, words)
    assert isinstance(error, ModelTimeoutError)
    assert error.details["phase"] == phase
    assert isinstance(error, TimeoutError)


async def test_only_waiting_counts() -> None:
    """A reader that takes its time uses up none of the model's."""
    heard = ""
    for seconds in (1, 5, 25):  # until the server's own part is made within that
        with ScriptedServer(["abc"], chunk_size=1) as server:
            heard = ""
            try:
                async with model_at(server, timeouts=Timeouts(whole=seconds)).stream(asking()) as stream:
                    async for event in stream:
                        heard += event.text if isinstance(event, TextDelta) else ""
                        await anyio.sleep(0.4 * seconds)
                break
            except ModelTimeoutError:
                continue
    assert heard == "abc"


async def test_a_connection_that_nobody_takes() -> None:
    """A port whose queue is full takes no connection: the time for connecting runs out, and it is tried again."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # more than the queue holds
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(address)
            model = OpenAIChatModel(
                "m",
                base_url=f"http://127.0.0.1:{address[1]}/v1",
                api_key="any-key",
                timeouts=Timeouts(connect=0.2),
                retry=RetryPolicy(1, 0.01),
            )
            with anyio.fail_after(60), pytest.raises(ModelTimeoutError, match="cannot be reached") as caught:
                await reply(model)
        finally:
            for each in waiting:
                each.close()
    assert caught.value.details["phase"] == "connect"
    assert caught.value.details["temporary"]


async def test_a_name_that_does_not_exist() -> None:
    """A host that cannot be resolved is said so at once: trying again would not help."""
    model = OpenAIChatModel(
        "m", base_url="http://nowhere.invalid/v1", api_key="any-key", retry=RetryPolicy(5, first_delay=30)
    )
    with anyio.fail_after(60), pytest.raises(ModelError, match="cannot be reached") as caught:
        await reply(model)
    assert not caught.value.details["temporary"]


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "la " * 100},
        {"reasoning_content": "hm " * 100},
        call_delta(0, None, None, "1," * 100),
        call_delta(None, "", "read", "{}"),
    ],
)
async def test_a_reply_without_end(delta: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that says the same for ever is stopped at the largest reply, whatever it is that it says."""
    monkeypatch.setattr(http_chat, "LARGEST_REPLY", 2_000)
    pieces = [*stream_of(call_delta(0, "c", "read", "["), finish=None, done=False)]
    pieces += list(stream_of(delta, finish=None, done=False)) * 1_000
    with ScriptedServer([HttpAnswer(200, pieces)]) as server:
        with pytest.raises(ModelError, match="without an end"):
            await events(model_at(server))


NOISE: dict[str, Any] = {
    "a line": "data: x" + "y" * 500,
    "comments": ": " + "y" * 500 + "\n\n",
    "events of nothing": {"id": "y" * 500},
}


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("a line", "_LARGEST_REPLY"),
        ("a line", "_LARGEST_STREAM"),
        ("comments", "_LARGEST_REPLY"),
        ("comments", "_LARGEST_STREAM"),
        ("events of nothing", "_LARGEST_STREAM"),
    ],
)
async def test_bytes_without_end(kind: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a line without end, or nothing but noise for ever, is stopped before the memory is full."""
    monkeypatch.setattr(event_stream, limit, 20_000)
    with ScriptedServer([HttpAnswer(200, [NOISE[kind]] * 200)]) as server:
        with pytest.raises(ModelError, match="MiB"):
            await reply(model_at(server))


async def test_an_error_before_anything_is_said_is_tried_again() -> None:
    """An opening that says nothing has lost nothing: what fails behind it is asked again, in both protocols."""
    told = {"error": {"code": 503, "message": "overloaded"}}
    with ScriptedServer([HttpAnswer(200, [*ROLE, told]), HttpAnswer(200, ROLE, cut=True), "Yes."]) as server:
        assert (await reply(model_at(server))).text == "Yes."
        assert len(server.requests) == 3
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with ScriptedServer([HttpAnswer(200, [begun(), {"type": "ping"}, overloaded]), "Yes."]) as server:
        assert (await reply(claude_at(server))).text == "Yes."


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_an_error_after_something_was_said_is_not_tried_again(kind: str) -> None:
    """Who has seen a piece must not see it twice: the same error behind it is raised."""
    told = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    spoken = [begun(), *said("x")[:2]] if kind == "anthropic" else stream_of({"content": "x"}, finish=None, done=False)
    model: type[AnthropicModel | OpenAIChatModel] = AnthropicModel if kind == "anthropic" else OpenAIChatModel
    with ScriptedServer([HttpAnswer(200, [*spoken, told]), "never"]) as server:
        with pytest.raises(ModelError, match="Overloaded"):
            await reply(model("m", base_url=server.base_url, api_key="any-key", retry=QUICK))
        assert len(server.requests) == 1


async def test_a_long_answer_of_short_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit for one event is none for all of them together."""
    monkeypatch.setattr(event_stream, "_LARGEST_REPLY", 2_000)
    with ScriptedServer(["la " * 500], chunk_size=3) as server:
        assert (await reply(model_at(server))).text == "la " * 500
