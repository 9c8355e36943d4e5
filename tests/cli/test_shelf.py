"""Which session is meant: a unique beginning or an error that lists matches; names can never leave the folder."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.cli.failures import CommandLineError
from harness.cli.places import ROW, Shelf, kind_of_place, without_password
from harness.cli.shelf import find_file, find_session, find_session_or_file, places_on, shelf_at
from storage.errors import InvalidIdError, SessionNotFoundError


def shelf(root: Path) -> Shelf:
    """What ``--root`` with this folder is."""
    return kind_of_place(str(root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with three sessions, side files, and things that are none."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    for age, name in enumerate(["alpha-1.jsonl", "alpha-2.jsonl", "beta.jsonl"]):
        (folder / name).write_text("{}\n")
        os.utime(folder / name, (1000 + age, 1000 + age))
    os.utime(folder / "alpha-2.jsonl", (5000, 5000))
    for name in ("beta.jsonl.lock", "beta.jsonl.torn-12", ".hidden.jsonl", "notes.txt", ".beta.jsonl.0a.tmp"):
        (folder / name).write_text("x")
    (folder / "gamma" / "entries").mkdir(parents=True)
    (folder / "gamma" / "metadata.json").write_text("{}")
    os.utime(folder / "gamma", (900, 900))
    os.utime(folder / "gamma" / "entries", (2000, 2000))
    (folder / "empty-folder").mkdir()
    (folder / "folder.jsonl").mkdir()
    return folder


def test_only_sessions_are_on_the_shelf(root: Path) -> None:
    """Side files, temporaries and folders without a header are no sessions."""
    assert [place.name for place in places_on(shelf(root))] == ["alpha-1", "alpha-2", "beta", "gamma"]
    assert places_on(shelf(root / "not there")) == []


@pytest.mark.parametrize(
    ("given", "name"),
    [("alpha-1", "alpha-1"), ("b", "beta"), ("alpha-2", "alpha-2"), ("ga", "gamma"), ("last", "alpha-2")],
)
def test_a_unique_beginning_is_enough(root: Path, given: str, name: str) -> None:
    """An id, its unique beginning, and ``last`` (the one written to last) name a session."""
    assert find_session(given, shelf(root)).name == name


def test_entry_files_count_for_last(root: Path) -> None:
    """A folder session was used when an entry was added to it, not when the folder was made."""
    os.utime(root / "gamma" / "entries", (9000, 9000))
    assert find_session("last", shelf(root)).name == "gamma"


def test_a_whole_id_wins_over_longer_ones(root: Path) -> None:
    """An id that begins another one is not ambiguous."""
    (root / "bet.jsonl").write_text("{}\n")
    assert find_session("bet", shelf(root)).name == "bet"


def test_ambiguous_lists_the_matches(root: Path) -> None:
    """Several matches are an error with all of them in it."""
    with pytest.raises(CommandLineError, match="alpha-1, alpha-2"):
        find_session("alpha", shelf(root))


def test_unknown_lists_what_there_is(root: Path) -> None:
    """No match is an error that says where it looked and what is there."""
    with pytest.raises(SessionNotFoundError, match="alpha-2.*gamma"):
        find_session("delta", shelf(root))
    with pytest.raises(SessionNotFoundError, match="no sessions"):
        find_session("last", shelf(root.parent / "nothing"))


@pytest.mark.parametrize(
    "given",
    [
        "../x",
        "/tmp/x",
        "a/b",
        "a\\b",
        ".",
        "..",
        "",
        " ",
        "x\0y",
        "x" * 300,
        "界" * 90,
        "a..b",
        "-a",
        ".hidden",
        "a:b",
        "a*",
    ],
)
def test_a_name_cannot_leave_the_folder(tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be no id is refused before any file is touched."""

    def touched(*_: object) -> None:
        raise AssertionError("a file was looked at")

    monkeypatch.setattr(os, "scandir", touched)
    with pytest.raises(InvalidIdError):
        find_session(given, shelf(tmp_path))


def test_a_path_is_a_path_where_one_may_be_given(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading commands take a file's path; a name without a folder is a session first."""
    outside = tmp_path / "beta.jsonl"
    outside.write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    assert find_session_or_file("./beta.jsonl", shelf(root)).path == Path("beta.jsonl")
    assert find_session_or_file("beta.jsonl", shelf(root)).path == Path("beta.jsonl")
    assert find_session_or_file("beta", shelf(root)).path == root / "beta.jsonl"
    with pytest.raises(SessionNotFoundError, match="no such file"):
        find_session_or_file("./gone.jsonl", shelf(root))
    with pytest.raises(SessionNotFoundError, match="no session"):
        find_file(root)


def test_default_root_is_in_the_user_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a word from the person the system's own place for data is used."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shelf_at(None).shown == str(tmp_path / "branchline" / "sessions")
    assert shelf_at("~/x").shown == str(tmp_path / "x")


def test_without_a_home_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no home, no folder named ``~`` is made in its stead."""
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(CommandLineError, match="--root"):
        shelf_at(None)
    monkeypatch.undo()
    with pytest.raises(CommandLineError, match="not known"):
        shelf_at("~nobody-of-that-name/x")


@pytest.mark.parametrize("name", ["chats.sqlite", "chats.SQLITE3", "chats.db"])
def test_a_name_says_that_it_is_a_database(tmp_path: Path, name: str) -> None:
    """A file that is not there yet is a SQLite file if it is named like one; a folder is a folder, whatever its name."""
    (section,) = kind_of_place(str(tmp_path / name)).sections
    assert section.unit == ROW and not (tmp_path / name).exists()
    (tmp_path / name).mkdir()
    assert len(kind_of_place(str(tmp_path / name)).sections) == 2


def test_what_is_in_it_says_that_it_is_a_database(tmp_path: Path) -> None:
    """A SQLite file of any name is one."""
    place = tmp_path / "chats"
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("CREATE TABLE x (y)")
        connection.commit()
    assert kind_of_place(str(place)).sections[0].unit == ROW
    with pytest.raises(CommandLineError, match="--root"):
        find_file(place)


def test_other_addresses_are_no_places() -> None:
    """An address of something else is told apart from a folder."""
    with pytest.raises(CommandLineError, match="postgresql://"):
        kind_of_place("mysql://me:secret@host/x")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://me:se:cr@et@host:5432/x?sslmode=require", "postgresql://me@host:5432/x?sslmode=require"),
        ("postgres://me@host/x?password=secret&connect_timeout=3", "postgres://me@host/x?connect_timeout=3"),
        ("postgresql://host/x?PASSWORD=secret", "postgresql://host/x"),
        ("postgresql:///x?sslpassword=secret", "postgresql:///x"),
        ("/srv/me:secret@x", "/srv/me:secret@x"),
    ],
)
def test_a_password_is_never_shown(given: str, shown: str) -> None:
    """Wherever it stands in an address."""
    assert without_password(given) == shown
