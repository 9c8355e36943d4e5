"""The walk from the newest entry back: entries decoded only as far as it goes, made sendable, grouped into units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import cast

from compaction.breathing import Breath
from compaction.call_facts import FACT_TYPES, CallFacts
from compaction.characters import decoded_characters, message_characters
from compaction.kept_units import KeptUnits
from compaction.recorded_message import recorded_message
from compaction.replies import Replies
from compaction.selection import Selection
from compaction.sendable import as_user_message, clean_user, is_blank, replace_content
from compaction.shortening import Shortener
from compaction.shown_unit import Shown, ShownUnit
from compaction.timestamps import milliseconds_of
from storage.decode import decode_entry
from storage.entries import (
    BranchSummaryEntry,
    ContextEditEntry,
    CustomEntry,
    CustomMessageEntry,
    Entry,
    MessageEntry,
    Replacement,
)
from storage.messages import (
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
    UserMessage,
)

Projector = Callable[[CustomEntry], "Message | Sequence[Message] | None"]
"""What a ``custom`` entry shows to the model: a message, several, or nothing. It must be a pure function of the entry."""

_OTHER_TYPES = frozenset(("custom_message", "branch_summary"))
_WITH_CUSTOM = _OTHER_TYPES | {"custom"}


class Walk:
    """One walk over a selection."""

    def __init__(
        self,
        selection: Selection,
        projectors: Mapping[str, Projector],
        breath: Breath,
        shortener: Shortener | None = None,
        kept: KeptUnits | None = None,
    ) -> None:
        """``kept``: what is known of the selection's path, which is added to."""
        self._selection = selection
        self._path = selection.path
        self._projectors = projectors
        self._breath = breath
        self._shortener = shortener
        self._facts = CallFacts(self._path)
        self._replies = Replies(self._facts)
        self._edits = self._path.edits()
        self._replacements: dict[str, Replacement | None] = {}
        self._types = _WITH_CUSTOM if projectors else _OTHER_TYPES
        self._given: set[int] = set()
        self._kept = kept
        self._ahead: set[int] = set()
        """Results of units that are kept and whose reply the walk has not met."""
        self._tail_id = selection.compaction.id if selection.compaction is not None else ""

    def dropped(self) -> list[str]:
        """Entry ids of the results that answer no call which the walk has met, oldest first."""
        left = self._replies.left()
        left += [(position, self._path.entry_id(position)) for position in self._ahead]
        return [entry_id for _, entry_id in sorted(left)]

    def units(self) -> Iterator[ShownUnit | None]:
        """The units, newest first; ``None`` where it is time to pause."""
        path, breath, types, given = self._path, self._breath, self._types, self._given
        kept = self._kept
        for stretch in reversed(self._selection.stretches):
            for position in reversed(stretch):
                if perf_counter() > breath.due:
                    yield None
                    breath.taken()
                if position in given:
                    continue
                if kept is not None:
                    if position in kept.results:
                        self._ahead.add(position)
                        continue
                    if position in kept.units:
                        yield self._known(kept.units[position])
                        continue
                    if position in kept.facts:
                        self._facts.met(position)
                        continue
                    if position in kept.passed:
                        continue
                kind, entry_id, line = path.glance(position)
                if kind == "message":
                    if (unit := self._from_line(position, entry_id, line)) is not None:
                        if kept is not None:
                            kept.keep(unit)
                        yield unit
                elif kind in types:
                    yield from self._from_other(position, path.entry(position))
                elif kind in FACT_TYPES:
                    self._facts.met(position)
                    if kept is not None:
                        kept.facts.add(position)
                elif kept is not None:
                    kept.passed.add(position)
        tail = self._selection.tail
        for place in range(-1, -len(tail) - 1, -1):
            unit = None if place in given else self._unit(place, self._tail_id, tail[place], None)
            if unit is not None:
                yield unit

    def opener(self, position: int) -> int | None:
        """Where the user message is that opened the turn of what lies at ``position``, if it is among the selected."""
        if position >= 0:
            opener = self._path.opener(position)
            return opener if opener is not None and self._selection.holds(opener) else None
        tail = self._selection.tail
        for place in range(position, -len(tail) - 1, -1):
            if isinstance(tail[place], UserMessage):
                return place
        return None

    def opener_unit(self, position: int) -> ShownUnit | None:
        """The user message at ``position``, or ``None`` if nothing of it is shown. The walk then passes it by."""
        self._given.add(position)
        if position < 0:
            return self._unit(position, self._tail_id, self._selection.tail[position], None)
        if self._kept is not None and position in self._kept.units:
            return self._kept.units[position]
        _, entry_id, line = self._path.glance(position)
        unit = self._from_line(position, entry_id, line)
        if unit is not None and self._kept is not None:
            self._kept.keep(unit)
        return unit

    def _known(self, unit: ShownUnit) -> ShownUnit:
        """A unit that is kept was met, after all its results."""
        if unit.results:
            self._ahead.difference_update([result.place for result in unit.results])
            self._facts.reply(unit.position, {result.message.tool_call_id for result in unit.results})
        return unit

    def _from_line(self, position: int, entry_id: str, line: bytes) -> ShownUnit | None:
        """The unit that begins with the message in the line of a ``message`` entry."""
        read = recorded_message(line)
        if read is None:
            entry = decode_entry(line)
            if not isinstance(entry, MessageEntry):
                return None
            message, chars = entry.message, None
        else:
            message, chars = read
        if self._edits and self._edits[-1] > position:
            self._read_edits(position)
        if self._replacements and entry_id in self._replacements:
            return self._edited(position, entry_id, message)
        return self._unit(position, entry_id, message, chars)

    def _read_edits(self, position: int) -> None:
        """Decode the context edits behind ``position``: no other can be about what lies there. The newest counts."""
        edits = self._edits
        while edits and edits[-1] > position:
            edit = self._path.entry(edits.pop())
            if isinstance(edit, ContextEditEntry):
                self._replacements.setdefault(edit.target_id, edit.replacement)

    def _unit(self, position: int, entry_id: str, message: Message, chars: int | None) -> ShownUnit | None:
        """The unit that begins with ``message``. ``chars``: its size as it is now, where that is known."""
        if isinstance(message, AssistantMessage):
            return self._replies.unit(position, entry_id, message, chars)
        if isinstance(message, UserMessage):
            if chars is not None and type(message.content) is str and not is_blank(message.content):
                return ShownUnit(position, entry_id, message, chars)  # by far the most
            changed = clean_user(message)
            if changed is None:
                return None
            return _single(position, entry_id, message, None if changed else chars)
        if isinstance(message, ToolResultMessage):
            if self._shortener is not None and self._shortener.shorten(entry_id, message):
                chars = None
            self._replies.hold(position, entry_id, message, chars)
        elif isinstance(message, CustomMessage | BashExecutionMessage | BranchSummaryMessage):
            shown = as_user_message(message)
            return None if shown is None else _single(position, entry_id, shown, None)
        return None

    def _edited(self, position: int, entry_id: str, message: Message) -> ShownUnit | None:
        """As ``_unit``, for a message that a context edit replaces or hides."""
        replacement = self._replacements[entry_id]
        if isinstance(message, AssistantMessage):
            recorded = message.tool_calls
            if replacement is None:
                self._replies.hide(position, recorded)
                return None
            replace_content(message, replacement)
            return self._replies.unit(position, entry_id, message, None, recorded)
        if isinstance(message, ToolResultMessage):
            if replacement is not None:
                replace_content(message, replacement)
            self._replies.hold(position, entry_id, message, None, hidden=replacement is None)
            return None
        if replacement is None:
            return None
        return self._unit(position, entry_id, replace_content(message, replacement), None)

    def _from_other(self, position: int, entry: Entry) -> Iterator[ShownUnit]:
        """What an entry shows that is no message: the app's own, and summaries of branches."""
        if self._edits and self._edits[-1] > position:
            self._read_edits(position)
        for message in reversed(self._messages_of(entry)):
            if entry.id in self._replacements:
                unit = self._edited(position, entry.id, message)
            else:
                unit = self._unit(position, entry.id, message, None)
            if unit is not None:
                yield unit

    def _messages_of(self, entry: Entry) -> list[Message]:
        if isinstance(entry, CustomMessageEntry):
            return [UserMessage(content=entry.content, timestamp=milliseconds_of(entry.timestamp))]
        if isinstance(entry, BranchSummaryEntry):
            return [BranchSummaryMessage(summary=entry.summary, timestamp=milliseconds_of(entry.timestamp))]
        projector = self._projectors.get(entry.custom_type) if isinstance(entry, CustomEntry) else None
        if projector is None:
            return []
        projected = projector(cast("CustomEntry", entry))
        if projected is None:
            return []
        return [_copied(message) for message in (projected if isinstance(projected, Sequence) else [projected])]


def _single(position: int, entry_id: str, message: Shown, chars: int | None) -> ShownUnit:
    return ShownUnit(position, entry_id, message, decoded_characters(message) if chars is None else chars)


def _copied(message: Message) -> Message:
    """A message of the caller's, made anew: what is shown shares nothing with it. Raises ``InvalidEntryError``."""
    message_characters(message)
    return message.model_copy(deep=True)
