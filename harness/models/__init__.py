"""Models: one protocol, and the ways to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy_names import lazy_names

if TYPE_CHECKING:
    from harness.models.anthropic_chat import AnthropicModel
    from harness.models.events import ModelEvent, ReplyFinished, TextDelta, ThinkingDelta, ToolCallDelta
    from harness.models.http_settings import RetryPolicy, Timeouts
    from harness.models.openai_chat import OpenAIChatModel
    from harness.models.protocol import ChatModel, HasOptions, KeepsConnections, ModelRequest, ToolSchema
    from harness.models.recorded import RecordedModel
else:
    _HOMES = {
        "harness.models.anthropic_chat": "AnthropicModel",
        "harness.models.events": "ModelEvent ReplyFinished TextDelta ThinkingDelta ToolCallDelta",
        "harness.models.http_settings": "RetryPolicy Timeouts",
        "harness.models.openai_chat": "OpenAIChatModel",
        "harness.models.protocol": "ChatModel HasOptions KeepsConnections ModelRequest ToolSchema",
        "harness.models.recorded": "RecordedModel",
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "AnthropicModel",
    "ChatModel",
    "HasOptions",
    "KeepsConnections",
    "ModelEvent",
    "ModelRequest",
    "OpenAIChatModel",
    "RecordedModel",
    "ReplyFinished",
    "RetryPolicy",
    "TextDelta",
    "ThinkingDelta",
    "Timeouts",
    "ToolCallDelta",
    "ToolSchema",
]
