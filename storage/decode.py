"""From committed bytes to entries: parsing what is not trusted, field by field, with errors that name the place (R14).

A line is read strictly (``"12"`` is no number, ``is_error`` is no field). Only if that fails it is read a second time,
for the three things that are no damage: an entry type or message role that we do not know (R4), and lone surrogates in
escapes, which JavaScript writes and strict readers refuse (R5).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from storage.entries import (
    CompactionEntry,
    ContextEditEntry,
    DeliveredEntry,
    Entry,
    KnownEntry,
    LabelEntry,
    LeafEntry,
    MessageEntry,
    ModelChangeEntry,
    UnknownEntry,
    UnknownMessageEntry,
    WorkingMemoryEntry,
)
from storage.errors import DamagedSessionError
from storage.messages import Message
from storage.protocols import NO_FACTS, Facts, Record
from storage.strict_json import replace_surrogates

_KNOWN: TypeAdapter[Entry] = TypeAdapter(cast("type[Entry]", KnownEntry))
_validate = _KNOWN.validator.validate_json

_LETTER_N, _LETTER_I = b"NI"
_REQUIRED = frozenset(("id", "timestamp"))
_REMEMBERED_MODELS = 64
_ROLES = {model.model_fields["role"].default for model in get_args(Message)}

KNOWN_TYPES: frozenset[str] = frozenset(
    model.model_fields["type"].default for model in get_args(get_args(KnownEntry)[0])
)
"""The types of entries that this version knows."""

FACTS_OF_ROLES: dict[str, Facts] = {role: Facts(role) for role in _ROLES if role != "assistant"}
"""What the index needs to know of a message that is no reply: its role."""


def decode_entry(data: bytes) -> Entry:
    """The entry in committed bytes, made anew: what it returns shares nothing with any other."""
    try:
        return _validate(data, strict=True, by_name=False)
    except ValidationError as error:
        return _second_reading(data, error, None, None)


def parse_record(line: bytes, seq: int, *, path: str | None = None, line_number: int | None = None) -> Record:
    """The record in a committed line, which takes place ``seq``.

    Raises ``DamagedSessionError`` with one of two stable beginnings: ``invalid session JSON at line N`` and ``invalid
    session record at line N: why``.
    """
    entry = parse_entry(line, path, line_number)
    return Record(seq, entry.id, entry.parent_id, entry.type, line, facts_of(entry), line_number)


def parse_entry(line: bytes, path: str | None, line_number: int | None) -> Entry:
    """The entry in a line that is not trusted yet; raises as ``parse_record`` does."""
    try:
        entry = _validate(line, strict=True, by_name=False)
    except ValidationError as error:
        entry = _second_reading(line, error, path, line_number)
    if not entry.__pydantic_fields_set__ >= _REQUIRED:
        missing = "timestamp" if "id" in entry.__pydantic_fields_set__ else "id"
        raise _refusal(f"{missing}: missing", path, line_number)
    if (_LETTER_N in line and b"NaN" in line) or (_LETTER_I in line and b"Infinity" in line):
        # Bare NaN is no JSON, but the fast reader takes it. Looking for the single byte first is twenty times faster.
        _load(line, path, line_number)
    return entry


def facts_of(entry: Entry) -> Facts:
    """What the index needs to know of ``entry``."""
    if isinstance(entry, MessageEntry):
        message = entry.message
        return FACTS_OF_ROLES.get(message.role) or facts_of_reply(message)
    if isinstance(entry, LabelEntry | ContextEditEntry | LeafEntry):
        return Facts(target=entry.target_id)
    if isinstance(entry, CompactionEntry):
        return Facts(target=entry.first_kept_entry_id)
    if isinstance(entry, WorkingMemoryEntry):
        return Facts(target=entry.op)
    if isinstance(entry, DeliveredEntry):
        return Facts(target=entry.message_id)
    if isinstance(entry, ModelChangeEntry):
        return Facts(model=(entry.provider, entry.model_id))
    if isinstance(entry, UnknownEntry | UnknownMessageEntry):
        return Facts(unknown=entry.ignorable is not True and entry.seq is not None)
    return NO_FACTS


_replies: dict[tuple[str | None, str | None] | None, Facts] = {}


def facts_of_reply(message: Any) -> Facts:
    """One object for all replies of a model: there are many, and they live as long as the records do."""
    return facts_of_model((message.provider, message.model))


def facts_of_model(key: tuple[str | None, str | None] | None) -> Facts:
    """What the index needs to know of a reply by the model of this provider and id."""
    facts = _replies.get(key)
    if facts is None:
        if len(_replies) >= _REMEMBERED_MODELS:
            _replies.clear()
        facts = _replies[key] = Facts("assistant", None, key)
    return facts


def _second_reading(line: bytes, error: ValidationError, path: str | None, line_number: int | None) -> Entry:
    loaded = _load(line, path, line_number)
    problems = error.errors(include_url=False)
    if problems[0]["type"] == "json_invalid":
        # Valid JSON all the same: the fast reader refuses escapes of lone surrogates, and more than about 200 levels.
        line = json.dumps(replace_surrogates(loaded), ensure_ascii=False, separators=(",", ":")).encode()
        try:
            return _validate(line, strict=True, by_name=False)
        except ValidationError as second:
            problems = second.errors(include_url=False)
    if not isinstance(loaded, dict):
        raise _refusal("not a JSON object", path, line_number)
    # Of ``str | list of parts`` the reader reports both; that it is no text says nothing where the parts were looked at.
    problems = [problem for problem in problems if problem["loc"][-1:] != ("str",)] or problems
    if all(_is_new_name(problem) for problem in problems):
        of_message = problems[0]["loc"][:1] == ("message",)
        model = UnknownMessageEntry if of_message else UnknownEntry
        try:
            return model.model_validate_json(line, strict=True, by_name=False)
        except ValidationError as second:
            problems = second.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    place = ".".join(str(step) for step in first["loc"][1:] if not str(step).startswith("list["))
    raise _refusal(f"{place}: {first['msg']}" if place else first["msg"], path, line_number)


def _is_new_name(problem: ErrorDetails) -> bool:
    """Whether a type or role is a name that we do not know. A number or a list in its place is damage."""
    if problem["type"] != "union_tag_invalid" or "ctx" not in problem:
        return False
    member = problem["ctx"]["discriminator"].strip("'")
    return isinstance(problem["input"].get(member), str)


def _load(line: bytes, path: str | None, line_number: int | None) -> Any:
    """The line's JSON by the standard library, which reads lone surrogates; bare NaN and Infinity are no JSON."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(line.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        where = f" at line {line_number}" if line_number is not None else ""
        raise DamagedSessionError(
            f"invalid session JSON{where}: {error}; nothing was changed, and opening with on_corrupt='skip' shows the rest",
            path=path,
            line=line_number,
        ) from error


def _refusal(why: str, path: str | None, line_number: int | None) -> DamagedSessionError:
    where = f" at line {line_number}" if line_number is not None else ""
    return DamagedSessionError(
        f"invalid session record{where}: {why}; nothing was changed, and opening with on_corrupt='skip' shows the rest",
        path=path,
        line=line_number,
    )
