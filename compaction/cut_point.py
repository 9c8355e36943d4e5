"""Where a context is cut: what lies before is summarised, what comes from there on is kept.

Whole units are kept, newest first, turn by turn. The aim goes before the number of turns. A turn that is too large for
what is left is split between two of its units, so at a call's boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from compaction.measured_context import MeasuredContext, is_waiting
from compaction.shown_unit import ShownUnit
from storage.entry_path import EntryPath
from storage.errors import PendingCallError

_SPLIT_SHARE: Final = 0.5
"""If the turns that fit whole are less than this part of the room, the next one is split."""

_DECIDED: Final = frozenset(("turn_start", "turn_end"))
"""After one of these nobody can approve a call that lies before it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """``at``: the first unit that is kept (their number: none is). ``turn``: where the turn begins that it lies in."""

    at: int
    turn: int
    turns: int
    """How many turns are kept, one that is split included."""

    @property
    def splits(self) -> bool:
        """Whether the turn is cut in two."""
        return self.turn < self.at


def choose_cut(context: MeasuredContext, room: int, most: int, turns: int, *, least: int = 0) -> Cut:
    """The cut that keeps at most ``turns`` turns and ``room`` tokens.

    The newest unit is kept even if it is larger than ``room``, as long as it has no more than ``most`` tokens. At
    least the ``least`` oldest units are not kept, where there are more. ``at`` is 0 if all is kept.
    """
    units = context.units
    at, kept, whole, begin = len(units), 0, 0, 0
    while at:
        begin = _begin_of_turn(context, at - 1)
        size = context.sized(begin, at)
        if whole == turns or kept + size > room:
            break
        at, kept, whole = begin, kept + size, whole + 1
    if at and whole < turns and kept < room * _SPLIT_SHARE:
        end = at
        while at - 1 > begin and context.sized(at - 1, end) <= room - kept:
            at -= 1
    if at == len(units) and units and context.sized(at - 1, at) <= most:
        at -= 1
    if at < least < len(units):
        at = least
    at = _without_stragglers(context, at)
    if 0 < at < len(units) and units[at].position < 0:
        at = next((place for place in range(at, len(units)) if units[place].position >= 0), len(units))
    return _cut(context, at)


def keep_waiting(context: MeasuredContext, cut: Cut, room: int) -> Cut:
    """The cut moved so that every call that waits for its approval is kept, if all from there on has ``room`` tokens.

    Raises ``PendingCallError`` if it does not.
    """
    units = context.units
    first = next((at for at in context.waiting if at < cut.at and _can_be_approved(context.path, units[at])), None)
    if first is None:
        return cut
    if context.sized(first, len(units)) <= room:
        return _cut(context, first)
    unit = units[first]
    names = ", ".join(repr(result.message.tool_name[:80]) for result in unit.results if is_waiting(unit, result))
    raise PendingCallError(
        f"the call of {names} in entry {unit.entry_id!r:.140} waits for its approval and would be summarised away; "
        "approve or deny it first (resume, or abort)",
        entry_id=unit.entry_id,
    )


def _cut(context: MeasuredContext, at: int) -> Cut:
    """The cut at ``at``, with the turn it lies in and how many are kept."""
    units = context.units
    if not units:
        return Cut(0, 0, 0)
    turns, end = 0, len(units)
    while end > at:
        end = _begin_of_turn(context, end - 1)
        turns += 1
    return Cut(at, _begin_of_turn(context, min(at, len(units) - 1)), turns)


def _begin_of_turn(context: MeasuredContext, at: int) -> int:
    """The first unit of the turn that the unit at ``at`` belongs to, as far as it is there."""
    turn = _turn_of(context, at)
    while at and _turn_of(context, at - 1) == turn:
        at -= 1
    return at


def _turn_of(context: MeasuredContext, at: int) -> int | None:
    """What tells one turn from another: where the user message lies that opened it."""
    position = context.units[at].position
    return context.path.opener(position) if position >= 0 else context.walk.opener(position)


def _without_stragglers(context: MeasuredContext, at: int) -> int:
    """``at``, or the next place behind which no result of an older unit lies: such a result would lose its call."""
    units, last_places = context.units, context.last_places
    if not at:
        return 0
    return next((place for place in range(at, len(units)) if last_places[place - 1] < units[place].position), at)


def _can_be_approved(path: EntryPath, unit: ShownUnit) -> bool:
    """Whether an approval of one of the unit's calls can still come."""
    return unit.position >= 0 and not any(
        path.entry_type(place) in _DECIDED for place in range(unit.position + 1, len(path))
    )
