"""``label`` and ``name``: set, shown, taken away; each is one entry, and nothing else changes."""

from __future__ import annotations

import pytest

from harness.cli.places import kind_of_place
from harness.cli.shelf import find_on
from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_tree


def test_a_label_names_an_entry(command: Command) -> None:
    """Once labelled, the entry can be named by it; the label can be moved and taken away."""
    ids = make_tree(command.root)
    ran = command("label", "tree-1", ids["left"], "the other way")
    assert ran.code == 0 and ran.out == "" and "the other way" in ran.err
    assert ids["left"] in command("show", "tree-1", "the other way").out
    assert command("label", "tree-1", ids["left"]).out == "the other way\n"
    assert command("label", "tree-1", ids["left"], "--remove").code == 0
    assert command("label", "tree-1", ids["left"]).out == ""
    assert command("show", "tree-1", "the other way").code == 2
    assert command("verify", "tree-1").code == 0


def test_what_is_so_already_is_not_written(command: Command) -> None:
    """The same label or name again, or one removed that is not there, adds no entry."""
    ids = make_tree(command.root)
    before = command.files()["tree-1.jsonl"]
    assert command("label", "tree-1", "first", "first").code == 0
    assert command("label", "tree-1", ids["left"], "--remove").code == 0
    assert command("name", "tree-1", "about a.txt").code == 0
    assert command.files()["tree-1.jsonl"] == before


def test_the_same_label_twice_is_told(command: Command) -> None:
    """Two entries of one label cannot be told apart by it, and that is said."""
    ids = make_tree(command.root)
    ran = command("label", "tree-1", ids["left"], "first")
    assert ran.code == 0 and ids["answer"] in ran.err
    assert "not unique" in command("show", "tree-1", "first").error


def test_a_name(command: Command) -> None:
    """A session's name is set, shown, listed, and taken away."""
    make_tree(command.root)
    assert command("name", "last", "new\nname").code == 0
    assert command("name", "tree-1").out == "new name\n"
    assert "new name" in command("sessions").out
    (row,) = command("name", "tree-1", "--remove", "--json").rows
    assert row == {"session": "tree-1", "name": None, "before": "new name"}
    assert command("name", "tree-1").out == "" and "no name" in command("name", "tree-1").err


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("label", "tree-1", "first", " "), 2, "--remove"),
        (("label", "tree-1", "first", "x", "--remove"), 2, "no new one"),
        (("label", "tree-1", "nope", "x"), 2, "no entry"),
        (("label", "nope", "x", "y"), 2, "no session"),
        (("label", "tree-1"), 2, "--help"),
        (("name", "tree-1", ""), 2, "--remove"),
        (("name", "tree-1", "x", "--remove"), 2, "no new one"),
        (("name", "03", "x"), 1, "line 3"),
        (("label", "03", "e0000001", "x"), 1, "line 3"),
    ],
)
def test_errors_change_nothing(command: Command, arguments: tuple[str, ...], code: int, why: str) -> None:
    """One clear line, and every byte as it was."""
    make_tree(command.root)
    command.put(CORRUPT / "03_corrupt_middle_line.jsonl")
    before = command.files()
    ran = command(*arguments)
    assert ran.code == code and why in ran.error and ran.out == ""
    assert {name: data for name, data in command.files().items() if not name.endswith(".lock")} == {
        name: data for name, data in before.items() if not name.endswith(".lock")
    }


def test_while_another_program_writes(command: Command) -> None:
    """A session that is being written to is not named; whoever writes is."""
    import anyio

    from harness.cli.reading import storage_at
    from harness.session import Session

    make_tree(command.root)

    async def hold() -> None:
        place = await find_on("tree-1", kind_of_place(str(command.root)))
        async with Session.open(storage_at(place, mode="write")):
            for arguments in (
                ("name", "tree-1", "x"),
                ("label", "tree-1", "first", "x"),
                ("delete", "tree-1", "--yes"),
            ):
                ran = await anyio.to_thread.run_sync(lambda words=arguments: command.process(*words))
                assert ran.code == 1 and "writ" in ran.error, arguments
            assert (await anyio.to_thread.run_sync(lambda: command.process("name", "tree-1"))).out == "about a.txt\n"

    anyio.run(hold)
    assert (command.root / "tree-1.jsonl").exists()
