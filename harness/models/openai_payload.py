"""From a request to the body of an OpenAI chat completion: a pure function, and the same bytes every time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.models.payload_parts import (
    EMPTY_MESSAGE,
    EMPTY_RESULT,
    IMAGES_OF_RESULTS,
    NOTHING_TO_SEND,
    CallIds,
    Part,
    encode_json,
    hidden_image,
    image_type,
    legal_name,
    own_option,
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
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

INCLUDE_USAGE = "include_usage"
RETURN_REASONING = "return_reasoning"
IMAGES = "images"
ALTERNATE_ROLES = "alternate_roles"

Parts = Sequence[TextContent | ImageContent]
Content = str | Parts | None

_OURS = ("model", "messages", "tools", "stream", "stream_options")
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,40}")
"""What every known server takes as a call's id. OpenAI refuses more than 40 characters."""


def openai_payload(
    model_id: str,
    request: ModelRequest,
    *,
    provider: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of the request, as compact UTF-8 JSON.

    ``defaults`` are options that the request's own win over. Four of them are not sent but shape the body:
    ``include_usage`` (true unless given) asks for token counts, ``images`` (true) sends images rather than words that
    stand for them, ``return_reasoning`` (false) sends reasoning back that this ``provider`` and model made, and
    ``alternate_roles`` (false) makes one message of neighbours of one role. Lone surrogates become U+FFFD; blank text is
    left out.

    Raises:
        ModelError: a message of a role that cannot be sent, an option that is not the caller's to set, a value that is
            no JSON.
    """
    options = sent_options(defaults, request.options, _OURS)
    include_usage = own_option(options, INCLUDE_USAGE, True)
    wants_reasoning = (provider, model_id) if own_option(options, RETURN_REASONING, False) else None
    messages = list(_messages(request, wants_reasoning, sees_images=own_option(options, IMAGES, True)))
    if own_option(options, ALTERNATE_ROLES, False):
        messages = _merged(messages)
    body: dict[str, Any] = {"model": model_id, "messages": messages}
    if not any(message["role"] != "system" for message in messages):
        raise ModelError(NOTHING_TO_SEND)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    body["stream"] = True
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    if request.thinking_level not in (None, "off"):
        body["reasoning_effort"] = request.thinking_level
    return encode_json({**body, **options})


def _tool(tool: ToolSchema) -> Part:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _messages(
    request: ModelRequest, wants_reasoning: tuple[str | None, str] | None, *, sees_images: bool
) -> Iterator[Part]:
    if request.system_prompt and request.system_prompt.strip():
        yield {"role": "system", "content": request.system_prompt}
    ids = CallIds(_USABLE_ID)
    offered = {tool.name for tool in request.tools}
    images: list[Part] = []
    for position, message in enumerate(request.messages):
        if images and not isinstance(message, ToolResultMessage):
            yield _images_of_results(images)
            images = []
        match message:
            case UserMessage():
                yield {"role": "user", "content": _user_content(message.content, sees_images)}
            case AssistantMessage():
                is_wanted = wants_reasoning is not None and wants_reasoning == (message.provider, message.model)
                if sent := _assistant(message, ids, offered, is_wanted):
                    yield sent
            case ToolResultMessage():
                content = message.content
                if isinstance(content, str):
                    yield _result(ids, message, content if content.strip() else EMPTY_RESULT)
                    continue
                parts = _shown(content, sees_images)
                yield _result(ids, message, _result_text(parts))
                images += [_image(part) for part in parts if isinstance(part, ImageContent)]
            case _:
                raise wrong_role(position, message)
    if images:
        yield _images_of_results(images)


def _merged(messages: Sequence[Part]) -> list[Part]:
    """The messages with the texts of neighbours made one, where both are the user's, or the model's without calls."""
    merged: list[Part] = []
    for message in messages:
        before = merged[-1] if merged else None
        is_same = before is not None and before["role"] == message["role"] in ("user", "assistant")
        if (
            before is None
            or not is_same
            or "tool_calls" in before
            or not ("content" in before and "content" in message)
        ):
            merged.append(message)
        else:
            merged[-1] = {**before, **message, "content": _joined(before["content"], message["content"])}
    return merged


def _joined(first: str | list[Part], second: str | list[Part]) -> str | list[Part]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    lists = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second)]
    return lists[0] + lists[1]


def _shown(content: Content, sees_images: bool) -> Parts:
    """The parts, with words for the images that the model cannot see."""
    return [
        TextContent(text=hidden_image(part))
        if isinstance(part, ImageContent) and (not sees_images or image_type(part) is None)
        else part
        for part in parts_of(content)
    ]


def _image(part: ImageContent) -> Part:
    return {"type": "image_url", "image_url": {"url": f"data:{image_type(part)};base64,{part.data}"}}


def _result(ids: CallIds, message: ToolResultMessage, text: str) -> Part:
    return {"role": "tool", "tool_call_id": ids.of_result(message), "content": text}


def _user_content(content: Content, sees_images: bool) -> str | list[Part]:
    if isinstance(content, str):
        return content if content.strip() else EMPTY_MESSAGE
    sent: list[Part] = []
    for part in _shown(content, sees_images):
        if isinstance(part, ImageContent):
            sent.append(_image(part))
        elif part.text and part.text.strip():
            sent.append({"type": "text", "text": part.text})
    if not sent:
        return EMPTY_MESSAGE
    # A plain string is what every server takes; a list only where it is needed.
    return sent[0]["text"] if len(sent) == 1 and sent[0]["type"] == "text" else sent


def _result_text(parts: Parts) -> str:
    texts = texts_of(parts)
    if not texts and any(isinstance(part, ImageContent) for part in parts):
        return "(an image, shown below)"
    return "\n".join(texts) or EMPTY_RESULT


def _images_of_results(images: list[Part]) -> Part:
    """The wire has no place for an image in a tool's message: they follow, as the user's, after the last result."""
    return {"role": "user", "content": [{"type": "text", "text": IMAGES_OF_RESULTS}, *images]}


def _assistant(message: AssistantMessage, ids: CallIds, offered: set[str], wants_reasoning: bool) -> Part | None:
    calls = message.tool_calls
    call_ids = ids.of_calls(calls)
    sent: Part = {"role": "assistant"}
    if text := "".join(texts_of(message.content or ())):
        # Absent rather than null beside calls: null is allowed, but one server in use fails on it.
        sent["content"] = text
    if wants_reasoning:
        for part in message.content or ():
            if isinstance(part, ThinkingContent) and part.thinking and part.thinking_signature in REASONING_FIELDS:
                field = part.thinking_signature
                sent[field] = sent.get(field, "") + part.thinking
    if calls:
        sent["tool_calls"] = [
            {"id": wire_id, "type": "function", "function": _function(call, offered)}
            for wire_id, call in zip(call_ids, calls, strict=True)
        ]
    return sent if "content" in sent or "tool_calls" in sent else None


REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Where servers put a model's reasoning. The one that was used is kept as the thinking's signature."""


def _function(call: ToolCall, offered: set[str]) -> Part:
    # What was no JSON object is never sent as arguments: a server that parses them would refuse the whole history.
    name = call.name if call.name in offered else legal_name(call.name)
    return {"name": name, "arguments": encode_json(call.arguments).decode()}
