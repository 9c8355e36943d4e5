"""OpenAI-compatible chat completions over HTTP: OpenAI, Ollama, vLLM, llama.cpp, OpenRouter, and many more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from harness.models.http_chat import HttpChatModel
from harness.models.http_settings import ChatApi, RetryPolicy, Timeouts
from harness.models.openai_payload import openai_payload
from harness.models.openai_reply import OpenAIReply
from harness.models.protocol import ModelRequest
from storage.errors import ModelError

_log = logging.getLogger("branchline.models")


class OpenAIChatModel(HttpChatModel):
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

    api: ClassVar[ChatApi] = ChatApi(
        name="OpenAI",
        base_url="https://api.openai.com/v1",
        path="/chat/completions",
        endings=("/chat/completions",),
        key_variable="OPENAI_API_KEY",
        url_variable="OPENAI_BASE_URL",
        key_header="Authorization",
        key_form="Bearer {}",
        chunk_name="chunk of a chat completion",
        advice="Check that the base URL is that of an OpenAI-compatible API (it mostly ends in /v1).",
    )

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
        super().__init__(
            model_id,
            provider=provider,
            base_url=base_url,
            api_key=api_key,
            context_window=context_window,
            options=options,
            headers=headers,
            timeouts=timeouts,
            retry=retry,
        )
        self._include_usage = include_usage
        self._usage_refused = False
        self._return_reasoning = return_reasoning

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

    def _new_reply(self) -> OpenAIReply:
        return OpenAIReply()

    def _body(self, request: ModelRequest) -> bytes:
        return self._payload(request, include_usage=self._include_usage and not self._usage_refused)

    def _corrected(self, request: ModelRequest, body: bytes, error: ModelError) -> bytes | None:
        if not (self._include_usage and b'"stream_options":' in body and _is_about_usage(error)):
            return None
        _log.info("%s refuses stream_options; asking without them", self.provider)
        self._usage_refused = True
        return self._payload(request, include_usage=False)


def _is_about_usage(error: ModelError) -> bool:
    return error.details.get("status") in (400, 422) and (
        "stream_options" in error.message or "include_usage" in error.message
    )
