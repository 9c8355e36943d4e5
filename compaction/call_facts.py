"""What became of a call that has no result: was it begun, does it wait for approval (R20)?

The entries that tell this are collected while walking back along a path, and decoded only when a call without a result
is met. A fact belongs to the nearest earlier reply that has a call of its id, as results do.
"""

from __future__ import annotations

from compaction.wording import NOT_RUN, OUTCOME_UNKNOWN, WAITING
from storage.entries import ApprovalRequestedEntry, ApprovalResolvedEntry, ToolStartEntry
from storage.entry_path import EntryPath

FACT_TYPES = frozenset(("tool_start", "approval_requested", "approval_resolved"))


class CallFacts:
    """Facts about calls, met newest first."""

    __slots__ = ("_by_call", "_nearest", "_path", "_undecoded")

    def __init__(self, path: EntryPath) -> None:
        self._path = path
        self._undecoded: list[int] = []
        self._by_call: dict[str, list[tuple[int, str]]] = {}
        self._nearest: dict[str, int] = {}

    def met(self, position: int) -> None:
        """A fact lies at ``position``."""
        self._undecoded.append(position)

    def reply(self, position: int, call_ids: set[str]) -> None:
        """A reply at ``position`` has these calls: what lies after it is not about calls of these ids before it."""
        for call_id in call_ids:
            self._nearest[call_id] = position

    def unanswered(self, call_ids: list[str], answered: list[str]) -> list[tuple[str, bool]]:
        """For the unanswered calls of one reply, in call order: what their results say, and whether that is an error.

        ``answered``: the ids of its other calls; of calls with one id the first were begun. To be asked before
        ``reply`` is told of it.
        """
        self._decode()
        started: dict[str, int] = {}
        waiting: dict[str, int] = {}
        for call_id in set(call_ids):
            end = self._nearest.get(call_id)
            for position, kind in self._by_call.get(call_id, ()):
                if end is not None and position >= end:
                    continue
                if kind == "tool_start":
                    started[call_id] = started.get(call_id, 0) + 1
                else:
                    step = 1 if kind == "approval_requested" else -1
                    waiting[call_id] = waiting.get(call_id, 0) + step
        for call_id in answered:
            if call_id in started:
                started[call_id] -= 1
        said: list[tuple[str, bool]] = []
        for call_id in call_ids:
            if waiting.get(call_id, 0) > 0:
                waiting[call_id] -= 1
                said.append((WAITING, False))
            elif started.get(call_id, 0) > 0:
                started[call_id] -= 1
                said.append((OUTCOME_UNKNOWN, True))
            else:
                said.append((NOT_RUN, True))
        return said

    def _decode(self) -> None:
        for position in self._undecoded:
            entry = self._path.entry(position)
            if isinstance(entry, ToolStartEntry | ApprovalRequestedEntry | ApprovalResolvedEntry):
                self._by_call.setdefault(entry.call_id, []).append((position, entry.type))
        self._undecoded.clear()
