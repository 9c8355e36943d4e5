"""What is recorded for the crash tests, and what has to hold in whatever a crash leaves of it.

What a state must show is taken from the run's own marks and from the bytes of the finished session, never from the code
that opens it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import Session
from storage import (
    DamagedSessionError,
    EntryFileRepository,
    EntryFileStorage,
    JsonlRepository,
    JsonlStorage,
    SessionNotFoundError,
    TextContent,
    ToolResultMessage,
    UserMessage,
    files,
)
from storage.testing.crash_disk import CrashDisk, CrashState

BACKENDS = ("jsonl", "entry files")


@dataclass
class Recorded:
    """A run of a script: what happened on the disk, and what its sessions held at the end."""

    kind: str
    disk: CrashDisk
    lines: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    """The committed lines of each session by its name, in order."""
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    before: dict[str, int] = field(default_factory=dict[str, int])
    """How many entries a session had when the run began."""


class Script:
    """What a script has at hand: a folder, a backend, and marks."""

    def __init__(self, kind: str, folder: Path, disk: CrashDisk) -> None:
        self.kind = kind
        self.folder = folder
        self.recorded = Recorded(kind, disk)

    def place(self, name: str) -> Path:
        """Where the session of that name lies."""
        return place_of(self.kind, self.folder, name)

    def mark(self, what: str, name: str = "chat", *more: Any) -> None:
        """Note what was promised just now."""
        self.recorded.disk.mark((what, name, *more))

    async def create(self, name: str = "chat", **options: Any) -> Session:
        """A new session."""
        session = await Session.open(backend_of(self.kind).create(self.place(name), cwd="/", **options))
        self.mark("created", name)
        return session

    async def open(self, name: str = "chat", **options: Any) -> Session:
        """A session that is there."""
        return await Session.open(backend_of(self.kind).open(self.place(name), on_torn_tail="repair", **options))

    async def say(self, session: Session, *texts: str, name: str = "chat") -> list[str]:
        """Append messages side by side; each that is acknowledged is marked."""
        writes = [session.append_message(UserMessage(content=text)) for text in texts]
        ids = [await write for write in writes]
        self.mark("acknowledged", name, len(session.log.index))
        return ids

    async def keep(self, session: Session, data: bytes, name: str = "chat") -> None:
        """Keep a blob, and append a tool's result that names it."""
        blob = await session.write_blob(data)
        self.recorded.blobs[blob] = data
        await session.append_message(
            ToolResultMessage(
                tool_call_id="c1", tool_name="t", content=[TextContent(text="large")], is_error=False, blobs=[blob]
            )
        )
        self.mark("acknowledged", name, len(session.log.index))

    async def close(self, session: Session, name: str = "chat") -> None:
        """Close it, and note what it held."""
        self.note(session, name)
        await session.aclose()

    def note(self, session: Session, name: str = "chat") -> None:
        """Note the lines of a session as they are now."""
        index = session.log.index
        self.recorded.lines[name] = [index.line(seq) for seq in range(len(index))]


Steps = Callable[[Script], Awaitable[None]]


async def record(kind: str, folder: Path, steps: Steps, *, before: Steps | None = None) -> Recorded:
    """Run a script in ``folder`` and record it; what ``before`` does counts as done and synced long ago."""
    earlier = Script(kind, folder, CrashDisk(folder))
    if before is not None:
        await before(earlier)
    with CrashDisk(folder) as disk:
        script = Script(kind, folder, disk)
        script.recorded.blobs = earlier.recorded.blobs
        for name, lines in earlier.recorded.lines.items():
            script.recorded.lines[name] = lines
            script.recorded.before[name] = len(lines)
            disk.mark(("created", name))
            disk.mark(("acknowledged", name, len(lines)))
        await steps(script)
    return script.recorded


def backend_of(kind: str) -> Any:
    """The storage class."""
    return JsonlStorage if kind == "jsonl" else EntryFileStorage


def place_of(kind: str, folder: Path, name: str) -> Path:
    """Where a session lies."""
    return folder / (f"{name}.jsonl" if kind == "jsonl" else name)


def said(marks: tuple[Any, ...], what: str, name: str) -> bool:
    """Whether it was marked."""
    return any(mark[:2] == (what, name) for mark in marks)


def acknowledged(marks: tuple[Any, ...], name: str) -> int:
    """How many entries were acknowledged."""
    return max((mark[2] for mark in marks if mark[:2] == ("acknowledged", name)), default=0)


