"""The protocols that the scripted server speaks: how each says a reply, an error, and that it is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.testing.anthropic_chunks import anthropic_chunks_of
from harness.testing.chunks import chunks_of
from storage.messages import AssistantMessage

Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProtocol:
    """One vendor's way of answering."""

    chunks_of: Callable[[AssistantMessage, str, int, int | None], list[Chunk]]
    """All chunks of a message: model, characters a piece, and the prompt's tokens (None: nothing is counted)."""
    is_end: Callable[[Mapping[str, Any]], bool]
    """Whether a chunk belongs to the end, which does not come when the reply breaks off."""
    error: Callable[[str, str], Chunk]
    """An error of that message and kind, as a body and as a chunk."""
    overflow: Callable[[int, int], Chunk]
    """The error for a request of so many tokens where so many fit."""
    event: Callable[[Mapping[str, Any]], str]
    """A chunk as an event of the stream."""
    ending: Sequence[str]
    """What ends the stream, after the last chunk."""


def protocol_of(path: str) -> WireProtocol:
    """The protocol of a request to that path."""
    return ANTHROPIC if path.partition("?")[0].endswith("/messages") else OPENAI


def _openai_error(message: str, kind: str) -> Chunk:
    return {"error": {"message": message, "type": kind, "code": kind}}


def _openai_overflow(size: int, window: int) -> Chunk:
    return _openai_error(
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {size} tokens."
        " Please reduce the length of the messages.",
        "context_length_exceeded",
    )


def _openai_is_end(chunk: Mapping[str, Any]) -> bool:
    return not chunk["choices"] or chunk["choices"][0]["finish_reason"] is not None


def _data(chunk: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


OPENAI = WireProtocol(
    chunks_of=chunks_of,
    is_end=_openai_is_end,
    error=_openai_error,
    overflow=_openai_overflow,
    event=_data,
    ending=("data: [DONE]\n\n",),
)


def _anthropic_error(message: str, kind: str) -> Chunk:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _anthropic_overflow(size: int, window: int) -> Chunk:
    return _anthropic_error(f"prompt is too long: {size} tokens > {window} maximum", "invalid_request_error")


def _anthropic_is_end(chunk: Mapping[str, Any]) -> bool:
    return chunk["type"] in ("message_delta", "message_stop")


def _named_data(chunk: Mapping[str, Any]) -> str:
    return (f"event: {chunk['type']}\n" if "type" in chunk else "") + _data(chunk)


ANTHROPIC = WireProtocol(
    chunks_of=anthropic_chunks_of,
    is_end=_anthropic_is_end,
    error=_anthropic_error,
    overflow=_anthropic_overflow,
    event=_named_data,
    ending=(),
)
