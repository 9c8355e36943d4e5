"""What every model behind an HTTP API shares: sending, trying again, timeouts, connections, and keys that stay secret."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

import anyio
import anyio.to_thread
import httpx
from anyio.lowlevel import RunVar
from pydantic import SecretStr

from harness.models.event_stream import ChunkStream, refusal_in
from harness.models.events import ModelEvent, ReplyFinished
from harness.models.http_settings import ChatApi, RetryPolicy, Timeouts
from harness.models.protocol import ModelRequest
from harness.models.redaction import Redactor, SecretHeaders, checked_secret
from storage.errors import ModelError
from storage.messages import AssistantMessage

_log = logging.getLogger("branchline.models")


class ReplyAssembler(Protocol):
    """Takes the chunks of one answer in order, gives events, and has the whole reply when they have ended."""

    finish_reason: str | None
    """Why the model stopped, in the vendor's word, once it has said so."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said, thought or called so far."""
        ...

    @property
    def failure(self) -> str | None:
        """What the vendor says, where its finish reason means that there is no reply to be trusted."""
        ...

    def add(self, chunk: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """The events that this chunk makes."""
        ...

    def message(self, *, provider: str, model_id: str) -> AssistantMessage:
        """The whole reply."""
        ...


class HttpChatModel(ABC):
    """The part of a ``ChatModel`` that is the same for every API of streamed events over HTTP."""

    api: ClassVar[ChatApi]

    def __init__(
        self,
        model_id: str,
        *,
        provider: str,
        base_url: str | None,
        api_key: str | None,
        context_window: int | None,
        options: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
        timeouts: Timeouts | None,
        retry: RetryPolicy | None,
    ) -> None:
        api = self.api
        self.model_id = model_id
        self.provider = provider
        self.context_window = context_window
        self.options: Mapping[str, Any] = MappingProxyType(dict(options or {}))
        self._url = _endpoint(api, base_url or os.environ.get(api.url_variable) or api.base_url)
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        self._keeps_connections = False
        secrets = {name: checked_secret(value, f"The header {name!r}") for name, value in (headers or {}).items()}
        self._redact = Redactor(secrets.values())
        key = api_key if api_key is not None else os.environ.get(api.key_variable)
        self._has_key = bool(key) or not {"authorization", api.key_header.lower()}.isdisjoint(map(str.lower, secrets))
        if key:
            secret = checked_secret(key, "The API key")
            self._redact = Redactor([secret, *secrets.values()])
            secrets = {api.key_header: SecretStr(api.key_form.format(secret.get_secret_value())), **secrets}
        self._headers = SecretHeaders(secrets)
        self._client: RunVar[httpx.AsyncClient | None] = RunVar(f"client of {model_id}", None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r}, provider={self.provider!r}, base_url={self.base_url!r})"

    @property
    def base_url(self) -> str:
        """Where requests go, without the query."""
        return str(self._url.copy_with(query=None)).removesuffix(self.api.path)

    @abstractmethod
    def payload(self, request: ModelRequest) -> bytes:
        """The body that goes out (see ``ChatModel``)."""

    @abstractmethod
    def _new_reply(self) -> ReplyAssembler:
        """What makes a reply of the chunks."""

    def _body(self, request: ModelRequest) -> bytes:
        """What is sent first: the payload, but for what this server is known to refuse."""
        return self.payload(request)

    def _corrected(self, request: ModelRequest, body: bytes, error: ModelError) -> bytes | None:  # noqa: ARG002
        """What to send instead at once, where the error shows that this server refuses a detail of the body."""
        return None

    def _is_opening(self, chunk: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether the chunk says only that an answer begins: an error behind it has lost nothing."""
        return False

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Send the request and read the answer (see ``ChatModel``)."""
        body = self._body(request)
        if not self._has_key and str(self._url).startswith(self.api.base_url):
            raise ModelError(
                f"{self.api.name} wants an API key: set {self.api.key_variable}, or pass api_key; or set"
                f" {self.api.url_variable} (or base_url) to a server that wants none."
            )
        failures = 0
        while True:
            async with AsyncExitStack() as stack:
                try:
                    chunks, head = await self._begin(stack, body)
                except ModelError as error:
                    corrected = self._corrected(request, body, error)
                    if corrected is not None:
                        body = corrected
                        continue
                    if failures >= self._retry.retries or not error.details.get("temporary"):
                        raise
                    delay = self._retry.delay(failures, error.details.get("retry_after"))
                    failures += 1
                    _log.info("trying again in %.1f s (%d of %d): %s", delay, failures, self._retry.retries, error)
                else:
                    events = await stack.enter_async_context(aclosing(self._events(chunks, head)))
                    yield events
                    return
            await anyio.sleep(delay)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        client = self._client.get()
        if client is not None:
            self._client.set(None)
            await client.aclose()

    async def __aenter__(self) -> Self:
        await self.aclose()
        self._keeps_connections = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._keeps_connections = False
        await self.aclose()

    async def _begin(self, stack: AsyncExitStack, body: bytes) -> tuple[ChunkStream, Sequence[Mapping[str, Any]]]:
        """Send the body and wait for the first chunk. What fails here may be tried again; nobody has seen anything."""
        try:
            client = await self._connected_client()
            with anyio.fail_after(self._timeouts.first_event):
                response = await stack.enter_async_context(
                    client.stream(
                        "POST",
                        self._url,
                        content=body,
                        headers={
                            "Content-Type": "application/json",
                            "Accept": "text/event-stream",
                            **self.api.headers,
                        },
                        auth=self._headers,
                    )
                )
                if not response.is_success:
                    raise (await refusal_in(response, self._redact, self._timeouts.between_events)).error(self.provider)
                chunks = await stack.enter_async_context(
                    aclosing(
                        ChunkStream(
                            response,
                            self.provider,
                            self._redact,
                            chunk_name=self.api.chunk_name,
                            advice=self.api.advice,
                        )
                    )
                )
                head: list[Mapping[str, Any]] = []
                while (chunk := await chunks.next(self._timeouts.first_event)) is not None:
                    head.append(chunk)
                    if not self._is_opening(chunk):
                        break
                return chunks, head
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            raise self._broken(error, "before it answered") from error

    async def _events(self, chunks: ChunkStream, head: Sequence[Mapping[str, Any]]) -> AsyncGenerator[ModelEvent]:
        reply = self._new_reply()
        for chunk in head:
            for event in reply.add(chunk):
                yield event
        while (chunk := await self._next(chunks, has_finished=reply.finish_reason is not None)) is not None:
            for event in reply.add(chunk):
                yield event
        yield ReplyFinished(self._finished(chunks, reply))
        if self._keeps_connections and chunks.is_done:
            with suppress(httpx.HTTPError):  # the reply is whole; only the connection is lost
                await chunks.drain(0.1)

    async def _next(self, chunks: ChunkStream, *, has_finished: bool) -> Mapping[str, Any] | None:
        times = self._timeouts
        try:
            if has_finished:
                return await chunks.next(times.after_finish)
            return await chunks.next(times.between_events, pinged=max(times.between_events, times.first_event))
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            if has_finished:
                return None
            raise self._broken(error, "in the middle of its answer") from error

    def _finished(self, chunks: ChunkStream, reply: ReplyAssembler) -> AssistantMessage:
        if (failure := reply.failure) is not None:
            raise ModelError(
                f"{self.provider} gave up its answer ({self._redact(failure)}). Change the request, or try again.",
                vendor_code=reply.finish_reason,
            )
        if reply.finish_reason is None and (reply.is_empty or not chunks.is_done):
            what = "without saying anything" if reply.is_empty else "in the middle of the answer"
            raise ModelError(
                f"{self.provider} ended the stream {what}: no finish reason, no [DONE]. Try again; some servers do this"
                " when the request is too long for the model."
            )
        return reply.message(provider=self.provider, model_id=self.model_id)

    def _broken(self, error: Exception, when: str) -> ModelError:
        where = f"{self.provider} at {self.base_url}"
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            what = f"{where} cannot be reached: {self._redact(str(error)) or type(error).__name__}."
            advice = "Check the base URL, and that the server runs."
        elif isinstance(error, TimeoutError | httpx.TimeoutException):
            what = f"{where} fell silent {when}."
            advice = "Try again, or allow more time (timeouts=)."
        else:
            what = f"The connection to {where} broke {when}: {self._redact(str(error)) or type(error).__name__}."
            advice = "Try again."
        may_pass = isinstance(error, httpx.TransportError) and not isinstance(
            error, httpx.ReadTimeout | httpx.WriteTimeout | httpx.UnsupportedProtocol | httpx.LocalProtocolError
        )
        return ModelError(f"{what} {advice}", temporary=may_pass)

    async def _connected_client(self) -> httpx.AsyncClient:
        client = self._client.get()
        if client is None:
            # Making one reads certificates from disk.
            client = await anyio.to_thread.run_sync(self._make_client)
            raced = self._client.get()
            if raced is not None:
                return raced
            self._client.set(client)
        return client

    def _make_client(self) -> httpx.AsyncClient:
        is_here = _is_this_machine(self._url.host)
        return httpx.AsyncClient(
            timeout=httpx.Timeout(
                None, connect=self._timeouts.connect, write=self._timeouts.write, pool=self._timeouts.connect
            ),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None if self._keeps_connections else 0),
            headers={"User-Agent": "branchline", "Accept-Encoding": "identity"},
            trust_env=not is_here,
            verify=not (is_here and self._url.scheme == "http"),
        )


def _endpoint(api: ChatApi, base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ModelError(f"The base URL is no http or https address; it looks like {api.base_url}.")
    if url.userinfo:
        raise ModelError("The base URL holds a name or password; pass that as headers or api_key, and remove it there.")
    path = url.path.rstrip("/")
    for ending in api.endings:
        path = path.removesuffix(ending)
    return url.copy_with(path=path + api.path, fragment=None)


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
