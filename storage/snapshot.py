"""An entry as it is at the call: checked and serialised at once, so that nothing done to it afterwards is written (R6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

from storage.assembling import LEAF
from storage.decode import FACTS_OF_ROLES, facts_of_reply
from storage.entries import Entry, EntryBase, iso_timestamp
from storage.errors import InvalidEntryError
from storage.identifiers import check_entry_name, new_id
from storage.line_parts import json_text, read_back
from storage.messages import Message
from storage.pending_write import CheckedWrite, PendingWrite
from storage.shapes import FLAT, KNOWN, remember, shape_of
from storage.strict_json import encode_model
from storage.write_queue import WriteQueue

_MESSAGES = cast("tuple[type[Message], ...]", get_args(Message))
_ENVELOPE = {"seq", "type", "id", "parent_id"}


def snapshot_of_message(queue: WriteQueue, message: Message, parent_id: Any) -> PendingWrite:
    """The write of ``message``, under a new id, for ``queue``. Raises ``InvalidEntryError``."""
    if not isinstance(message, _MESSAGES):
        raise InvalidEntryError(
            f"a {type(message).__name__} is no message; pass a UserMessage, AssistantMessage or ToolResultMessage"
        )
    shape = shape_of(message)
    known = shape is FLAT or shape is KNOWN
    data = encode_model(message, fits=known, flat=shape is FLAT)
    entry_id = new_id()
    id_json = b'"%b"' % entry_id.encode()
    head = b',"type":"message","id":%b,"parentId":' % id_json
    tail = b',"timestamp":"%b","message":%b}' % (iso_timestamp().encode(), data)
    if known:
        facts = FACTS_OF_ROLES.get(message.role) or facts_of_reply(message)
    else:
        facts = read_back(type(message).__name__, entry_id, b'{"seq":0%bnull%b' % (head, tail))
        if not facts.role:
            raise InvalidEntryError(f"role: {message.role!r:.80} is no role of a message", entry_id=entry_id)
        remember(shape)
    return PendingWrite(queue, entry_id, id_json, "message", head, tail, parent_id, facts)


def snapshot_of_entry(
    queue: WriteQueue, entry: Entry, check: Callable[[], None] | None, *, from_leaf: bool, ids_are_file_names: bool
) -> PendingWrite:
    """The write of ``entry``, for ``queue``; see ``EntryLog.append``. Raises ``InvalidEntryError``, ``InvalidIdError``."""
    if not isinstance(cast("Any", entry), EntryBase):
        raise InvalidEntryError(f"a {type(entry).__name__} is no entry; pass one of storage.entries")
    if ids_are_file_names:
        check_entry_name(entry.id)
    body = encode_model(entry, exclude=_ENVELOPE)
    id_json = json_text(entry.id)
    head = b',"type":%b,"id":%b,"parentId":' % (json_text(entry.type), id_json)
    tail = b"," + body[1:]
    facts = read_back(type(entry).__name__, entry.id, b'{"seq":0%bnull%b' % (head, tail))
    if entry.type == "leaf":
        parent_id: Any = facts.target
    else:
        parent_id = entry.parent_id if "parent_id" in entry.model_fields_set else LEAF
        if parent_id is not LEAF and not isinstance(parent_id, str | None):
            raise InvalidEntryError(f"parent_id: a {type(parent_id).__name__} is no entry id", entry_id=entry.id)
    if check is None and not from_leaf:
        return PendingWrite(queue, entry.id, id_json, entry.type, head, tail, parent_id, facts)
    return CheckedWrite(queue, entry.id, id_json, entry.type, head, tail, parent_id, facts, check, from_leaf)
