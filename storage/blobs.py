"""What a blob is: the bytes of a large tool output, kept beside the record under a name that the record holds (R16)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

from storage.errors import BlobNotFoundError, InvalidIdError, SessionExistsError
from storage.identifiers import is_safe_name, what_to_choose

Blobs = Iterable[tuple[str, bytes]]
"""Names and bytes, made one by one while they are taken: a session's blobs need not fit into memory at once."""

_MEMBER = b'"blobs"'


def check_blob_name(name: str) -> str:
    """Return ``name`` if a blob may be called so: the rule of session ids. Raises ``InvalidIdError``."""
    if not is_safe_name(name):
        raise InvalidIdError(f"invalid blob name {name!r:.140}: {what_to_choose(name)}")
    return name


def blob_names_in(lines: Iterable[bytes]) -> Iterator[str]:
    """The names of the blobs that these committed lines name, each once, in order.

    A tool's result names its blobs in ``blobs``, wherever in a line that result stands: a message, a compaction's retained
    tail, a changed request. What is no such name is passed over: it is the line's own affair.
    """
    seen: set[str] = set()
    for line in lines:
        if _MEMBER in line:
            for name in _names_below(json.loads(line)):
                if name not in seen:
                    seen.add(name)
                    yield name


def _names_below(value: Any) -> Iterator[str]:
    waiting: list[Any] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            members = cast("dict[str, Any]", found)
            names: Any = members.get("blobs")
            if members.get("role") == "toolResult" and isinstance(names, list):
                yield from (name for name in cast("list[Any]", names) if is_safe_name(name))
            waiting.extend(members.values())
        elif isinstance(found, list):
            waiting.extend(cast("list[Any]", found))


def blob_not_found(name: str, *, path: str | None) -> BlobNotFoundError:
    """The error for a blob that is not there."""
    return BlobNotFoundError(
        f"there is no blob {name!r:.140} beside this session; a session that was moved by hand left its blobs behind",
        path=path,
    )


def blob_exists(name: str, *, path: str | None) -> SessionExistsError:
    """The error for a name that is taken: a blob never changes."""
    return SessionExistsError(
        f"there is a blob {name!r} already, and blobs never change; choose another name", path=path
    )
