"""The prompts that were typed before, in a file of the user's own; where there is no such place, in memory only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from prompt_toolkit.history import History

from harness.cli.plain_text import given_text

LARGEST_FILE: Final = 1 << 20
"""Bytes that are read of it, the newest; a file of twice the size is cut to this."""

LARGEST_PROMPT: Final = 1 << 16
"""Characters. A longer prompt was pasted from somewhere, and is no line to call back."""


def history_path() -> Path | None:
    """Where the history lies, or ``None`` where the system names no folder for it. Makes nothing."""
    from platformdirs import user_state_path

    try:
        folder = user_state_path("branchline", appauthor=False)
    except RuntimeError:
        return None
    # Older versions of platformdirs leave the ~ where there is no home.
    return folder / "prompts" if folder.is_absolute() else None


class PromptHistory(History):
    """Prompts by lines that begin with ``+``, after a comment with the time: the format of prompt_toolkit's own files.

    Whatever the file system refuses is no reason to fail: the prompts are then known until the end of this process, and
    ``problem`` says why, once. Any number of processes may use one file.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path
        self.problem: OSError | None = None

    def load_history_strings(self) -> Iterable[str]:
        """The prompts of the file, the newest first."""
        if self._path is None:
            return []
        try:
            return reversed(_prompts_in(_newest_bytes(self._path)))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
            return []

    def store_string(self, string: str) -> None:
        """Add a prompt to the file, if it can be written; the file and its folder are the user's alone."""
        if self._path is None or len(string) > LARGEST_PROMPT:
            return
        lines = "".join(f"+{line}\n" for line in given_text(string).split("\n"))
        data = f"\n# {datetime.now().astimezone().isoformat(timespec='seconds')}\n{lines}".encode("utf-8", "replace")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if hasattr(os, "fchmod"):  # not on Windows
                    os.fchmod(descriptor, 0o600)
                os.write(descriptor, data)  # one write: another process's prompt lands before or after it
            finally:
                os.close(descriptor)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.problem = self.problem or error
        self._path = None


def _newest_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LARGEST_FILE:
            return file.read()
        file.seek(size - LARGEST_FILE)
        # What lies before the first whole prompt was cut off.
        newest = file.read().partition(b"\n\n")[2]
    if size > 2 * LARGEST_FILE:
        _replace(path, newest)
    return newest


def _replace(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}-", delete=False) as file:
        try:
            file.write(data)
            file.close()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink()
            raise


def _prompts_in(data: bytes) -> list[str]:
    prompts: list[str] = []
    lines: list[str] = []
    for line in [*data.decode("utf-8", "replace").split("\n"), ""]:
        if line.startswith("+"):
            lines.append(line[1:])
        elif lines:
            prompts.append("\n".join(lines))
            lines = []
    return prompts
