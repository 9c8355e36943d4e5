"""One use of a session from its beginning to its end, for disks that fail somewhere in it; and what has to hold then."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from harness import Session
from storage import BranchlineError, SessionNotFoundError, TextContent, ToolResultMessage, UserMessage
from tests.faults.crash_scripts import backend_of, blobs_in, place_of


@dataclass
class Used:
    """What became of it."""

    created: bool = False
    forked: bool = False
    deleted: bool = False
    called: list[str] = field(default_factory=list[str])
    acknowledged: list[str] = field(default_factory=list[str])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    errors: list[BaseException] = field(default_factory=list[BaseException])


async def use(kind: str, folder: Path) -> Used:
    """Create, say, keep, say side by side, fork; whatever fails, go on with the next. Only typed errors may come."""
    used = Used()
    backend = backend_of(kind)
    try:
        session = await Session.open(backend.create(place_of(kind, folder, "chat"), cwd="/"))
    except BranchlineError as error:
        used.errors.append(error)
        return used
    used.created = True
    try:
        await say(session, used, "a")
        await keep(session, used, b"large" * 30)
        await say(session, used, "b", "c")
        try:
            into = place_of(kind, folder, "fork")
            fork = await session.fork(into=lambda **given: backend.create(into, **given))
            used.forked = True
            await fork.aclose()
        except BranchlineError as error:
            used.errors.append(error)
        await say(session, used, "d")
    finally:
        try:
            await session.aclose()
        except BranchlineError as error:
            used.errors.append(error)
    return used


async def say(session: Session, used: Used, *texts: str) -> None:
    """Append messages side by side."""
    try:
        writes = [session.append_message(UserMessage(content=text)) for text in texts]
    except BranchlineError as error:
        used.errors.append(error)
        return
    used.called += [write.entry_id for write in writes]
    for write in writes:
        try:
            used.acknowledged.append(await write)
        except BranchlineError as error:
            used.errors.append(error)


async def keep(session: Session, used: Used, data: bytes) -> None:
    """Keep a blob, and an entry that names it."""
    try:
        blob = await session.write_blob(data)
        used.blobs[blob] = data
        write = session.append_message(
            ToolResultMessage(
                tool_call_id="c1", tool_name="t", content=[TextContent(text="large")], is_error=False, blobs=[blob]
            )
        )
        used.called.append(write.entry_id)
        used.acknowledged.append(await write)
    except BranchlineError as error:
        used.errors.append(error)


async def check_used(kind: str, folder: Path, used: Used) -> None:
    """All that was acknowledged is there, once and in order; nothing that was not called; and both go on."""
    await _check_one(kind, folder, "chat", used, promised=used.created)
    await _check_one(kind, folder, "fork", used, promised=used.forked)


async def _check_one(kind: str, folder: Path, name: str, used: Used, *, promised: bool) -> None:
    backend, place = backend_of(kind), place_of(kind, folder, name)
    try:
        session = await Session.open(backend.open(place, on_torn_tail="repair", durability="os"))
    except SessionNotFoundError:
        assert not promised, f"{name} is gone"
        return
    async with session:
        lines = [session.log.index.line(seq) for seq in range(len(session.log.index))]
        ids = [json.loads(line)["id"] for line in lines]
        if name == "chat":
            assert ids == [one for one in used.called if one in ids], "it holds what nobody called"
            assert set(used.acknowledged) <= set(ids), "something acknowledged is lost"
        for blob in blobs_in(lines):
            assert await session.read_blob(blob) == used.blobs[blob]
        await session.append_message(UserMessage(content="after the fault"))
    async with Session.open(backend.open(place, on_torn_tail="raise", durability="os")) as session:
        assert len(session.log.index) == len(ids) + 1
