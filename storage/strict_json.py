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

from pydantic_core import PydanticSerializationError

from storage.errors import InvalidEntryError
from storage.models import RecordModel

MAXIMUM_DEPTH = 100
"""Levels of nesting that a free value may have."""

_DIGITS = 4300
_INTEGER_LIMIT = 10**_DIGITS
"""Python refuses to read back integers of more than 4,300 digits."""

_SURROGATES = re.compile("[\ud800-\udfff]")


def encode_model(
    model: RecordModel, *, exclude: set[str] | None = None, fits: bool = False, flat: bool = False
) -> bytes:
    """The JSON of ``model`` as it is written: camelCase, compact, non-ASCII raw, absent fields left out.

    ``fits``: the members are known to be of the types that their fields want, so pydantic need not look; ``flat``: there
    is nothing below them either. Raises ``InvalidEntryError`` naming the path to a value that JSON would alter.
    """
    serializer = model.__pydantic_serializer__
    try:
        if fits:
            data = serializer.to_json(model, by_alias=True, exclude_unset=True, exclude=exclude)
            # Of the types of a flat message JSON alters none but an integer that fills a page.
            if (
                flat
                and len(data) < _DIGITS
                and not model.__pydantic_extra__
                and model.__pydantic_fields_set__ >= model.needed_to_read
            ):
                return data
        else:
            data = serializer.to_json(model, by_alias=True, exclude_unset=True, exclude=exclude, warnings="error")
    except (PydanticSerializationError, ValueError, RecursionError, OverflowError) as error:
        _complete(model)
        return _encode_slowly(model, exclude, error)
    lossless, complete = _look_through(model)
    if not lossless:
        raise _refusal(model)
    if not complete:
        _complete(model)
        return encode_model(model, exclude=exclude, fits=fits)
    return data


def encode_value(value: Any, place: str) -> bytes:
    """The JSON of a free value. ``place`` begins the path that an error names."""
    problem = next(_problems(value, place, 0), None)
    if problem is not None:
        raise _error(*problem)
    return json.dumps(replace_surrogates(value), ensure_ascii=False, separators=(",", ":")).encode()


def replace_surrogates(value: Any) -> Any:
    """``value`` with U+FFFD for each lone surrogate in its text. In keys their escape is spelled out: two stay two."""
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


def _look_through(model: RecordModel) -> tuple[bool, bool]:
    """Two facts about ``model`` and what is below it: lossless, and complete.

    Lossless: every value is exactly of a type that JSON gives back, and not nested too deep. Complete: every model
    counts as given what it takes to read it again.

    First the members that have types of their own, then the free values below them, level by level.
    """
    complete = True
    free: list[Any] = []
    models: list[Any] = [model]
    while models:
        current = models.pop()
        if not current.__pydantic_fields_set__ >= current.needed_to_read:
            complete = False
        fields: dict[str, Any] = current.__dict__
        if current.__pydantic_extra__:
            free.extend(current.__pydantic_extra__.values())
        if current.free_fields:
            free.extend([fields.get(name) for name in current.free_fields])
        for value in fields.values():
            kind = cast("type[Any]", type(value))
            if kind is str or value is None or kind is bool:
                continue
            if kind is int:
                if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
                    return False, complete
            elif isinstance(value, RecordModel):
                models.append(value)
            elif kind is list and value and all([isinstance(item, RecordModel) for item in value]):  # noqa: C419 - quicker
                models.extend(value)
            else:
                free.append(value)
    if not free:
        return True, complete
    for _ in range(MAXIMUM_DEPTH + 1):
        deeper: list[Any] = []
        for value in free:
            kind = cast("type[Any]", type(value))
            if kind is str or value is None or kind is bool:
                continue
            if kind is int:
                if -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
                    continue
                return False, complete
            if kind is float:
                if value - value == 0:  # neither infinite nor NaN
                    continue
                return False, complete
            if kind is dict:
                for key in value:
                    if type(key) is not str:
                        return False, complete
                deeper.extend(value.values())
            elif kind is list:
                deeper.extend(value)
            else:
                return False, complete
        if not deeper:
            return True, complete
        free = deeper
    return False, complete


def _complete(model: RecordModel) -> None:
    """Count as given, in every model below ``model``, what it takes to read it again."""
    models: list[Any] = [model]
    while models:
        current = models.pop()
        current.__pydantic_fields_set__.update(current.needed_to_read)
        for value in current.__dict__.values():
            if isinstance(value, RecordModel):
                models.append(value)
            elif type(value) is list:
                models.extend(item for item in cast("list[Any]", value) if isinstance(item, RecordModel))


def _refusal(model: RecordModel) -> InvalidEntryError:
    for name, value, plain in _members(model):
        for problem in _problems(value, name, 0, plain=plain):
            return _error(*problem)
    return InvalidEntryError(f"{type(model).__name__} holds a value that JSON cannot carry unchanged")


def _error(place: str, problem: str) -> InvalidEntryError:
    return InvalidEntryError(
        f"{place}: {problem}, which cannot be recorded unchanged; pass plain JSON (None, bool, int, float, str, list, "
        "dict with text keys)",
        value_path=place,
    )


def _members(model: RecordModel) -> Iterator[tuple[str, Any, bool]]:
    """Each member's name and value, and whether it has to be plain JSON, without models."""
    for name, value in model.__dict__.items():
        yield name, value, name in model.free_fields
    for name, value in (model.__pydantic_extra__ or {}).items():
        yield name, value, True


def _problems(value: Any, place: str, depth: int, *, plain: bool = True) -> Iterator[tuple[str, str]]:
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
    elif isinstance(value, RecordModel) and not plain:
        for name, item, plain_item in _members(value):
            yield from _problems(item, f"{place}.{name}", 0, plain=plain_item)
    elif kind is list:
        for position, item in enumerate(value):
            yield from _problems(item, f"{place}[{position}]", depth + 1, plain=plain)
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
    for name, value, plain in _members(model):
        if exclude is not None and name in exclude:
            continue
        for problem in _problems(value, name, 0, plain=plain):
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
