"""Claude's thinking: how it is asked for, and what of it goes back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.models.payload_parts import Part
from storage.messages import AssistantMessage, TextContent, ThinkingContent

_VERSION = re.compile(r"claude-(?:[a-z]+-)*(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_FIRST_THINKING = (3, 7)
_FIRST_ADAPTIVE = (4, 6)
"""From here on budgets are on their way out, and refused soon after; before, there is no other way."""

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_BUDGETS = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16_384}
_SMALLEST_BUDGET = 1024
_THINKING_TYPES = ("thinking", "redacted_thinking")


def thinking_options(
    model_id: str, level: str | None, options: Mapping[str, Any], messages: Sequence[Part]
) -> dict[str, Any]:
    """What asks for thinking of that level. Empty for none, and where the caller's options say it already.

    A budget is left out where it would be refused: if half of ``max_tokens`` is less than the smallest, and in the
    middle of calls that were not thought about (another model's, say).
    """
    effort = _EFFORTS.get(level or "")
    if effort is None or "thinking" in options:
        return {}
    if _version(model_id) >= _FIRST_ADAPTIVE:
        adaptive = {"type": "adaptive", "display": "summarized"}
        return {"thinking": adaptive, "output_config": {"effort": effort}}
    budget = min(_BUDGETS[level or ""], _half(options.get("max_tokens")))
    if budget < _SMALLEST_BUDGET or _version(model_id) < _FIRST_THINKING or _calls_without_thinking(messages):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def thinking_blocks(message: AssistantMessage) -> dict[int, Part]:
    """The message's thinking, by its place in the content: unchanged, or none at all.

    All of it is left out where a part has no signature (the stream was cut), and where it would end the message: both
    are refused, and so is a part without the rest.
    """
    blocks: dict[int, Part] = {}
    last = -1
    for place, part in enumerate(message.content or ()):
        if isinstance(part, ThinkingContent):
            if not part.thinking_signature:
                return {}
            blocks[place] = _block(part, part.thinking_signature)
        elif not isinstance(part, TextContent) or (part.text and part.text.strip()):
            last = place
    return {} if any(place > last for place in blocks) else blocks


def _block(part: ThinkingContent, signature: str) -> Part:
    if part.redacted:
        return {"type": "redacted_thinking", "data": signature}
    return {"type": "thinking", "thinking": part.thinking or "", "signature": signature}


def _half(max_tokens: object) -> int:
    return max_tokens // 2 if isinstance(max_tokens, int) else 0


def _version(model_id: str) -> tuple[int, int]:
    """Of a Claude model; one that names none is of the newest, and one that is no Claude is taken for an old one."""
    if "claude" not in model_id:
        return _FIRST_THINKING
    found = _VERSION.search(model_id)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)


def _calls_without_thinking(messages: Sequence[Part]) -> bool:
    """Whether the request goes on with calls whose reply does not begin with thinking."""
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return False
    return messages[-2]["content"][0]["type"] not in _THINKING_TYPES
