"""A message straight out of a committed line, with its size: the cheap way for the lines that we write ourselves.

Such a line is compact and has the message as its first object, so that the message's own bytes can be cut out, decoded
without the entry around them, and measured without being serialised again. Every other line takes the long way.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pydantic import ValidationError

from compaction.characters import decoded_characters
from storage.messages import AssistantMessage, Message, ToolResultMessage, UserMessage

_OURS = b'{"seq":'
_KEY = b'"message":'
_REQUEST = b',"request":{'
_REQUEST_BYTES = 1000
"""How far from the end the request is looked for; one that is longer takes the long way."""
_BACKSLASH = 0x5C
_OTHER_ESCAPES = re.compile(rb"\\[u/]")
"""Escapes that we write seldom or never, and others for what we write raw."""

_REPLY = b'{"role":"a'
_READERS: dict[bytes, Callable[..., Message]] = {
    b'{"role":"u': UserMessage.__pydantic_validator__.validate_json,
    _REPLY: AssistantMessage.__pydantic_validator__.validate_json,
    b'{"role":"t': ToolResultMessage.__pydantic_validator__.validate_json,
}


def recorded_message(line: bytes) -> tuple[Message, int] | None:
    """The message in the line of a ``message`` entry, made anew, and its size by R21. ``None``: decode the entry.

    The message is the one that ``decode_entry`` gives, and the size is that of ``decoded_characters``.
    """
    begin = line.find(b"{", 1)
    if line[begin - 10 : begin] != _KEY or not line.startswith(_OURS):
        return None
    data = line[begin:-1]
    role = data[:10]
    reader = _READERS.get(role)
    if reader is None:
        return None
    message: Message | None = None
    if role == _REPLY and (end := data.rfind(_REQUEST, -_REQUEST_BYTES)) > 0:
        # A reply names its request behind the message. If that was found inside the message, what is left is no JSON.
        message = _read(reader, data[:end])
        if message is not None:
            data = data[:end]
    if message is None:
        message = _read(reader, data)
    if message is None:
        return None
    if (_BACKSLASH in data and _OTHER_ESCAPES.search(data) is not None) or (
        type(message) is AssistantMessage and message.usage is not None and message.usage.cost is not None
    ):
        return message, decoded_characters(message)  # it may be spelled in more or fewer characters than ours
    return message, (len(data) if data.isascii() else len(data.decode())) + 1


def _read(reader: Callable[..., Message], data: bytes) -> Message | None:
    try:
        return reader(data, strict=True, by_name=False)
    except ValidationError:
        return None
