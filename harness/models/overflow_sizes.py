"""How long a request was, and how long it may be, out of what a server says when it is too long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NUMBER = r"(?P<{}>\d[\d,_]*+)"
_SIZE = _NUMBER.format("size")
_WINDOW = _NUMBER.format("window") + r"(?! bytes|\)? exceeds?)"

_WINDOWS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # OpenAI, vLLM, OpenRouter, Groq, xAI: "maximum context length is 8192", "context size (4096 tokens)"
        (
            r"(?:context|prompt|model|input)\s+(?:length|size|window|limit)(?: limit)?\s*(?:is|of|:|\()?"
            rf"\s*(?:only\s+|about\s+)?{_WINDOW}"
        ),
        rf"(?:<=?|exceed\w*|greater than|more than|larger than|limit of)\s*(?:the limit of\s+)?{_WINDOW}",
        rf">\s*{_WINDOW}",  # Anthropic: "201 tokens > 200 maximum"
        rf"tokens allowed\s*\(?{_WINDOW}",  # Google
        rf"(?:token )?limit:\s*{_WINDOW}",  # Moonshot
        rf"limit for this model is\s+{_WINDOW}",  # Cohere
        rf"total tokens limit\s+{_WINDOW}",  # watsonx
        rf"supports up to\s+{_WINDOW}",  # Vertex
        rf"n_ctx \({_WINDOW}",  # LM Studio
        rf"{_WINDOW}\s+maximum context length",  # Mistral
        rf"at most\s+{_WINDOW}",
    )
)
_SIZES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"requested\s+(?:about\s+|a total of\s+)?{_SIZE}(?!\s+output)",
        rf"resulted in\s+{_SIZE}",
        rf"(?:request|prompt|input|count|inputs|requested tokens|n_keep)\s*\((?:length\s+)?{_SIZE}",
        rf"(?:input|prompt) length\s+\(?{_SIZE}\)? exceeds",
        rf"token count (?:of|is)\s+{_SIZE}",
        rf"number of input tokens\s+{_SIZE}",
        rf"keep the first\s+{_SIZE}",
        rf"(?:contains?|passed)\s+(?:at least\s+)?{_SIZE}",
        rf"(?:too long|given|got|has):?\s*{_SIZE}",
        rf"{_SIZE}\s*(?:tokens\s*)?>",
        rf"your (?:prompt|input|request) (?:has|is)\s+{_SIZE}",
    )
)
_SUM = re.compile(r"(?P<first>\d[\d,_]*)\s*\+\s*(?P<second>\d[\d,_]*)\s*>\s*(?P<window>\d[\d,_]*)")
"""Anthropic, where the prompt and the reply that was asked for are too long together."""

_REPLIES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # OpenAI, DeepSeek, vLLM, OpenRouter, SGLang: "(10 in the messages, 5000 in the completion)"
        rf"{_SIZE}\s+(?:tokens\s+)?(?:in|for)\s+(?:the|your)\s+(?:completion|output)",
        rf"requested\s+{_SIZE}\s+output tokens",
        rf"{_SIZE}\s+`?max_new_tokens",  # Hugging Face, Together
        rf"max_(?:completion_|output_)?tokens\W+(?:is too large\W+)?{_SIZE}",
    )
)

_LONGEST_LOOK = 4_000


def overflow_sizes(told: str, members: Mapping[str, Any]) -> dict[str, int]:
    """``tokens`` (of the request) and ``context_window``, as far as the server tells them; nothing is guessed.

    ``told`` is the message, ``members`` what stands beside it (llama.cpp has ``n_prompt_tokens`` and ``n_ctx`` there).
    A pair in which the request would fit is no pair: then neither is told.
    """
    told = told[:_LONGEST_LOOK]
    size, window = _count(members.get("n_prompt_tokens")), _count(members.get("n_ctx"))
    if found := _SUM.search(told):
        size, window = _number(found["first"]) + _number(found["second"]), _number(found["window"])
    size = size or _first(_SIZES, told, "size")
    window = window or _first(_WINDOWS, told, "window")
    if size and window and size <= window:
        return {}
    return {name: value for name, value in (("tokens", size), ("context_window", window)) if value}


def is_reply_alone_too_long(told: str) -> bool:
    """Whether the server says that the reply that was asked for takes the whole window, whatever the conversation."""
    told = told[:_LONGEST_LOOK]
    if found := _SUM.search(told):
        return _number(found["second"]) >= _number(found["window"])
    reply, window = _first(_REPLIES, told, "size"), _first(_WINDOWS, told, "window")
    return reply is not None and window is not None and reply >= window


def _first(patterns: tuple[re.Pattern[str], ...], told: str, group: str) -> int | None:
    found = next((match for pattern in patterns if (match := pattern.search(told))), None)
    return _number(found[group]) if found else None


def _number(digits: str) -> int:
    return int(re.sub(r"[,_]", "", digits)[:18])


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
