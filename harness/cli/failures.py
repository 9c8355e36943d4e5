"""From an error to one line on standard error and an exit code.

    0    done
    1    it failed, or ``verify`` found something wrong
    2    the command line does not say what to do: an unknown option, session, entry or model; nothing was begun
    130  Ctrl-C; the turn was recorded as cancelled
    141  standard output was closed by its reader (``branchline tree last | head -1``)
    143  terminated (SIGTERM, SIGHUP); the turn was recorded as cancelled
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

from harness.cli.screen import one_line
from storage.errors import (
    BranchlineError,
    EntryNotFoundError,
    InvalidIdError,
    SessionNotFoundError,
)

DONE: Final = 0
FAILED: Final = 1
WRONG_COMMAND: Final = 2
INTERRUPTED: Final = 130
READER_GONE: Final = 141
TERMINATED: Final = 143

TRACEBACK_VARIABLE: Final = "BRANCHLINE_TRACEBACK"

_ADVICE: Final = {
    "damaged_session": "'branchline verify' lists all that is wrong with it",
    "session_locked": "stop the other program, or read the session with 'branchline tree' and 'branchline context'",
    "stale_session": "run the command again, it opens the session anew",
    "read_only": "'branchline verify' says why",
    "unsupported_entry": "use a newer branchline",
    "broken_path": "'branchline tree' shows the paths that are whole; go on from one with --at",
    "budget": "raise --max-chars or --max-tokens",
    "busy": "wait for the turn to end",
}
"""What to do next, for errors of the library that other callers than a command line would answer differently."""


class CommandLineError(BranchlineError):
    """What was typed does not say what to do. Nothing was begun."""

    code = "command_line"


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
        return one_line(_library_message(error))
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return one_line(f"{error.filename}: {reason}" if error.filename is not None else reason)
    return one_line(
        f"internal error: {type(error).__name__}: {error} (nothing recorded is lost; "
        f"{TRACEBACK_VARIABLE}=1 shows where it happened)"
    )


def _library_message(error: BranchlineError) -> str:
    text = str(error)
    if error.line is not None and f"line {error.line}" not in text:
        text = f"{error.path}: line {error.line}: {error.message}" if error.path else f"line {error.line}: {text}"
    advice = _ADVICE.get(error.code)
    if advice is not None and "branchline" not in error.message:
        text = f"{text.rstrip('.')}; {advice}"
    return text


def single(error: BaseException) -> BaseException:
    """The one error inside nested exception groups that tells the most: ours, else the first."""
    while isinstance(error, BaseExceptionGroup):
        leaves = [single(each) for each in error.exceptions]
        error = next((each for each in leaves if isinstance(each, BranchlineError)), leaves[0])
    return error


def show_traceback(error: BaseException) -> None:
    """The traceback of ``error``, if the environment asks for it."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
