"""Which queued messages wait on a path: folded from the entries that put one in or take one out, oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.decode import decode_entry
from storage.entries import DeliveredEntry

if TYPE_CHECKING:
    from storage.index import EntryIndex

NOWHERE = -1


class Waiting:
    """What waits at ``place``: ``queued`` has the places of the ``queued`` entries by id, oldest first."""

    __slots__ = ("_to_come", "place", "queued")

    def __init__(self) -> None:
        self.place: int = NOWHERE
        self.queued: dict[str, int] = {}
        self._to_come: dict[str, str] = {}
        """Messages that deliveries have named and that have not come yet, with the queued entry of each."""

    def go_on(self, index: EntryIndex, place: int) -> None:
        """Take the next entry on the path that is about the queue."""
        name = index.names[place]
        kind = index.kind(place)[0]
        if kind == "queued":
            self.queued[name] = place
        elif kind == "delivered":
            entry = decode_entry(index.line(place))
            if isinstance(entry, DeliveredEntry):
                self._take_out(index, place, entry)
        else:
            self.queued.pop(self._to_come.pop(name, ""), None)
        self.place = place

    def _take_out(self, index: EntryIndex, place: int, entry: DeliveredEntry) -> None:
        message_id = entry.message_id
        if message_id is None:
            self.queued.pop(entry.entry_id, None)
            return
        message = index.ids.get(message_id)
        if message is not None and index.is_on_path(message, place):
            self.queued.pop(entry.entry_id, None)
        else:
            self._to_come[message_id] = entry.entry_id
