"""The command line as a whole: help, usage errors, and what holds for every command."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.cli.conftest import REPOSITORY, Command

COMMANDS = [
    *("chat", "sessions", "tree", "show", "context", "verify", "fork", "label", "name", "repair", "delete", "export"),
    *("import", "compact", "migrate", "follow"),
]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_everywhere(command: Command, name: str) -> None:
    """Each command explains itself on standard output, and all are listed."""
    ran = command(*([name] if name else []), "--help")
    assert ran.code == 0
    assert "Usage: branchline" in ran.out and ran.err == ""
    if not name:
        assert all(f"  {each} " in ran.out for each in COMMANDS)
        assert "Exit codes" in ran.out


def test_every_option_is_documented(command: Command) -> None:
    """The document names each command and each option that the help has."""
    document = (REPOSITORY / "docs" / "command-line.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"## `branchline {name}" in document
        options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", command(name, "--help").out))
        assert "--help" in options
        assert {option for option in options if option not in document} == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nope",),
        ("nope",),
        ("chat", "--nope"),
        ("chat", "--max-chars", "x", "hi"),
        ("chat", "a", "b"),
        ("tree", "a", "b"),
        ("show", "a"),
        ("delete",),
        ("import",),
        ("export", "a", "--output"),
    ],
)
def test_a_wrong_command_line_is_one_line(command: Command, arguments: tuple[str, ...]) -> None:
    """What the parser refuses is told on one line, points to the help, and exits with 2."""
    ran = command(*arguments)
    assert ran.code == 2 and ran.out == ""
    assert "--help" in ran.error and ran.err.count("\n") == 1


def test_without_a_command_the_help_is_shown(command: Command) -> None:
    """The bare command shows what there is, and is no success."""
    ran = command()
    assert ran.code == 2 and "Commands" in ran.out


@pytest.mark.parametrize(
    "arguments", [("tree", "x"), ("context", "x"), ("verify", "x"), ("chat", "-s", "x", "hi"), ("tree", "../x")]
)
def test_an_unknown_session_makes_nothing(command: Command, arguments: tuple[str, ...]) -> None:
    """A session that is not there is an error, and not even the folder is made."""
    ran = command(*arguments)
    assert ran.code == 2 and ran.error
    assert not command.root.exists()


def test_help_imports_no_command(command: Command) -> None:
    """``branchline --help`` loads the parser, and nothing that only a command needs."""
    code = (
        "import sys, harness; before = set(sys.modules)\n"
        "from harness.cli import main; main(['--help'])\n"
        "needless = ('prompt_toolkit', 'platformdirs', 'anyio.from_thread', 'harness.agent', 'harness.cli.', 'rich.')\n"
        "names = 'application changing_commands failures looking_commands options places plain_text running screen'\n"
        "known = {'harness.cli.' + name for name in names.split()}\n"
        "new = [name for name in set(sys.modules) - before - known if name.startswith(needless)]\n"
        "print(sorted(new), file=sys.stderr)"
    )
    ran = subprocess.run(
        [*command.line()[:1], "-c", code], env=command.environment(), capture_output=True, text=True, check=True
    )
    assert ran.stderr.strip() == "[]"


def test_version(command: Command) -> None:
    """The version can be asked for."""
    ran = command("--version")
    assert ran.code == 0 and ran.out.startswith("branchline ")


@pytest.mark.parametrize("arguments", [("sessions",), ("verify",)])
def test_no_sessions_is_no_error(command: Command, arguments: tuple[str, ...]) -> None:
    """An empty shelf is told and is no failure; looking makes no folder."""
    ran = command(*arguments)
    assert ran.code == 0 and ran.out == "" and "no sessions" in ran.err
    assert not command.root.exists()


def test_the_module_is_the_command(command: Command) -> None:
    """``python -m harness.cli`` is the command."""
    ran = command.process("--version")
    assert ran.code == 0 and ran.out.startswith("branchline ")
