"""What kind of place sessions are kept in: a folder, a SQLite file or a PostgreSQL database. Everybody else asks a shelf.

A folder holds two kinds of sessions, files of lines and folders of entry files; a database holds one. What is done with
a session is asked of its repository, whatever kind that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.cli.failures import CommandLineError

if TYPE_CHECKING:
    from storage.repository import SessionRepository

ROOT_VARIABLE: Final = "BRANCHLINE_HOME"

_ADDRESS = re.compile(r"(?i)postgres(?:ql)?://")
_FILE_NAMES: Final = (".sqlite", ".sqlite3", ".db")
LINE, ENTRY_FILE, ROW = "line", "entry file", "row"
_SQLITE: Final = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """The sessions of one kind in one place. ``where`` says where the session of an id lies, to people.

    ``unit`` is what one entry is there, as a word. ``path`` is the file or folder that the session of an id is, alone;
    ``None`` in a database.
    """

    repository: SessionRepository
    where: Callable[[str], str]
    unit: str
    path: Callable[[str], Path] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A session: ``name`` is its id on a shelf, else its path as it was given.

    ``section`` is where it stands on the shelf; ``None`` for a file (or folder of entry files) named by its path.
    """

    name: str
    section: Section | None = None
    given_path: Path | None = None

    @property
    def path(self) -> Path | None:
        """The file or folder that the session is; ``None`` in a database."""
        if self.section is None:
            return self.given_path
        return self.section.path(self.name) if self.section.path is not None else None

    @property
    def where(self) -> str:
        """Where it lies, to people and programs: an absolute path, or the database and the id."""
        if self.section is not None:
            return self.section.where(self.name)
        return str(self.given_path.absolute()) if self.given_path is not None else self.name

    @property
    def unit(self) -> str:
        """What one entry is there, as a word."""
        if self.section is not None:
            return self.section.unit
        return ENTRY_FILE if self.is_folder else LINE

    @property
    def is_folder(self) -> bool:
        """Whether each entry is a file of its own."""
        return self.path is not None and self.path.is_dir()


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """All sessions in one place. New ones are made in the first section.

    ``shown`` is the place, without a password; ``path`` the folder or file that it is, ``None`` behind an address.
    """

    shown: str
    sections: tuple[Section, ...]
    path: Path | None = None

    @property
    def new(self) -> Section:
        """Where new sessions are made."""
        return self.sections[0]

    def beside(self, place: Place) -> Section:
        """Where a session like the one at ``place`` is made: beside it, or here, of its kind if there is that kind here."""
        if place.section is not None:
            return place.section
        return self.sections[-1] if place.is_folder else self.sections[0]


def kind_of_place(given: str) -> Shelf:
    """The shelf at ``given``: a PostgreSQL address, a SQLite file (by its name, or by what is in it), else a folder.

    Nothing is made, and no database is asked. Raises ``CommandLineError`` for an address of something else.
    """
    if _ADDRESS.match(given):
        return _database(given)
    if "://" in given:
        kind = without_password(given).partition("://")[0]
        raise CommandLineError(
            f"{kind:.40}:// is no place for sessions; give a folder, a SQLite file (chats.sqlite) or an address "
            "(postgresql://user@host/database)"
        )
    path = expanded(Path(given))
    return _sqlite_file(path) if is_sqlite_file(path) else _folder(path)


def is_sqlite_file(path: Path) -> bool:
    """Whether a database is, or would be, at ``path``: its name says so, or what it begins with."""
    if path.is_dir():
        return False
    if path.name.lower().endswith(_FILE_NAMES):
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def check_file(path: Path, option: str) -> Path:
    """``path``, for a file of lines. Raises ``CommandLineError`` where a database is, or its name says that one is meant."""
    if is_sqlite_file(path):
        raise CommandLineError(
            f"{path} is a database of sessions: give it with --root; {option} is for a file of lines"
        )
    return path


def without_password(given: str) -> str:
    """A place as it may be shown: the password of an address, wherever it stands in it, is left out."""
    if not _ADDRESS.match(given):
        return given
    scheme, _, rest = given.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    address = f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{path}"
    base, question, query = address.partition("?")
    kept = [part for part in query.split("&") if not re.match(r"(?i)(?:ssl)?password=", part)]
    return base + question * bool(kept) + "&".join(kept) if question else address


def expanded(path: Path) -> Path:
    """``path`` with a leading ``~`` put in full. Raises ``CommandLineError`` for a home that is not known."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise CommandLineError(f"{path}: this home folder is not known; write the path in full") from error


def _folder(root: Path) -> Shelf:
    from storage.entry_file_repository import EntryFileRepository
    from storage.jsonl_repository import JsonlRepository

    files, folders = JsonlRepository(root), EntryFileRepository(root)
    return Shelf(
        str(root),
        (
            Section(files, files.path_of, LINE, lambda name: root / f"{name}.jsonl"),
            Section(folders, folders.path_of, ENTRY_FILE, lambda name: root / name),
        ),
        root,
    )


def _sqlite_file(path: Path) -> Shelf:
    from storage.sqlite_repository import SqliteRepository

    repository = SqliteRepository(path)
    return Shelf(str(path), (Section(repository, lambda name: f"{repository.path}#{name}", ROW),), path)


def _database(address: str) -> Shelf:
    shown = without_password(address)
    try:
        import psycopg  # pyright: ignore[reportUnusedImport] - whether it is there
    except ImportError as error:
        raise CommandLineError(
            f"{shown}: sessions in PostgreSQL need the driver: pip install 'branchline[postgres]'"
        ) from error
    from storage.postgres_repository import PostgresRepository

    try:
        repository = PostgresRepository(address)
    except (ValueError, psycopg.Error) as error:
        why = str(error).replace(address, shown).strip()
        raise CommandLineError(f"{shown} is no address of a database: {why}") from None
    return Shelf(shown, (Section(repository, lambda name: f"{shown} {name}", ROW),))
