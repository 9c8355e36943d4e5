"""What Anthropic's API refuses, as rules of its own: written from the vendor's messages, not from our code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}

Blocks = Sequence[Mapping[str, Any]]


def refused(body: Mapping[str, Any]) -> list[str]:
    """Why the API would refuse the body; empty if it would take it."""
    messages: list[Mapping[str, Any]] = body["messages"]
    roles = [message["role"] for message in messages]
    reasons: list[str] = []
    if not messages or roles[0] != "user":
        reasons.append("the first message must be the user's")
    if roles and roles[-1] == "assistant":
        reasons.append("this model takes no beginning of its answer: the last message must be the user's")
    if any(before == after for before, after in pairwise(roles)):
        reasons.append("roles must alternate")
    if set(roles) - {"user", "assistant"}:
        reasons.append("unknown role")
    ids = [block["id"] for message in messages for block in message["content"] if block["type"] == "tool_use"]
    if len(ids) != len(set(ids)):
        reasons.append("tool_use ids must be unique")
    if ids and not body.get("tools"):
        reasons.append("calls without tools declared")
    before: Blocks = ()
    for message in messages:
        blocks: Blocks = message["content"]
        reasons += [reason for block in blocks for reason in _of_block(block, message["role"])]
        if not blocks:
            reasons.append("content must not be empty")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(block["id"] for block in before if block["type"] == "tool_use"):
            reasons.append("each call needs its one result in the next message, and each result its call before")
        if any(block["type"] == "tool_result" for block in blocks[len(results) :]):
            reasons.append("results must come first")
        if blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            reasons.append("the last block must not be thinking")
        before = blocks
    marks = str(body).count("'cache_control'")
    return [*reasons, *(["more than four marks for the cache"] if marks > 4 else [])]


def _of_block(block: Mapping[str, Any], role: str) -> list[str]:
    match block["type"]:
        case "text":
            return [] if block["text"].strip() else ["text must be non-empty"]
        case "image":
            source = block["source"]
            is_good = role == "user" and source["media_type"] in _IMAGES and source["data"]
            return [] if is_good else ["an image of the wrong kind or in the wrong place"]
        case "tool_use":
            is_good = role == "assistant" and _ID.fullmatch(block["id"]) and isinstance(block["input"], dict)
            return [] if is_good and re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]) else ["a bad call"]
        case "tool_result":
            parts: Blocks = block["content"]
            reasons = [reason for part in parts for reason in _of_block(part, role)]
            if role != "user" or not parts:
                reasons.append("a bad result")
            if block.get("is_error") and any(part["type"] != "text" for part in parts):
                reasons.append("all content must be text if is_error is true")
            return reasons
        case "thinking":
            return [] if role == "assistant" and block["signature"] else ["thinking without a signature"]
        case "redacted_thinking":
            return [] if role == "assistant" and block["data"] else ["redacted thinking without data"]
        case other:
            return [f"unknown block {other}"]
