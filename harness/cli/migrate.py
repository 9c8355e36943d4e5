"""``branchline migrate``: sessions from one place into another, whatever keeps them there, to the byte and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from harness.cli.failures import DONE, FAILED, CommandLineError, message
from harness.cli.json_facts import json_facts
from harness.cli.places import ENTRY_FILE, Place, Section, Shelf, is_sqlite_file, kind_of_place
from harness.cli.progress import Progress
from harness.cli.reading import told
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session, summaries_on
from storage.identifiers import is_safe_name
from storage.migrate import SessionMigration, migrate_all

_WORDS: Final = {"migrated": "migrated", "finished": "finished", "already_there": "already there"}


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of one session. ``problem`` says why it was not migrated; nothing of it is in the target then."""

    session: str
    source: str
    target: str
    outcome: str | None = None
    entries: int | None = None
    bytes: int | None = None
    blobs: int | None = None
    leaf: str | None = None
    parent_session: str | None = None
    more: int | None = None
    """Entries that the target has behind those of the source."""
    warnings: Sequence[str] = ()
    problem: str | None = None


def run_migrate(screen: Screen, source: str, target: str, given: Sequence[str], *, entry_files: bool) -> int:
    """Migrate the sessions that ``given`` names, or all, from the place ``source`` into the place ``target``."""
    shelf = _source(source)
    section = _target_section(kind_of_place(target), entry_files=entry_files)
    if any(each.where("x") == section.where("x") for each in shelf.sections):
        raise CommandLineError(f"{shelf.shown} is both where from and where to: give another place")
    chosen = {(place.section, place.name) for place in (find_session(name, shelf) for name in given)}
    moved = _Moving(screen, section)
    total = len(chosen) if given else anyio.run(_count, shelf)
    if not total:
        screen.note(f"there are no sessions in {shelf.shown}")
    with Progress(screen, "migrating", total if total > 1 else None) as moved.progress:
        for each in shelf.sections:
            names = [name for place, name in chosen if place is each] if given else None
            if names != []:
                moved.from_section = each
                anyio.run(_migrate, each, section, names, moved)
    if len(moved.done) > 1 and not screen.as_json:
        screen.note(
            f"{len(moved.done) - len(moved.failed):,} of {len(moved.done):,} sessions are in the target, and were compared"
        )
    if not moved.failed:
        return DONE
    others = f"; {len(moved.failed)} of {len(moved.done)} sessions were not migrated" if len(moved.done) > 1 else ""
    screen.fail(f"{moved.failed[0].problem}{others}")
    return FAILED


class _Moving:
    """Tells of each session as it is done, and keeps what became of it."""

    def __init__(self, screen: Screen, target: Section) -> None:
        self.done: list[Moved] = []
        self.from_section: Section | None = None
        self.progress = Progress(screen, "migrating")
        self._screen = screen
        self._target = target

    @property
    def failed(self) -> list[Moved]:
        """Those that were not migrated."""
        return [moved for moved in self.done if moved.problem is not None]

    def take(self, result: SessionMigration) -> None:
        """One is done."""
        moved = self._facts(result)
        self.done.append(moved)
        self.progress.advance()
        with self.progress.aside():
            self._show(moved)

    def _facts(self, result: SessionMigration) -> Moved:
        name = result.session_id
        is_id = is_safe_name(name)
        source = Place(name, self.from_section).where if is_id else name
        target = Place(name, self._target).where if is_id else name
        done = result.migrated
        if done is None:
            return Moved(name, source, target, problem=message(result.error) if result.error is not None else "")
        return Moved(
            session=done.session_id,
            source=source,
            target=Place(done.session_id, self._target).where,
            outcome=done.outcome,
            entries=done.entries,
            bytes=done.bytes,
            blobs=done.blobs,
            leaf=done.leaf_id,
            parent_session=done.parent_session,
            more=done.more,
            warnings=[told(warning) for warning in done.warnings],
        )

    def _show(self, moved: Moved) -> None:
        if self._screen.as_json:
            self._screen.show_json(json_facts(moved))
            return
        if moved.problem is not None:
            verdict = [Span("not migrated", "red"), Span(f": {moved.problem}")]
        else:
            blobs = f" and {moved.blobs:,} large outputs" if moved.blobs else ""
            more = f"; it has gone on there, by {_entries(moved.more)}" if moved.more else ""
            count = _entries(moved.entries or 0)
            verdict = [
                Span(_WORDS[moved.outcome or ""], "green"),
                Span(f": {count} in {moved.bytes:,} bytes{blobs}, compared{more}"),
            ]
        self._screen.show([Span(f"{moved.session}  ", "bold"), *verdict], cut=False)
        for warning in moved.warnings:
            self._screen.show([Span("  warning: ", "yellow"), Span(warning)], cut=False)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


async def _migrate(source: Section, target: Section, names: Sequence[str] | None, moved: _Moving) -> None:
    await migrate_all(source.repository, target.repository, names, each=moved.take)


async def _count(shelf: Shelf) -> int:
    return len([each async for each in summaries_on(shelf)])


def _source(given: str) -> Shelf:
    """The place to migrate from, which must be there: a folder that is not there would be one without sessions."""
    shelf = kind_of_place(given)
    path = shelf.path
    if path is None:
        return shelf
    if not path.exists():
        raise CommandLineError(f"{path} is not there; nothing was migrated")
    if (path.is_file() and not is_sqlite_file(path)) or (path / "metadata.json").exists():
        raise CommandLineError(
            f"{path} is no place with sessions; if it is one, give the folder it lies in, and its id"
        )
    return shelf


def _target_section(shelf: Shelf, *, entry_files: bool) -> Section:
    if not entry_files:
        return shelf.new
    section = next((each for each in shelf.sections if each.unit == ENTRY_FILE), None)
    if section is None:
        raise CommandLineError(f"--entry-files is for a folder, and {shelf.shown} is a database")
    return section
