"""A conversation as quoted text, for a model that is to read it and not to take part in it.

Every line of what was said begins with ``| ``, whatever line breaks it had, and every other line is ours. So nothing in
it can end the quotation, or pose as a message, a heading or an instruction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from compaction.breathing import Breath, Steps
from compaction.compact_json import compact_json
from compaction.shortened_text import LEAST_CHARS, shorten_text
from compaction.tokens import TextCounter
from storage.messages import AssistantMessage, ImageContent, Message, TextContent, ToolCall, ToolResultMessage

RESULT_CHARS: Final = 2_000
"""Characters that are shown of a tool result."""

ARGUMENT_CHARS: Final = 1_000
"""Characters that are shown of a call's arguments."""

TEXT_CHARS: Final = 16_000
"""Characters that are shown of what a person or a model said at once."""

_FIRST_SHARE: Final = 0.15
"""How much of the room the first message may take where not everything fits: it is likely to say what all is about."""

_NOTES_TOKENS: Final = 40
"""What the lines about what is left out may count."""

_TURN_GOES_ON: Final = "(Here begins the turn that is still going on; what comes after this part of it is kept.)"
_NOT_IN_NAMES: Final = re.compile(r"[^\w./+-]")


class Transcript(NamedTuple):
    """The text, how many messages are in it, and how many older ones are left out."""

    text: str
    shown: int
    left_out: int


def quoted(text: str) -> str:
    """``text`` with every line marked as quoted."""
    return "\n".join(f"| {line}" for line in text.splitlines()) or "| "


def render_message(message: Message, text_chars: int = TEXT_CHARS) -> str:
    """One message: a line that says whose it is, then its content, quoted. Thinking is left out, images are named."""
    if isinstance(message, AssistantMessage):
        pieces = ["assistant:"]
        for part in message.content or ():
            if isinstance(part, TextContent) and part.text:
                pieces.append(quoted(shorten_text(part.text, text_chars)))
            elif isinstance(part, ToolCall):
                pieces.append(f"assistant calls {_plain(part.name)}:")
                arguments = part.raw_arguments if part.raw_arguments is not None else compact_json(part.arguments)
                pieces.append(quoted(shorten_text(arguments, min(ARGUMENT_CHARS, text_chars))))
        return "\n".join(pieces)
    if isinstance(message, ToolResultMessage):
        failed = " (an error)" if message.is_error else ""
        content = quoted(_content(message, min(RESULT_CHARS, text_chars)))
        return f"result of {_plain(message.tool_name)}{failed}:\n{content}"
    return f"user:\n{quoted(_content(message, text_chars))}"


def render_transcript(
    messages: Sequence[Message], counter: TextCounter, max_tokens: int, *, turn_prefix: int = 0
) -> Steps[Transcript]:
    """The messages, oldest first, in at most ``max_tokens`` tokens: the newest as far as they fit, and the first one.

    The newest message is cut to fit if need be. The last ``turn_prefix`` messages are said to be the beginning of a turn
    that goes on. Pauses as ``Steps`` do.
    """
    breath = Breath()
    newest: list[str] = []
    room = max_tokens - _NOTES_TOKENS
    for_first = int(max_tokens * _FIRST_SHARE) if len(messages) > 1 else 0
    place = len(messages)
    while place:
        if breath.is_due():
            yield
            breath.taken()
        text = render_message(messages[place - 1])
        size = 1 + (yield from counter.texts([text]))
        if size > room - (for_first if place > 1 else 0):
            if newest:
                break
            text = yield from _fitted(messages[place - 1], counter, room - for_first)
            size = 1 + (yield from counter.texts([text]))
        room -= size
        newest.append(text)
        place -= 1
    newest.reverse()
    if turn_prefix and newest:
        newest.insert(max(0, len(messages) - turn_prefix - place), _TURN_GOES_ON)
    pieces: list[str] = []
    left_out = place
    if place:
        first = yield from _fitted(messages[0], counter, min(room, for_first))
        if first:
            pieces.append(first)
            left_out -= 1
    if left_out:
        pieces.append(f"({left_out} {'older messages' if not pieces else 'messages after it'} are left out here.)")
    return Transcript("\n".join([*pieces, *filter(None, newest)]), len(messages) - left_out, left_out)


def _fitted(message: Message, counter: TextCounter, room: int) -> Steps[str]:
    """The message, with its texts cut so that it has at most ``room`` tokens; "" if not even a little of it has."""
    text_chars = TEXT_CHARS
    while True:
        text = render_message(message, text_chars)
        if 1 + (yield from counter.texts([text])) <= room:
            return text
        if text_chars <= LEAST_CHARS:
            return ""
        text_chars = max(LEAST_CHARS, text_chars // 2)


def _content(message: Message, max_chars: int) -> str:
    content: Any = getattr(message, "content", None)
    if content is None or isinstance(content, str):
        return shorten_text(content or message.text, max_chars)
    texts: list[str] = []
    for part in content:
        if isinstance(part, ImageContent):
            texts.append(f"[an image, {_plain(part.mime_type)}, {len(part.data) * 3 // 4:,} bytes]")
        elif isinstance(part, TextContent):
            texts.append(part.text or "")
    return shorten_text("\n".join(texts), max_chars)


def _plain(name: str) -> str:
    """A name that a model or a file gave, as it may stand in a line of ours: one word, which says nothing else."""
    return _NOT_IN_NAMES.sub("_", name[:80]) or "_"
