"""The one rule that turns whatever a tool returns into text for the model, so that no tool can break a session.

    str                           as it is
    text and image parts          as they are (one, or a list or tuple of nothing else)
    None                          ``(no output)``
    an exception                  its type and its message; of a group, also those of what is in it
    bytes                         the text, if they are UTF-8 without NUL; else ``{"bytes": 3, "base64": "AP8B"}``
    datetime, date, time, timedelta   ISO 8601
    Decimal, Fraction, complex, UUID, path   their usual text
    an enum's member              its value, by this same rule
    anything else                 JSON, with this same rule for what is inside it

In JSON, a dataclass, a pydantic model, a named tuple or a mapping is an object; a list, tuple, set (sorted), view or
array is a list; NaN and the infinities are the words ``"NaN"``, ``"Infinity"``, ``"-Infinity"``; a key that is no text
becomes the text of its JSON, and a mapping whose keys would then collide becomes a list of pairs; a value inside itself
is ``"<cycle>"``; an object of any other kind is its ``str``, or ``<module.Class>`` where that would only be an address.
What cannot even be looked at says so in its place. Lone surrogates become U+FFFD.

The text is cut to a limit (its head and its tail are kept, and a line between them says how much is missing); so is the
work: after 20,000 values (50 characters count as one), or below 50 levels, the rest is ``"…"``.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import inspect
import json
import math
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import PurePath
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from storage.messages import ImageContent, TextContent
from storage.strict_json import replace_surrogates

MAX_RESULT_CHARACTERS = 50_000
"""How much of a tool's text is kept, in characters, unless a limit is given."""

NO_OUTPUT = "(no output)"
"""What a tool that returned ``None`` said."""

_MAX_VALUES = 20_000
_MAX_LEVELS = 50
_CHARACTERS_PER_VALUE = 50
_MAX_IN_GROUP = 5
_REST = "…"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_PARTS = (TextContent, ImageContent)
_TEXTUAL = (decimal.Decimal, fractions.Fraction, complex, uuid.UUID, PurePath)


