"""``branchline tree``: a session's tree, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio

from harness.cli.drawn_tree import ASCII, DRAWN, Glyphs, Tree, draw, tree_of
from harness.cli.entry_ids import ShortIds
from harness.cli.entry_lines import describe, kind_of
from harness.cli.failures import DONE
from harness.cli.places import Place
from harness.cli.reading import all_entries, open_to_read, told
from harness.cli.screen import Line, Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.session import Session
from storage.entries import Entry

TEXT_LENGTH = 100
"""Characters of an entry's text; a terminal cuts it to its width."""


def run_tree(screen: Screen, given: str, *, root: str | None, everything: bool) -> int:
    """Draw the tree of the session that ``given`` names."""
    place = find_session_or_file(given, shelf_at(root))
    anyio.run(_tree, screen, place, everything)
    return DONE


async def _tree(screen: Screen, place: Place, everything: bool) -> None:
    async with open_to_read(place, on_corrupt="skip") as session:
        drawn = await drawn_session(session, everything=everything)
        warnings = [f"warning: {told(warning)}" for warning in session.warnings]
    if screen.as_json:
        for entry in drawn.entries:
            screen.show_json(_facts(entry, drawn.tree, drawn.leaf_id, drawn.labels))
    else:
        for line in drawn.lines(DRAWN if screen.can_draw else ASCII):
            screen.show(line)
    screen.notes(warnings)


@dataclass(frozen=True, slots=True)
class DrawnSession:
    """A session as it was when it was read, and its tree."""

    session_id: str
    leaf_id: str | None
    name: str | None
    entries: list[Entry]
    labels: dict[str, str]
    tree: Tree

    def lines(self, glyphs: Glyphs) -> Iterator[Line]:
        """A title, and the tree."""
        yield _title(self.session_id, self.name, self.tree, len(self.entries))
        yield from draw(
            self.tree, labels=self.labels, short=ShortIds(entry.id for entry in self.entries), glyphs=glyphs
        )


async def drawn_session(session: Session, *, everything: bool) -> DrawnSession:
    """The session read whole; ``everything`` draws the bookkeeping as well."""
    entries = [entry async for entry in all_entries(session)]
    labels = await session.labels()
    leaf_id = session.leaf_id
    tree = tree_of(entries, leaf_id, labels=labels, everything=everything, length=TEXT_LENGTH)
    return DrawnSession(session.id, leaf_id, await session.name(), entries, labels, tree)


def _title(session_id: str, name: str | None, tree: Tree, count: int) -> Line:
    named = f' "{name}"' if name else ""
    branches = f", {tree.tips} branches" if tree.tips > 1 else ""
    entries = "1 entry" if count == 1 else f"{count} entries"
    return [Span(f"session {session_id}", "bold"), Span(f"{named} ({entries}{branches})")]


def _facts(entry: Entry, tree: Tree, leaf_id: str | None, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "id": entry.id,
        "parentId": entry.parent_id,
        "timestamp": entry.timestamp,
        "type": entry.type,
        "kind": kind_of(entry),
        "active": entry.id in tree.active_ids,
        "leaf": entry.id == leaf_id,
        "label": labels.get(entry.id),
        "text": describe(entry, TEXT_LENGTH),
    }
