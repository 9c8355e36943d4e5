"""Files of sessions, written by hand, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TIME = "2026-01-02T03:04:05.678Z"


def header(*, ours: bool = True, **members: Any) -> str:
    """A header line; ``ours=False`` is one of pi's, without ``branchline``."""
    own = {"branchline": 1} if ours else {}
    return compact({"type": "session", "version": 3, "id": "chat", "timestamp": TIME, "cwd": "/here", **own, **members})


def message(entry_id: str, parent: str | None, text: str = "hello", **members: Any) -> str:
    """A line with a user message; ``seq`` is left out unless it is given."""
    start = {"seq": members.pop("seq")} if "seq" in members else {}
    said = {"role": "user", "content": text, "timestamp": 0}
    links = {"type": "message", "id": entry_id, "parentId": parent, "timestamp": TIME}
    return compact({**start, **links, "message": said, **members})


def line(kind: str, entry_id: str, parent: str | None, **members: Any) -> str:
    """A line with any entry."""
    start = {"seq": members.pop("seq")} if "seq" in members else {}
    return compact({**start, "type": kind, "id": entry_id, "parentId": parent, "timestamp": TIME, **members})


def compact(value: Any) -> str:
    """JSON as it is written."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write(path: Path, *lines: str, end: str = "\n") -> bytes:
    """Make a file of ``lines``, each but the last with a newline, the last with ``end``; the bytes of it."""
    data = ("\n".join(lines) + end).encode("utf-8", "surrogatepass")
    path.write_bytes(data)
    return data
