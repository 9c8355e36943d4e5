"""The model of a recorded request, for its bytes alone: nothing is known of it but what the record says (R26)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from harness.models.anthropic_blocks import API as ANTHROPIC_API
from harness.models.anthropic_payload import anthropic_payload
from harness.models.openai_payload import openai_payload
from harness.models.protocol import ModelRequest
from storage.entries import RequestHeaderEntry
from storage.messages import AssistantMessage

SENT_OPTIONS = "sentOptions"
"""The member of a reply that names the options which were sent otherwise than the header says."""


class RecordedModel:
    """Gives the body of a request that was answered, from its header and its reply.

    ```python
    model = RecordedModel(header, reply)
    assert model.payload(request) == what_the_server_got
    ```

    ``header`` is the ``request_header`` entry that the reply's entry names, and ``reply`` its message: its ``api`` tells
    the protocol (Anthropic's, else OpenAI's), and ``sentOptions`` what a server made the model send otherwise than the
    header says. No key, address or network is needed. Models of your own have payloads of their own: ask those.
    """

    def __init__(self, header: RequestHeaderEntry, reply: AssistantMessage) -> None:
        self.provider: str = str(header.model.get("provider", ""))
        self.model_id: str = str(header.model.get("modelId", ""))
        self.api: str | None = reply.api
        self.options: Mapping[str, Any] = MappingProxyType(dict(header.options or {}))
        changed = (reply.model_extra or {}).get(SENT_OPTIONS)
        self._changed: Mapping[str, Any] = changed if isinstance(changed, dict) else {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r}, provider={self.provider!r}, api={self.api!r})"

    def payload(self, request: ModelRequest) -> bytes:
        """The body that went out for the request (see ``ChatModel``)."""
        request = replace(request, options={**request.options, **self._changed})
        make = anthropic_payload if self.api == ANTHROPIC_API else openai_payload
        return make(self.model_id, request, provider=self.provider, defaults=self.options)
