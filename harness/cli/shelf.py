"""Where sessions lie, and which of them a person means: an id, the unique beginning of one, ``last``, or a path."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio

from harness.cli.failures import CommandLineError
from harness.cli.places import ROOT_VARIABLE, Place, Section, Shelf, expanded, is_sqlite_file, kind_of_place
from storage.errors import SessionNotFoundError
from storage.identifiers import check_session_id, is_safe_name
from storage.listing import PAGE, each_session
from storage.repository import SessionSummary

LAST: Final = "last"
MATCHES_SHOWN: Final = 8

_BEGINNING = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def shelf_at(given: str | None) -> Shelf:
    """The place that holds the sessions: the one given, or the user's own folder for data.

    Raises ``CommandLineError`` where the system names no folder for data, and for what can be no place.
    """
    if given is not None:
        return kind_of_place(given)
    from platformdirs import user_data_path

    try:
        root = user_data_path("branchline", appauthor=False) / "sessions"
    except RuntimeError:
        root = Path("~")
    if not root.is_absolute():  # older versions of platformdirs leave the ~ where there is no home
        raise CommandLineError(f"you have no home folder to keep sessions in; give one with --root or {ROOT_VARIABLE}")
    return kind_of_place(str(root))


async def summaries_on(
    shelf: Shelf, *, deep: bool = False, at_once: int = PAGE
) -> AsyncIterator[tuple[Section, SessionSummary]]:
    """Every session on the shelf, kind by kind; see ``each_session``."""
    for section in shelf.sections:
        async for summary in each_session(section.repository, deep=deep, at_once=at_once):
            yield section, summary


async def summary_of(place: Place) -> SessionSummary | None:
    """What a listing tells of the session at ``place``, which is on a shelf."""
    if place.section is None:
        return None
    async for _, summary in summaries_on(Shelf("", (place.section,))):
        if summary.id == place.name:
            return summary
    return None


def places_on(shelf: Shelf) -> list[Place]:
    """All sessions on the shelf, by name. Blocking, for the outside of an event loop."""
    return anyio.run(all_places, shelf)


async def all_places(shelf: Shelf) -> list[Place]:
    """All sessions on the shelf, by name; what has a name that is no safe id is none."""
    places = [Place(each.id, section) async for section, each in summaries_on(shelf) if is_safe_name(each.id)]
    return sorted(places, key=lambda place: place.name)


def find_session(given: str, shelf: Shelf) -> Place:
    """The session on ``shelf`` that ``given`` names. Blocking, for the outside of an event loop; see ``find_on``."""
    _check_beginning(given)
    return anyio.run(find_on, given, shelf)


async def find_on(given: str, shelf: Shelf) -> Place:
    """The session on ``shelf`` that ``given`` names: an id, the unique beginning of one, or ``last``.

    Raises ``InvalidIdError`` before anything is looked at where that can be no id, ``SessionNotFoundError`` where there
    is none, and ``CommandLineError`` where several match. Makes nothing.
    """
    _check_beginning(given)
    if given == LAST:
        newest = await _newest(shelf, 1)
        if not newest:
            raise SessionNotFoundError(f"there are no sessions in {shelf.shown} yet; 'branchline chat' begins one")
        return newest[0]
    matches = [place for section in shelf.sections for place in await _matches(given, section)]
    matches = [place for place in matches if place.name == given] or matches
    if not matches:
        places = await _newest(shelf, MATCHES_SHOWN + 1)
        known = f"it holds {_listed(places)}" if places else "it holds no sessions"
        raise SessionNotFoundError(f"no session {given!r} in {shelf.shown} ({known}); 'branchline sessions' lists them")
    if len(matches) > 1 and matches[0].name != given:
        raise CommandLineError(f"session {given!r} is not unique, give more of it; it matches {_listed(matches)}")
    return matches[0]


async def place_of_id(session_id: str, shelf: Shelf) -> Place | None:
    """The session of exactly that id; ``None`` if there is none."""
    if not is_safe_name(session_id):
        return None
    found = [place for section in shelf.sections for place in await _matches(session_id, section)]
    return next((place for place in found if place.name == session_id), None)


def find_session_or_file(given: str, shelf: Shelf) -> Place:
    """As ``find_session``, or the session in the file that ``given`` is the path of."""
    path = Path(given)
    looks_like_path = os.sep in given or (os.altsep is not None and os.altsep in given)
    if looks_like_path or (given.endswith(".jsonl") and path.is_file()):
        return find_file(path)
    return find_session(given, shelf)


def find_file(path: Path) -> Place:
    """The session in the file, or folder of entry files, at ``path``. Raises ``SessionNotFoundError``."""
    path = expanded(path)
    if not path.exists():
        raise SessionNotFoundError("there is no such file", path=str(path))
    if path.is_dir() and not (path / "metadata.json").exists():
        raise SessionNotFoundError("this folder is no session; give the session itself", path=str(path))
    if is_sqlite_file(path):
        raise CommandLineError(f"{path} is a database of sessions: give it with --root, and name the session by its id")
    return Place(str(path), given_path=path)


def _check_beginning(given: str) -> None:
    if _BEGINNING.fullmatch(given) is None or ".." in given:
        check_session_id(given)


async def _matches(given: str, section: Section) -> list[Place]:
    """The sessions of one kind whose ids begin with ``given``; only the one that is ``given``, if it is there."""
    names: Iterable[str]
    try:
        names = [await section.repository.find(given)]
    except SessionNotFoundError as error:
        names = error.details.get("matches", ())
    return [Place(name, section) for name in names]


async def _newest(shelf: Shelf, count: int) -> list[Place]:
    """The sessions written to last, the last one first."""
    found: list[tuple[datetime, Place]] = []
    for section in shelf.sections:
        left = count
        async for _, summary in summaries_on(Shelf(shelf.shown, (section,)), at_once=count):
            if is_safe_name(summary.id):
                found.append((summary.modified, Place(summary.id, section)))
                left -= 1
            if not left:
                break
    found.sort(key=lambda each: each[0], reverse=True)
    return [place for _, place in found[:count]]


def _listed(places: Sequence[Place]) -> str:
    more = ", ..." if len(places) > MATCHES_SHOWN else ""
    return ", ".join(place.name for place in places[:MATCHES_SHOWN]) + more
