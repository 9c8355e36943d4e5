"""How long a message is: the code points of its JSON, which the character budget counts (R21).

The JSON is that of the record: camelCase, compact, non-ASCII raw, absent fields left out. A committed line already
holds it, so that a message shown as it was recorded is measured without being serialised again.
"""

from __future__ import annotations

from storage.entries import MessageEntry
from storage.messages import Message
from storage.strict_json import encode_model

_MESSAGE = b'"message":{'
_REQUEST = b',"request":{'


def message_characters(message: Message) -> int:
    """Code points of the message's JSON, plus 1. Raises ``InvalidEntryError`` naming a value that is no JSON."""
    return _code_points(encode_model(message)) + 1


def decoded_characters(message: Message) -> int:
    """As ``message_characters``, for a message that came out of the record and so needs no checks."""
    data = message.__pydantic_serializer__.to_json(message, by_alias=True, exclude_unset=True)
    return _code_points(data) + 1


def recorded_characters(line: bytes, entry: MessageEntry) -> int:
    """As ``decoded_characters(entry.message)``, for the ``entry`` just decoded from ``line``; mostly without serialising.

    A line of ours begins with its ``seq`` and is compact. What others wrote may spell the same message in more or fewer
    characters (escapes, white space, ``1`` for a cost of ``1.0``), so that is serialised.
    """
    begin = line.find(_MESSAGE) + len(_MESSAGE) - 1
    end = len(line) - 1
    request = entry.request
    if request is not None:
        end = line.rfind(_REQUEST)
    if (
        not line.startswith(b'{"seq":')
        or line[7] == 0x20
        or line[end - 1] != 0x7D
        or entry.__pydantic_extra__
        or (request is not None and request.__pydantic_extra__)
        or b"\\u" in line
        or b"\\/" in line
        or b'"cost":' in line
    ):
        return decoded_characters(entry.message)
    if line.isascii():
        return end - begin + 1
    return len(line[begin:end].decode()) + 1


def _code_points(data: bytes) -> int:
    return len(data) if data.isascii() else len(data.decode())
