"""JSON as messages are shown in, and what counts as empty: design R21 and R20, written with the standard library alone."""

from __future__ import annotations

import json
from typing import Any, cast

Json = dict[str, Any]
"""A JSON object as ``json.loads`` gives it."""


def compact(value: Any) -> str:
    """Compact JSON with non-ASCII characters raw: the form in which sizes are counted."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def characters(messages: list[Json]) -> int:
    """R21: the code points of each message's JSON as shown, plus 1 for each."""
    return sum(len(compact(message)) + 1 for message in messages)


def blank(text: str | None) -> bool:
    """Whether a text says nothing: absent, empty, or white space only."""
    return text is None or not text.strip()


def parts_of(content: Any) -> list[Json]:
    """The content as a list of parts: a string is one text part, ``null`` is none."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return cast("list[Json]", content)


def blank_part(part: Json) -> bool:
    """Whether a part is a text that says nothing."""
    return part.get("type") == "text" and blank(part.get("text"))


def text_of(message: Json) -> str:
    """All text parts joined."""
    return "".join(part.get("text") or "" for part in parts_of(message.get("content")) if part.get("type") == "text")


def without_blanks(content: Any) -> Any:
    """The content without its blank texts: a string stays a string, or is ``""`` when it was blank."""
    if content is None or isinstance(content, str):
        return "" if blank(content) else content
    return [part for part in cast("list[Json]", content) if not blank_part(part)]


def calls_of(message: Json) -> list[Json]:
    """An assistant message's tool calls in call order; none for other roles."""
    if message.get("role") != "assistant":
        return []
    return [part for part in parts_of(message.get("content")) if part.get("type") == "toolCall"]
