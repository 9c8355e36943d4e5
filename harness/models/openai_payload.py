"""From a request to the body of an OpenAI chat completion: a pure function, and the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.models.protocol import ModelRequest, ToolSchema
from storage.errors import ModelError
from storage.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

EMPTY_MESSAGE = "(empty message)"
"""Stands for a user message with nothing to send, so that the order of roles stays."""
EMPTY_RESULT = "(no output)"
"""Stands for a tool result with nothing to send: each call needs its answer."""

_OURS = ("model", "messages", "tools", "stream", "stream_options")
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,40}")
"""What every known server takes as a call's id. OpenAI refuses more than 40 characters."""

Part = dict[str, Any]


def openai_payload(
    model_id: str,
    request: ModelRequest,
    *,
    defaults: Mapping[str, Any] | None = None,
    include_usage: bool = True,
    return_reasoning_to: str | None = None,
) -> bytes:
    """The body of the request, as compact UTF-8 JSON.

    ``defaults`` are options that the request's own win over. ``return_reasoning_to`` is the provider that wants its
    reasoning back (with the model named); None sends none. Lone surrogates become U+FFFD; blank text is left out.

    Raises:
        ModelError: a message of a role that cannot be sent, an option that is not the caller's to set, a value that is
            no JSON.
    """
    body: dict[str, Any] = {"model": model_id, "messages": list(_messages(model_id, request, return_reasoning_to))}
    if not any(message["role"] != "system" for message in body["messages"]):
        raise ModelError("There is nothing to send: the request has no messages. Append a user message first.")
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    body["stream"] = True
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    if request.thinking_level not in (None, "off"):
        body["reasoning_effort"] = request.thinking_level
    options = {**(defaults or {}), **request.options}
    for name in sorted(options):
        if name in _OURS:
            raise ModelError(f"The option {name!r} is not for the caller to set; remove it from the model's options.")
        body[name] = options[name]
    return encode_json(body)


def encode_json(value: Any) -> bytes:
    """Compact, non-ASCII raw, strict: NaN is refused, and a lone surrogate becomes U+FFFD.

    Raises:
        ModelError: the value cannot be written as JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(
            f"The request cannot be written as JSON ({error}); correct the value and send again."
        ) from error
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _tool(tool: ToolSchema) -> Part:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _messages(model_id: str, request: ModelRequest, return_reasoning_to: str | None) -> Iterator[Part]:
    if request.system_prompt and request.system_prompt.strip():
        yield {"role": "system", "content": request.system_prompt}
    ids = _CallIds()
    images: list[Part] = []
    for position, message in enumerate(request.messages):
        if images and not isinstance(message, ToolResultMessage):
            yield _images_of_results(images)
            images = []
        match message:
            case UserMessage():
                yield {"role": "user", "content": _user_content(message)}
            case AssistantMessage():
                wants_reasoning = return_reasoning_to == message.provider and model_id == message.model
                if sent := _assistant(message, ids.of_calls(message.tool_calls), wants_reasoning):
                    yield sent
            case ToolResultMessage():
                yield {"role": "tool", "tool_call_id": ids.of_result(message), "content": _result_text(message)}
                images += [_image(part) for part in _parts(message.content) if isinstance(part, ImageContent)]
            case _:
                raise ModelError(
                    f"Message {position} has the role {_role(message)!r}, which no model takes; build the messages with"
                    " build_context, which turns it into one that can be sent."
                )
    if images:
        yield _images_of_results(images)


def _role(message: Message) -> str:
    return message.role


def _parts(content: str | Sequence[TextContent | ImageContent] | None) -> Sequence[TextContent | ImageContent]:
    return [TextContent(text=content)] if isinstance(content, str) else content or ()


def _texts(parts: Iterable[Any]) -> list[str]:
    return [part.text for part in parts if isinstance(part, TextContent) and part.text and part.text.strip()]


def _image(part: ImageContent) -> Part:
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.data}"}}


def _user_content(message: UserMessage) -> str | list[Part]:
    sent: list[Part] = []
    for part in _parts(message.content):
        if isinstance(part, ImageContent):
            sent.append(_image(part))
        elif part.text and part.text.strip():
            sent.append({"type": "text", "text": part.text})
    if not sent:
        return EMPTY_MESSAGE
    # A plain string is what every server takes; a list only where it is needed.
    return sent[0]["text"] if len(sent) == 1 and sent[0]["type"] == "text" else sent


def _result_text(message: ToolResultMessage) -> str:
    parts = _parts(message.content)
    texts = _texts(parts)
    if not texts and any(isinstance(part, ImageContent) for part in parts):
        return "(an image, shown below)"
    return "\n".join(texts) or EMPTY_RESULT


def _images_of_results(images: list[Part]) -> Part:
    """The wire has no place for an image in a tool's message: they follow, as the user's, after the last result."""
    return {"role": "user", "content": [{"type": "text", "text": "Images from the tool results above:"}, *images]}


def _assistant(message: AssistantMessage, call_ids: list[str], wants_reasoning: bool) -> Part | None:
    sent: Part = {"role": "assistant"}
    if text := "".join(_texts(message.content or ())):
        # Absent rather than null beside calls: null is allowed, but one server in use fails on it.
        sent["content"] = text
    if wants_reasoning:
        for part in message.content or ():
            if isinstance(part, ThinkingContent) and part.thinking and part.thinking_signature in REASONING_FIELDS:
                field = part.thinking_signature
                sent[field] = sent.get(field, "") + part.thinking
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": wire_id, "type": "function", "function": _function(call)}
            for wire_id, call in zip(call_ids, message.tool_calls, strict=True)
        ]
    return sent if "content" in sent or "tool_calls" in sent else None


REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Where servers put a model's reasoning. The one that was used is kept as the thinking's signature."""


def _function(call: ToolCall) -> Part:
    # What was no JSON object is never sent as arguments: a server that parses them would refuse the whole history.
    return {"name": call.name, "arguments": encode_json(call.arguments).decode()}


class _CallIds:
    """The ids of one request's calls as they are sent: each unique, none empty or longer than servers allow.

    Ids that are fine and first of their name stay as they are. Others are made from their place, so that the same
    request always gives the same ones.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._calls = 0
        self._open: list[tuple[str, str]] = []

    def of_calls(self, calls: Sequence[ToolCall]) -> list[str]:
        wire_ids: list[str] = []
        for call in calls:
            self._calls += 1
            wire_id = call.id
            if not _USABLE_ID.fullmatch(wire_id) or wire_id in self._used:
                place = f"{self._calls}:{call.id}".encode("utf-8", "surrogatepass")
                wire_id = "call_" + hashlib.sha256(place).hexdigest()[:24]
            self._used.add(wire_id)
            wire_ids.append(wire_id)
        if calls:
            self._open = [(call.id, wire_id) for call, wire_id in zip(calls, wire_ids, strict=True)]
        return wire_ids

    def of_result(self, result: ToolResultMessage) -> str:
        for place, (call_id, wire_id) in enumerate(self._open):
            if call_id == result.tool_call_id:
                del self._open[place]
                return wire_id
        raise ModelError(
            f"The result for call {result.tool_call_id!r} follows no call of that id; build the messages with"
            " build_context, which pairs them."
        )
