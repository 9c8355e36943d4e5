"""Units that stay as they are, kept from one context to the next: a turn of many steps makes each only once.

A message never changes, and a reply whose calls all have their results keeps just these, whatever follows on its path:
of several results of one id the first behind the reply counts. So on a path that goes on from the one before, only what
is new is decoded and counted. What an edit may change is not kept, nor is a reply that got a made-up result.
"""

from __future__ import annotations

from compaction.shown_unit import ShownUnit
from storage.entries import Shortening
from storage.entry_path import EntryPath


class KeptUnits:
    """The units of one path, by position. Their messages are shared by all contexts that they are in: change none."""

    __slots__ = ("_last", "_length", "_shorten", "facts", "passed", "results", "units")

    def __init__(self) -> None:
        self.units: dict[int, ShownUnit] = {}
        self.results: set[int] = set()
        """Where the results lie that belong to these."""
        self.facts: set[int] = set()
        """Where facts about calls lie."""
        self.passed: set[int] = set()
        """Where something lies that is never shown."""
        self._length = 0
        self._last = ""
        self._shorten: Shortening | None = None

    def on(self, path: EntryPath, shorten: Shortening | None) -> KeptUnits | None:
        """What may be used and added to at the end of ``path``; ``None`` where nothing may.

        On another branch, and with other results shortened, it begins anew.
        """
        known, length = self._length, len(path)
        is_further = known <= length and (not known or path.entry_id(known - 1) == self._last)
        if not is_further or shorten != self._shorten:
            for kept in (self.units, self.results, self.facts, self.passed):
                kept.clear()
        self._length, self._last, self._shorten = length, path.entry_id(length - 1) if length else "", shorten
        return None if path.edits() else self

    def keep(self, unit: ShownUnit) -> None:
        """Keep a unit that the walk has made, if it stays as it is."""
        position = unit.position
        for result in unit.results:
            if result.place == position:
                return  # it was made up
        self.units[position] = unit
        for result in unit.results:
            self.results.add(result.place)
