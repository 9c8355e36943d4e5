"""Which entries a request showed, in few words: runs along the reply's own path, with shortened ids (R26)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

import anyio.lowlevel

from storage.entry_path import EntryPath

# Of our own ids this is the time and 26 random bits: no id of an entry that comes later will begin with it either.
_SHORTEST = 23
_BREATH = 500
_SHOWN_TYPES = frozenset({"message", "custom_message", "branch_summary", "compaction", "working_memory", "custom"})


class PathIds:
    """The ids of a path, kept from request to request, so that each costs only what was appended since."""

    def __init__(self) -> None:
        self._sorted: list[str] = []
        self._last: str | None = None

    async def follow(self, path: EntryPath) -> None:
        """Know the ids of ``path``. Lets the loop breathe."""
        known = len(self._sorted)
        if known > len(path) or self._last is None or path.position_of(self._last) != known - 1:
            self._sorted, self._last, known = [], None, 0
        for position in range(known, len(path)):
            entry_id = path.entry_id(position)
            insort(self._sorted, entry_id)
            self._last = entry_id
            if position % _BREATH == _BREATH - 1:
                await anyio.lowlevel.checkpoint()

    def shorten(self, entry_id: str) -> str:
        """The shortest beginning of an id, of at least 23 characters, that no other id on the path begins with."""
        place = bisect_left(self._sorted, entry_id)
        neighbours = self._sorted[max(0, place - 1) : place + 2]
        shared = max((_shared(entry_id, other) for other in neighbours if other != entry_id), default=0)
        return entry_id[: max(_SHORTEST, shared + 1)]


async def shown_runs(path: EntryPath, entry_ids: Sequence[str | None], ids: PathIds) -> list[list[str]]:
    """The entries in ``entry_ids`` as runs [first id, last id], in the order of the path. Lets the loop breathe.

    A run holds every entry between its ends that could be shown; ids of entries that are not on the path are left out.
    ``ids`` must know the path.
    """
    places = {path.position_of(entry_id) for entry_id in entry_ids if entry_id is not None}
    positions = sorted(place for place in places if place is not None)
    if not positions:
        return []
    runs = [[positions[0], positions[0]]]
    for count, (before, position) in enumerate(pairwise(positions)):
        for between in range(before + 1, position):
            if path.entry_type(between) in _SHOWN_TYPES:
                runs.append([position, position])
                break
        else:
            runs[-1][1] = position
        if count % _BREATH == _BREATH - 1:
            await anyio.lowlevel.checkpoint()
    return [[ids.shorten(path.entry_id(first)), ids.shorten(path.entry_id(last))] for first, last in runs]


def _shared(one: str, other: str) -> int:
    """How many characters two ids begin with in common."""
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
