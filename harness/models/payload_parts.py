"""What the bodies of all vendors are made of: strict JSON, texts that are never empty, and call ids that are legal."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from storage.errors import ModelError
from storage.messages import ImageContent, Message, TextContent, ToolCall, ToolResultMessage

EMPTY_MESSAGE = "(empty message)"
"""Stands for a user message with nothing to send, so that the order of roles stays."""
EMPTY_RESULT = "(no output)"
"""Stands for a tool result with nothing to send: each call needs its answer."""
NOTHING_TO_SEND = "There is nothing to send: the request has no messages. Append a user message first."
IMAGES_OF_RESULTS = "Images from the tool results above:"
"""Stands before images that a vendor's tool result cannot hold."""

_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_BEGINNINGS = {"/9j/": "image/jpeg", "iVBORw0KGgo": "image/png", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""What the base64 of each begins with. A type that does not fit the bytes is refused."""

_ILLEGAL_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")

Part = dict[str, Any]


_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_json(value: Any) -> bytes:
    """Compact, non-ASCII raw, strict: NaN is refused, and a lone surrogate becomes U+FFFD.

    Raises:
        ModelError: the value cannot be written as JSON.
    """
    try:
        text = _write(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(
            f"The request cannot be written as JSON ({error}); correct the value and send again."
        ) from error
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def sent_options(defaults: Mapping[str, Any] | None, options: Mapping[str, Any], ours: Sequence[str]) -> dict[str, Any]:
    """Both options, by name; those of the request win.

    Raises:
        ModelError: one of them is not the caller's to set.
    """
    both = {**(defaults or {}), **options}
    for name in ours:
        if name in both:
            raise ModelError(f"The option {name!r} is not for the caller to set; remove it from the model's options.")
    return {name: both[name] for name in sorted(both)}


def own_option(options: dict[str, Any], name: str, default: bool) -> bool:
    """Take an option of ours out of those that are sent: a switch that shapes the body and has no place in it.

    It stands among the vendor's options so that it is recorded with them, and a request can be rebuilt.

    Raises:
        ModelError: it is neither true nor false.
    """
    value = options.pop(name, default)
    if not isinstance(value, bool):
        raise ModelError(f"The option {name!r} is true or false, not {value!r:.100}; correct the model's options.")
    return value


def parts_of(content: str | Sequence[TextContent | ImageContent] | None) -> Sequence[TextContent | ImageContent]:
    """The content as parts, whichever way it was given."""
    return [TextContent(text=content)] if isinstance(content, str) else content or ()


def legal_name(name: str) -> str:
    """The name of a tool as it may be sent in a call: a model can call one by any name at all."""
    return _ILLEGAL_IN_NAME.sub("_", name)[:64] or "_"


def image_type(part: ImageContent) -> str | None:
    """What the image is, by its bytes where they tell; None if no vendor takes it."""
    kind = next((kind for start, kind in _BEGINNINGS.items() if part.data.startswith(start)), part.mime_type)
    return kind if kind in _IMAGE_TYPES and part.data else None


def hidden_image(part: ImageContent) -> str:
    """What stands for an image that is not sent."""
    return f"(an image that cannot be shown to this model: {part.mime_type or 'of no type'})"


def texts_of(parts: Iterable[Any]) -> list[str]:
    """The texts among the parts that are more than blanks."""
    return [part.text for part in parts if isinstance(part, TextContent) and part.text and part.text.strip()]


def wrong_role(position: int, message: Message) -> ModelError:
    """The error for a message of a role that no model takes."""
    return ModelError(
        f"Message {position} has the role {message.role!r}, which no model takes; build the messages with"
        " build_context, which turns it into one that can be sent."
    )


class CallIds:
    """The ids of one request's calls as they are sent: each unique, none of another form than the vendor takes.

    Ids that are fine and first of their name stay as they are. Others are made from their place, so that the same
    request always gives the same ones.
    """

    def __init__(self, usable: re.Pattern[str]) -> None:
        self._usable = usable
        self._used: set[str] = set()
        self._calls = 0
        self._open: list[tuple[str, str]] = []

    def of_calls(self, calls: Sequence[ToolCall]) -> list[str]:
        """The ids of one reply's calls, in their order; results answer these from now on."""
        wire_ids: list[str] = []
        for call in calls:
            self._calls += 1
            wire_id = call.id
            if not self._usable.fullmatch(wire_id) or wire_id in self._used:
                place = f"{self._calls}:{call.id}".encode("utf-8", "surrogatepass")
                wire_id = "call_" + hashlib.sha256(place).hexdigest()[:24]
            self._used.add(wire_id)
            wire_ids.append(wire_id)
        if calls:
            self._open = [(call.id, wire_id) for call, wire_id in zip(calls, wire_ids, strict=True)]
        return wire_ids

    def of_result(self, result: ToolResultMessage) -> str:
        """The id of the call that the result answers: the first open one of its name.

        Raises:
            ModelError: there is none.
        """
        for place, (call_id, wire_id) in enumerate(self._open):
            if call_id == result.tool_call_id:
                del self._open[place]
                return wire_id
        raise ModelError(
            f"The result for call {result.tool_call_id!r} follows no call of that id; build the messages with"
            " build_context, which pairs them."
        )
