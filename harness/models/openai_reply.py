"""From the chunks of a streamed chat completion to events and one whole reply, whatever the server repeats or omits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from harness.models.events import ModelEvent, TextDelta, ThinkingDelta, ToolCallDelta
from harness.models.openai_payload import REASONING_FIELDS
from harness.models.reply_parts import (
    TextPiece,
    count_of,
    mapping_of,
    mappings_of,
    read_object,
    reply_message,
    string_of,
    tool_call_of,
)
from storage.messages import AssistantMessage, Cost, TextContent, ThinkingContent, ToolCall, Usage

FAILED_REASONS = ("content_filter", "error", "network_error", "sensitive", "insufficient_system_resource")
"""Finish reasons that say there is no reply to be trusted."""


@dataclass
class _Text(TextPiece):
    thinking_field: str | None = None
    """Where it came in, if it is the model's reasoning."""


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
class OpenAIReply:
    """Takes chunks in order (``add``) and gives events; ``message`` is the reply when they have ended."""

    finish_reason: str | None = None
    usage: Usage | None = None
    response_model: str | None = None
    response_id: str | None = None
    _parts: list[_Text | _Call] = field(default_factory=list[_Text | _Call])
    _calls: list[_Call] = field(default_factory=list[_Call])

    def add(self, chunk: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """The events that this chunk makes. Chunks of any shape are taken; what is not understood is left alone."""
        self.response_id = self.response_id or string_of(chunk.get("id")) or None
        self.response_model = self.response_model or string_of(chunk.get("model")) or None
        choice = _first(chunk.get("choices"))
        self.usage = (
            read_usage(chunk.get("usage"))
            or read_usage(choice.get("usage"))
            or read_usage(mapping_of(chunk.get("x_groq")).get("usage"))
            or self.usage
        )
        # A server that does not stream at all answers with a whole message, of the same shape.
        delta = mapping_of(choice.get("delta")) or mapping_of(choice.get("message"))
        for name in REASONING_FIELDS:
            if thinking := self._say(string_of(delta.get(name)), name):
                yield ThinkingDelta(thinking)
                break  # some servers send the same text under two names
        if text := self._say(_text(delta.get("content")) or string_of(delta.get("refusal")), None):
            yield TextDelta(text)
        for piece in mappings_of(delta.get("tool_calls")):
            yield self._call(piece)
        if legacy := mapping_of(delta.get("function_call")):
            yield self._call({"index": 0, "function": legacy})
        if reason := string_of(choice.get("finish_reason")):
            self.finish_reason = reason

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said, thought or called so far."""
        return not self._parts

    @property
    def failure(self) -> str | None:
        """The finish reason, if it says that there is no reply to be trusted."""
        return self.finish_reason if self.finish_reason in FAILED_REASONS else None

    def message(self, *, provider: str, model_id: str) -> AssistantMessage:
        """The whole reply. Call it once, after the last chunk."""
        return reply_message(
            [_content(part) for part in self._parts],
            api="openai-completions",
            provider=provider,
            model_id=model_id,
            usage=self.usage,
            finish_reason=self.finish_reason,
            response_id=self.response_id,
            response_model=self.response_model,
        )

    def _say(self, text: str, thinking_field: str | None) -> str:
        if not text:
            return ""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Text) or last.thinking_field != thinking_field:
            last = _Text(thinking_field=thinking_field)
            self._parts.append(last)
        return last.add(text)

    def _call(self, piece: Mapping[str, Any]) -> ToolCallDelta:
        function = mapping_of(piece.get("function"))
        call_id, name = string_of(piece.get("id")), string_of(function.get("name"))
        raw = function.get("arguments")
        arguments = json.dumps(raw, ensure_ascii=False) if isinstance(raw, dict | list) else string_of(raw)
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
    if isinstance(part, _Call):
        return tool_call_of(part.id, part.name, part.arguments)
    if part.thinking_field is None:
        return TextContent(text=part.whole)
    return ThinkingContent(thinking=part.whole, thinking_signature=part.thinking_field)


def read_usage(value: Any) -> Usage | None:
    """Token counts, or None where there are none (all zero is how some servers say that they do not count)."""
    if not value:
        return None  # nearly all chunks
    counts = mapping_of(value)
    prompt, output = count_of(counts.get("prompt_tokens")), count_of(counts.get("completion_tokens"))
    if not prompt and not output:
        return None
    details = mapping_of(counts.get("prompt_tokens_details"))
    cached = min(prompt, count_of(details.get("cached_tokens")) or count_of(counts.get("prompt_cache_hit_tokens")))
    reasoning = count_of(mapping_of(counts.get("completion_tokens_details")).get("reasoning_tokens"))
    cost = counts.get("cost")
    return Usage(
        input=prompt - cached,
        output=output,
        cache_read=cached,
        cache_write=0,
        total_tokens=count_of(counts.get("total_tokens")) or prompt + output,
        cost=Cost(total=cost) if isinstance(cost, float) and 0 < cost < 1e9 else None,
        **({"reasoning": reasoning} if reasoning else {}),
    )


def _text(value: Any) -> str:
    """A message's content: mostly a string; a list of parts from a few servers."""
    if isinstance(value, list):
        return "".join(string_of(part.get("text")) for part in mappings_of(cast("Any", value)))
    return string_of(value)


def _first(value: Any) -> Mapping[str, Any]:
    items = mappings_of(value)
    return items[0] if items else {}
