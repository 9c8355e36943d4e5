"""Which entries of a path a context is made of: the newest compaction decides (R18), transforms may change it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from compaction.breathing import Breath
from compaction.entry_list import ListPath
from storage.entries import CompactionEntry, Entry
from storage.entry_path import EntryPath
from storage.messages import Message
from storage.protocols import SessionWarning

Transform = Callable[[list[Entry]], Sequence[Entry]]
"""A change of what is shown: gets the selected entries in order, all types, the compaction first, and returns those to
show. The entries are made anew for it; an id may come only once."""


@dataclass(slots=True)
class Selection:
    """Stretches of positions on ``path``, oldest first, behind the summary and the retained tail of ``compaction``."""

    path: EntryPath
    stretches: list[range]
    compaction: CompactionEntry | None = None
    tail: list[Message] = field(default_factory=list[Message])
    warnings: list[SessionWarning] = field(default_factory=list[SessionWarning])

    def holds(self, position: int) -> bool:
        """Whether a position of the path is selected."""
        for stretch in self.stretches:  # noqa: SIM110 - it is asked for each unit, and ``any`` costs twice as much
            if position in stretch:
                return True
        return False


def select(path: EntryPath) -> Selection:
    """The newest compaction with what it keeps, then what came after; without one, everything.

    Of what lies before the compaction, its retained tail is kept, or else the entries from its first kept one on, or
    nothing. Decodes the compaction only.
    """
    at = path.compaction
    if at is None:
        return Selection(path, [range(len(path))])
    entry = path.entry(at)
    after = range(at + 1, len(path))
    if not isinstance(entry, CompactionEntry):
        return Selection(path, [after])
    if entry.retained_tail is not None:
        return Selection(path, [after], entry, list(entry.retained_tail))
    first = entry.first_kept_entry_id
    if first is None:
        return Selection(path, [after], entry)
    start = path.position_of(first)  # the compaction's own place: an empty stretch, nothing kept
    if start is None or start > at:
        warning = SessionWarning(
            "first_kept_not_on_path",
            f"the compaction keeps entries from {first!r:.140} on, which is not before it on its path; nothing before "
            "it is shown but its summary",
            entry_id=entry.id,
        )
        return Selection(path, [after], entry, warnings=[warning])
    return Selection(path, [range(start, at), after], entry)


def transformed(
    selection: Selection, transforms: Sequence[Transform], breath: Breath
) -> Generator[None, None, Selection]:
    """The selection after the caller's transforms, in order. Decodes everything that is selected.

    They see one compaction, the one that counts, first; older ones among the kept entries are not shown to them either.
    """
    entries: list[Entry] = [] if selection.compaction is None else [selection.compaction]
    for stretch in selection.stretches:
        for position in stretch:
            if breath.is_due():
                yield
                breath.taken()
            if selection.path.entry_type(position) != "compaction":
                entries.append(selection.path.entry(position))
    for transform in transforms:
        entries = list(transform(entries))
    compaction = next((entry for entry in reversed(entries) if isinstance(entry, CompactionEntry)), None)
    tail = list(compaction.retained_tail or ()) if compaction is not None else []
    return Selection(ListPath(entries), [range(len(entries))], compaction, tail, selection.warnings)
