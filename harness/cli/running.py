"""Running one command: whatever it raises becomes one line on standard error and an exit code here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

from harness.cli.failures import READER_GONE, WRONG_COMMAND, exit_code, message, show_traceback, single
from harness.cli.screen import Screen, forget_stream


def run(command: Callable[[Screen], int], *, as_json: bool = False) -> int:
    """Run ``command`` with a screen of its own and return its exit code."""
    screen = Screen(as_json=as_json)
    try:
        code = command(screen)
        screen.flush()
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - nothing is swallowed: it is told, and it is the exit code
        return failed(screen, error)
    return code


def failed(screen: Screen, error: BaseException) -> int:
    """Tell of ``error`` and return the exit code that it stands for."""
    cause = single(error)
    code = exit_code(cause)
    show_traceback(error)
    if code == READER_GONE:
        forget_stream(1)
        return code
    try:
        screen.flush()
    except OSError:
        forget_stream(1)
    if code <= WRONG_COMMAND:
        screen.fail(message(cause))
        screen.notes(f"  {hint}" for hint in getattr(cause, "hints", ()))
    return code
