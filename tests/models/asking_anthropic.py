"""What the tests of the Anthropic adapter share, beside what those of all models do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from harness.models import AnthropicModel, ModelRequest
from harness.testing import ScriptedServer
from storage.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall, ToolResultMessage
from tests.models.asking import QUICK

KEY = "sk-ant-secret-key-1"


def claude(model_id: str = "claude-opus-4-6", **options: Any) -> AnthropicModel:
    """A model that only makes payloads."""
    settings: dict[str, Any] = {"base_url": "http://127.0.0.1:1", "api_key": KEY, **options}
    return AnthropicModel(model_id, **settings)


def claude_at(server: ScriptedServer, model_id: str = "claude-opus-4-6", **options: Any) -> AnthropicModel:
    """A model that talks to the server, and does not wait long."""
    return claude(model_id, **{"base_url": server.base_url, "retry": QUICK, **options})


def body_of(request: ModelRequest, model: AnthropicModel | None = None) -> dict[str, Any]:
    """The body without the cache's marks, which have tests of their own."""
    return cast("dict[str, Any]", json.loads((model or claude(prompt_caching=False)).payload(request)))


def begun(usage: Mapping[str, int] | None = None) -> dict[str, Any]:
    """How a stream begins."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-6", "content": []}
    return {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage or {}}}


def block(index: int, start: Mapping[str, Any], *deltas: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One content block: its start, its pieces, its end."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def said(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    """A block of text."""
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def used(index: int, call_id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    """A block with a call."""
    start = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def ended(reason: str | None = "end_turn", usage: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """How a stream ends."""
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage or {}}, {"type": "message_stop"}]


def called(*content: TextContent | ThinkingContent | ToolCall, **members: Any) -> AssistantMessage:
    return AssistantMessage(content=list(content), **members)


def call(call_id: str = "c1", name: str = "read", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str = "c1", content: Any = "done", **members: Any) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=content, **members)


def text(value: str) -> TextContent:
    return TextContent(text=value)


def thought(value: str | None = "hm", signature: str | None = "sig", **members: Any) -> ThinkingContent:
    return ThinkingContent(thinking=value, thinking_signature=signature, **members)
