"""``branchline sessions``: what is on the shelf, the one used last first."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import anyio

from harness.cli.failures import DONE
from harness.cli.json_facts import json_facts
from harness.cli.places import Shelf
from harness.cli.progress import Progress
from harness.cli.screen import Line, Screen, Span
from harness.cli.shelf import places_on, shelf_at, summaries_on
from storage.listing import PAGE
from storage.repository import SessionSummary

DEEP_PAGE: Final = 20
"""Sessions that are read whole before the progress moves on."""

TEXT_LENGTH: Final = 100

_MARKS: Final = {
    "session_not_found": "empty",
    "unsupported_version": "another version",
    "storage": "unreadable",
    "invalid_id": "not a session id",
}


def run_sessions(screen: Screen, *, root: str | None, deep: bool) -> int:
    """List the sessions; ``deep`` reads each whole, so that all damage is found and the entries are counted."""
    shelf = shelf_at(root)
    with Progress(screen, "reading", len(places_on(shelf)) if deep else None) as progress:
        summaries = anyio.run(_summaries, shelf, deep, progress)
    for summary in summaries:
        if screen.as_json:
            screen.show_json(json_facts(summary))
        else:
            screen.show(_line(summary))
    if not summaries:
        screen.note(f"there are no sessions in {shelf.shown} yet; 'branchline chat' begins one")
    return DONE


async def _summaries(shelf: Shelf, deep: bool, progress: Progress) -> list[SessionSummary]:
    found: list[SessionSummary] = []
    async for _, summary in summaries_on(shelf, deep=deep, at_once=DEEP_PAGE if deep else PAGE):
        found.append(summary)
        progress.advance()
    return sorted(found, key=lambda summary: (summary.modified, summary.id), reverse=True)


def _line(summary: SessionSummary) -> Line:
    size = f"{summary.size:,}" if summary.size is not None else "-"
    entries = f" {summary.entries:>7,} entries" if summary.entries is not None else ""
    line = [
        Span(f"{summary.id:<36}  ", "bold"),
        Span(f"{_local(summary.modified)} {size:>12} bytes{entries}  ", "dim"),
    ]
    if summary.problem is not None:
        mark = _MARKS.get(summary.problem_code or "", "damaged")
        line.append(Span(f"[{mark}: {summary.problem}] ", "red"))
    if summary.name:
        line.append(Span(f"{summary.name[:TEXT_LENGTH]}: ", "magenta"))
    line.append(Span((summary.first_message or "")[:TEXT_LENGTH]))
    return line


def _local(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}"
