"""``branchline migrate``: sessions from one place into another, whatever keeps them there, to the byte and checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio

from harness.cli.failures import DONE, FAILED, CommandLineError, message
from harness.cli.json_facts import json_facts
from harness.cli.places import ENTRY_FILE, Place, Section, Shelf, is_sqlite_file, kind_of_place
from harness.cli.progress import Progress
from harness.cli.reading import told
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session
from storage.event_loops import run_in_worker
from storage.identifiers import is_safe_name
from storage.listing import all_sessions
from storage.migrate import SessionMigration, migrate_each, parents_first
from storage.repository import SessionSummary
from storage.session_streams import LooksAhead

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
    goal = kind_of_place(target)
    section = _target_section(goal, entry_files=entry_files)
    chosen = {(place.section, place.name) for place in (find_session(name, shelf) for name in given)}
    with Progress(screen, f"looking at {shelf.shown}"):
        order = anyio.run(_in_order, shelf, goal, chosen if given else None)
    if not order:
        screen.note(f"there are no sessions in {shelf.shown}")
    total = len(order)
    moved = _Moving(screen, order, section)
    with Progress(screen, "migrating", total if total > 1 else None) as moved.progress:
        sessions = [(place.section.repository, place.name) for place in order if place.section is not None]
        anyio.run(partial(migrate_each, sessions, section.repository, each=moved.take))
    failed = [each for each in moved.done if each.problem is not None]
    if total > 1 and not screen.as_json:
        screen.note(f"{total - len(failed):,} of {total:,} sessions are in the target, and were compared")
    if not failed:
        return DONE
    others = f"; {len(failed):,} of {total:,} sessions were not migrated" if total > 1 else ""
    untried = f", {moved.untried:,} of them not tried, as the target had failed so often" if moved.untried else ""
    screen.fail(f"{failed[0].problem}{others}{untried}")
    return FAILED


class _Moving:
    """Tells of each session as it is done, and keeps what became of it."""

    def __init__(self, screen: Screen, order: Iterable[Place], target: Section) -> None:
        self.done: list[Moved] = []
        self.untried = 0
        """How many were not even tried."""
        self.progress = Progress(screen, "migrating")
        self._waiting = deque(order)
        self._screen = screen
        self._target = target

    def take(self, result: SessionMigration) -> None:
        """The next one is done."""
        moved = self._facts(result, self._waiting.popleft())
        self.done.append(moved)
        self.untried += not result.tried
        self.progress.advance()
        if result.tried or self._screen.as_json:
            with self.progress.aside():
                self._show(moved)

    def _facts(self, result: SessionMigration, place: Place) -> Moved:
        name = result.session_id
        is_id = is_safe_name(name)
        source = place.where if is_id else name
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


async def _in_order(
    source: Shelf, target: Shelf, chosen: Collection[tuple[Section | None, str]] | None
) -> Sequence[Place]:
    """The sessions to migrate, all if ``chosen`` is ``None``, of every kind there is: a fork after its parent."""
    here, there = [await run_in_worker(partial(_identity, shelf.new)) for shelf in (source, target)]
    if here is not None and here == there:
        raise CommandLineError(f"{source.shown} is both where from and where to: give another place")
    places: dict[str, list[Place]] = {}
    summaries: list[SessionSummary] = []
    for section in source.sections:
        for summary in await all_sessions(section.repository):
            if chosen is None or (section, summary.id) in chosen:
                places.setdefault(summary.id, []).append(Place(summary.id, section))
                summaries.append(summary)
    return [place for session_id in parents_first(summaries) for place in places[session_id]]


def _identity(section: Section) -> object:
    return section.repository.identity() if isinstance(section.repository, LooksAhead) else None


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
