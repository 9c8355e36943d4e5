"""Sessions for the tests of ``branchline migrate``, and what is in a place afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import anyio

from harness.cli.places import kind_of_place
from harness.cli.shelf import places_on
from harness.session import Session
from storage.messages import UserMessage
from storage.session_streams import StreamsSessions
from tests.cli.shelves import section_of


def large(path: Path, entries: int, *, text: int = 600) -> Path:
    """A session of ours that takes a moment to copy."""
    head = {"type": "session", "version": 3, "id": path.stem, "timestamp": "2026-01-01T00:00:00.000Z", "branchline": 1}
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        file.write(json.dumps(head, separators=(",", ":")) + "\n")
        for seq in range(entries):
            members = {"seq": seq, "type": "message", "id": f"e{seq:07}", "parentId": f"e{seq - 1:07}" if seq else None}
            message = {"role": "user", "content": f"{seq} " + "x" * text, "timestamp": 1}
            row = {**members, "timestamp": "2026-01-01T00:00:01.000Z", "message": message}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    return path


def lines_in(root: str, session_id: str) -> list[bytes]:
    """The lines of a session, as they are kept."""
    place = next(place for place in places_on(kind_of_place(root)) if place.name == session_id)
    assert place.section is not None
    repository = place.section.repository
    assert isinstance(repository, StreamsSessions)
    with repository.reading(session_id) as stream:
        return [record.data for record in stream.records]


def options(kind: str) -> tuple[str, ...]:
    """What ``migrate`` is told for a target of that kind."""
    return ("--entry-files",) if kind == "entry files" else ()


def some_sessions(root: str, kind: str, count: int, *, blob: int = 0, text: int = 0) -> dict[str, list[bytes]]:
    """Sessions with a few messages each, in a place of that kind; their lines."""

    async def fill() -> None:
        for number in range(count):
            async with Session.open(section_of(kind, root).repository.create(f"s{number:04}")) as session:
                if blob:
                    await session.write_blob(os.urandom(blob))
                for turn in range(5):
                    session.append_message(UserMessage(content=f"{number} {turn} " + "x" * text))

    anyio.run(fill)
    return {place.name: lines_in(root, place.name) for place in places_on(kind_of_place(root))}


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder, with its time of change: what must not change."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def blobs_in(root: str, session_id: str) -> dict[str, bytes]:
    """The large outputs of a session."""
    place = next(place for place in places_on(kind_of_place(root)) if place.name == session_id)
    assert place.section is not None
    repository = place.section.repository
    assert isinstance(repository, StreamsSessions)
    with repository.reading(session_id) as stream:
        return {name: stream.read_blob(name) for name in stream.blob_names()}


def can(*line: str) -> bool:
    """Whether this machine can do that."""
    return shutil.which(line[0]) is not None and subprocess.run(line, capture_output=True, check=False).returncode == 0
