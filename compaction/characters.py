"""How long a message is: the code points of its JSON, which the character budget counts (R21).

The JSON is that of the record: camelCase, compact, non-ASCII raw, absent fields left out.
"""

from __future__ import annotations

from storage.messages import Message
from storage.strict_json import encode_model


def message_characters(message: Message) -> int:
    """Code points of the message's JSON, plus 1. Raises ``InvalidEntryError`` naming a value that is no JSON."""
    return _code_points(encode_model(message)) + 1


def decoded_characters(message: Message) -> int:
    """As ``message_characters``, for a message that came out of the record and so needs no checks."""
    data = message.__pydantic_serializer__.to_json(message, by_alias=True, exclude_unset=True)
    return _code_points(data) + 1


def _code_points(data: bytes) -> int:
    return len(data) if data.isascii() else len(data.decode())
