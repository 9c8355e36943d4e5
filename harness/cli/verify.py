"""``branchline verify``: read a session from end to end and say what is wrong. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from harness.cli.failures import DONE, FAILED, message, reason
from harness.cli.json_facts import json_facts
from harness.cli.places import Place, Shelf
from harness.cli.progress import Progress
from harness.cli.reading import all_entries, open_to_read, told
from harness.cli.salvaging import oddities
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.session import Session
from storage.blobs import blob_names_in
from storage.entry_folder import ENTRIES
from storage.errors import (
    BranchlineError,
    BrokenPathError,
    DamagedSessionError,
    SessionError,
    SessionNotFoundError,
    StaleSessionError,
)
from storage.event_loops import run_in_worker
from storage.identifiers import is_safe_name
from storage.listing import all_sessions
from storage.protocols import BlobStore
from storage.repository import ChecksWhole

HARMLESS = frozenset({"root_with_parent", "seq_differs", "foreign_file"})
"""Codes of warnings about what is unusual but sound; every other one is a problem."""

_OURS = b'{"seq":'
"""How an entry file of ours begins."""

CONTEXTS = 200
"""The contexts of at most so many branches are built, the newest; paths can be long, and branches many."""


@dataclass(slots=True)
class Report:
    """What was looked at, and what was found."""

    session: str
    path: str
    entries: int = 0
    bytes: int = 0
    branches: int = 0
    contexts: int = 0
    unit: str = "line"
    """What an entry is there: a line, an entry file or a row."""
    blobs: int = 0
    """How many large outputs lie beside the entries, and were read."""
    blob_bytes: int = 0
    missing_blobs: list[str] = field(default_factory=list[str])
    """Names that an entry gives, and under which there is nothing."""
    unnamed_blobs: list[str] = field(default_factory=list[str])
    """What is there, and no entry names: left by a write that was cancelled, say. It does no harm."""
    problems: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    opened: bool = False
    deleted: bool = False
    """Whether it was deleted between the listing and the look at it: that is no damage."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def run_verify(screen: Screen, given: str | None, *, root: str | None) -> int:
    """Check the session that ``given`` names, or all; the exit code says whether all are sound."""
    shelf = shelf_at(root)
    problems: list[str] = []
    if given is not None:
        places = [find_session_or_file(given, shelf)]
    else:
        is_there = shelf.path is None or shelf.path.exists()
        problems = anyio.run(_check_whole, screen, shelf) if is_there else []
        try:
            places = anyio.run(_all_places, shelf)
        except DamagedSessionError as error:  # a database so damaged that it does not say what is in it
            places, problems = [], problems or [_without_place(reason(error), error.path or shelf.shown)]
        if not places and not problems:
            screen.note(f"there are no sessions in {shelf.shown}")
    damaged: list[Report] = []
    with Progress(screen, "reading", len(places) if len(places) > 1 else None) as progress:
        for place in places:
            report = anyio.run(check, place)
            progress.advance()
            with progress.aside():
                _show(screen, report)
            if not report.ok:
                damaged.append(report)
    if not damaged:
        if problems:
            also = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            screen.fail(f"{shelf.shown}: {problems[0]}{also}; nothing was changed")
        return FAILED if problems else DONE
    first = damaged[0]
    also = f" (and {len(first.problems) - 1} more)" if len(first.problems) > 1 else ""
    others = f"; {len(damaged)} of {len(places)} sessions have problems" if len(places) > 1 else ""
    rest = ", and 'branchline tree' shows what can be read" if first.opened else ""
    screen.fail(f"{first.path}: {first.problems[0]}{also}{others}; nothing was changed{rest}")
    return FAILED


async def _all_places(shelf: Shelf) -> list[Place]:
    """Every session there is, by name; one whose name is no id by its path."""
    places: list[Place] = []
    for section in shelf.sections:
        for summary in await all_sessions(section.repository):
            by_id = is_safe_name(summary.id) or section.path is None
            places.append(Place(summary.id, section) if by_id else Place(summary.place, given_path=Path(summary.place)))
    return sorted(places, key=lambda place: place.name)


async def _check_whole(screen: Screen, shelf: Shelf) -> list[str]:
    """What is wrong with a database as a whole; told here."""
    found: list[str] = []
    for section in shelf.sections:
        if not isinstance(section.repository, ChecksWhole):
            continue
        try:
            with Progress(screen, "reading the database"):
                problems = await section.repository.check()
        except DamagedSessionError as error:
            problems = [_without_place(reason(error), error.path or shelf.shown)]
        found += problems
        if screen.as_json:
            screen.show_json({"place": shelf.shown, "ok": not problems, "problems": problems})
            continue
        verdict = Span("damaged", "bold red") if problems else Span("ok", "green")
        screen.show(
            [Span(f"{shelf.shown}  ", "bold"), verdict, Span(": checked the whole, and what belongs to nothing")]
        )
        for problem in problems:
            screen.show([Span("  problem: ", "red"), Span(problem)])
    return found


