"""What the tests of models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from harness.models import ModelEvent, ModelRequest, OpenAIChatModel, ReplyFinished, RetryPolicy, ToolSchema
from harness.models.protocol import ChatModel
from harness.testing import ScriptedServer
from storage.errors import ModelError
from storage.messages import AssistantMessage, Message, UserMessage

READ = ToolSchema("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
QUICK = RetryPolicy(retries=2, first_delay=0.01, longest_delay=0.05)


def asking(text: str = "Hello?", **members: Any) -> ModelRequest:
    """A request of one user message."""
    return ModelRequest(None, [UserMessage(content=text)], **members)


def request_of(*messages: Message, **members: Any) -> ModelRequest:
    """A request of these messages."""
    return ModelRequest(None, list(messages), **members)


def model_at(server: ScriptedServer, **options: Any) -> OpenAIChatModel:
    """A model that talks to the server, and does not wait long."""
    settings: dict[str, Any] = {"base_url": server.base_url, "api_key": "sk-secret-key-1", "retry": QUICK}
    settings.update(options)
    return OpenAIChatModel("m", **settings)


async def events(model: ChatModel, request: ModelRequest | None = None) -> list[ModelEvent]:
    """All events of one stream."""
    async with model.stream(request or asking()) as stream:
        return [event async for event in stream]


async def running_out(
    make: Callable[[ScriptedServer, Any], ChatModel], answer: Any, limits: Callable[[float], Any], words: str
) -> ModelError:
    """How a reply ends whose time runs out, of a server that is asked once.

    ``limits`` makes them of a number of seconds: first few, then more, until ``words`` stand in the error. What has to
    come before the time is over comes late where the machine has other things to do.
    """
    error = ModelError("nothing was tried")
    for seconds in (0.5, 3, 20):
        with ScriptedServer([answer, "never"]) as server:
            with anyio.fail_after(100), pytest.raises(ModelError) as caught:
                await reply(make(server, limits(seconds)))
            error = caught.value
            if words in str(error):
                assert len(server.requests) == 1
                break
    assert words in str(error)
    return error


async def reply(model: ChatModel, request: ModelRequest | None = None) -> AssistantMessage:
    """The finished reply, which must be the last event and the only one of its kind."""
    seen = await events(model, request)
    finished = [event for event in seen if isinstance(event, ReplyFinished)]
    assert len(finished) == 1
    assert seen[-1] is finished[0]
    return finished[0].message


def stream_of(*deltas: dict[str, Any], finish: str | None = "stop", done: bool = True) -> Sequence[Any]:
    """The pieces of a stream: one chunk for each delta, then the end."""
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish is not None:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return [*chunks, "data: [DONE]\n\n"] if done else chunks


def call_delta(index: int | None = 0, call_id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    """A delta with a piece of a tool call; what is None is absent."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece: dict[str, Any] = {"function": function}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece["id"] = call_id
    return {"tool_calls": [piece]}
