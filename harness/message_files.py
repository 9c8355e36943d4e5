"""Files of plain messages: finding the messages in them, each with the place that an error can name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from harness.foreign_messages import ForeignMessages, NotAMessage
from storage import files
from storage.errors import InvalidEntryError, SessionNotFoundError, StorageError
from storage.identifiers import absolute_place
from storage.messages import Message

_BOM = b"\xef\xbb\xbf"
_HEAD = 64 * 1024


class _Found(NamedTuple):
    value: Any
    where: str
    line: int | None = None


def read_messages(source: str | os.PathLike[str] | Iterable[str | bytes | Mapping[str, Any]]) -> list[Message]:
    """See ``harness.importing.import_messages``."""
    path = absolute_place(source) if isinstance(source, str | os.PathLike) else None
    found = _in_file(path) if path is not None else _given(cast("Iterable[Any]", source))
    reader = ForeignMessages()
    messages: list[Message] = []
    for value, where, line in found:
        try:
            messages += reader.read(value)
        except NotAMessage as error:
            raise InvalidEntryError(
                f"invalid message at {where}: {error}; nothing was imported", path=path, line=line
            ) from error
    if not messages and path is not None:
        raise SessionNotFoundError("there are no messages in this file", path=path)
    return messages


def first_line_is_header(path: str) -> bool:
    """Whether the file begins as a session does. Raises ``SessionNotFoundError`` and ``StorageError``."""
    head = _read(path, _HEAD).removeprefix(_BOM).lstrip()
    line = head.split(b"\n", 1)[0]
    try:
        first: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and cast("dict[str, Any]", first).get("type") == "session"


def _read(path: str, most: int = -1) -> bytes:
    try:
        with os.fdopen(files.open_file(path, writing=False), "rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise SessionNotFoundError("there is no file here; check the path", path=path) from None
    except OSError as error:
        raise StorageError(f"the file cannot be read: {error.strerror or error}", path=path) from error


def _in_file(path: str) -> Iterator[_Found]:
    data = _read(path).removeprefix(_BOM)
    try:
        whole: Any = json.loads(data)
    except (ValueError, RecursionError):  # several values: one a line
        for number, line in enumerate(data.split(b"\n"), 1):
            if line.strip():
                yield _Found(_parsed(line, path, number), f"line {number}", number)
        return
    if isinstance(whole, dict) and isinstance(cast("dict[str, Any]", whole).get("messages"), list):
        body = cast("dict[str, Any]", whole)
        if body.get("system") is not None:
            yield _Found({"role": "system", "content": body["system"]}, "the system prompt")
        whole = body["messages"]
    for number, value in enumerate(cast("list[Any]", whole) if isinstance(whole, list) else [whole], 1):
        yield _Found(value, f"message {number}")


def _given(source: Iterable[Any]) -> Iterator[_Found]:
    for number, value in enumerate(source, 1):
        if isinstance(value, str | bytes):
            if value.strip():
                line = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
                yield _Found(_parsed(line, None, number), f"line {number}", number)
        else:
            yield _Found(value, f"message {number}")


def _parsed(line: bytes, path: str | None, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(
            f"invalid message JSON at line {number}: {error}; nothing was imported", path=path, line=number
        ) from error
