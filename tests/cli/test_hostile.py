"""A session full of control characters drives no terminal, whichever command shows it, and no shell."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.conftest import Command
from tests.cli.made_sessions import ESCAPE, UNSAFE, make_hostile

COMMANDS = [
    ("sessions",),
    ("tree", "hostile", "--all"),
    ("context", "hostile", "--at", "e0000002"),
    ("verify", "hostile"),
    *(("show", "hostile", f"e000000{number}") for number in range(3)),
    *(("show", "hostile", f"e000000{number}") for number in range(4, 7)),
    ("show", "hostile", f"id{ESCAPE}"),
    ("show", "hostile", f"label{ESCAPE}"),
    ("show", "hostile", f"nope{ESCAPE}"),
    ("label", "hostile", "e0000000"),
    ("label", "hostile", "e0000000", f"new{ESCAPE}"),
    ("name", "hostile"),
    ("name", "hostile", f"new{ESCAPE}"),
    ("fork", "hostile", "e0000002"),
    ("fork", "hostile", "e0000002", "--name", ESCAPE),
    ("repair", "hostile"),
    ("delete", "hostile", "--yes"),
    *(("export", "hostile", "--at", "e0000002", "-f", form) for form in ("markdown", "openai", "anthropic", "jsonl")),
    ("export", "hostile", "--format", ESCAPE),
    ("import", "./hostile copy.jsonl"),
    ("import", f"nope{ESCAPE}"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_nothing_gets_through(command: Command, arguments: tuple[str, ...], as_json: bool) -> None:
    """Escapes are shown as what they are, on both streams."""
    path = make_hostile(command.root)
    (command.folder / "hostile copy.jsonl").write_bytes(path.read_bytes())
    if as_json:
        if arguments[0] == "export":
            return
        arguments = (*arguments, "--json")
    ran = command(*arguments)
    assert ran.code in (0, 1, 2) and "Traceback" not in ran.err and "internal error" not in ran.err
    for text in (ran.out, ran.err):
        assert [character for character in UNSAFE if character in text] == []
        assert all(character >= " " or character in "\n\t" for character in text)
    if as_json and ran.code == 0:
        assert ran.rows


def test_the_line_itself_is_not_changed(command: Command) -> None:
    """Over a pipe ``--raw`` is the bytes on disk; JSON formats of an export hold the same text, escaped."""
    path = make_hostile(command.root)
    line = path.read_bytes().split(b"\n")[1]
    assert command.process("show", "hostile", "e0000000", "--raw").out.encode() == line + b"\n"
    rows = command("export", "hostile", "--at", "e0000002", "-f", "jsonl").rows
    assert rows[0]["content"][0]["text"] == json.loads(line)["message"]["content"][0]["text"]


def test_hints_can_be_pasted(command: Command) -> None:
    """A path with quotes, blanks and dollars comes back quoted for a shell."""
    make_hostile(command.root)
    name = "a b'c$(touch x).jsonl"
    ran = command("fork", "hostile", "e0000002", "--to", name)
    assert ran.code == 0
    words = shlex.split(ran.err.split("go on with: ")[1])
    assert words == ["branchline", "chat", "--file", name]
