"""``branchline import``: conversations of other programs become sessions of ours. Their files are only read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio

from harness.cli.failures import DONE, FAILED, CommandLineError, for_people, message
from harness.cli.hints import command_for
from harness.cli.json_facts import json_facts
from harness.cli.places import Place, Shelf, expanded
from harness.cli.plain_text import given_text
from harness.cli.progress import Progress
from harness.cli.reading import told
from harness.cli.screen import Screen, Span
from harness.cli.shelf import place_of_id, shelf_at
from harness.importing import import_session
from storage.errors import BranchlineError

_FIRST_LINE = 64 * 1024
"""Bytes in which a header is looked for."""


@dataclass(slots=True)
class Imported:
    """What became of one file. ``taken_for`` says what it was read as; ``problem`` why nothing was made of it."""

    file: str
    taken_for: str
    session: str | None = None
    path: str | None = None
    entries: int | None = None
    imported: bool = False
    already_there: bool = False
    problem: str | None = None
    warnings: list[str] = field(default_factory=list[str])


def run_import(screen: Screen, files: Sequence[Path], *, root: str | None) -> int:
    """Import each file; one that cannot be does not stop the others. A file that is not there stops all."""
    shelf = shelf_at(root)
    sources = [expanded(file) for file in files]
    for source in sources:
        if not source.is_file():
            what = "is no file; import takes files" if source.exists() else "is not there; nothing was imported"
            raise CommandLineError(f"{source} {what}")
    made: list[Imported] = []
    with Progress(screen, "importing", len(sources) if len(sources) > 1 else None) as progress:
        for source in sources:
            done = anyio.run(import_file, source, shelf)
            made.append(done)
            progress.advance()
            with progress.aside():
                _show(screen, done)
    new = [done for done in made if done.imported]
    if len(new) == 1 and new[0].session is not None and not screen.as_json:
        place = Place(new[0].session, shelf.new)
        screen.note(f"go on with: {command_for('chat', place, root=root)}")
    failed = [done for done in made if done.problem is not None]
    if not failed:
        return DONE
    others = f"; {len(failed)} of {len(made)} files were not imported" if len(made) > 1 else ""
    screen.fail(f"{failed[0].problem}{others}")
    return FAILED


async def import_file(source: Path, shelf: Shelf) -> Imported:
    """Make a session on ``shelf`` of one file, whole or not at all. What is wrong with the file is in the answer."""
    done = Imported(given_text(str(source)), "messages")
    try:
        header = _header_in(source)
        if header is not None:
            done.taken_for = _what_it_is(header)
        session_id = header.get("id") if header is not None else None
        there = await place_of_id(session_id, shelf) if isinstance(session_id, str) else None
        if there is not None:
            done.session, done.path, done.already_there = there.name, there.where, True
            return done
        made = await import_session(source, shelf.new.repository)
    except BranchlineError as error:
        done.problem = message(error)
        return done
    except OSError as error:
        done.problem = message(error)
        return done
    done.session, done.path, done.entries, done.imported = made.session_id, made.place, made.entries, True
    done.warnings = [told(warning) for warning in made.warnings]
    if isinstance(session_id, str) and made.session_id != session_id:
        done.warnings.append(f"its own id {session_id!r:.80} can be no file's name, so it has a new one")
    return done


def _header_in(source: Path) -> dict[str, Any] | None:
    """The members of the header that the file begins with; ``None`` where it does not begin as a session does."""
    with source.open("rb") as file:
        line = file.read(_FIRST_LINE).removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    try:
        first: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    members = cast("dict[str, Any]", first) if isinstance(first, dict) else {}
    return members if members.get("type") == "session" else None


def _what_it_is(header: dict[str, Any]) -> str:
    if "branchline" in header:
        return "a session of branchline"
    version = header.get("version", 1)
    return f"a session of pi, version {version!r:.20}"


def _show(screen: Screen, done: Imported) -> None:
    if screen.as_json:
        screen.show_json(json_facts(done))
        return
    screen.show([Span(f"{done.file}  ", "bold"), *_verdict(done)], cut=False)
    for warning in done.warnings:
        screen.show([Span("  warning: ", "yellow"), Span(for_people(warning))], cut=False)


def _verdict(done: Imported) -> list[Span]:
    if done.problem is not None:
        return [
            Span("not imported", "red"),
            Span(f" (taken for {done.taken_for}): "),
            Span(done.problem.removeprefix(f"{Path(done.file).absolute()}: ")),
        ]
    if done.already_there:
        return [Span("already here", "yellow"), Span(f" as session {done.session}; nothing was imported")]
    entries = "1 entry" if done.entries == 1 else f"{done.entries:,} entries"
    return [Span("imported", "green"), Span(f" as session {done.session}: {entries}; taken for {done.taken_for}")]
