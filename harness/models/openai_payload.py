"""From a request to the body of an OpenAI chat completion: a pure function, and the same bytes every time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.models.payload_parts import (
    EMPTY_MESSAGE,
    EMPTY_RESULT,
    IMAGES_OF_RESULTS,
    NOTHING_TO_SEND,
    CallIds,
    Part,
    encode_json,
    parts_of,
    sent_options,
    texts_of,
    wrong_role,
)
from harness.models.protocol import ModelRequest, ToolSchema
from storage.errors import ModelError
from storage.messages import (
    AssistantMessage,
    ImageContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

_OURS = ("model", "messages", "tools", "stream", "stream_options")
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,40}")
"""What every known server takes as a call's id. OpenAI refuses more than 40 characters."""


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
        raise ModelError(NOTHING_TO_SEND)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    body["stream"] = True
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    if request.thinking_level not in (None, "off"):
        body["reasoning_effort"] = request.thinking_level
    return encode_json({**body, **sent_options(defaults, request.options, _OURS)})


def _tool(tool: ToolSchema) -> Part:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _messages(model_id: str, request: ModelRequest, return_reasoning_to: str | None) -> Iterator[Part]:
    if request.system_prompt and request.system_prompt.strip():
        yield {"role": "system", "content": request.system_prompt}
    ids = CallIds(_USABLE_ID)
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
                images += [_image(part) for part in parts_of(message.content) if isinstance(part, ImageContent)]
            case _:
                raise wrong_role(position, message)
    if images:
        yield _images_of_results(images)


def _image(part: ImageContent) -> Part:
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.data}"}}


def _user_content(message: UserMessage) -> str | list[Part]:
    sent: list[Part] = []
    for part in parts_of(message.content):
        if isinstance(part, ImageContent):
            sent.append(_image(part))
        elif part.text and part.text.strip():
            sent.append({"type": "text", "text": part.text})
    if not sent:
        return EMPTY_MESSAGE
    # A plain string is what every server takes; a list only where it is needed.
    return sent[0]["text"] if len(sent) == 1 and sent[0]["type"] == "text" else sent


def _result_text(message: ToolResultMessage) -> str:
    parts = parts_of(message.content)
    texts = texts_of(parts)
    if not texts and any(isinstance(part, ImageContent) for part in parts):
        return "(an image, shown below)"
    return "\n".join(texts) or EMPTY_RESULT


def _images_of_results(images: list[Part]) -> Part:
    """The wire has no place for an image in a tool's message: they follow, as the user's, after the last result."""
    return {"role": "user", "content": [{"type": "text", "text": IMAGES_OF_RESULTS}, *images]}


def _assistant(message: AssistantMessage, call_ids: list[str], wants_reasoning: bool) -> Part | None:
    sent: Part = {"role": "assistant"}
    if text := "".join(texts_of(message.content or ())):
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
