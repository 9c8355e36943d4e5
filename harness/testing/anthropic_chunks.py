"""A message as the events of a streamed reply of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.testing.replies import arguments_text, output_tokens, pieces_of
from storage.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall

SIGNATURE = "c2NyaXB0ZWQ="
"""What scripted thinking is signed with, where the script does not say."""

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "toolUse": "tool_use"}


def anthropic_chunks_of(
    message: AssistantMessage, model: str, chunk_size: int, prompt_tokens: int | None
) -> list[dict[str, Any]]:
    """All events of the message, with the usage at both ends; None as ``prompt_tokens`` counts nothing."""
    first, last = _usage(message, prompt_tokens)
    head: dict[str, Any] = {"id": "msg_scripted", "type": "message", "role": "assistant", "model": model, "content": []}
    chunks: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "stop_reason": None, "stop_sequence": None, "usage": first}},
        {"type": "ping"},
    ]
    for index, part in enumerate(message.content or ()):
        block, deltas = _block(part, chunk_size)
        chunks.append({"type": "content_block_start", "index": index, "content_block": block})
        chunks += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        chunks.append({"type": "content_block_stop", "index": index})
    reason = _STOP_REASONS.get(message.stop_reason or "stop", message.stop_reason)
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [*chunks, {"type": "message_delta", "delta": delta, "usage": last}, {"type": "message_stop"}]


def _block(
    part: TextContent | ThinkingContent | ToolCall, chunk_size: int
) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """How a block begins, and the deltas that fill it."""
    match part:
        case TextContent():
            pieces = pieces_of(part.text or "", chunk_size)
            return {"type": "text", "text": ""}, ({"type": "text_delta", "text": piece} for piece in pieces)
        case ThinkingContent() if part.redacted:
            return {"type": "redacted_thinking", "data": part.thinking_signature or SIGNATURE}, iter(())
        case ThinkingContent():
            return {"type": "thinking", "thinking": "", "signature": ""}, _thinking_deltas(part, chunk_size)
        case ToolCall():
            pieces = ["", *pieces_of(arguments_text(part), chunk_size)]
            block: dict[str, Any] = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            return block, ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)


def _thinking_deltas(part: ThinkingContent, chunk_size: int) -> Iterator[dict[str, Any]]:
    for piece in pieces_of(part.thinking or "", chunk_size):
        yield {"type": "thinking_delta", "thinking": piece}
    yield {"type": "signature_delta", "signature": part.thinking_signature or SIGNATURE}


def _usage(message: AssistantMessage, prompt_tokens: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """What the first event says, and the last: the API counts the output in both."""
    if prompt_tokens is None:
        return {"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 0}
    given = message.usage
    first = {
        "input_tokens": given.input if given else prompt_tokens,
        "cache_read_input_tokens": given.cache_read if given else 0,
        "cache_creation_input_tokens": given.cache_write if given else 0,
        "output_tokens": 1,
    }
    return first, {"output_tokens": given.output if given else output_tokens(message)}
