"""Progress is drawn on a terminal after half a second, and nowhere else."""

from __future__ import annotations

import io
import threading
import time

import pytest

from harness.cli import progress
from harness.cli.progress import Progress
from harness.cli.screen import Screen
from tests.cli.conftest import Command
from tests.cli.made_sessions import make_large
from tests.cli.terminal import Terminal


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0)
    make_large(command.folder / "large.jsonl", 3000)
    ran = command("import", "large.jsonl")
    assert ran.code == 0 and "\r" not in ran.err and "importing" not in ran.err


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn before the time is over, and none of it after the end: its timer is gone."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 600)
    before = set(threading.enumerate())
    err = TerminalStream()
    with Progress(Screen(out=io.StringIO(), err=err), "reading"):
        (timer,) = set(threading.enumerate()) - before
    timer.join(60)
    assert not timer.is_alive()
    assert err.getvalue() == ""


def test_what_takes_longer_is_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar names the work and counts; while something else is written it is gone, and so it is at the end."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0)
    monkeypatch.setenv("TERM", "xterm")
    err = TerminalStream()
    with Progress(Screen(out=io.StringIO(), err=err), "reading\x1b[2J", 3) as bar:
        end = time.monotonic() + 60
        while "reading" not in err.getvalue():
            assert time.monotonic() < end
            time.sleep(0.01)
        bar.advance(2)
        with bar.aside():
            before = err.getvalue()
            assert "\x1b[?25h" in before  # the cursor is back
        while "2/3" not in err.getvalue():
            assert time.monotonic() < end
            time.sleep(0.01)
    assert "reading\\x1b[2J" in err.getvalue() and err.getvalue().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))


def test_an_error_leaves_no_bar(command: Command) -> None:
    """On a real terminal the line about the failure stands alone."""
    terminal = Terminal(command, "export", "nope", "--output", "x")
    try:
        assert terminal.wait() == 2
        assert "no session" in terminal.text
    finally:
        terminal.close()
