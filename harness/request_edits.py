"""What hooks changed in the messages of a request: found before it is sent, recorded with its reply, applied again."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import anyio.lowlevel
from pydantic import TypeAdapter

from storage.entries import RequestEdit
from storage.messages import KnownMessage, Message
from storage.strict_json import encode_model

_BREATH = 200
_read: TypeAdapter[Any] = TypeAdapter(KnownMessage)


async def encoded(messages: Sequence[Message]) -> list[bytes]:
    """Each message as it would be recorded. Raises ``InvalidEntryError`` for what cannot be. Lets the loop breathe."""
    lines: list[bytes] = []
    for number, message in enumerate(messages):
        lines.append(encode_model(message))
        if number % _BREATH == _BREATH - 1:
            await anyio.lowlevel.checkpoint()
    return lines


def find_edits(before: Sequence[bytes], after: Sequence[bytes]) -> list[RequestEdit]:
    """What makes ``after`` of ``before``, both as ``encoded`` gives them: few and small, in order."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    old = before[start : len(before) - end]
    new = after[start : len(after) - end]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    edits: list[RequestEdit] = []
    for kind, first, last, new_first, new_last in matcher.get_opcodes():
        if kind != "equal":
            inserted = [read_message(line) for line in new[new_first:new_last]]
            edits.append(RequestEdit(at=start + first, removed=last - first, inserted=inserted or None))
    return edits


def apply_edits(messages: Sequence[Message], edits: Sequence[RequestEdit]) -> list[Message]:
    """The messages with the edits made. Raises ``ValueError`` for edits that lie outside, overlap or are out of order."""
    made: list[Message] = []
    place = 0
    for edit in edits:
        if not (place <= edit.at and edit.removed >= 0 and edit.at + edit.removed <= len(messages)):
            raise ValueError(f"an edit at {edit.at} that removes {edit.removed} of {len(messages)} messages")
        made += messages[place : edit.at]
        made += edit.inserted or ()
        place = edit.at + edit.removed
    return [*made, *messages[place:]]


def passing_after(count: int, edits: Sequence[RequestEdit], passing: int) -> int:
    """The last ``passing`` of ``count`` messages are no part of the conversation: how many are not after the edits.

    What a hook puts between them, or behind the conversation, is put there anew in the next request.
    """
    first = count - passing
    reaching = [edit.at for edit in edits if edit.at + edit.removed > first or edit.at == first]
    begin = min([first, *reaching])
    grown = sum(len(edit.inserted or ()) - edit.removed for edit in edits if edit.at >= begin)
    return count - begin + grown


def read_message(line: bytes) -> Message:
    """The message that ``encoded`` wrote."""
    return _read.validate_json(line)
