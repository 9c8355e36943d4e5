"""OpenAI-compatible chat completions over HTTP: OpenAI, Ollama, vLLM, llama.cpp, OpenRouter, and many more."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Self

import anyio
import anyio.to_thread
import httpx
from anyio.lowlevel import RunVar
from pydantic import SecretStr

from harness.models.events import ModelEvent, ReplyFinished
from harness.models.openai_payload import openai_payload
from harness.models.openai_reply import FAILED_REASONS, ReplyAssembler
from harness.models.openai_stream import ChunkStream, refusal_in
from harness.models.protocol import ModelRequest
from harness.models.redaction import Redactor, SecretHeaders, checked_secret
from storage.errors import ModelError
from storage.messages import AssistantMessage

OPENAI_BASE_URL = "https://api.openai.com/v1"

_log = logging.getLogger("branchline.models")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait in each phase of a request, in seconds."""

    connect: float = 10.0
    """For a connection."""
    write: float = 60.0
    """For each piece of the request to be taken."""
    first_event: float = 300.0
    """For the first piece of the answer, from the moment the request is sent: the model reads it all first."""
    between_events: float = 120.0
    """For the next piece of the answer. A server's keep-alive comments are no pieces."""
    after_finish: float = 10.0
    """For the usage numbers, after the model said that it has finished; the reply counts without them."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is tried again: 429, 5xx, overload, and lost connections, as long as no piece of an answer has come.

    The wait doubles from ``first_delay`` seconds; a server's own ``Retry-After`` counts instead. Neither is ever longer
    than ``longest_delay`` seconds.
    """

    retries: int = 4
    first_delay: float = 0.5
    longest_delay: float = 60.0

    def delay(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after the ``attempt``-th failure, counted from 0."""
        if retry_after is not None:
            return min(retry_after, self.longest_delay)
        spread = random.uniform(0.75, 1.0)  # noqa: S311 - so that clients do not come back all at once
        return min(self.first_delay * 2**attempt, self.longest_delay) * spread


class OpenAIChatModel:
    """A model behind an OpenAI-compatible API; a ``ChatModel``.

    ```python
    model = OpenAIChatModel("gpt-5-mini")                                              # key from OPENAI_API_KEY
    model = OpenAIChatModel("qwen3:8b", base_url="http://localhost:11434/v1", provider="ollama", context_window=8192)
    ```

    Without ``base_url`` it is ``OPENAI_BASE_URL``, else OpenAI's; without ``api_key`` it is ``OPENAI_API_KEY``, else
    none is sent. ``options`` go out with every request under the API's names (``temperature``, ``max_tokens``); a
    request's own win. ``headers`` are sent besides. ``include_usage=False`` does not ask for token counts (a server
    that refuses the question is asked without it by itself). ``return_reasoning`` sends a model's reasoning back to
    it, for the few that want that.

    One model may serve any number of requests at once, on one event loop after another. Each request has a connection
    of its own, closed with its stream, so that a model needs no closing; ``async with model`` keeps connections for the
    next request. Proxies are taken from the environment, except for addresses of this machine.

    Raises:
        ModelError: a base URL that is none, or that holds a password; a key that no header can carry.
    """

    def __init__(
        self,
        model_id: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "openai",
        context_window: int | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        include_usage: bool = True,
        return_reasoning: bool = False,
    ) -> None:
        self.model_id = model_id
        self.provider = provider
        self.context_window = context_window
        self._url = _endpoint(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_BASE_URL)
        self.options: Mapping[str, Any] = MappingProxyType(dict(options or {}))
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        self._include_usage = include_usage
        self._usage_refused = False
        self._keeps_connections = False
        self._return_reasoning = return_reasoning
        secrets = {name: checked_secret(value, f"The header {name!r}") for name, value in (headers or {}).items()}
        self._redact = Redactor(secrets.values())
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY")
        self._has_key = bool(key) or any(name.lower() == "authorization" for name in secrets)
        if key:
            secret = checked_secret(key, "The API key")
            self._redact = Redactor([secret, *secrets.values()])
            secrets = {"Authorization": SecretStr(f"Bearer {secret.get_secret_value()}"), **secrets}
        self._headers = SecretHeaders(secrets)
        self._client: RunVar[httpx.AsyncClient | None] = RunVar(f"client of {model_id}", None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r}, provider={self.provider!r}, base_url={self.base_url!r})"

    @property
    def base_url(self) -> str:
        """Where requests go, without the query."""
        return _shown(self._url).removesuffix("/chat/completions")

    def payload(self, request: ModelRequest) -> bytes:
        """The body that goes out (see ``ChatModel``).

        It does not depend on what happened before. So there is one exception: to a server that refused
        ``stream_options`` the same body goes without them; ``include_usage=False`` makes that the rule.
        """
        return self._payload(request, include_usage=self._include_usage)

    def _payload(self, request: ModelRequest, *, include_usage: bool) -> bytes:
        return openai_payload(
            self.model_id,
            request,
            defaults=self.options,
            include_usage=include_usage,
            return_reasoning_to=self.provider if self._return_reasoning else None,
        )

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Send the request and read the answer (see ``ChatModel``)."""
        body = self._payload(request, include_usage=self._include_usage and not self._usage_refused)
        if not self._has_key and str(self._url).startswith(OPENAI_BASE_URL):
            raise ModelError(
                "OpenAI wants an API key: set OPENAI_API_KEY, or pass api_key; or set OPENAI_BASE_URL (or base_url) to"
                " a server that wants none."
            )
        failures = 0
        while True:
            async with AsyncExitStack() as stack:
                try:
                    chunks, first = await self._begin(stack, body)
                except ModelError as error:
                    if self._asks_for_usage(body) and _is_about_usage(error):
                        _log.info("%s refuses stream_options; asking without them", self.provider)
                        self._usage_refused = True
                        body = self._payload(request, include_usage=False)
                        continue
                    if failures >= self._retry.retries or not error.details.get("temporary"):
                        raise
                    delay = self._retry.delay(failures, error.details.get("retry_after"))
                    failures += 1
                    _log.info("trying again in %.1f s (%d of %d): %s", delay, failures, self._retry.retries, error)
                else:
                    events = await stack.enter_async_context(aclosing(self._events(chunks, first)))
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

    async def _begin(self, stack: AsyncExitStack, body: bytes) -> tuple[ChunkStream, Mapping[str, Any] | None]:
        """Send the body and wait for the first chunk. What fails here may be tried again; nobody has seen anything."""
        try:
            client = await self._connected_client()
            with anyio.fail_after(self._timeouts.first_event):
                response = await stack.enter_async_context(
                    client.stream(
                        "POST",
                        self._url,
                        content=body,
                        headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
                        auth=self._headers,
                    )
                )
                if not response.is_success:
                    raise (await refusal_in(response, self._redact, self._timeouts.between_events)).error(self.provider)
                chunks = await stack.enter_async_context(aclosing(ChunkStream(response, self.provider, self._redact)))
                return chunks, await chunks.next(self._timeouts.first_event)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            raise self._broken(error, "before it answered") from error

    async def _events(self, chunks: ChunkStream, first: Mapping[str, Any] | None) -> AsyncGenerator[ModelEvent]:
        reply = ReplyAssembler()
        chunk = first
        while chunk is not None:
            for event in reply.add(chunk):
                yield event
            has_finished = reply.finish_reason is not None
            try:
                chunk = await chunks.next(
                    self._timeouts.after_finish if has_finished else self._timeouts.between_events
                )
            except (httpx.HTTPError, TimeoutError, OSError) as error:
                if not has_finished:
                    raise self._broken(error, "in the middle of its answer") from error
                chunk = None
        yield ReplyFinished(self._finished(chunks, reply))
        if self._keeps_connections and chunks.is_done:
            with suppress(httpx.HTTPError):  # the reply is whole; only the connection is lost
                await chunks.drain(0.1)

    def _finished(self, chunks: ChunkStream, reply: ReplyAssembler) -> AssistantMessage:
        if reply.finish_reason in FAILED_REASONS:
            raise ModelError(
                f"{self.provider} gave up its answer ({reply.finish_reason}). Change the request, or try again.",
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

    def _asks_for_usage(self, body: bytes) -> bool:
        return self._include_usage and b'"stream_options":' in body

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


def _is_about_usage(error: ModelError) -> bool:
    return error.details.get("status") in (400, 422) and (
        "stream_options" in error.message or "include_usage" in error.message
    )


def _endpoint(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ModelError("The base URL is no http or https address; it looks like https://api.openai.com/v1.")
    if url.userinfo:
        raise ModelError("The base URL holds a name or password; pass that as headers or api_key, and remove it there.")
    path = url.path.rstrip("/").removesuffix("/chat/completions")
    return url.copy_with(path=f"{path}/chat/completions", fragment=None)


def _shown(url: httpx.URL) -> str:
    return str(url.copy_with(query=None))


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
