"""What goes into the record must come out of it unchanged (R5): serialise at once, and refuse what JSON would alter.

Pydantic alone turns NaN into null, and a set or a tuple into a list, without a word. So: serialise first (pydantic-core
itself stops at cycles and at lone surrogates), then walk once over all values by their exact type, and only if that
fails walk again, slowly, to name the path to the value. Lone surrogates in text become U+FFFD; in keys they are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from storage.errors import InvalidEntryError
from storage.models import RecordModel

MAXIMUM_DEPTH = 100
"""Levels of nesting that a free value may have."""

_INTEGER_LIMIT = 10**4300
"""Python refuses to read back integers of more than 4,300 digits."""

_SURROGATES = re.compile("[\ud800-\udfff]")


def encode_model(model: RecordModel, *, exclude: set[str] | None = None) -> bytes:
    """The JSON of ``model`` as it is written: camelCase, compact, non-ASCII raw, absent fields left out.

    Raises ``InvalidEntryError`` naming the path to a value that JSON would alter or cannot hold.
    """
    try:
        data = model.__pydantic_serializer__.to_json(
            model, by_alias=True, exclude_unset=True, exclude=exclude, warnings="error"
        )
    except (PydanticSerializationError, ValueError, RecursionError, OverflowError) as error:
        return _encode_slowly(model, exclude, error)
    if not _is_lossless(model):
        raise _refusal(model)
    return data


def encode_value(value: Any, place: str) -> bytes:
    """The JSON of a free value. ``place`` begins the path that an error names."""
    problem = next(_problems(value, place, 0), None)
    if problem is not None:
        raise _error(*problem)
    return json.dumps(replace_surrogates(value), ensure_ascii=False, separators=(",", ":")).encode()


def replace_surrogates(value: Any) -> Any:
    """``value`` with U+FFFD for each lone surrogate in its text. In keys their escape is spelled out, so that two keys stay two."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [replace_surrogates(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            _SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04x}", key): replace_surrogates(item)
            for key, item in cast("dict[str, Any]", value).items()
        }
    return value


def _is_lossless(model: RecordModel) -> bool:
    """Whether every value below ``model`` is exactly of a type that JSON gives back, and not nested too deep.

    First the members that have types of their own, then the free values below them, level by level.
    """
    free: list[Any] = []
    models: list[Any] = [model]
    while models:
        current = models.pop()
        extra: dict[str, Any] | None = current.__pydantic_extra__
        members = current.__dict__.values() if not extra else [*current.__dict__.values(), *extra.values()]
        for value in members:
            kind = cast("type[Any]", type(value))
            if kind is str or value is None or kind is bool:
                continue
            if kind is int:
                if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
                    return False
            elif isinstance(value, RecordModel):
                models.append(value)
            elif kind is list and value and all([isinstance(item, RecordModel) for item in value]):
                models.extend(value)
            else:
                free.append(value)
    if not free:
        return True
    for _ in range(MAXIMUM_DEPTH + 1):
        deeper: list[Any] = []
        for value in free:
            kind = cast("type[Any]", type(value))
            if kind is str or value is None or kind is bool:
                continue
            if kind is int:
                if -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
                    continue
                return False
            if kind is float:
                if value - value == 0:  # neither infinite nor NaN
                    continue
                return False
            if kind is dict:
                for key in value:
                    if type(key) is not str:
                        return False
                deeper.extend(value.values())
            elif kind is list:
                deeper.extend(value)
            else:
                return False
        if not deeper:
            return True
        free = deeper
    return False


def _refusal(model: RecordModel) -> InvalidEntryError:
    for name, value in _members(model):
        for problem in _problems(value, name, 0):
            return _error(*problem)
    return InvalidEntryError(f"{type(model).__name__} holds a value that JSON cannot carry unchanged")


def _error(place: str, problem: str) -> InvalidEntryError:
    return InvalidEntryError(
        f"{place}: {problem}, which cannot be recorded unchanged; pass plain JSON (None, bool, int, float, str, list, "
        "dict with text keys)",
        value_path=place,
    )


def _members(model: BaseModel) -> Iterator[tuple[str, Any]]:
    yield from model.__dict__.items()
    yield from (model.__pydantic_extra__ or {}).items()


def _problems(value: Any, place: str, depth: int) -> Iterator[tuple[str, str]]:
    """Each value below ``value`` that JSON would alter, with the path to it. Slow: only after something failed."""
    kind = cast("type[Any]", type(value))
    if value is None or kind is bool or kind is str:
        return
    if depth >= MAXIMUM_DEPTH and kind in (list, dict):
        yield place[:200], f"nested more than {MAXIMUM_DEPTH} levels deep, or in a cycle"
    elif kind is int:
        if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
            yield place, "an integer of more than 4,300 digits"
    elif kind is float:
        if value - value != 0:
            yield place, f"{value!r}"
    elif isinstance(value, RecordModel) and depth <= 1:
        for name, item in _members(value):
            yield from _problems(item, f"{place}.{name}", 0)
    elif kind is list:
        for position, item in enumerate(value):
            yield from _problems(item, f"{place}[{position}]", depth + 1)
    elif kind is dict:
        for key, item in cast("dict[Any, Any]", value).items():
            if type(key) is not str:
                yield place, f"the key {key!r:.80} is no text"
            elif _SURROGATES.search(key):
                yield place, f"the key {key!r:.80} holds a lone surrogate"
            else:
                yield from _problems(item, f"{place}.{key}", depth + 1)
    else:
        yield place, f"a {kind.__name__}"


def _encode_slowly(model: RecordModel, exclude: set[str] | None, error: Exception) -> bytes:
    """After the fast way failed: name what is wrong, or, where it is only lone surrogates in text, replace those."""
    for name, value in _members(model):
        if exclude is not None and name in exclude:
            continue
        for problem in _problems(value, name, 0):
            raise _error(*problem) from error
    try:
        plain = model.model_dump(by_alias=True, exclude_unset=True, exclude=exclude, warnings="error")
        return json.dumps(
            replace_surrogates(plain), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as second:
        raise InvalidEntryError(
            f"{type(model).__name__} cannot be written: {second}; a field was changed to something of another type"
        ) from second
