"""``fork``: a new session of the way to an entry, whole, beside the old one, which stays as it is."""

from __future__ import annotations

import json

from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_tree


def spoken(command: Command, session: str) -> list[str]:
    return [row["text"] for row in command("tree", session, "--json").rows if row["type"] == "message"]


def test_the_way_to_the_leaf(command: Command) -> None:
    """Without an entry all of the active path is taken, with labels and name; the id goes to standard output."""
    make_tree(command.root)
    before = command.files()["tree-1.jsonl"]
    ran = command("fork", "tree-1")
    assert ran.code == 0
    new = ran.out.strip()
    assert (command.root / f"{new}.jsonl").exists() and command.files()["tree-1.jsonl"] == before
    assert spoken(command, new)[-1] == "And b.txt?" and "Left behind?" not in spoken(command, new)
    header = json.loads((command.root / f"{new}.jsonl").read_text().splitlines()[0])
    assert header["parentSession"] == "tree-1" and header["cwd"] == "/proj"
    assert command("name", new).out == "about a.txt\n"
    assert command("label", new, "first").out == "first\n"
    assert f"branchline chat --session {new[:8]}" in ran.err
    assert command("verify", new).code == 0


def test_up_to_an_entry_and_before_it(command: Command) -> None:
    """ENTRY is the last one taken; with --before it is the first that is not."""
    ids = make_tree(command.root)
    at = command("fork", "tree-1", "first").out.strip()
    assert spoken(command, at)[-1] == "Two lines."
    before = command("fork", "tree-1", ids["left"], "--before").out.strip()
    assert spoken(command, before)[-1] == "Two lines."
    assert "Left behind?" in spoken(command, command("fork", "tree-1", ids["left"]).out.strip())


def test_a_name_of_its_own(command: Command) -> None:
    """--name is the new session's; the leaf stays where it was asked for."""
    make_tree(command.root)
    (row,) = command("fork", "tree-1", "first", "--name", "another  way", "--json").rows
    assert row["name"] == "another way" and row["parentSession"] == "tree-1"
    assert command("name", row["session"]).out == "another way\n"
    assert command("name", "tree-1").out == "about a.txt\n"
    (here,) = [each for each in command("tree", row["session"], "--json").rows if each["leaf"]]
    assert here["text"] == "Two lines."
    assert command("verify", row["session"]).code == 0


def test_into_a_file(command: Command) -> None:
    """--to makes it there; what is there already is never touched."""
    make_tree(command.root)
    target = command.folder / "it's mine.jsonl"
    ran = command("fork", "tree-1", "--to", target.name)
    assert ran.code == 0 and target.exists() and len(list(command.root.glob("*.jsonl"))) == 1
    assert "--file '" in ran.err and '"\'"' in ran.err  # quoted so that it can be pasted
    data = target.read_bytes()
    again = command("fork", "tree-1", "--to", target.name)
    assert again.code == 1 and "already" in again.error and target.read_bytes() == data


def test_a_folder_session_stays_one(command: Command) -> None:
    """A fork of entry files is one of entry files."""
    make_tree(command.root, folder=True)
    new = command("fork", "tree-1").out.strip()
    assert (command.root / new / "metadata.json").exists()
    assert command("verify", new).code == 0


def test_nothing_is_made_on_an_error(command: Command) -> None:
    """An unknown entry, a missing one, a broken path, a damaged session: one line, and no new file."""
    make_tree(command.root)
    command.put(CORRUPT / "10_missing_parent.jsonl", CORRUPT / "03_corrupt_middle_line.jsonl")
    before = command.files()
    for arguments, code in (
        (("tree-1", "nope"), 2),
        (("tree-1", "--before"), 2),
        (("nope",), 2),
        (("10",), 1),
        (("03",), 1),
        (("tree-1", "--name", " "), 2),
    ):
        ran = command("fork", *arguments)
        assert ran.code == code and ran.error and ran.out == "", arguments
    assert command.files() == before
    assert command("fork", "10", "e0000002").code == 0  # the ways that are whole can be forked
