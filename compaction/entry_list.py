"""A path made of a plain list of entries: for pure use, for transforms, and for tests."""

from __future__ import annotations

from collections.abc import Sequence

from storage.decode import facts_of
from storage.entries import Entry
from storage.entry_path import IndexedPath
from storage.index import EntryIndex
from storage.protocols import Record
from storage.strict_json import encode_model


class ListPath(IndexedPath):
    """The entries of a list as an ``EntryPath``: each hangs from the one before it, whatever its ``parent_id`` says.

    The entries are serialised at once, so later changes of them do not show. Raises ``InvalidEntryError`` for an entry
    that cannot be written and ``DamagedSessionError`` if two have the same id.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        index = EntryIndex()
        parent: str | None = None
        for place, entry in enumerate(entries):
            index.add(Record(place, entry.id, parent, entry.type, encode_model(entry), facts_of(entry)))
            parent = entry.id
        super().__init__(index, len(entries) - 1)
