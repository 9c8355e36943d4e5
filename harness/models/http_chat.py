"""What every model behind an HTTP API shares: sending, trying again, timeouts, connections, and keys that stay secret."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from math import inf
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

import anyio
import httpx
from pydantic import SecretStr

from harness.models.broken_ways import broken_way
from harness.models.connections import Connections
from harness.models.event_stream import ChunkStream, refusal_in
from harness.models.events import ModelEvent, ReplyFinished, ToolCallDelta
from harness.models.http_settings import ChatApi, RetryPolicy, Timeouts
from harness.models.protocol import ModelRequest
from harness.models.recorded import SENT_OPTIONS
from harness.models.redaction import Redactor, SecretHeaders, checked_secret
from harness.models.request_body import RequestBody
from storage.errors import ModelError
from storage.messages import AssistantMessage

LARGEST_REPLY = 8_000_000
"""Characters of a reply's text, thinking and arguments together: several times what any model can say."""

_PORTS = 65_536

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


@dataclass(slots=True)
class _Answer:
    """One answer while it is read."""

    chunks: ChunkStream
    reply: ReplyAssembler
    head: list[ModelEvent] = field(default_factory=list[ModelEvent])
    """What was told while it could still have been asked for again."""
    waited: float = 0.0
    """Seconds that were spent waiting for the server."""
    is_told: bool = False
    """Whether all of it was handed on."""
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The options that were sent otherwise than the request has them."""

    @property
    def has_finished(self) -> bool:
        """Whether the model said why it stopped."""
        return self.reply.finish_reason is not None


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
        secrets = {name: checked_secret(value, f"The header {name!r}") for name, value in (headers or {}).items()}
        self._redact = Redactor(secrets.values())
        key = api_key if api_key is not None else os.environ.get(api.key_variable)
        self._has_key = bool(key) or not {"authorization", api.key_header.lower()}.isdisjoint(map(str.lower, secrets))
        if key:
            secret = checked_secret(key, "The API key")
            self._redact = Redactor([secret, *secrets.values()])
            secrets = {api.key_header: SecretStr(api.key_form.format(secret.get_secret_value())), **secrets}
        self._headers = SecretHeaders(secrets)
        self._connections = Connections(self._make_client)
        self._entered: list[AbstractAsyncContextManager[None]] = []

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

    def _known_changes(self, request: ModelRequest) -> Mapping[str, Any]:  # noqa: ARG002
        """The options that this server is known to refuse as the request has them, and what is sent instead."""
        return {}

    def _changes_after(self, request: ModelRequest, error: ModelError) -> Mapping[str, Any]:  # noqa: ARG002
        """The same, where the error shows it; then the request is sent again at once."""
        return {}

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Send the request and read the answer (see ``ChatModel``)."""
        changes = self._known_changes(request)
        body = self._body(request, changes)
        if not self._has_key and str(self._url).startswith(self.api.base_url):
            raise ModelError(
                f"{self.api.name} wants an API key: set {self.api.key_variable}, or pass api_key; or set"
                f" {self.api.url_variable} (or base_url) to a server that wants none."
            )
        failures = 0
        while True:
            async with AsyncExitStack() as stack:
                try:
                    answer = await self._begin(stack, body)
                except ModelError as error:
                    more = {**changes, **self._changes_after(request, error)}
                    if more != changes:
                        changes, body = more, self._body(request, more)
                        continue
                    if failures >= self._retry.retries or not error.details.get("temporary"):
                        raise
                    delay = self._retry.delay(failures, error.details.get("retry_after"))
                    failures += 1
                    _log.info("trying again in %.1f s (%d of %d): %s", delay, failures, self._retry.retries, error)
                else:
                    answer.changes = changes
                    events = await stack.enter_async_context(aclosing(self._events(answer)))
                    yield events
                    if answer.is_told and answer.chunks.is_done and self._connections.are_kept:
                        # What is left is the end, behind which the connection can be used again. Whoever has the reply
                        # can do something with it before this is waited for.
                        with suppress(httpx.HTTPError):  # the reply is whole; only the connection is lost
                            await answer.chunks.drain(0.1)
                    return
            await anyio.sleep(delay)

    def connected(self) -> AbstractAsyncContextManager[None]:
        """Keep connections from request to request meanwhile (see ``KeepsConnections``)."""
        return self._connections.held()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._connections.aclose()

    async def __aenter__(self) -> Self:
        held = self.connected()
        await held.__aenter__()
        self._entered.append(held)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._entered.pop().__aexit__(None, None, None)
        if not self._connections.are_kept:
            await self.aclose()

    def _body(self, request: ModelRequest, changes: Mapping[str, Any]) -> bytes:
        return self.payload(replace(request, options={**request.options, **changes}) if changes else request)

    async def _begin(self, stack: AsyncExitStack, body: bytes) -> _Answer:
        """Send the body and wait until something is told. What fails here may be tried again; nobody has seen anything."""
        seconds = min(self._timeouts.first_event, self._timeouts.whole)
        begun = anyio.current_time()
        try:
            client = await stack.enter_async_context(self._connections.client())
            with anyio.fail_after(seconds):
                request = client.build_request(
                    "POST",
                    self._url,
                    content=body,
                    headers={
                        "Content-Type": "application/json",
                        "Accept": "text/event-stream",
                        **self.api.headers,
                    },
                )
                request.stream = RequestBody(body)
                response = await client.send(request, auth=self._headers, stream=True)
                stack.push_async_callback(response.aclose)
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
                answer = _Answer(chunks, self._new_reply())
                while not answer.head and not answer.has_finished and (chunk := await chunks.next(inf)) is not None:
                    answer.head += answer.reply.add(chunk)
                answer.waited = anyio.current_time() - begun
                return answer
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            raise self._broken(error, "before it answered", "first_event", seconds) from error

    async def _events(self, answer: _Answer) -> AsyncGenerator[ModelEvent]:
        size = 0
        for event in answer.head:
            yield event
        while (chunk := await self._next(answer)) is not None:
            for event in answer.reply.add(chunk):
                size += _size_of(event)
                yield event
            if size > LARGEST_REPLY:
                raise ModelError(
                    f"{self.provider} said more than {LARGEST_REPLY:,} characters without an end, and was stopped."
                    " Prompt again, or limit its answers (options={'max_tokens': ...}).",
                    limit=LARGEST_REPLY,
                )
        message = self._finished(answer)
        answer.is_told = True
        yield ReplyFinished(message)

    async def _next(self, answer: _Answer) -> Mapping[str, Any] | None:
        times = self._timeouts
        left = times.whole - answer.waited
        has_finished = answer.has_finished
        phase, seconds = (
            ("after_finish", times.after_finish) if has_finished else ("between_events", times.between_events)
        )
        pinged = seconds if has_finished else max(seconds, times.first_event)
        begun = anyio.current_time()
        try:
            return await answer.chunks.next(min(seconds, left), pinged=min(pinged, left))
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            if has_finished:
                return None
            if isinstance(error, TimeoutError) and anyio.current_time() - begun >= left:
                phase, seconds = "whole", times.whole
            raise self._broken(error, "in the middle of its answer", phase, seconds) from error
        finally:
            answer.waited += anyio.current_time() - begun

    def _finished(self, answer: _Answer) -> AssistantMessage:
        reply = answer.reply
        if (failure := reply.failure) is not None:
            raise ModelError(
                f"{self.provider} gave up its answer ({self._redact(failure)}). Change the request, or try again.",
                vendor_code=reply.finish_reason,
            )
        if not answer.has_finished and (reply.is_empty or not answer.chunks.is_done):
            what = "without saying anything" if reply.is_empty else "in the middle of the answer"
            raise ModelError(
                f"{self.provider} ended the stream {what}: no finish reason, no [DONE]. Try again; some servers do this"
                " when the request is too long for the model."
            )
        message = reply.message(provider=self.provider, model_id=self.model_id)
        if answer.changes:
            setattr(message, SENT_OPTIONS, dict(answer.changes))
        return message

    def _broken(self, error: Exception, when: str, phase: str, seconds: float) -> ModelError:
        return broken_way(
            error,
            where=f"{self.provider} at {self.base_url}",
            is_here=_is_this_machine(self._url.host),
            when=when,
            phase=phase,
            seconds=seconds,
            redact=self._redact,
        )

    def _make_client(self, keep: bool) -> httpx.AsyncClient:
        is_here = _is_this_machine(self._url.host)
        return httpx.AsyncClient(
            timeout=httpx.Timeout(
                None, connect=self._timeouts.connect, write=self._timeouts.write, pool=self._timeouts.connect
            ),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None if keep else 0),
            headers={"User-Agent": "branchline", "Accept-Encoding": "identity"},
            trust_env=not is_here,
            verify=not (is_here and self._url.scheme == "http"),
        )


def _size_of(event: ModelEvent) -> int:
    """Characters, and one for the event: a call without arguments counts as well."""
    if isinstance(event, ReplyFinished):
        return 0
    return 1 + len(event.arguments_piece if isinstance(event, ToolCallDelta) else event.text)


def _endpoint(api: ChatApi, base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    # httpx escapes what no host may have, such as the bracket of half an IPv6 address, and lets any port pass.
    is_host = bool(url.host) and ("%" not in url.host or ":" in url.host)
    if url.scheme not in ("http", "https") or not is_host or not 0 < (url.port or 1) < _PORTS:
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
