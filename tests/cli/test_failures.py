"""Every error is one line that says where, what and what now, and has an exit code that is documented."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from harness.cli.failures import CommandLineError, Terminated, exit_code, message, single
from storage import errors

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DamagedSessionError("x"), 1),
        (errors.ModelError("x"), 1),
        (OSError(errno.ENOSPC, "full"), 1),
        (ValueError("x"), 1),
        (CommandLineError("x"), 2),
        (errors.SessionNotFoundError("x"), 2),
        (errors.InvalidIdError("x"), 2),
        (errors.EntryNotFoundError("x"), 2),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(errno.EPIPE, "gone"), 141),
        (Terminated(), 143),
    ],
)
def test_exit_codes_are_as_documented(error: BaseException, code: int) -> None:
    """The code follows the kind of error, and the table in the documentation has it."""
    assert exit_code(error) == code
    assert f"| {code} |" in DOCUMENT.read_text(encoding="utf-8")


def test_one_line_with_place_and_advice() -> None:
    """Path, line and what to do next are in the message, on one line, without control characters."""
    error = errors.DamagedSessionError("it is\nbroken\x1b[2J", path="/tmp/a.jsonl", line=7)
    assert message(error) == (
        "/tmp/a.jsonl: line 7: it is broken\\x1b[2J; 'branchline verify' lists all that is wrong with it, "
        "'branchline repair' saves what can be read"
    )


def test_a_line_is_not_said_twice() -> None:
    """A message that names its line already is left alone."""
    error = errors.DamagedSessionError("invalid session JSON at line 7", path="a", line=7)
    assert message(error).count("line 7") == 1


def test_system_errors_name_the_file() -> None:
    """What the system says is told with the file it is about."""
    assert message(PermissionError(errno.EACCES, "Permission denied", "/x/y")) == "/x/y: Permission denied"


def test_a_fault_of_ours_is_one_line_too() -> None:
    """An error that should not be says what it is and how to find the place."""
    assert "internal error: KeyError" in message(KeyError("a\nb")) and "\n" not in message(KeyError("a\nb"))


def test_groups_are_looked_into() -> None:
    """Of the errors that came together, ours is told."""
    ours = errors.ModelError("no")
    group = ExceptionGroup("many", [ValueError("x"), ExceptionGroup("more", [ours])])
    assert single(group) is ours
