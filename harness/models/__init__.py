"""Models: one protocol, and the ways to one."""

from __future__ import annotations

from harness.models.events import ModelEvent, ReplyFinished, TextDelta, ThinkingDelta, ToolCallDelta
from harness.models.openai_chat import OpenAIChatModel, RetryPolicy, Timeouts
from harness.models.protocol import ChatModel, ModelRequest, ToolSchema

__all__ = [
    "ChatModel",
    "ModelEvent",
    "ModelRequest",
    "OpenAIChatModel",
    "ReplyFinished",
    "RetryPolicy",
    "TextDelta",
    "ThinkingDelta",
    "Timeouts",
    "ToolCallDelta",
    "ToolSchema",
]
