"""``branchline verify``: read a session from end to end and say what is wrong. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import anyio

from harness.cli.failures import DONE, FAILED, message, reason
from harness.cli.json_facts import json_facts
from harness.cli.progress import Progress
from harness.cli.reading import all_entries, open_to_read, told
from harness.cli.screen import Screen, Span
from harness.cli.shelf import Place, find_session_or_file, places_in, sessions_root
from harness.session import Session
from storage.errors import BranchlineError, BrokenPathError

HARMLESS = frozenset({"root_with_parent", "seq_differs", "foreign_file"})
"""Codes of warnings about what is unusual but sound; every other one is a problem."""

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
    problems: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    opened: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def run_verify(screen: Screen, given: str | None, *, root: Path | None) -> int:
    """Check the session that ``given`` names, or all; the exit code says whether all are sound."""
    folder = sessions_root(root)
    places = [find_session_or_file(given, folder)] if given is not None else places_in(folder)
    if not places:
        screen.note(f"there are no sessions in {folder}")
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
        return DONE
    first = damaged[0]
    also = f" (and {len(first.problems) - 1} more)" if len(first.problems) > 1 else ""
    others = f"; {len(damaged)} of {len(places)} sessions have problems" if len(places) > 1 else ""
    rest = ", and 'branchline tree' shows what can be read" if first.opened else ""
    screen.fail(f"{first.path}: {first.problems[0]}{also}{others}; nothing was changed{rest}")
    return FAILED


async def check(place: Place) -> Report:
    """Read everything of the session at ``place``, and try what can be tried without writing."""
    report = Report(place.name, str(place.path.absolute()))
    try:
        report.bytes = _size(place.path)
        async with open_to_read(place, on_corrupt="skip") as session:
            report.opened = True
            await _check_session(session, place, report)
    except BranchlineError as error:
        report.problems.append(_without_place(reason(error), report.path))
    except OSError as error:
        report.problems.append(_without_place(message(error), report.path))
    return report


async def _check_session(session: Session, place: Place, report: Report) -> None:
    for warning in session.warnings:
        (report.warnings if warning.code in HARMLESS else report.problems).append(told(warning))
    if place.root is not None and session.id not in place.name:
        report.warnings.append(f"the header says {session.id!r}, the file is named {report.session!r}")
    tips: dict[str, None] = {}
    async for entry in all_entries(session):
        report.entries += 1
        if entry.type == "leaf":
            continue  # a place to go on from, no step of a branch
        if entry.parent_id is not None:
            tips.pop(entry.parent_id, None)
        tips[entry.id] = None
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


def _show(screen: Screen, report: Report) -> None:
    if screen.as_json:
        screen.show_json({**json_facts(report), "ok": report.ok})
        return
    verdict = Span("ok", "green") if report.ok else Span("damaged" if report.opened else "cannot be read", "bold red")
    checked = f": {report.bytes:,} bytes"
    if report.opened:
        checked = (
            f": {report.entries:,} entries in {report.bytes:,} bytes; checked every line and every link, and the "
            f"contexts of {report.contexts:,} of {report.branches:,} branches"
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
