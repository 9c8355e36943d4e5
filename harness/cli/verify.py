"""``branchline verify``: read a session from end to end and say what is wrong. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio

from harness.cli.failures import DONE, FAILED, message
from harness.cli.reading import all_entries, open_to_read
from harness.cli.screen import Screen, Span
from harness.cli.shelf import Place, find_session_or_file, places_in, sessions_root
from harness.session import Session
from storage.errors import BranchlineError, BrokenPathError
from storage.protocols import SessionWarning

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
    for place in places:
        report = anyio.run(check, place)
        _show(screen, report)
        if not report.ok:
            damaged.append(report)
    if not damaged:
        return DONE
    more = len(damaged[0].problems) - 1
    also = f" (and {more} more)" if more else ""
    others = f"; {len(damaged)} of {len(places)} sessions have problems" if len(places) > 1 else ""
    screen.fail(
        f"{damaged[0].path}: {damaged[0].problems[0]}{also}{others}; nothing was changed, "
        "and 'branchline tree' shows what can be read"
    )
    return FAILED


async def check(place: Place) -> Report:
    """Read everything of the session at ``place``, and try what can be tried without writing."""
    report = Report(place.name, str(place.path))
    try:
        report.bytes = _size(place.path)
        async with open_to_read(place, on_corrupt="skip") as session:
            await _check_session(session, report)
    except (BranchlineError, OSError) as error:
        report.problems.append(_without_place(message(error), report.path))
    return report


async def _check_session(session: Session, report: Report) -> None:
    for warning in session.warnings:
        (report.warnings if warning.code in HARMLESS else report.problems).append(_told(warning))
    if report.session not in (session.id, report.path):
        report.warnings.append(f"the header says {session.id!r}, the file is named {report.session!r}")
    tips: dict[str, None] = {}
    async for entry in all_entries(session):
        report.entries += 1
        if entry.parent_id is not None:
            tips.pop(entry.parent_id, None)
        tips[entry.id] = None
    report.branches = len(tips)
    leaves = list(tips)[-CONTEXTS:]
    if session.leaf_id is not None and session.leaf_id not in leaves:
        leaves.append(session.leaf_id)
    for leaf_id in leaves:
        try:
            context = await session.build_context(leaf_id=leaf_id)
        except BrokenPathError:
            continue  # its broken link is among the warnings already
        except BranchlineError as error:
            report.problems.append(f"the branch to {leaf_id}: {_without_place(message(error), report.path)}")
            continue
        report.contexts += 1
        for warning in context.warnings:
            told = _told(warning)
            if told not in report.warnings:
                report.warnings.append(told)


def _show(screen: Screen, report: Report) -> None:
    if screen.as_json:
        screen.show_json({**asdict(report), "ok": report.ok})
        return
    verdict = Span("ok", "green") if report.ok else Span("damaged", "bold red")
    checked = (
        f": {report.entries:,} entries in {report.bytes:,} bytes; checked every line and link, "
        f"{report.branches:,} branches, {report.contexts:,} contexts"
    )
    screen.show([Span(f"{report.session}  ", "bold"), verdict, Span(checked)])
    for problem in report.problems:
        screen.show([Span("  problem: ", "red"), Span(problem)])
    for warning in report.warnings:
        screen.show([Span("  warning: ", "yellow"), Span(warning)])


def _told(warning: SessionWarning) -> str:
    known = warning.line is None or f"line {warning.line}" in warning.message
    return warning.message if known else f"line {warning.line}: {warning.message}"


def _without_place(text: str, path: str) -> str:
    return text.removeprefix(f"{path}: ")


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*.json"))
    return path.stat().st_size
