"""What the replies of all vendors are read with: whole characters, JSON objects or nothing, and JSON of any shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from storage.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall, Usage
from storage.strict_json import encode_value, replace_surrogates

STOP_REASONS = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "toolUse",
    "tool_use": "toolUse",
    "function_call": "toolUse",
}
"""What the vendors' finish reasons are called in the record."""


def read_object(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is, or None: also where it is JSON to Python alone, or cannot be recorded.

    That is NaN and the infinities (``1e999`` is one), nesting without end, integers of thousands of digits, and half a
    character in a key; half a character in a value becomes U+FFFD.
    """
    try:
        value: Any = json.loads(text)
        if not isinstance(value, dict):
            return None
        encode_value(value, "arguments")
    except (ValueError, RecursionError):  # InvalidEntryError is a ValueError
        return None
    return replace_surrogates(cast("dict[str, Any]", value))


def whole_characters(text: str) -> tuple[str, str]:
    """The text with its surrogate pairs joined, and the half at its end that may find its other half in the next piece.

    A server that cuts text by UTF-16 units sends an emoji as two halves in two chunks.
    """
    if text.isascii():
        return text, ""
    held = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
    text = text[: len(text) - len(held)]
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), held


@dataclass
class TextPiece:
    """A text that comes in pieces."""

    text: str = ""
    held: str = ""

    def add(self, text: str) -> str:
        """The whole characters that are there now."""
        text, self.held = whole_characters(self.held + text)
        self.text += text
        return text

    @property
    def whole(self) -> str:
        """All of it, with U+FFFD for half a character whose other half never came."""
        return self.text + ("\ufffd" if self.held else "")


def tool_call_of(call_id: str, name: str, arguments_text: str) -> ToolCall:
    """The call. Arguments that are no JSON object are kept as they came, in ``raw_arguments``."""
    arguments = read_object(arguments_text)
    if arguments is None:
        return ToolCall(id=call_id, name=name, arguments={}, raw_arguments=arguments_text)
    return ToolCall(id=call_id, name=name, arguments=arguments)


def reply_message(
    content: Sequence[TextContent | ThinkingContent | ToolCall],
    *,
    api: str,
    provider: str,
    model_id: str,
    usage: Usage | None,
    finish_reason: str | None,
    response_id: str | None,
    response_model: str | None,
) -> AssistantMessage:
    """The whole reply, as it is recorded. With calls it stops for ``toolUse``, unless it was cut off."""
    extra: dict[str, Any] = {"responseId": response_id} if response_id else {}
    if response_model and response_model != model_id:
        extra["responseModel"] = response_model
    if finish_reason and finish_reason not in STOP_REASONS:
        extra["rawStopReason"] = finish_reason
    stop_reason = STOP_REASONS.get(finish_reason or "", "stop")
    if stop_reason != "length":
        stop_reason = "toolUse" if any(isinstance(part, ToolCall) for part in content) else "stop"
    return AssistantMessage(
        content=list(content),
        api=api,
        provider=provider,
        model=model_id,
        usage=usage,
        stop_reason=stop_reason,
        **extra,
    )


def count_of(value: Any) -> int:
    """A number of tokens; 0 where there is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def string_of(value: Any) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def mapping_of(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def mappings_of(value: Any) -> Sequence[Mapping[str, Any]]:
    """The objects in the value, if it is a list."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]