def without_surrogates(text: str) -> str:
    """``text`` with U+FFFD for each lone surrogate, which UTF-8 cannot carry."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def cut_text(text: str, limit: int = MAX_RESULT_CHARACTERS) -> str:
    """``text``, or its head and its tail with a line between them that says how many characters are missing.

    ``limit`` is in characters; the line itself comes on top of it.
    """
    if len(text) <= limit:
        return text
    tail = limit // 4
    head = limit - tail
    missing = len(text) - head - tail
    return f"{text[:head]}\n[… {missing:,} of {len(text):,} characters left out …]\n{text[len(text) - tail :]}"


def to_content(value: object, *, limit: int = MAX_RESULT_CHARACTERS) -> str | list[TextContent | ImageContent]:
    """What the model is shown of a tool's return value: the text by the rule above, or the parts it returned.

    Never raises for any value, and what it returns shares nothing with the value. Text is cut to ``limit`` characters,
    in parts all together; images are not cut.
    """
    if type(value) in _PARTS:
        value = [value]
    if type(value) in (list, tuple):
        parts = cast("list[TextContent | ImageContent]", value)
        if parts and all(type(part) in _PARTS for part in parts):
            return _cut_parts(parts, limit)
    return to_text(value, limit=limit)


def to_text(value: object, *, limit: int = MAX_RESULT_CHARACTERS) -> str:
    """The text of any value, by the rule above: ``limit`` characters and a line about the rest. Never raises."""
    if value is None:
        return NO_OUTPUT
    plain = value if type(value) is str else _Plain(limit).of(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, allow_nan=False)
    return without_surrogates(cut_text(text, limit))


def to_plain(value: object, *, limit: int = MAX_RESULT_CHARACTERS) -> Any:
    """Any value as plain JSON by the same rule (``None`` stays ``None``), for what is recorded beside the text."""
    return replace_surrogates(_Plain(limit).of(value))


def exception_text(error: BaseException) -> str:
    """A raised or returned exception in one line: its type, and what it says; of a group also what is in it."""
    if not isinstance(error, BaseExceptionGroup):
        return _said(error)
    group = cast("BaseExceptionGroup[Any]", error)
    told = [_said(inner) for inner in islice(_in_groups(group), _MAX_IN_GROUP + 1)]
    if len(told) > _MAX_IN_GROUP:
        told[-1] = _REST
    return f"{_said(group)}: {'; '.join(told)}"


def _in_groups(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """What is in a group and in the groups in it, in order; without recursion, since they may be nested at will."""
    left: list[BaseException] = [*reversed(group.exceptions)]
    while left:
        error = left.pop()
        if isinstance(error, BaseExceptionGroup):
            left.extend(reversed(cast("BaseExceptionGroup[Any]", error).exceptions))
        else:
            yield error


def _said(error: BaseException) -> str:
    name = type(error).__qualname__
    try:
        said = str(error)
    except Exception as failure:  # noqa: BLE001 - an exception's __str__ is the tool author's code
        said = f"(its message cannot be shown: {type(failure).__qualname__})"
    return f"{name}: {said}" if said else name


def _cut_parts(parts: Iterable[TextContent | ImageContent], limit: int) -> list[TextContent | ImageContent]:
    kept: list[TextContent | ImageContent] = []
    for part in parts:
        if isinstance(part, TextContent):
            text = without_surrogates(cut_text(part.text or "", limit))
            limit = max(0, limit - len(text))
            kept.append(TextContent(text=text))
        else:
            kept.append(ImageContent(data=without_surrogates(part.data), mime_type=without_surrogates(part.mime_type)))
    return kept


class _Plain:
    """One conversion: counts the values it has seen, and knows which ones it is inside of."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = _MAX_VALUES
        self._inside: set[int] = set()

    def of(self, value: object) -> Any:
        """``value`` as what JSON can carry: dict with text keys, list, str, int, float, bool or None."""
        self._left -= 1
        if self._left < 0:
            return _REST
        if value is None or type(value) is bool:
            return value
        try:
            return self._scalar_or_container(value)
        except Exception as error:  # noqa: BLE001 - properties, __str__ and iterators are the tool author's code
            return f"<{type(value).__qualname__}: cannot be shown ({type(error).__qualname__})>"

    def _scalar_or_container(self, value: object) -> Any:
        if isinstance(value, enum.Enum):
            return self.of(value.value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            return self._integer(int(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else json.dumps(float(value))
        if isinstance(value, bytes | bytearray):
            return self._bytes(bytes(value))
        if isinstance(value, memoryview):
            return self._bytes(cast("memoryview[int]", value).tobytes())
        if isinstance(value, dt.datetime | dt.date | dt.time | dt.timedelta):
            return to_jsonable_python(value)
        if isinstance(value, _TEXTUAL):
            return self._text(str(value))
        if isinstance(value, BaseException):
            return self._text(exception_text(value))
        return self._container(value)

    def _container(self, value: object) -> Any:
        inner = _inner(value)
        if inner is None:
            return self._object(value)
        if id(value) in self._inside:
            return "<cycle>"
        if len(self._inside) >= _MAX_LEVELS:
            return _REST
        self._inside.add(id(value))
        try:
            return inner(self, value)
        finally:
            self._inside.discard(id(value))

    def mapping(self, value: object) -> Any:
        return self._object_of(self._some(cast("Mapping[object, object]", value).items()))

    def fields(self, value: object) -> Any:
        names = [field.name for field in dataclasses.fields(cast("Any", value))]
        return self._object_of([(name, getattr(value, name, None)) for name in names])

    def model(self, value: object) -> Any:
        model = cast("BaseModel", value)
        try:
            # The model's own serialisers and exclusions hold: they may be there to hide something.
            members = model.model_dump(by_alias=True, warnings=False)
        except (PydanticSerializationError, ValueError, RecursionError):
            shown = [name for name, field in type(model).model_fields.items() if not field.exclude]
            members = {name: getattr(model, name, None) for name in shown} | (model.model_extra or {})
        return self.of(members)

    def named_tuple(self, value: object) -> Any:
        names = cast("tuple[str, ...]", cast("Any", value)._fields)
        return self._object_of(list(zip(names, cast("tuple[object, ...]", value), strict=False)))

    def sequence(self, value: object) -> Any:
        return [self.of(item) for item in self._some(cast("Iterable[object]", value))]

    def unordered(self, value: object) -> Any:
        return sorted(self.sequence(value), key=lambda item: json.dumps(item, ensure_ascii=False))

    def array(self, value: object) -> Any:
        return self.of(cast("Any", value).tolist())

    def _some(self, items: Iterable[Any]) -> Iterable[Any]:
        for item in items:
            if self._left <= 0:
                yield _REST_PAIR if isinstance(items, ItemsView) else _REST
                return
            yield item

    def _object_of(self, pairs: Iterable[tuple[object, object]]) -> Any:
        written = [(key, self._key(key), self.of(item)) for key, item in pairs]
        as_object = {name: item for _, name, item in written}
        if len(as_object) == len(written):
            return as_object
        return [[self.of(key), item] for key, _, item in written]

    def _key(self, key: object) -> str:
        plain = self.of(key)
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)

    def _text(self, value: str) -> str:
        # str's own, because a subclass may answer anything; cut already here, because it may be long and there many.
        text = cut_text(str.__str__(value), self._limit)
        self._left -= len(text) // _CHARACTERS_PER_VALUE
        return text

    def _integer(self, value: int) -> Any:
        # Python refuses to write integers of more digits than this, and other programs to read them.
        if value.bit_length() < 4300 * 3:
            return value
        return f"<an integer of about {int(value.bit_length() * math.log10(2)):,} digits>"

    def _bytes(self, data: bytes) -> Any:
        if b"\0" not in data[: self._limit * 4]:
            try:
                return self._text(data.decode())
            except UnicodeDecodeError:
                pass  # no text, so it is shown as bytes below
        shown = data[: self._limit]
        written: dict[str, Any] = {"bytes": len(data), "base64": base64.b64encode(shown).decode()}
        return written if len(shown) == len(data) else written | {"shown": len(shown)}

    def _object(self, value: object) -> str:
        kind = type(value)
        if inspect.isroutine(value) or isinstance(value, type):
            return f"<{type(value).__name__} {getattr(value, '__qualname__', '?')}>"
        if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
            return f"<{kind.__module__}.{kind.__qualname__}>"
        return self._text(str(value))


_REST_PAIR = (_REST, _REST)


def _inner(value: object) -> Callable[[_Plain, object], Any] | None:
    """How to look inside ``value``, or ``None`` for an object with nothing to look into."""
    if isinstance(value, type):
        return None
    if isinstance(value, BaseModel):
        return _Plain.model
    if dataclasses.is_dataclass(value):
        return _Plain.fields
    if isinstance(value, Mapping):
        return _Plain.mapping
    if isinstance(value, tuple) and hasattr(cast("object", value), "_fields"):
        return _Plain.named_tuple
    if isinstance(value, list | tuple | deque | range | KeysView | ValuesView | ItemsView):
        return _Plain.sequence
    if isinstance(value, AbstractSet):
        return _Plain.unordered
    if callable(getattr(value, "tolist", None)) and not isinstance(value, os.PathLike):
        return _Plain.array
    return None
