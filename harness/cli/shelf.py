"""Where sessions lie, and which of them a person means."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.cli.failures import CommandLineError
from storage.errors import SessionNotFoundError
from storage.identifiers import check_session_id, is_safe_name

ROOT_VARIABLE: Final = "BRANCHLINE_HOME"
LAST: Final = "last"
MATCHES_SHOWN: Final = 8

_BEGINNING = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Place:
    """A session on disk: a file of lines, or a folder of entry files.

    ``name`` is its id on a shelf, else its path as it was given; ``root`` is the folder of that shelf, or ``None``.
    """

    name: str
    path: Path
    root: Path | None = None

    @property
    def is_folder(self) -> bool:
        """Whether each entry is a file of its own."""
        return self.path.is_dir()


def sessions_root(given: Path | None) -> Path:
    """The folder that holds the sessions. Raises ``CommandLineError`` where the system names no folder for data."""
    if given is not None:
        return expanded(given)
    from platformdirs import user_data_path

    try:
        root = user_data_path("branchline", appauthor=False) / "sessions"
    except RuntimeError:
        root = Path("~")
    if not root.is_absolute():  # older versions of platformdirs leave the ~ where there is no home
        raise CommandLineError(f"you have no home folder to keep sessions in; give one with --root or {ROOT_VARIABLE}")
    return root


def expanded(path: Path) -> Path:
    """``path`` with a leading ``~`` put in full. Raises ``CommandLineError`` for a home that is not known."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise CommandLineError(f"{path}: this home folder is not known; write the path in full") from error


def places_in(root: Path) -> list[Place]:
    """All sessions in ``root``, by name. Side files are none, and neither is anything whose name is no safe id.

    Raises ``OSError`` where the folder cannot be read; a folder that is not there holds none.
    """
    try:
        found = list(os.scandir(root))
    except FileNotFoundError:
        return []
    places: list[Place] = []
    for item in found:
        name = item.name.removesuffix(".jsonl")
        if not is_safe_name(name):
            continue
        path = Path(item.path)
        if (name != item.name and not item.is_dir()) or (path / "metadata.json").is_file():
            places.append(Place(name, path, root))
    return sorted(places, key=lambda place: place.name)


def find_session(given: str, root: Path) -> Place:
    """The session in ``root`` that ``given`` names: an id, the unique beginning of one, or ``last``.

    Raises ``InvalidIdError`` before any file is touched where that can be no id, ``SessionNotFoundError`` where there
    is none, and ``CommandLineError`` where several match. Makes nothing.
    """
    if _BEGINNING.fullmatch(given) is None or ".." in given:
        check_session_id(given)
    places = places_in(root)
    if given == LAST:
        return _newest(places, root)
    matches = [place for place in places if place.name == given]
    matches = matches or [place for place in places if place.name.startswith(given)]
    if not matches:
        known = f"it holds {_listed(_by_age(places))}" if places else "it holds no sessions"
        raise SessionNotFoundError(f"no session {given!r} in {root} ({known}); 'branchline sessions' lists them")
    if len(matches) > 1:
        raise CommandLineError(f"session {given!r} is not unique, give more of it; it matches {_listed(matches)}")
    return matches[0]


def find_session_or_file(given: str, root: Path) -> Place:
    """As ``find_session``, or the session in the file that ``given`` is the path of."""
    path = Path(given)
    looks_like_path = os.sep in given or (os.altsep is not None and os.altsep in given)
    if looks_like_path or (given.endswith(".jsonl") and path.is_file()):
        return find_file(path)
    return find_session(given, root)


def find_file(path: Path) -> Place:
    """The session in the file, or folder of entry files, at ``path``. Raises ``SessionNotFoundError``."""
    path = expanded(path)
    if not path.exists():
        raise SessionNotFoundError("there is no such file", path=str(path))
    if path.is_dir() and not (path / "metadata.json").exists():
        raise SessionNotFoundError("this folder is no session; give the session itself", path=str(path))
    return Place(str(path), path)


def _newest(places: Sequence[Place], root: Path) -> Place:
    if not places:
        raise SessionNotFoundError(f"there are no sessions in {root} yet; 'branchline chat' begins one")
    return _by_age(places)[0]


def _by_age(places: Sequence[Place]) -> list[Place]:
    """The one changed last first."""
    return sorted(places, key=changed_at, reverse=True)


def changed_at(place: Place) -> int:
    """When it was last written to, in nanoseconds since 1970; 0 where that cannot be read."""
    inner = place.path / "entries"
    try:
        return max(each.stat().st_mtime_ns for each in (place.path, inner) if each == place.path or each.exists())
    except OSError:
        return 0


def _listed(places: Sequence[Place]) -> str:
    more = ", ..." if len(places) > MATCHES_SHOWN else ""
    return ", ".join(place.name for place in places[:MATCHES_SHOWN]) + more
