"""``branchline delete``: sessions and all that lies beside them, for good; after a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from harness.cli.asking import is_confirmed
from harness.cli.failures import DONE, FAILED, CommandLineError, message, naming
from harness.cli.json_facts import json_facts
from harness.cli.places import Place, Shelf, kind_of_place
from harness.cli.plain_text import preview
from harness.cli.screen import Line, Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at, summary_of
from storage.errors import InvalidIdError, SessionError, SessionNotFoundError
from storage.identifiers import check_session_id, is_safe_name
from storage.jsonl_file import left_behind
from storage.repository import SessionSummary

TEXT_LENGTH = 100

_NONE = frozenset({"damaged_session", "session_not_found"})
"""What a file without a header is listed as. Outside the sessions folder that may be anybody's file."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What became of one session; ``problem`` says why it is still there."""

    session: str
    path: str
    deleted: bool
    problem: str | None = None


def run_delete(screen: Screen, given: Sequence[str], *, yes: bool, root: str | None) -> int:
    """Delete the sessions that were named, after asking. All must be there, or none is touched."""
    shelf = shelf_at(root)
    places: dict[str, Place] = {}
    for name in given:
        place = _on_a_shelf(_found(name, shelf))
        places[place.where] = place
    for place, summary in anyio.run(_summaries, list(places.values())):
        is_elsewhere = all(place.where != Place(place.name, section).where for section in shelf.sections)
        if is_elsewhere and summary.created is None and summary.problem_code in _NONE:
            raise CommandLineError(f"{summary.place}: this is no session; delete it by hand")
        screen.note(_line(summary))
    count = f"these {len(places)} sessions" if len(places) > 1 else "this session"
    if not is_confirmed(screen, f"Delete {count} for good?", yes=yes, what="nothing was deleted"):
        screen.note("nothing was deleted")
        return FAILED
    done = anyio.run(_delete_all, list(places.values()))
    for each in done:
        if screen.as_json:
            screen.show_json(json_facts(each))
        elif each.deleted:
            screen.note(f"deleted {each.session}")
    left = [each for each in done if not each.deleted]
    if not left:
        return DONE
    others = f"; {len(left)} of {len(done)} sessions are still there" if len(done) > 1 else ""
    screen.fail(f"{left[0].problem}{others}")
    return FAILED


def _found(name: str, shelf: Shelf) -> Place:
    """The session that ``name`` names; also one of which a deletion that was killed has left only what lay beside it."""
    try:
        return find_session_or_file(name, shelf)
    except SessionNotFoundError:
        if not is_safe_name(name):
            raise
        place = Place(name, shelf.new)
        if place.path is None or not place.path.parent.is_dir() or not left_behind(str(place.path)):
            raise
        return place


def _on_a_shelf(place: Place) -> Place:
    """The session with the folder it lies in as its shelf. Only what is a session by its name is ever deleted."""
    path = place.path
    if place.section is not None or path is None:
        return place
    name = path.name.removesuffix(".jsonl")
    try:
        check_session_id(name)
    except InvalidIdError as error:
        raise CommandLineError(f"{path}: its name is no session's; delete it by hand") from error
    if not place.is_folder and name == path.name:
        raise CommandLineError(f"{path}: only files named *.jsonl are taken for sessions; delete it by hand")
    return Place(name, kind_of_place(str(path.absolute().parent)).beside(place))


async def _summaries(places: Sequence[Place]) -> list[tuple[Place, SessionSummary]]:
    """What there is to tell of each, also where it is damaged. A session whose header says nothing is no session."""
    found = [(place, await summary_of(place)) for place in places]
    return [(place, summary) for place, summary in found if summary is not None]


async def _delete_all(places: Sequence[Place]) -> list[Deleted]:
    done: list[Deleted] = []
    for place in places:
        if place.section is None:
            continue
        try:
            with naming(place.where):
                await place.section.repository.delete(place.name)
        except SessionError as error:
            done.append(Deleted(place.name, place.where, deleted=False, problem=message(error)))
        else:
            done.append(Deleted(place.name, place.where, deleted=True))
    return done


def _line(summary: SessionSummary) -> Line:
    name = f' "{preview(summary.name, TEXT_LENGTH)}"' if summary.name else ""
    says = preview(summary.first_message, TEXT_LENGTH) if summary.first_message else "nothing was asked in it"
    if summary.problem is not None:
        says = f"({preview(summary.problem, TEXT_LENGTH)}) {says if summary.first_message else ''}"
    size = f", {summary.size:,} bytes" if summary.size is not None else ""
    return [Span(f"{summary.id}{name}{size}: ", "bold"), Span(says)]
