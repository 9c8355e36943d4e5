"""A model that says what it was told to: for tests of everything above the models."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from inspect import isawaitable
from typing import Self

import anyio
import anyio.lowlevel

from harness.models.events import ModelEvent, ReplyFinished
from harness.models.openai_payload import openai_payload
from harness.models.protocol import ModelRequest
from harness.testing.replies import Reply, Scripted, ScriptedReply, events_of, output_tokens, reply_of, rough_tokens
from storage.errors import ContextOverflowError, ModelError
from storage.messages import AssistantMessage, Usage


class ScriptedModel:
    """A ``ChatModel`` that gives the scripted replies, one a request, in order.

    ```python
    model = ScriptedModel([tool_call("read", path="README.md"), "It is called Branchline."])
    harness = AgentHarness(session, model, tools=[read])
    assert (await harness.prompt("What is it called?")).text == "It is called Branchline."
    assert len(model.requests) == 2
    ```

    A reply is a text, a ``ToolCall``, a list of both, an ``AssistantMessage``, a ``Reply`` (delays, half an answer and
    then an error, …), an exception to raise, or a function of the ``ModelRequest`` that returns (or awaits) one of
    these. One function instead of a list answers every request. When the script is over, a request raises a
    ``ModelError`` that says so. ``requests`` are the requests it got, as they were when it got them.

    ``context_window`` is a hard one with ``enforce_window=True``: a request that ``count_tokens`` (a quarter of the
    payload's bytes) finds longer raises ``ContextOverflowError`` and uses up no reply. ``report_usage=False`` is a
    server that counts nothing.
    """

    def __init__(
        self,
        replies: Iterable[ScriptedReply] | Callable[[ModelRequest], Scripted],
        *,
        provider: str = "scripted",
        model_id: str = "scripted",
        context_window: int | None = None,
        enforce_window: bool = False,
        chunk_size: int = 8,
        report_usage: bool = True,
        count_tokens: Callable[[bytes], int] = rough_tokens,
    ) -> None:
        self.provider = provider
        self.model_id = model_id
        self.context_window = context_window
        self.requests: list[ModelRequest] = []
        self.is_closed: bool = False
        self._script: Iterator[ScriptedReply] = _endless(replies) if callable(replies) else iter(replies)
        self._given = 0
        self._enforce_window = enforce_window
        self._chunk_size = chunk_size
        self._report_usage = report_usage
        self._count_tokens = count_tokens

    def payload(self, request: ModelRequest) -> bytes:
        """What an OpenAI-compatible server would be sent (see ``ChatModel``)."""
        return openai_payload(self.model_id, request)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Give the next reply of the script (see ``ChatModel``)."""
        body = self.payload(request)
        self.requests.append(copy.deepcopy(request))
        await anyio.lowlevel.checkpoint()
        size = self._count_tokens(body)
        if self._enforce_window and self.context_window is not None and size > self.context_window:
            raise ContextOverflowError(
                f"{self.provider} says that the request is too long for the model: {size} tokens, where"
                f" {self.context_window} fit. Compact the session, or show less of it.",
                tokens=size,
                context_window=self.context_window,
            )
        scripted = await self._next_reply(request)
        if isinstance(scripted, Exception):
            raise scripted
        reply, message = reply_of(scripted)
        await anyio.sleep(reply.delay)
        async with aclosing(self._events(reply, message, size)) as events:
            yield events

    async def _next_reply(self, request: ModelRequest) -> Scripted:
        try:
            scripted = next(self._script)
        except StopIteration:
            raise ModelError(
                f"The script is over: it had {self._given} to give, and this is request {len(self.requests)}."
                " Add a reply, or find out who asks once more."
            ) from None
        self._given += 1
        if callable(scripted):
            answer = scripted(request)
            return await answer if isawaitable(answer) else answer
        return scripted

    async def _events(self, reply: Reply, message: AssistantMessage, size: int) -> AsyncGenerator[ModelEvent]:
        for number, event in enumerate(events_of(message, reply.chunk_size or self._chunk_size)):
            await anyio.sleep(reply.pause if number else 0)
            yield event
        await anyio.lowlevel.checkpoint()
        if reply.error is not None:
            raise reply.error
        if reply.cut:
            raise ModelError(f"{self.provider} ended the stream in the middle of the answer. Try again.")
        finished = message.model_copy(deep=True)
        finished.api = finished.api or "scripted"
        finished.provider = finished.provider or self.provider
        finished.model = finished.model or self.model_id
        finished.stop_reason = finished.stop_reason or ("toolUse" if finished.tool_calls else "stop")
        if finished.usage is None and self._report_usage:
            output = output_tokens(finished)
            finished.usage = Usage(input=size, output=output, total_tokens=size + output)
        yield ReplyFinished(finished)

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _endless(function: Callable[[ModelRequest], Scripted]) -> Iterator[ScriptedReply]:
    while True:
        yield function
