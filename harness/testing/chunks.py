"""A message as the chunks of a streamed chat completion, in OpenAI's manner."""

from __future__ import annotations

from typing import Any

from harness.models.events import TextDelta, ThinkingDelta, ToolCallDelta
from harness.testing.replies import events_of, output_tokens
from storage.messages import AssistantMessage

_FINISH_REASONS = {"stop": "stop", "length": "length", "toolUse": "tool_calls"}


def chunks_of(
    message: AssistantMessage, model: str, chunk_size: int, prompt_tokens: int | None
) -> list[dict[str, Any]]:
    """All chunks of the message, the usage last; None as ``prompt_tokens`` leaves it out."""
    head = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model}

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    calls = message.tool_calls
    opened: set[int] = set()
    chunks = [chunk({"role": "assistant", "content": None if calls else ""})]
    for event in events_of(message, chunk_size):
        match event:
            case TextDelta():
                chunks.append(chunk({"content": event.text}))
            case ThinkingDelta():
                chunks.append(chunk({"reasoning_content": event.text}))
            case ToolCallDelta():
                function: dict[str, Any] = {"arguments": event.arguments_piece}
                piece: dict[str, Any] = {"index": event.index, "function": function}
                if event.index not in opened:
                    opened.add(event.index)
                    function["name"] = event.name
                    piece.update(id=calls[event.index].id, type="function")
                chunks.append(chunk({"tool_calls": [piece]}))
            case _:
                pass
    chunks.append(chunk({}, _FINISH_REASONS.get(message.stop_reason or "stop", message.stop_reason)))
    if prompt_tokens is not None:
        chunks.append({**head, "choices": [], "usage": _usage(message, prompt_tokens)})
    return chunks


def _usage(message: AssistantMessage, prompt_tokens: int) -> dict[str, Any]:
    if message.usage is not None:
        given = message.usage
        prompt, output, cached = given.input + given.cache_read, given.output, given.cache_read
    else:
        prompt, cached = prompt_tokens, 0
        output = output_tokens(message)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
