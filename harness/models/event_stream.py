"""The chunks of a streamed answer, as they come over HTTP: parsed, timed, and with errors told apart from replies."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, cast

import anyio
import httpx
from httpx_sse import EventSource, ServerSentEvent

from harness.models.refusals import Refusal, refusal_of, retry_after_of
from storage.errors import ModelError

_LARGEST_ERROR = 256 * 1024
_LARGEST_REPLY = 64 * 1024 * 1024
"""Bytes of an answer that comes whole, or of one event of a stream."""
_LARGEST_STREAM = 256 * 1024 * 1024
"""Bytes of a whole stream. An event is some hundred bytes around a word."""
_SHOWN = 300


async def abandon(pieces: AsyncGenerator[Any]) -> None:
    """Stop reading for good. Unlike ``aclose`` it reaches the generators below, of httpx and httpcore, as well.

    Those hold the connection, and would be left to the garbage collector; a cancelled read ends them one by one.
    """
    with anyio.CancelScope() as scope, suppress(httpx.HTTPError, ModelError):
        scope.cancel()
        async for _ in pieces:
            pass
    await pieces.aclose()


async def read_text(response: httpx.Response, limit: int, seconds: float) -> str:
    """The body, at most ``limit`` bytes of it, as UTF-8, within so many seconds.

    Raises:
        httpx.TransportError: the connection broke.
        TimeoutError: it took longer than that.
    """
    body = bytearray()
    pieces = cast("AsyncGenerator[bytes]", response.aiter_bytes())
    with anyio.fail_after(seconds):
        async for piece in pieces:
            body += piece
            if len(body) >= limit:
                break
    await abandon(pieces)
    return body[:limit].decode(errors="replace")


async def refusal_in(response: httpx.Response, redact: Callable[[str], str], seconds: float) -> Refusal:
    """What a response of another status than success says. A body that cannot be read leaves the status alone."""
    try:
        body = await read_text(response, _LARGEST_ERROR, seconds)
    except (httpx.TransportError, httpx.DecodingError, TimeoutError):
        body = ""
    return refusal_of(response.status_code, redact(body), retry_after_of(response.headers))


class _CountedBytes(httpx.AsyncByteStream):
    """A response's bytes, of which there is an end: a line or a stream without one would fill the memory."""

    def __init__(self, stream: httpx.AsyncByteStream, provider: str) -> None:
        self._stream = stream
        self._provider = provider
        self._in_all = 0
        self._in_event = 0

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        pieces = cast("AsyncGenerator[bytes]", aiter(self._stream))
        async for piece in pieces:
            self._in_all += len(piece)
            self._in_event += len(piece)
            if (error := self._too_much()) is not None:
                await abandon(pieces)
                raise error
            yield piece

    def _too_much(self) -> ModelError | None:
        for count, limit, what in (
            (self._in_event, _LARGEST_REPLY, "one event"),
            (self._in_all, _LARGEST_STREAM, "one answer"),
        ):
            if count > limit:
                return ModelError(
                    f"{self._provider} sent more than {limit >> 20} MiB for {what}, and was stopped. Check the base URL;"
                    " if it is right, try again.",
                    limit=limit,
                )
        return None

    async def aclose(self) -> None:
        await self._stream.aclose()

    def event_ended(self) -> None:
        """Count the next event from zero. What came of it already is at most one piece more."""
        self._in_event = 0


class ChunkStream:
    """The chunks of one successful response, one at a time.

    ``is_done`` is whether the server said that this was all: ``[DONE]``, or Anthropic's ``message_stop``. A piece
    that is no chunk is told by ``chunk_name``, with ``advice``. Close it before the response.
    """

    def __init__(
        self, response: httpx.Response, provider: str, redact: Callable[[str], str], *, chunk_name: str, advice: str
    ) -> None:
        self.is_done: bool = False
        self._chunk_name = chunk_name
        self._advice = advice
        self._response = response
        self._provider = provider
        self._redact = redact
        kind = response.headers.get("content-type", "")
        self._is_whole = kind.partition(";")[0].strip().lower() in ("application/json", "text/html")
        if not self._is_whole and kind != "text/event-stream":
            # It is an event stream, whatever it is called; and those are UTF-8, whatever they are said to be.
            response.headers["content-type"] = "text/event-stream"
        # An async client's response has nothing else.
        self._bytes = _CountedBytes(cast("httpx.AsyncByteStream", response.stream), provider)
        self._is_read = False
        """Whether it was read to its end, and nothing is left to let go of."""
        response.stream = self._bytes
        self._events = EventSource(response).aiter_sse()

    async def aclose(self) -> None:
        """Let go of the response's body."""
        if not (self._is_whole or self._is_read):
            await abandon(self._events)

    async def drain(self, seconds: float) -> None:
        """Read what follows the last chunk, mostly the end, so that the connection can be used again."""
        with anyio.move_on_after(seconds):
            while await anext(self._events, None) is not None:
                pass
            self._is_read = True

    async def next(self, seconds: float, *, pinged: float | None = None) -> Mapping[str, Any] | None:
        """The next chunk, or None when there are no more. Waits at most so many seconds; comments do not count.

        Anthropic's pings are no chunks. While they come it waits for ``pinged`` seconds instead, where that is given.

        Raises:
            ModelError: the server sent an error, or something that is no chunk.
            httpx.TransportError: the connection broke.
            TimeoutError: nothing came.
        """
        if self.is_done:
            return None
        if self._is_whole:
            self.is_done = True
            text = await read_text(self._response, _LARGEST_REPLY, seconds)
            return self._chunk(text, is_error=False) if text.strip() else None
        now = anyio.current_time()
        until = now + (pinged or seconds)
        while (event := await self._event(min(now + seconds, until))) is not None:
            data = event.data.strip()
            if data == "[DONE]":
                self.is_done = True
                return None
            if data:
                chunk = self._chunk(event.data, is_error=event.event == "error")
                if chunk.get("type") != "ping":
                    self.is_done = chunk.get("type") == "message_stop"
                    return chunk
            now = anyio.current_time()
        return None

    async def _event(self, until: float) -> ServerSentEvent | None:
        if until == inf:
            return await self._next_event()
        # Without the detour of ``fail_after``: this is done for each piece of an answer.
        with anyio.CancelScope(deadline=until):
            return await self._next_event()
        raise TimeoutError

    async def _next_event(self) -> ServerSentEvent | None:
        event = await anext(self._events, None)
        self._is_read = event is None
        self._bytes.event_ended()
        return event

    def _chunk(self, text: str, *, is_error: bool) -> Mapping[str, Any]:
        try:
            chunk: Any = json.loads(text)
        except (ValueError, RecursionError):
            chunk = None
        members: Mapping[str, Any] = cast("dict[str, Any]", chunk) if isinstance(chunk, dict) else {}
        if is_error or members.get("error") or members.get("object") == "error" or members.get("type") == "error":
            raise refusal_of(None, self._redact(text)).error(self._provider)
        if not members:
            shown = self._redact(text)[:_SHOWN]
            raise ModelError(
                f"{self._provider} sent something that is no {self._chunk_name}: {shown!r}. {self._advice}"
            )
        return members
