"""The body of a request, as it goes out."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx


class RequestBody(httpx.AsyncByteStream):
    """The bytes of one request, which may be sent more than once.

    In the place of httpx's own, which is an asynchronous generator: a request that is cancelled while it is sent leaves
    that to the garbage collector, and trio warns of it.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Once(self._body)


class _Once:
    def __init__(self, body: bytes) -> None:
        self._left: bytes | None = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        body, self._left = self._left, None
        if body is None:
            raise StopAsyncIteration
        return body
