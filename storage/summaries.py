"""What a listing can tell of a session from the first and the last of its lines, without reading the rest (R17).

Nothing here raises for what it finds: a line that is no JSON tells nothing, and a header that is none is a problem
to be shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, cast

from storage.errors import (
    BranchlineError,
    SessionError,
    SessionNotFoundError,
    StorageError,
)
from storage.header import SessionHeader, parse_header
from storage.repository import SessionSummary
from storage.strict_json import replace_surrogates

SHOWN_CHARACTERS = 200
"""How much of the first message a summary holds."""


class Digest:
    """The first user message and the newest name, from lines in the order they were committed."""

    def __init__(self) -> None:
        self.first_message: str | None = None
        self.name: str | None = None
        self.entries: int = 0

    def take(self, line: bytes) -> None:
        """Look at one line. Lines that cannot tell anything are not even parsed."""
        self.entries += 1
        if b'"session_info"' in line:
            entry = _members(line)
            if entry.get("type") == "session_info":
                name = entry.get("name")
                self.name = _one_line(name) or None if isinstance(name, str) else None
        elif self.first_message is None and b'"user"' in line:
            entry = _members(line)
            message = cast("dict[str, Any]", entry.get("message")) if isinstance(entry.get("message"), dict) else {}
            if entry.get("type") == "message" and message.get("role") == "user":
                self.first_message = _one_line(_text(message.get("content")))


def _members(line: bytes) -> dict[str, Any]:
    try:
        loaded: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}  # damage is named by whoever opens the session
    return cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [cast("dict[str, Any]", part) for part in cast("list[Any]", content) if isinstance(part, dict)]
    return " ".join(part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str))


def _one_line(text: str) -> str:
    return cast("str", replace_surrogates(" ".join(text[: 4 * SHOWN_CHARACTERS].split())))[:SHOWN_CHARACTERS]


def digest_head_and_tail(head: bytes, tail: bytes | None) -> Digest:
    """The digest of a file's first bytes and its last ones; without a ``tail`` the head is the whole file.

    Both are cut anywhere: what lies before the first newline of the tail and behind the last one of the head is left
    out, and so is a tail behind the last newline of all, which is not committed.
    """
    digest = Digest()
    for line in head.split(b"\n")[:-1]:
        digest.take(line)
    if tail is not None:
        for line in tail.split(b"\n")[1:-1]:
            if b'"session_info"' in line:
                digest.take(line)
    return digest


def header_in(head: bytes, *, whole: bool, path: str) -> SessionHeader:
    """The header in a file's first bytes. Raises what opening the file would raise."""
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for line in lines[:-1]:
        if line.strip():
            return parse_header(line.strip(), path=path)
    if whole:
        raise SessionNotFoundError("it holds no committed line, so there is no session yet", path=path)
    raise SessionError("its first line is longer than what a listing reads; open it to see what it is", path=path)


def summarise(
    session_id: str, place: str, changed: int, size: int | None, *looks: Callable[[], dict[str, Any]]
) -> SessionSummary:
    """A summary with what each of ``looks`` finds, up to the first that fails: its error is the session's problem."""
    found: dict[str, Any] = {"size": size}
    try:
        for look in looks:
            found |= look()
    except BranchlineError as error:
        found |= {"problem": error.message, "problem_code": error.code}
    except OSError as error:
        found |= {"problem": f"it cannot be read: {error.strerror or error}", "problem_code": StorageError.code}
    return SessionSummary(session_id, place, datetime.fromtimestamp(changed / 1_000_000_000, UTC), **found)


def header_members(header: SessionHeader) -> dict[str, Any]:
    """What a summary takes from a header."""
    return {"created": parse_time(header.timestamp), "cwd": header.cwd, "parent_session": header.parent_session}


def parse_time(text: str | None) -> datetime | None:
    """An ISO 8601 time in UTC; ``None`` if it is none."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def time_in(line: bytes) -> datetime | None:
    """When the entry in ``line`` was made, as it says itself."""
    timestamp = _members(line).get("timestamp")
    return parse_time(timestamp) if isinstance(timestamp, str) else None


def digest_members(digest: Digest, *, deep: bool) -> dict[str, Any]:
    """What a summary takes from a digest; how many entries it saw only where it saw all."""
    found: dict[str, Any] = {"first_message": digest.first_message, "name": digest.name}
    return found | {"entries": digest.entries} if deep else found


def digest_all(lines: Iterable[bytes]) -> Digest:
    """The digest of a whole session."""
    digest = Digest()
    for line in lines:
        digest.take(line)
    return digest