async def check(place: Place) -> Report:
    """Read everything of the session at ``place``, and try what can be tried without writing."""
    report = Report(place.name, place.where, unit=place.unit)
    try:
        report.bytes = _size(place.path) if place.path is not None else 0
        async with open_to_read(place, on_corrupt="skip") as session:
            report.opened = True
            await _check_session(session, place, report)
    except (BranchlineError, OSError) as error:
        is_missing = isinstance(error, (SessionNotFoundError, StaleSessionError, FileNotFoundError))
        report.deleted = is_missing and await _is_gone(place)
        if not report.deleted:
            text = reason(error) if isinstance(error, BranchlineError) else message(error)
            report.problems.append(_without_place(text, report.path))
    return report


async def _is_gone(place: Place) -> bool:
    """Whether there is nothing any more where a session was listed."""
    if place.path is not None or place.section is None:
        return place.path is not None and not place.path.exists()
    try:
        return await place.section.repository.find(place.name) != place.name
    except SessionNotFoundError:
        return True


async def _check_session(session: Session, place: Place, report: Report) -> None:
    for warning in session.warnings:
        (report.warnings if warning.code in HARMLESS else report.problems).append(told(warning))
    if place.section is not None and session.id not in place.name:
        report.warnings.append(f"the header says {session.id!r}, the file is named {report.session!r}")
    tips: dict[str, None] = {}
    ids: set[str] = set()
    is_ours = session.header.branchline is not None
    async for entry in all_entries(session):
        report.entries += 1
        if is_ours and entry.seq is not None:
            report.problems += [f"entry {entry.id}: {what}" for what in oddities(entry, ids)]
        ids.add(entry.id)
        if entry.type == "leaf":
            continue  # a place to go on from, no step of a branch
        if entry.parent_id is not None:
            tips.pop(entry.parent_id, None)
        tips[entry.id] = None
    if place.is_folder and place.path is not None:
        report.problems += await run_in_worker(
            partial(_misnamed, place.path / ENTRIES, ids, "\n".join(report.problems))
        )
    lines = [line for line in session.log.index.lines if line is not None]
    if not report.bytes:
        report.bytes = len(session.header.to_line()) + sum(map(len, lines)) + len(lines) + 1
    await _check_blobs(session, lines, report)
    report.branches = len(tips)
    for leaf_id in list(tips)[-CONTEXTS:]:
        try:
            context = await session.build_context(leaf_id=leaf_id)
        except BrokenPathError:
            continue  # its broken link is among the warnings already
        except BranchlineError as error:
            report.problems.append(f"the branch to {leaf_id}: {_without_place(reason(error), report.path)}")
            continue
        report.contexts += 1
        for warning in context.warnings:
            if told(warning) not in report.warnings:
                report.warnings.append(told(warning))


def _misnamed(folder: Path, ids: Collection[str], told_of: str) -> list[str]:
    """Entry files of ours that hold another entry than their name says: to a reader they are no entries."""
    others = [path for path in sorted(folder.glob("*.json")) if path.stem not in ids and path.name not in told_of]
    return [
        f"{path.name} looks like an entry of ours, and is not the one that its name says"
        for path in others
        if path.is_file() and path.read_bytes()[: len(_OURS)] == _OURS
    ]


async def _check_blobs(session: Session, lines: Sequence[bytes], report: Report) -> None:
    """Read every blob, and compare what is there with what the entries name."""
    store = session.storage
    named = await run_in_worker(lambda: list(blob_names_in(lines)))
    there = await run_in_worker(store.blob_names) if isinstance(store, BlobStore) else ()
    for name in there:
        try:
            data = await run_in_worker(partial(store.read_blob, name)) if isinstance(store, BlobStore) else b""
        except (SessionError, OSError) as error:
            report.problems.append(f"the large output {name} cannot be read: {message(error)}")
            continue
        report.blobs += 1
        report.blob_bytes += len(data)
    report.missing_blobs = [name for name in named if name not in set(there)]
    report.unnamed_blobs = [name for name in there if name not in set(named)]
    report.problems += [f"the large output {name} is missing, which an entry names" for name in report.missing_blobs]
    if report.unnamed_blobs:
        count, first = len(report.unnamed_blobs), report.unnamed_blobs[0]
        which = f"{first} is a large output" if count == 1 else f"{first} and {count - 1} more are large outputs"
        report.warnings.append(f"{which} that no entry names; it does no harm")


def _show(screen: Screen, report: Report) -> None:
    if screen.as_json:
        screen.show_json({**json_facts(report), "ok": report.ok})
        return
    if report.deleted:
        screen.show([Span(f"{report.session}  ", "bold"), Span("was deleted meanwhile")])
        return
    verdict = Span("ok", "green") if report.ok else Span("damaged" if report.opened else "cannot be read", "bold red")
    checked = f": {report.bytes:,} bytes"
    if report.opened:
        checked = (
            f": {report.entries:,} entries in {report.bytes:,} bytes; checked every {report.unit} and every link, and the "
            f"contexts of {report.contexts:,} of {report.branches:,} branches"
            + (f"; read {report.blobs:,} large outputs of {report.blob_bytes:,} bytes" if report.blobs else "")
        )
    screen.show([Span(f"{report.session}  ", "bold"), verdict, Span(checked)])
    for problem in report.problems:
        screen.show([Span("  problem: ", "red"), Span(problem)])
    for warning in report.warnings:
        screen.show([Span("  warning: ", "yellow"), Span(warning)])


def _without_place(text: str, path: str) -> str:
    return text.removeprefix(f"{path}: ")


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*.json"))
    return path.stat().st_size
