"""The tree as pure functions over entries in the order they were committed. Ideas and error cases are tiny-pi's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storage.entries import Entry, MessageEntry
from storage.errors import BrokenPathError, DamagedSessionError, EntryNotFoundError
from storage.messages import Message


def path_to(entries: Iterable[Entry], leaf_id: str | None) -> list[Entry]:
    """Deep copies of the entries from the root to ``leaf_id`` (``None``: none).

    A duplicate id anywhere is an error (``DamagedSessionError``), for it makes every path doubtful; a missing parent or
    a cycle only on this path (``BrokenPathError``). Raises ``EntryNotFoundError`` for an unknown leaf.
    """
    by_id = _by_id(entries)
    path: list[Entry] = []
    seen: set[str] = set()
    child: str | None = None
    current = leaf_id
    while current is not None:
        entry = by_id.get(current)
        if entry is None:
            if child is None:
                raise EntryNotFoundError(f"no entry {current!r:.140} among these", entry_id=current)
            raise BrokenPathError(f"the parent {current!r} of entry {child!r} is missing", entry_id=child)
        if current in seen:
            raise BrokenPathError(f"entry {current!r} is its own ancestor: a cycle", entry_id=current)
        seen.add(current)
        path.append(entry)
        child = current
        current = entry.parent_id
    return [entry.model_copy(deep=True) for entry in reversed(path)]


def messages_on_path(entries: Iterable[Entry], leaf_id: str | None) -> list[Message]:
    """The messages on the path to ``leaf_id``, whole, as deep copies."""
    return [entry.message for entry in path_to(entries, leaf_id) if isinstance(entry, MessageEntry)]


def children(entries: Iterable[Entry]) -> dict[str | None, list[str]]:
    """For each parent id (``None``: the roots) the ids of its children, in the order they were committed."""
    found: dict[str | None, list[str]] = {}
    for entry in entries:
        found.setdefault(entry.parent_id, []).append(entry.id)
    return found


def common_ancestor(entries: Sequence[Entry], first_id: str | None, second_id: str | None) -> str | None:
    """The newest entry that is on both paths, or ``None`` if they share none. Raises as ``path_to`` does."""
    if first_id is None or second_id is None:
        return None
    by_id = _by_id(entries)
    above = set(_ids_up(by_id, first_id))
    return next((entry_id for entry_id in _ids_up(by_id, second_id) if entry_id in above), None)


def _by_id(entries: Iterable[Entry]) -> dict[str, Entry]:
    by_id: dict[str, Entry] = {}
    for entry in entries:
        if entry.id in by_id:
            raise DamagedSessionError(f"the id {entry.id!r} is used by two entries", entry_id=entry.id)
        by_id[entry.id] = entry
    return by_id


def _ids_up(by_id: dict[str, Entry], leaf_id: str) -> list[str]:
    ids: list[str] = []
    seen: set[str] = set()
    current: str | None = leaf_id
    while current is not None:
        entry = by_id.get(current)
        if entry is None:
            if not ids:
                raise EntryNotFoundError(f"no entry {current!r:.140} among these", entry_id=current)
            raise BrokenPathError(f"the parent {current!r} of entry {ids[-1]!r} is missing", entry_id=ids[-1])
        if current in seen:
            raise BrokenPathError(f"entry {current!r} is its own ancestor: a cycle", entry_id=current)
        seen.add(current)
        ids.append(current)
        current = entry.parent_id
    return ids
