"""OpenAI-compatible chat completions over HTTP: OpenAI, Ollama, vLLM, llama.cpp, OpenRouter, and many more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from harness.models.http_chat import HttpChatModel
from harness.models.http_settings import ChatApi, RetryPolicy, Timeouts
from harness.models.openai_payload import ALTERNATE_ROLES, IMAGES, INCLUDE_USAGE, RETURN_REASONING, openai_payload
from harness.models.openai_reply import OpenAIReply
from harness.models.protocol import ModelRequest
from storage.errors import ModelError

_log = logging.getLogger("branchline.models")


_USUAL: Mapping[str, Any] = {INCLUDE_USAGE: True, ALTERNATE_ROLES: False}


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
    it, for the few that want that. ``images=False`` is for a model that takes text alone: it gets words in their place.

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
        images: bool = True,
    ) -> None:
        super().__init__(
            model_id,
            provider=provider,
            base_url=base_url,
            api_key=api_key,
            context_window=context_window,
            options={
                **({} if include_usage else {INCLUDE_USAGE: False}),
                **({RETURN_REASONING: True} if return_reasoning else {}),
                **({} if images else {IMAGES: False}),
                **(options or {}),
            },
            headers=headers,
            timeouts=timeouts,
            retry=retry,
        )
        self._refused: dict[str, bool] = {}
        """What this server was found to refuse, and what is sent instead."""

    def payload(self, request: ModelRequest) -> bytes:
        """The body that goes out (see ``ChatModel``).

        It does not depend on what happened before. So there are two exceptions: to a server that refused
        ``stream_options`` the same body goes without them, and to one that wants roles to alternate with neighbours made
        one message. The reply says so (``sentOptions``); the options ``include_usage=False`` and ``alternate_roles=True``
        make it the rule.
        """
        return openai_payload(self.model_id, request, provider=self.provider, defaults=self.options)

    def _new_reply(self) -> OpenAIReply:
        return OpenAIReply()

    def _known_changes(self, request: ModelRequest) -> Mapping[str, Any]:
        options = {**_USUAL, **self.options, **request.options}
        return {name: value for name, value in self._refused.items() if options[name] != value}

    def _changes_after(self, request: ModelRequest, error: ModelError) -> Mapping[str, Any]:
        if _is_about_usage(error):
            _log.info("%s refuses stream_options; asking without them", self.provider)
            self._refused[INCLUDE_USAGE] = False
        elif _is_about_roles(error):
            _log.info("%s wants roles that alternate; asking with neighbours made one", self.provider)
            self._refused[ALTERNATE_ROLES] = True
        return self._known_changes(request)


def _is_about_usage(error: ModelError) -> bool:
    return error.details.get("status") in (400, 422) and (
        "stream_options" in error.message or "include_usage" in error.message
    )


def _is_about_roles(error: ModelError) -> bool:
    """What chat templates of open models (Mistral, Gemma) say about two user messages in a row."""
    return error.details.get("status") in (400, 422, 500) and "roles must alternate" in error.message
