"""From an error to one line on standard error and an exit code. ``docs/command-line.md`` has the codes as a table."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, cast

from harness.cli.screen import one_line
from storage.errors import (
    BranchlineError,
    EntryNotFoundError,
    InvalidIdError,
    SessionError,
    SessionNotFoundError,
)

DONE: Final = 0

FAILED: Final = 1
"""It failed, or ``verify`` found something wrong."""

WRONG_COMMAND: Final = 2
"""The command line does not say what to do: an unknown option, session or entry, no model. Nothing was begun."""

INTERRUPTED: Final = 130
"""Ctrl-C; the turn was recorded as cancelled."""

READER_GONE: Final = 141
"""The reader of standard output went away (``branchline tree | head -1``)."""

TERMINATED: Final = 143
"""SIGTERM or SIGHUP; the turn was recorded as cancelled."""

TRACEBACK_VARIABLE: Final = "BRANCHLINE_TRACEBACK"

_ADVICE: Final = {
    "damaged_session": "'branchline verify' lists all that is wrong with it, 'branchline repair' saves what can be read",
    "session_locked": "stop the other program, or read the session with 'branchline tree' and 'branchline context'",
    "stale_session": "run the command again, it opens the session anew",
    "read_only": "'branchline verify' lists all that is wrong with it, 'branchline repair' says what can be done",
    "unsupported_entry": "use a newer branchline",
    "broken_path": "'branchline tree' shows the paths that are whole; go on from one with --at",
    "busy": "wait for the turn to end",
}
"""What to do next, for errors of the library that other callers than a command line would answer differently."""


_PYTHON_TERMS: Final = (
    (re.compile(r"[,;]? and opening with on_corrupt='skip' shows the rest"), ""),
    (
        re.compile(r"open with on_torn_tail='repair' to set (\w+) aside"),
        r"'branchline repair' sets \1 aside",
    ),
    (re.compile(r"on_torn_tail='repair' sets"), "'branchline repair' sets"),
    (re.compile(r"sets (\w+) aside and go on"), r"sets \1 aside and goes on"),
    (re.compile(r"; open_or_create makes one(?: and sets the bytes aside)?"), ", and nothing in it to save"),
    (re.compile(r" \(storage\.migrate_pi_file, in Python\)"), ""),
    (re.compile(r"`entries\(\)` lists them"), "'branchline tree' shows them"),
    (re.compile(r"\bmax_(chars|tokens) is\b"), r"--max-\1 is"),
    (re.compile(r"\braise max_steps\b"), "raise --max-steps"),
    (
        re.compile(r"resume\(\) asks again and goes on, abort\(\) closes it"),
        "'branchline chat --write' with this session asks again, and goes on",
    ),
    (re.compile(r"navigate again, or with summarize=False"), "try again, or go there without a summary"),
    (re.compile(r" \((?:on_corrupt|mode)='\w+'\)"), ""),
)
"""The library's messages tell a programmer what to pass; these say the same to a person at a prompt."""


class CommandLineError(BranchlineError):
    """What was typed does not say what to do. Nothing was begun. ``hints`` are ways out, shown a line each."""

    code = "command_line"

    def __init__(self, message: str, *, hints: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hints = hints


class Terminated(BaseException):
    """SIGTERM or SIGHUP came. Like ``KeyboardInterrupt``, it is not to be caught along with ordinary errors."""


def exit_code(error: BaseException) -> int:
    """The exit code that ``error`` ends the command with."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, BrokenPipeError) and not isinstance(error, BranchlineError):
        return READER_GONE
    if isinstance(error, (CommandLineError, InvalidIdError, SessionNotFoundError, EntryNotFoundError)):
        return WRONG_COMMAND
    return FAILED


def message(error: BaseException) -> str:
    """One line: the place, what is wrong, and what to do."""
    if isinstance(error, BranchlineError):
        text = reason(error)
        advice = _ADVICE.get(error.code)
        has_advice = "branchline" in text or ".recover" in text or "choose another file" in text
        return text if advice is None or has_advice else f"{text.rstrip('.')}; {one_line(advice)}"
    if isinstance(error, OSError):
        why = error.strerror or str(error) or type(error).__name__
        return one_line(f"{error.filename}: {why}" if error.filename is not None else why)
    return one_line(
        f"internal error: {type(error).__name__}: {error} (nothing recorded is lost; "
        f"{TRACEBACK_VARIABLE}=1 shows where it happened)"
    )


def for_people(text: str) -> str:
    """A message of the library in the command line's terms."""
    for pattern, words in _PYTHON_TERMS:
        text = pattern.sub(words, text)
    return text


@contextmanager
def naming(path: str) -> Generator[None]:
    """Errors about a session that do not say where it lies say ``path``."""
    try:
        yield
    except SessionError as error:
        if error.path is None:
            error.path = path
        raise


def reason(error: BranchlineError) -> str:
    """One line: the place and what is wrong, in the command line's terms."""
    text = str(error)
    if error.line is not None and f"line {error.line}" not in text:
        text = f"{error.path}: line {error.line}: {error.message}" if error.path else f"line {error.line}: {text}"
    return one_line(for_people(text))


def single(error: BaseException) -> BaseException:
    """The one error inside nested exception groups that tells the most: ours, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [single(each) for each in cast("BaseExceptionGroup[BaseException]", error).exceptions]
    return next((each for each in leaves if isinstance(each, BranchlineError)), leaves[0])


def show_traceback(error: BaseException) -> None:
    """The traceback of ``error``, if the environment asks for it."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
