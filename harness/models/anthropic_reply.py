"""From the events of Anthropic's Messages API to ours and one whole reply, with its thinking just as it was signed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.models.anthropic_blocks import API
from harness.models.events import ModelEvent, TextDelta, ThinkingDelta, ToolCallDelta
from harness.models.reply_parts import (
    TextPiece,
    count_of,
    mapping_of,
    mappings_of,
    reply_message,
    string_of,
    tool_call_of,
)
from storage.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall, Usage

_KIND_OF_DELTA = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


@dataclass
class _Block:
    kind: str
    call_index: int = 0
    """Its place among the calls of this reply, if it is one."""
    text: TextPiece = field(default_factory=TextPiece)
    """What it says, thinks, or gives the tool as arguments."""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    """The arguments, where a server sends them whole in the block's start."""


@dataclass
class AnthropicReply:
    """Takes the API's events in order (``add``) and gives ours; ``message`` is the reply when they have ended.

    A server that does not stream answers with the whole message, which is one more event here.
    """

    finish_reason: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    _explanation: str = ""
    _counts: dict[str, int] = field(default_factory=dict[str, int])
    _blocks: list[_Block] = field(default_factory=list[_Block])
    _open: dict[int, _Block] = field(default_factory=dict[int, _Block])
    """By the API's index: the block that a delta goes on with."""

    def add(self, chunk: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """The events that this one makes. What is not understood (a server's own tools, citations) is left alone."""
        match chunk.get("type"):
            case "message_start":
                yield from self._message(mapping_of(chunk.get("message")))
            case "message":
                yield from self._message(chunk)
            case "content_block_start":
                yield from self._start(_index(chunk), mapping_of(chunk.get("content_block")))
            case "content_block_delta":
                yield from self._delta(_index(chunk), mapping_of(chunk.get("delta")))
            case "message_delta":
                self._stop(mapping_of(chunk.get("delta")))
                self._count(chunk.get("usage"))
            case _:
                pass

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said, thought or called so far."""
        return not self._blocks

    @property
    def failure(self) -> str | None:
        """``refusal``, with the vendor's explanation: what was said before it is not to be gone on with."""
        if self.finish_reason != "refusal":
            return None
        return f"refusal: {self._explanation}" if self._explanation else "refusal"

    @property
    def usage(self) -> Usage | None:
        """Token counts, or None where there are none."""
        fresh, output, read, written = (self._counts.get(name, 0) for name in _COUNTS)
        total = fresh + output + read + written
        if not total:
            return None
        return Usage(input=fresh, output=output, cache_read=read, cache_write=written, total_tokens=total)

    def message(self, *, provider: str, model_id: str) -> AssistantMessage:
        """The whole reply. Call it once, after the last event."""
        return reply_message(
            [_content(block) for block in self._blocks],
            api=API,
            provider=provider,
            model_id=model_id,
            usage=self.usage,
            finish_reason=self.finish_reason,
            response_id=self.response_id,
            response_model=self.response_model,
        )

    def _message(self, message: Mapping[str, Any]) -> Iterator[ModelEvent]:
        self.response_id = self.response_id or string_of(message.get("id")) or None
        self.response_model = self.response_model or string_of(message.get("model")) or None
        self._count(message.get("usage"))
        for index, block in enumerate(mappings_of(message.get("content"))):
            yield from self._start(index, block)
        self._stop(message)

    def _stop(self, members: Mapping[str, Any]) -> None:
        self.finish_reason = string_of(members.get("stop_reason")) or self.finish_reason
        self._explanation = string_of(mapping_of(members.get("stop_details")).get("explanation")) or self._explanation

    def _count(self, usage: Any) -> None:
        # Later counts are totals, not additions; and a server that sends them only once sends zeros the other time.
        counts = mapping_of(usage)
        self._counts.update({name: number for name in _COUNTS if (number := count_of(counts.get(name)))})

    def _start(self, index: int, members: Mapping[str, Any]) -> Iterator[ModelEvent]:
        kind = string_of(members.get("type"))
        self._open.pop(index, None)
        if kind in ("text", "thinking"):
            if text := string_of(members.get(kind)):
                yield from self._say(self._block(index, kind), text)
            if signature := string_of(members.get("signature")):
                self._block(index, kind).signature += signature
        elif kind == "redacted_thinking":
            self._block(index, kind).signature = string_of(members.get("data"))
        elif kind == "tool_use":
            block = self._block(index, kind)
            block.id, block.name = string_of(members.get("id")), string_of(members.get("name"))
            block.input = members.get("input")
            yield ToolCallDelta(block.call_index, block.name, _whole_input(block))

    def _delta(self, index: int, delta: Mapping[str, Any]) -> Iterator[ModelEvent]:
        kind = _KIND_OF_DELTA.get(string_of(delta.get("type")))
        if kind is None:
            return
        known = self._open.get(index)
        if kind == "tool_use" and (known is None or known.kind != kind):
            return  # of a server's own tool: its block was not taken either
        text = string_of(delta.get("partial_json" if kind == "tool_use" else kind))
        signature = string_of(delta.get("signature"))
        if not text and not signature:
            return
        block = self._block(index, kind)
        block.signature += signature
        if text:
            yield from self._say(block, text)

    def _block(self, index: int, kind: str) -> _Block:
        """The open block of that index, or a new one: a block comes to be with its first piece, and none is empty."""
        block = self._open.get(index)
        if block is None or block.kind != kind:
            block = _Block(kind, call_index=sum(other.kind == "tool_use" for other in self._blocks))
            self._open[index] = block
            self._blocks.append(block)
        return block

    def _say(self, block: _Block, text: str) -> Iterator[ModelEvent]:
        piece = block.text.add(text)
        if not piece:
            return
        if block.kind == "tool_use":
            yield ToolCallDelta(block.call_index, block.name, piece)
        else:
            yield TextDelta(piece) if block.kind == "text" else ThinkingDelta(piece)


def _index(chunk: Mapping[str, Any]) -> int:
    index = chunk.get("index")
    return index if isinstance(index, int) else 0


def _whole_input(block: _Block) -> str:
    return json.dumps(block.input, ensure_ascii=False) if block.input else ""


def _content(block: _Block) -> TextContent | ThinkingContent | ToolCall:
    text = block.text.whole
    match block.kind:
        case "text":
            return TextContent(text=text)
        case "thinking":
            return ThinkingContent(thinking=text, thinking_signature=block.signature or None)
        case "redacted_thinking":
            return ThinkingContent(thinking="", thinking_signature=block.signature, redacted=True)
        case _:
            # A tool without arguments gets no pieces, or one empty one.
            return tool_call_of(block.id, block.name, text if text.strip() else _whole_input(block) or "{}")
