"""The running turn's own hand on its session (R25)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from storage.entries import BranchSummaryEntry, Entry, EntryBase
from storage.messages import Message
from storage.pending_write import PendingWrite

if TYPE_CHECKING:
    from harness.session import Session


def is_for_the_turn(entry: Entry) -> bool:
    """Whether ``entry`` would move the leaf off its branch, or compact it: while a turn runs, only that may."""
    return isinstance(cast("Any", entry), EntryBase) and (
        entry.type in ("compaction", "leaf") or "parent_id" in entry.model_fields_set
    )


class SessionTurn:
    """The running turn's own hand: it appends to the branch it began on, which nobody can leave meanwhile."""

    def __init__(self, session: Session) -> None:
        """Use ``Session.begin_turn``."""
        self.session = session

    def append_message(self, message: Message) -> PendingWrite:
        """As ``Session.append_message``."""
        return self.session.append_message(message)

    def append_entry(self, entry: Entry) -> PendingWrite:
        """As ``Session.append_entry``, compactions included."""
        return self.session.append_in_turn(entry)

    def move_to(self, entry_id: str | None, summary: BranchSummaryEntry | None = None) -> PendingWrite:
        """As ``Session.move_to``, with the summary's whole entry."""
        return self.session.move_in_turn(entry_id, summary)

    def end(self) -> None:
        """The turn is over. Idempotent."""
        self.session.end_turn(self)
