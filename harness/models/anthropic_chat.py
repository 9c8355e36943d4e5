"""Anthropic's Messages API over HTTP: Claude, and other servers that speak the same protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from harness.models.anthropic_payload import PROMPT_CACHING, anthropic_payload
from harness.models.anthropic_reply import AnthropicReply
from harness.models.http_chat import HttpChatModel
from harness.models.http_settings import ChatApi, RetryPolicy, Timeouts
from harness.models.protocol import ModelRequest

MAX_TOKENS = 16_384
"""How long a reply may be, thinking included, where nothing else is said: this API wants a number. In a window that is
known it is a quarter of that, if less: prompt and reply must fit together."""


class AnthropicModel(HttpChatModel):
    """A Claude model behind Anthropic's Messages API; a ``ChatModel``.

    ```python
    model = AnthropicModel("claude-sonnet-5")                                        # key from ANTHROPIC_API_KEY
    model = AnthropicModel("any", base_url="http://localhost:8080", max_tokens=4096, context_window=32768)
    ```

    Without ``base_url`` (with or without ``/v1``) it is ``ANTHROPIC_BASE_URL``, else Anthropic's; without ``api_key``
    it is ``ANTHROPIC_API_KEY``, else none is sent. ``max_tokens`` is the longest reply, thinking included (16,384, or
    a quarter of a smaller ``context_window``); an option of that name wins. ``options`` go out with every request under
    the API's names (``temperature``, ``thinking``); a request's own win. ``headers`` are sent besides
    (``anthropic-beta``). ``prompt_caching`` marks the system prompt and the last two user messages, so that the next
    request of a conversation reads them from the vendor's cache.

    A thinking level becomes adaptive thinking with an effort, or for models before Claude 4.6 a budget of tokens, at
    most half of ``max_tokens``. Thinking goes back unchanged, to the model that made it, and to no other.

    Requests, connections and proxies are as with ``OpenAIChatModel``.

    Raises:
        ModelError: a base URL that is none, or that holds a password; a key that no header can carry.
    """

    api: ClassVar[ChatApi] = ChatApi(
        name="Anthropic",
        base_url="https://api.anthropic.com",
        path="/v1/messages",
        endings=("/v1/messages", "/v1"),
        key_variable="ANTHROPIC_API_KEY",
        url_variable="ANTHROPIC_BASE_URL",
        key_header="x-api-key",
        headers={"anthropic-version": "2023-06-01"},
        chunk_name="event of Anthropic's Messages API",
        advice="Check that the base URL is that of a server which speaks it.",
    )

    def __init__(
        self,
        model_id: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "anthropic",
        max_tokens: int | None = None,
        context_window: int | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        prompt_caching: bool = True,
    ) -> None:
        super().__init__(
            model_id,
            provider=provider,
            base_url=base_url,
            api_key=api_key,
            context_window=context_window,
            options={
                "max_tokens": _reply_limit(context_window) if max_tokens is None else max_tokens,
                **({} if prompt_caching else {PROMPT_CACHING: False}),
                **(options or {}),
            },
            headers=headers,
            timeouts=timeouts,
            retry=retry,
        )

    def payload(self, request: ModelRequest) -> bytes:
        """The body that goes out (see ``ChatModel``)."""
        return anthropic_payload(self.model_id, request, provider=self.provider, defaults=self.options)

    def _new_reply(self) -> AnthropicReply:
        return AnthropicReply()


def _reply_limit(context_window: int | None) -> int:
    return MAX_TOKENS if context_window is None else max(1, min(MAX_TOKENS, context_window // 4))