def must_be_there(marks: tuple[Any, ...], name: str) -> bool:
    """Whether a session was promised, and its deletion had not begun."""
    return said(marks, "created", name) and not said(marks, "deleting", name)


@contextmanager
def unsynced() -> Generator[None]:
    """Syncs do nothing: thousands of reopenings would wait for the disk. The recordings are made with real ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("sync_data", "sync_folder"):
            patch.setattr(files, name, lambda _: None)
        yield


async def check(state: CrashState, recorded: Recorded, folder: Path) -> None:
    """Everything that was acknowledged is there, in order, nothing half is shown, and it goes on; for each session."""
    state.make(folder)
    shelf = JsonlRepository(folder) if recorded.kind == "jsonl" else EntryFileRepository(folder)
    listed = [summary.id for summary in await shelf.list() if summary.problem is None]
    assert set(listed) <= recorded.lines.keys(), f"listed: {listed}"
    for name, lines in recorded.lines.items():
        await check_session(state, recorded, folder, name, lines, listed=name in listed)


async def check_session(
    state: CrashState, recorded: Recorded, folder: Path, name: str, lines: list[bytes], *, listed: bool
) -> None:
    """One session of the state."""
    backend, place = backend_of(recorded.kind), place_of(recorded.kind, folder, name)
    promised = must_be_there(state.first, name) or must_be_there(state.marks, name)
    try:
        session = await Session.open(backend.open(place, on_torn_tail="repair", durability="os"))
    except SessionNotFoundError:
        assert not promised, f"{name} is gone"
        assert not listed, f"{name} is listed, and not there"
        return
    async with session:
        assert not said(state.marks, "deleted", name), f"{name} was deleted, and is there"
        assert listed, f"{name} is there, and not listed"
        index = session.log.index
        shown = [index.line(seq) for seq in range(len(index))]
        assert shown == lines[: len(shown)], "what is shown is not how the session began"
        assert len(shown) >= acknowledged(state.marks, name), f"{len(shown)} entries are shown"
        assert session.writable, session.warnings
        for blob in blobs_in(shown):
            assert await session.read_blob(blob) == recorded.blobs[blob], "a blob is not whole"
        await session.append_message(UserMessage(content="after the crash"))
    async with Session.open(backend.open(place, on_torn_tail="raise", durability="os")) as session:
        assert len(session.log.index) == len(shown) + 1
        assert {warning.code for warning in session.warnings} <= {"foreign_file"}


def blobs_in(lines: list[bytes]) -> list[str]:
    """The blobs that these lines name."""
    return [name for line in lines if b'"blobs"' in line for name in json.loads(line)["message"].get("blobs", [])]


async def check_lied_to(state: CrashState, recorded: Recorded, folder: Path) -> str:
    """After an fsync that lied: it opens, or is refused as damaged, and salvage shows every whole entry; which it was."""
    state.make(folder)
    backend, place = backend_of(recorded.kind), place_of(recorded.kind, folder, "chat")
    whole = whole_entries(recorded.kind, state, place.name)
    try:
        session = await Session.open(backend.open(place, on_torn_tail="repair", durability="os"))
    except SessionNotFoundError:
        assert not whole, "whole entries are there, and it says that there is no session"
        return "none"
    except DamagedSessionError:
        try:
            session = await Session.open(backend.open(place, on_corrupt="skip"))
        except DamagedSessionError:
            assert not whole, "whole entries are there, and salvage opens nothing"
            return "nothing whole"
        async with session:
            assert not session.writable
            shown = {entry.id for entry in await session.entries(limit=10_000)}
        assert whole <= shown, f"not shown by salvage: {whole - shown}; {session.warnings}"
        return "damaged"
    async with session:
        shown = {entry.id for entry in await session.entries(limit=10_000)}
        if session.writable:
            await session.append_message(UserMessage(content="after the crash"))
    assert shown <= {json.loads(line)["id"] for line in recorded.lines["chat"]}
    return "open"


def whole_entries(kind: str, state: CrashState, name: str) -> set[str]:
    """The ids of the entries that lie there whole, judged by their bytes alone."""
    if kind == "jsonl":
        found = (state.tree.get(name) or b"").split(b"\n")[:-1]
    else:
        start = f"{name}/entries/"
        found = [
            data
            for path, data in state.tree.items()
            if path.startswith(start) and path.endswith(".json") and data is not None
        ]
    ids: set[str] = set()
    for data in found:
        try:
            members = json.loads(data)
        except ValueError:
            continue
        if isinstance(members, dict) and members.get("type") != "session":
            ids.add(members["id"])
    return ids
