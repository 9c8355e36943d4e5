"""Messages whose like was read back before need not be read back again.

Whether a line can be read depends on the types of a message's members, not on what they hold. So the first message of a
shape is serialised with all of pydantic's checks and read back; the others of its shape are only serialised.
"""

from __future__ import annotations

from typing import Any, Final, cast

from storage.messages import (
    AssistantMessage,
    Cost,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)

Shape = tuple[Any, ...]

_SIMPLE = frozenset(
    {
        UserMessage,
        AssistantMessage,
        ToolResultMessage,
        TextContent,
        ImageContent,
        ThinkingContent,
        ToolCall,
        Usage,
        Cost,
    }
)
"""Models without typed dictionaries or lists of texts, whose members' types would have to be looked at too."""

_MOST = 4096

_read_back: set[Shape] = set()
_flat: set[Shape] = set()
"""Those of them that have nothing below their members: no lists, no dictionaries, no other models."""

_SCALARS = frozenset((str, int, bool, type(None)))

KNOWN: Final[Shape] = ("known",)
"""Instead of a shape: messages like this one were read back before."""

FLAT: Final[Shape] = ("known", "flat")
"""The same, and there is nothing below its members."""


def shape_of(message: Message) -> Shape | None:
    """The types of all that has a type of its own in ``message``; ``KNOWN`` or ``FLAT`` if its like was read back before.

    ``None`` for a model that has to be read back each time.
    """
    values = message.__dict__
    shape = (type(message), values.get("role"), *map(type, values.values()))
    if shape in _flat:
        return FLAT
    deep = _deep_shape(message)
    return KNOWN if deep in _read_back else deep


def remember(shape: Shape | None) -> None:
    """A message of this shape was read back."""
    if shape is None:
        return
    if len(_read_back) >= _MOST:
        _read_back.clear()
        _flat.clear()
    _read_back.add(shape)
    if _SCALARS.issuperset(shape[2:]):
        _flat.add(shape)


def _deep_shape(model: Any) -> Shape | None:
    kind = cast("type[Any]", type(model))
    if kind not in _SIMPLE:
        return None
    values = cast("dict[str, Any]", model.__dict__)
    shape: list[Any] = [kind, values.get("role") or values.get("type")]
    for name, value in values.items():
        if name in kind.free_fields:
            shape.append(None)
        elif type(value) is list:
            parts = [_deep_shape(part) for part in cast("list[Any]", value)]
            if None in parts:
                return None
            shape.append(frozenset(parts))
        elif type(value) in _SIMPLE:
            inner = _deep_shape(value)
            if inner is None:
                return None
            shape.append(inner)
        else:
            shape.append(type(value))
    return tuple(shape)
