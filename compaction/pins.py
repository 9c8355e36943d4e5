"""What is shown whatever the budget is: the summary, the working memory; and what a request holds besides its messages."""

from __future__ import annotations

from typing import NamedTuple

from compaction.breathing import Steps
from compaction.characters import decoded_characters
from compaction.ledger import Ledger
from compaction.selection import Selection
from compaction.state import PathState
from compaction.timestamps import milliseconds_of
from compaction.tokens import fixed_texts
from compaction.wording import compaction_summary, working_memory
from storage.entry_path import EntryPath
from storage.messages import UserMessage


class Pin(NamedTuple):
    """A message that is always shown; ``place``: where on the path it was said last."""

    entry_id: str
    message: UserMessage
    chars: int
    place: int | None


class Pins(NamedTuple):
    """All of them, with the state that the rest of a request is made of."""

    state: PathState
    summary: Pin | None
    memory: Pin | None

    def charge(self, ledger: Ledger) -> Steps[None]:
        """Charge all of it, and what a request holds besides its messages."""
        if ledger.counts_tokens:
            fixed = fixed_texts(self.state.system_prompt, self.state.tools)
            yield from ledger.pin(self.state.header_position, 0, texts=fixed)
        for pin in (self.summary, self.memory):
            if pin is not None:
                yield from ledger.pin(pin.place, pin.chars, message=pin.message)


def pins_of(path: EntryPath, selection: Selection, state: PathState) -> Pins:
    """The pinned messages at the end of ``path``."""
    summary = memory = None
    if (compaction := selection.compaction) is not None:
        message = UserMessage(
            content=compaction_summary(compaction.summary), timestamp=milliseconds_of(compaction.timestamp)
        )
        summary = Pin(compaction.id, message, decoded_characters(message), path.compaction)
    if state.working_memory and (newest := state.memory_entry) is not None:
        message = UserMessage(
            content=working_memory(state.working_memory, state.memory_order),
            timestamp=milliseconds_of(newest.timestamp),
        )
        memory = Pin(newest.id, message, decoded_characters(message), state.memory_position)
    return Pins(state, summary, memory)
