"""``delete``: asks, shows what it is about, and removes all of a session or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_tree
from tests.cli.terminal import Terminal


def test_with_yes(command: Command) -> None:
    """The file, its lock and its side files go; other sessions stay."""
    make_tree(command.root)
    make_tree(command.root, "tree-2")
    (command.root / "tree-1.jsonl.torn-12").write_text("x")
    ran = command("delete", "tree-1", "--yes")
    assert ran.code == 0 and ran.out == "" and "deleted tree-1" in ran.err
    assert 'tree-1 "about a.txt"' in ran.err and "What is in a.txt?" in ran.err
    assert [name for name in command.files() if not name.startswith("tree-2.jsonl")] == []
    assert command("delete", "tree-1", "--yes").code == 2


@pytest.mark.parametrize("answer", ["n", "", "no", "maybe"])
def test_a_person_says_no(command: Command, answer: str) -> None:
    """Anything but yes is no."""
    make_tree(command.root)
    terminal = Terminal(command, "delete", "tree-1")
    try:
        terminal.expect("[y/N]")
        assert "What is in a.txt?" in terminal.text and "about a.txt" in terminal.text
        terminal.type(answer.encode() + b"\n")
        terminal.expect("nothing was deleted")
        assert terminal.wait() == 1
    finally:
        terminal.close()
    assert "tree-1.jsonl" in command.files()


@pytest.mark.parametrize("keys", [b"\x04", b"\x03"])
def test_a_person_leaves(command: Command, keys: bytes) -> None:
    """Ctrl-D and Ctrl-C at the question delete nothing."""
    make_tree(command.root)
    terminal = Terminal(command, "delete", "tree-1")
    try:
        terminal.expect("[y/N]")
        terminal.type(keys)
        assert terminal.wait() in (1, 130)
    finally:
        terminal.close()
    assert "tree-1.jsonl" in command.files()


def test_a_person_says_yes(command: Command) -> None:
    """And then it is gone."""
    make_tree(command.root)
    terminal = Terminal(command, "delete", "tree-1")
    try:
        terminal.expect("[y/N]")
        terminal.type(b"y\n")
        terminal.expect("deleted tree-1")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert "tree-1.jsonl" not in command.files()


def test_nobody_to_ask(command: Command) -> None:
    """Over a pipe without --yes it is refused, whatever the pipe says."""
    make_tree(command.root)
    before = command.files()
    ran = command.process("delete", "tree-1", stdin=b"y\n")
    assert ran.code == 2 and "--yes" in ran.error and command.files() == before


def test_all_are_there_or_none_is_touched(command: Command) -> None:
    """One that is unknown stops all; the same one twice is one."""
    make_tree(command.root)
    before = command.files()
    assert command("delete", "tree-1", "nope", "--yes").code == 2
    assert command.files() == before
    (row,) = command("delete", "tree-1", "tree", "last", "--yes", "--json").rows
    assert row["deleted"] and row["session"] == "tree-1"


def test_damaged_sessions_and_folders(command: Command) -> None:
    """What cannot be opened can be deleted, and so can a folder of entry files."""
    command.put(CORRUPT / "03_corrupt_middle_line.jsonl", CORRUPT / "13_empty_file.jsonl")
    make_tree(command.root, "folder-1", folder=True)
    ran = command("delete", "03", "13", "folder", "--yes")
    assert ran.code == 0, ran.err
    assert command.files() == {}


def test_a_path(command: Command, tmp_path: Path) -> None:
    """A session outside the folder is deleted by its path; what is no session never is."""
    make_tree(tmp_path / "elsewhere")
    assert command("delete", str(tmp_path / "elsewhere" / "tree-1.jsonl"), "--yes").code == 0
    notes = command.folder / "notes.jsonl"
    notes.write_text('{"a": 1}\n')
    empty = command.folder / "empty.jsonl"
    empty.write_text("")
    text = command.folder / "text.md"
    text.write_text("x")
    for path in (notes, empty, text):
        ran = command("delete", f"./{path.name}", "--yes")
        assert ran.code == 2 and "by hand" in ran.error, path
        assert path.exists()


def test_blobs_go_along(command: Command) -> None:
    """Large outputs beside the session are deleted with it."""
    import anyio

    from harness.session import Session
    from storage.jsonl_repository import JsonlRepository

    async def make() -> None:
        async with Session.open(JsonlRepository(command.root).create("with-blob")) as session:
            await session.write_blob(b"x" * 1000)

    anyio.run(make)
    assert len(command.files()) > 1
    assert command("delete", "with-blob", "--yes").code == 0
    assert command.files() == {}
