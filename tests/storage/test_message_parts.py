"""Messages are made of what an app has: a list of texts alone, a tuple, parts of several kinds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from storage.messages import AssistantMessage, ImageContent, TextContent, ToolResultMessage, UserMessage
from storage.strict_json import encode_model

TEXTS = [TextContent(text="one"), TextContent(text="two")]
PICTURE = ImageContent(data="iVBORw0KGgo=", mime_type="image/png")


def made(
    parts: Sequence[TextContent], more: Sequence[TextContent | ImageContent]
) -> list[UserMessage | AssistantMessage | ToolResultMessage]:
    """That a type checker lets this pass is half of the test: to it, a list of texts is no list of parts."""
    return [
        UserMessage(content=parts),
        UserMessage(content=more),
        AssistantMessage(content=parts),
        ToolResultMessage(tool_call_id="c1", tool_name="read", content=parts),
        ToolResultMessage(tool_call_id="c1", tool_name="read", content=more),
    ]


@pytest.mark.parametrize("kind", [list, tuple])
def test_parts_are_any_sequence(kind: type[list[TextContent] | tuple[TextContent, ...]]):
    """What is recorded is a list, whatever held the parts, and it is the message's own."""
    for message in made(kind(TEXTS), [*TEXTS, PICTURE]):
        assert message.text == "onetwo"
        assert isinstance(message.content, list)
        assert b'"content":[{"type":"text","text":"one"},' in encode_model(message)
