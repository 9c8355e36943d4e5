"""How far something long has got: drawn on a terminal's standard error after half a second, and nowhere else.

What is quick shows nothing, and a pipe, a log or a program never gets any of it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from harness.cli.plain_text import neutral_line
from harness.cli.screen import Screen

if TYPE_CHECKING:
    import rich.progress

PATIENCE_SECONDS: Final = 0.5


class Progress:
    """Around the work, with ``with``. ``total`` is how many steps there are, or ``None`` where nobody knows."""

    def __init__(self, screen: Screen, what: str, total: int | None = None) -> None:
        self._console = screen.console_for_progress
        self._what = neutral_line(what)
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._bar: rich.progress.Progress | None = None
        self._ended = False

    def __enter__(self) -> Self:
        if self._console is not None:
            self._timer = threading.Timer(PATIENCE_SECONDS, self._begin)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()

    def advance(self, steps: int = 1) -> None:
        """So many steps more are done."""
        with self._lock:
            self._done += steps
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done)

    @contextmanager
    def aside(self) -> Generator[None]:
        """Take the bar away while something else is written to the terminal."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            try:
                yield
            finally:
                if self._bar is not None:
                    self._bar.start()

    def _begin(self) -> None:
        """In the timer's thread."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        counted = [BarColumn(), MofNCompleteColumn()] if self._total is not None else []
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), *counted, TimeElapsedColumn()]
        bar = Progress(*columns, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False)
        with self._lock:
            if self._ended:
                return
            self._bar = bar
            bar.add_task(self._what, total=self._total, completed=self._done)
            bar.start()
