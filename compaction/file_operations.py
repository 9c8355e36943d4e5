"""Which files a stretch of a conversation read and changed: told by its calls, and carried on from summary to summary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

from storage.messages import AssistantMessage, ToolCall

READ_TOOLS: Final = frozenset(("read",))
WRITE_TOOLS: Final = frozenset(("write", "edit"))

MOST_FILES: Final = 200
"""So many of each list are carried on, the newest; a session may touch more, a summary may not grow with it."""

_LONGEST_PATH: Final = 500


@dataclass(slots=True)
class FileOperations:
    """Files that were read and files that were written or edited, each oldest first, without repetitions."""

    read: dict[str, None] = field(default_factory=dict[str, None])
    modified: dict[str, None] = field(default_factory=dict[str, None])

    def carry_on(self, details: Any) -> Self:
        """Add the lists in the ``details`` of an earlier summary (``readFiles``, ``modifiedFiles``, as pi writes them)."""
        if isinstance(details, dict):
            members = cast("dict[str, Any]", details)
            _note_all(self.read, members.get("readFiles"))
            _note_all(self.modified, members.get("modifiedFiles"))
        return self

    def add(self, message: AssistantMessage, failed: Iterable[int] = ()) -> None:
        """Add the files that a reply's calls name. ``failed``: the numbers of the calls that came to nothing."""
        without = frozenset(failed)
        for number, call in enumerate(message.tool_calls):
            path = _path_of(call)
            if path is None or number in without:
                continue
            if call.name in READ_TOOLS:
                _note(self.read, path)
            elif call.name in WRITE_TOOLS:
                _note(self.modified, path)

    @property
    def read_files(self) -> list[str]:
        """Sorted, without those that were modified too; the newest, if there are more than 200."""
        return sorted([path for path in self.read if path not in self.modified][-MOST_FILES:])

    @property
    def modified_files(self) -> list[str]:
        """Sorted; the newest, if there are more than 200."""
        return sorted(list(self.modified)[-MOST_FILES:])

    def details(self) -> dict[str, Any]:
        """What goes into the ``details`` of a compaction or a branch summary."""
        return {"readFiles": self.read_files, "modifiedFiles": self.modified_files}


def with_files(summary: str, files: FileOperations, max_chars: int) -> str:
    """The summary with its files named behind it, in the two blocks that pi writes.

    Each block has at most ``max_chars`` characters of names, the newest; ``details`` have all.
    """
    blocks = [summary.strip()]
    read = [path for path in files.read if path not in files.modified]
    for name, paths in (("read-files", read), ("modified-files", list(files.modified))):
        shown: list[str] = []
        room = max_chars
        for path in reversed(paths[-MOST_FILES:]):
            room -= len(path) + 1
            if room < 0:
                break
            shown.append(path)
        if shown:
            blocks.append("\n".join((f"<{name}>", *sorted(shown), f"</{name}>")))
    return "\n\n".join(blocks)


def without_files(summary: str) -> str:
    """The summary without the two blocks at its end: they are written anew each time, and so never nest."""
    summary = summary.strip()
    for name in ("modified-files", "read-files"):
        begin = summary.rfind(f"<{name}>\n")
        if begin >= 0 and summary.endswith(f"</{name}>") and summary.count("</", begin) == 1:
            summary = summary[:begin].rstrip()
    return summary


def _path_of(call: ToolCall) -> str | None:
    path = call.arguments.get("path")
    if not isinstance(path, str) or not path.strip():
        return None
    return " ".join(path.split())[:_LONGEST_PATH]


def _note(paths: dict[str, None], path: str) -> None:
    """Add a path as the newest."""
    paths.pop(path, None)
    paths[path] = None


def _note_all(paths: dict[str, None], names: Any) -> None:
    if isinstance(names, list):
        for name in cast("list[Any]", names):
            if isinstance(name, str) and name.strip():
                _note(paths, " ".join(name.split())[:_LONGEST_PATH])
