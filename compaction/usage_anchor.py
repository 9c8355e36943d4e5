"""The newest reply whose usage tells how many tokens the context up to it had (R21, second level)."""

from __future__ import annotations

from typing import NamedTuple

from compaction.sendable import FAILED
from compaction.shown_unit import ShownUnit
from storage.entries import MessageEntry, RequestFacts, Shortening
from storage.entry_path import EntryPath
from storage.messages import AssistantMessage


class Anchor(NamedTuple):
    """A reply up to which, itself included, the provider counted ``tokens``.

    ``position`` is its place among what is walked, ``place`` on the path (the same, unless a transform moved it).
    """

    position: int
    place: int
    tokens: int


class AnchorRule:
    """Says which replies of a path are anchors: newer than its newest compaction and context edit, with a real usage.

    And asked for with all that its path showed, and with the same tool results shortened: ``shorten`` says which are now.
    """

    def __init__(self, path: EntryPath, shorten: Shortening | None = None) -> None:
        self._path = path
        self._shorten = shorten
        edits = path.edits()
        self._since = max(-1 if path.compaction is None else path.compaction, edits[-1] if edits else -1)

    def anchor_of(self, unit: ShownUnit) -> Anchor | None:
        """The anchor that a unit's reply is, or ``None``. The count is of a request with what its path then showed."""
        message = unit.message
        if not isinstance(message, AssistantMessage) or message.usage is None or message.stop_reason in FAILED:
            return None
        usage = message.usage
        tokens = usage.total_tokens or usage.input + usage.output + usage.cache_read + usage.cache_write
        place = self._path.position_of(unit.entry_id)
        if tokens <= 0 or place is None or place <= self._since or not self._has_shown_all(place):
            return None
        return Anchor(unit.position, place, tokens)

    def _has_shown_all(self, place: int) -> bool:
        """Whether the request of the reply at ``place`` left nothing out, and shortened what is shortened now."""
        line = self._path.line(place)
        if self._shorten is None and b'"shortened"' not in line and b'"cut":true' not in line:
            return True
        request = _request_of(self._path, place)
        return (None if request is None else request.shortened) == self._shorten and not (request and request.cut)


def shortened_for(path: EntryPath, place: int) -> Shortening | None:
    """Which results the request of the reply at ``place`` showed shortened, as its entry says; ``None``: none."""
    if b'"shortened"' not in path.line(place):
        return None  # nearly always, and without decoding it
    request = _request_of(path, place)
    return None if request is None else request.shortened


def _request_of(path: EntryPath, place: int) -> RequestFacts | None:
    entry = path.entry(place)
    return entry.request if isinstance(entry, MessageEntry) else None
