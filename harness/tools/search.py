"""Looking for text in the files below a folder."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import regex

from harness.tools.lines import text_lines
from harness.tools.workspace import Workspace
from storage.errors import ToolError

SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn"})
"""Never looked into: what lies there is no work of a person."""

MAX_FILE_BYTES = 20_000_000
"""Files above this size are not searched."""

_SHOWN_CHARACTERS = 300
_SECONDS_A_LINE = 1.0


@dataclass(slots=True)
class Search:
    """One search: what to look for, and what came of it."""

    workspace: Workspace
    pattern: regex.Pattern[str]
    glob: str | None
    limit: int
    stopped: Callable[[], bool]
    matches: list[str] = field(default_factory=list[str])
    skipped: dict[str, int] = field(default_factory=dict[str, int])

    def below(self, path: str) -> None:
        """Search a file, or the files below a folder, in the order of their names, until ``limit`` is reached."""
        if not self.workspace.is_folder(path):
            self._lines(path, self.workspace.open_file(path))
            return
        for file, size in self._files(path):
            if size > MAX_FILE_BYTES:
                self._skip("too large")
                continue
            try:
                stream = self.workspace.open_file(file)
            except ToolError:
                self._skip("not readable")
                continue
            self._lines(file, stream)
            if len(self.matches) >= self.limit:
                return

    def report(self) -> str:
        """The matches, one a line, and what was left out."""
        lines = list(self.matches) or ["no match"]
        if len(self.matches) >= self.limit:
            lines.append(f"[stopped after {self.limit} matches; make the search narrower to see others]")
        if self.skipped:
            counted = ", ".join(f"{count} {why}" for why, count in sorted(self.skipped.items()))
            lines.append(f"[files not searched: {counted}]")
        return "\n".join(lines)

    def _files(self, top: str) -> Iterator[tuple[str, int]]:
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            if self.stopped():
                raise ToolError("the search was stopped before its end; search in fewer files")
            try:
                found = self.workspace.scan(folder)
            except ToolError:
                if folder == top:
                    raise
                self._skip("in folders that cannot be read")
                continue
            deeper: list[str] = []
            for item in found:
                path = item.name if folder in {"", "."} else f"{folder.rstrip('/')}/{item.name}"
                if item.kind == "folder" and item.name not in SKIPPED_FOLDERS:
                    deeper.append(path)
                elif item.kind == "file" and self._is_wanted(item.name, path):
                    yield path, item.size
            waiting.extend(reversed(deeper))

    def _is_wanted(self, name: str, path: str) -> bool:
        return self.glob is None or fnmatch.fnmatchcase(name, self.glob) or fnmatch.fnmatchcase(path, self.glob)

    def _lines(self, path: str, stream: BinaryIO) -> None:
        with stream:
            lines = text_lines(stream, stopped=self.stopped)
            if lines is None:
                self._skip("binary")
                return
            for number, line in enumerate(lines, 1):
                if self._matches(line.text, path, number):
                    self.matches.append(f"{path}:{number}: {_shown(line.text)}")
                    if len(self.matches) >= self.limit:
                        return

    def _matches(self, text: str, path: str, number: int) -> bool:
        try:
            # The library lets other threads run meanwhile, and gives up on patterns that would take for ever.
            return self.pattern.search(text, timeout=_SECONDS_A_LINE, concurrent=True) is not None
        except TimeoutError as error:
            raise ToolError(
                f"the pattern takes too long at {path}:{number}; write it without nested repetitions"
            ) from error

    def _skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


def compile_pattern(pattern: str, *, literal: bool, ignore_case: bool) -> regex.Pattern[str]:
    """The pattern, ready to search. Raises ``ToolError`` with the place where a regular expression is wrong."""
    if not pattern:
        raise ToolError("an empty pattern would match every line; give some text to look for")
    flags = regex.IGNORECASE if ignore_case else 0
    try:
        return regex.compile(regex.escape(pattern) if literal else pattern, flags)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ToolError(
            f"invalid regular expression {pattern!r:.200}: {error}; set literal to look for the text itself"
        ) from error


def _shown(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
