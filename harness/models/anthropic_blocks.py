"""From messages to the content blocks of Anthropic's Messages API: none that it would refuse."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.models.anthropic_thinking import thinking_blocks
from harness.models.payload_parts import (
    EMPTY_MESSAGE,
    EMPTY_RESULT,
    IMAGES_OF_RESULTS,
    CallIds,
    Part,
    hidden_image,
    image_type,
    legal_name,
    parts_of,
)
from storage.messages import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserMessage,
)

API = "anthropic-messages"
"""What replies of this API are marked with in the record."""

_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def user_blocks(message: UserMessage) -> list[Part]:
    """A user message's blocks; never none."""
    return _sendable(parts_of(message.content)) or [_text(EMPTY_MESSAGE)]


def result_blocks(message: ToolResultMessage, wire_id: str) -> list[Part]:
    """A result's block, and the images that it cannot hold behind it."""
    blocks = _sendable(parts_of(message.content))
    images: list[Part] = []
    if message.is_error:
        # An error may hold text alone.
        images = [block for block in blocks if block["type"] == "image"]
        blocks = [block for block in blocks if block["type"] == "text"]
    result: Part = {"type": "tool_result", "tool_use_id": wire_id, "content": blocks or [_text(EMPTY_RESULT)]}
    if message.is_error:
        result["is_error"] = True
    return [result, *([_text(IMAGES_OF_RESULTS), *images] if images else [])]


class AssistantBlocks:
    """Makes the blocks of one request's replies, and knows the ids that their calls are sent with."""

    def __init__(self, provider: str, model_id: str) -> None:
        self.ids: CallIds = CallIds(_USABLE_ID)
        self._provider = provider
        self._model_id = model_id

    def of_message(self, message: AssistantMessage) -> list[Part]:
        """The blocks; none if there is nothing to send back."""
        wire_ids = iter(self.ids.of_calls(message.tool_calls))
        made_by = (message.api or API, message.provider, message.model)
        thinking = thinking_blocks(message) if made_by == (API, self._provider, self._model_id) else {}
        blocks: list[Part] = []
        for place, part in enumerate(message.content or ()):
            match part:
                case TextContent():
                    blocks += _sendable([part])
                case ThinkingContent():
                    blocks += [thinking[place]] if place in thinking else []
                case _:
                    # What was no JSON object is never sent as arguments.
                    name = legal_name(part.name)
                    blocks.append({"type": "tool_use", "id": next(wire_ids), "name": name, "input": part.arguments})
        return blocks


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _sendable(parts: Sequence[TextContent | ImageContent]) -> list[Part]:
    blocks: list[Part] = []
    for part in parts:
        if isinstance(part, ImageContent):
            blocks.append(_image(part))
        elif part.text and part.text.strip():
            blocks.append(_text(part.text))
    return blocks


def _image(part: ImageContent) -> Part:
    media_type = image_type(part)
    if media_type is None:
        return _text(hidden_image(part))
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": part.data}}
