"""What OpenAI's API refuses, as rules of its own: written from the vendor's messages, not from our code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+=*")

Message = Mapping[str, Any]


def refused(body: Mapping[str, Any]) -> list[str]:
    """Why the API would refuse the body; empty if it would take it."""
    messages: list[Message] = body["messages"]
    reasons: list[str] = []
    if not any(message["role"] != "system" for message in messages):
        reasons.append("nothing but a system prompt")
    waiting: set[str] = set()
    seen: set[str] = set()
    for message in messages:
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                reasons.append("messages with role 'tool' must be a response to a preceding message with 'tool_calls'")
            waiting.discard(message["tool_call_id"])
        elif waiting:
            reasons.append("tool_call_ids did not have response messages")
            waiting = set()
        reasons += _of_content(message)
        for call in message.get("tool_calls", ()):
            reasons += _of_call(call)
            if call["id"] in seen:
                reasons.append("an id twice")
            seen.add(call["id"])
            waiting.add(call["id"])
        if message.get("tool_calls") == []:
            reasons.append("tool_calls is empty")
    return [*reasons, *(["a call without its response at the end"] if waiting else [])]


def _of_content(message: Message) -> list[str]:
    role, content = message["role"], message.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        return ["unknown role"]
    if content is None:
        is_good = role == "assistant" and bool(message.get("tool_calls"))
        return [] if is_good else ["expected a string, got null"]
    if isinstance(content, str):
        return [] if content.strip() else ["content is empty"]
    if role != "user" or not content:
        return ["a list of parts where there may be none, or an empty one"]
    reasons: list[str] = []
    for part in content:
        if part["type"] == "text":
            reasons += [] if part["text"].strip() else ["a text part is empty"]
        elif not _IMAGE.fullmatch(part["image_url"]["url"]):
            reasons.append("unsupported image")
    return reasons


def _of_call(call: Mapping[str, Any]) -> list[str]:
    reasons: list[str] = []
    if not 1 <= len(call["id"]) <= 40:
        reasons.append("string too long, or empty: tool_calls.id")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
        reasons.append("string does not match pattern: function.name")
    if not isinstance(json.loads(call["function"]["arguments"]), dict):
        reasons.append("arguments are no object")
    return reasons
