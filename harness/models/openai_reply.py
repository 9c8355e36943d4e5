"""From the chunks of a streamed chat completion to events and one whole reply, whatever the server repeats or omits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harness.models.events import ModelEvent, TextDelta, ThinkingDelta, ToolCallDelta
from harness.models.openai_payload import REASONING_FIELDS
from storage.messages import AssistantMessage, Cost, TextContent, ThinkingContent, ToolCall, Usage
from storage.strict_json import encode_value, replace_surrogates

_STOP_REASONS = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "toolUse",
    "tool_use": "toolUse",
    "function_call": "toolUse",
}
FAILED_REASONS = ("content_filter", "error", "network_error", "sensitive", "insufficient_system_resource")
"""Finish reasons that say there is no reply to be trusted."""


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
class _Text:
    text: str = ""
    held: str = ""
    thinking_field: str | None = None
    """Where it came in, if it is the model's reasoning."""

    def add(self, text: str) -> str:
        """The whole characters that are there now."""
        text, self.held = whole_characters(self.held + text)
        self.text += text
        return text


@dataclass
class _Call:
    index: int
    """Its place among the calls of this reply."""
    wire_index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def is_whole(self) -> bool:
        return read_object(self.arguments) is not None


@dataclass
class ReplyAssembler:
    """Takes chunks in order (``add``) and gives events; ``message`` is the reply when they have ended."""

    finish_reason: str | None = None
    usage: Usage | None = None
    response_model: str | None = None
    response_id: str | None = None
    _parts: list[_Text | _Call] = field(default_factory=list[_Text | _Call])
    _calls: list[_Call] = field(default_factory=list[_Call])

    def add(self, chunk: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """The events that this chunk makes. Chunks of any shape are taken; what is not understood is left alone."""
        self.response_id = self.response_id or _string(chunk.get("id")) or None
        self.response_model = self.response_model or _string(chunk.get("model")) or None
        choice = _first(chunk.get("choices"))
        self.usage = (
            read_usage(chunk.get("usage"))
            or read_usage(choice.get("usage"))
            or read_usage(_mapping(chunk.get("x_groq")).get("usage"))
            or self.usage
        )
        # A server that does not stream at all answers with a whole message, of the same shape.
        delta = _mapping(choice.get("delta")) or _mapping(choice.get("message"))
        for name in REASONING_FIELDS:
            if thinking := self._say(_string(delta.get(name)), name):
                yield ThinkingDelta(thinking)
                break  # some servers send the same text under two names
        if text := self._say(_text(delta.get("content")) or _string(delta.get("refusal")), None):
            yield TextDelta(text)
        for piece in _mappings(delta.get("tool_calls")):
            yield self._call(piece)
        if legacy := _mapping(delta.get("function_call")):
            yield self._call({"index": 0, "function": legacy})
        if reason := _string(choice.get("finish_reason")):
            self.finish_reason = reason

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said, thought or called so far."""
        return not self._parts

    def message(self, *, provider: str, model_id: str) -> AssistantMessage:
        """The whole reply. Call it once, after the last chunk."""
        extra: dict[str, Any] = {"responseId": self.response_id} if self.response_id else {}
        if self.response_model and self.response_model != model_id:
            extra["responseModel"] = self.response_model
        if self.finish_reason and self.finish_reason not in _STOP_REASONS:
            extra["rawStopReason"] = self.finish_reason
        return AssistantMessage(
            content=[_content(part) for part in self._parts],
            api="openai-completions",
            provider=provider,
            model=model_id,
            usage=self.usage,
            stop_reason=self._stop_reason(),
            **extra,
        )

    def _stop_reason(self) -> str:
        reason = _STOP_REASONS.get(self.finish_reason or "", "stop")
        if reason == "length":
            return reason
        return "toolUse" if self._calls else "stop"

    def _say(self, text: str, thinking_field: str | None) -> str:
        if not text:
            return ""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Text) or last.thinking_field != thinking_field:
            last = _Text(thinking_field=thinking_field)
            self._parts.append(last)
        return last.add(text)

    def _call(self, piece: Mapping[str, Any]) -> ToolCallDelta:
        function = _mapping(piece.get("function"))
        call_id, name = _string(piece.get("id")), _string(function.get("name"))
        raw = function.get("arguments")
        arguments = json.dumps(raw, ensure_ascii=False) if isinstance(raw, dict | list) else _string(raw)
        call = self._call_of(piece.get("index"), _Call(0, None, call_id, name, arguments))
        call.id = call.id or call_id
        # Names come whole, in pieces, or whole again with every piece of the arguments.
        if name and name != call.name and not call.arguments:
            call.name += name
        call.arguments += arguments
        return ToolCallDelta(call.index, call.name, arguments)

    def _call_of(self, wire_index: Any, piece: _Call) -> _Call:
        index = wire_index if isinstance(wire_index, int) and not isinstance(wire_index, bool) else None
        if index is not None:
            known = next((call for call in reversed(self._calls) if call.wire_index == index), None)
        elif piece.id:
            known = next((call for call in self._calls if call.id == piece.id), None)
        else:
            known = self._calls[-1] if self._calls else None
        if known is None or _is_another(known, piece):
            known = _Call(len(self._calls), index)
            self._calls.append(known)
            self._parts.append(known)
        return known


def _is_another(known: _Call, piece: _Call) -> bool:
    """Whether this piece begins a new call although its index, or the lack of one, says it goes on with ``known``.

    Some servers give every call the index 0. A new id alone means nothing (others make one for each piece).
    """
    if not piece.name or (piece.id and piece.id == known.id):
        return False
    if known.is_whole():
        has_own = bool(piece.arguments) or piece.name != known.name
        return has_own and (known.wire_index is None or bool(piece.id and known.id))
    return bool(piece.id and known.id) and piece.name != known.name and not known.arguments


def _content(part: _Text | _Call) -> TextContent | ThinkingContent | ToolCall:
    if isinstance(part, _Text):
        text = part.text + ("\ufffd" if part.held else "")
        if part.thinking_field is None:
            return TextContent(text=text)
        return ThinkingContent(thinking=text, thinking_signature=part.thinking_field)
    arguments = read_object(part.arguments)
    if arguments is None:
        return ToolCall(id=part.id, name=part.name, arguments={}, raw_arguments=part.arguments)
    return ToolCall(id=part.id, name=part.name, arguments=arguments)


def read_usage(value: Any) -> Usage | None:
    """Token counts, or None where there are none (all zero is how some servers say that they do not count)."""
    counts = _mapping(value)
    prompt, output = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
    if not prompt and not output:
        return None
    details = _mapping(counts.get("prompt_tokens_details"))
    cached = min(prompt, _count(details.get("cached_tokens")) or _count(counts.get("prompt_cache_hit_tokens")))
    reasoning = _count(_mapping(counts.get("completion_tokens_details")).get("reasoning_tokens"))
    cost = counts.get("cost")
    return Usage(
        input=prompt - cached,
        output=output,
        cache_read=cached,
        cache_write=0,
        total_tokens=_count(counts.get("total_tokens")) or prompt + output,
        cost=Cost(total=cost) if isinstance(cost, float) and 0 < cost < 1e9 else None,
        **({"reasoning": reasoning} if reasoning else {}),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _text(value: Any) -> str:
    """A message's content: mostly a string; a list of parts from a few servers."""
    if isinstance(value, list):
        return "".join(_string(part.get("text")) for part in _mappings(cast("Any", value)))
    return _string(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]


def _first(value: Any) -> Mapping[str, Any]:
    items = _mappings(value)
    return items[0] if items else {}
