"""Clauses about several users of one session: one writer, any readers; and about optional abilities."""

from __future__ import annotations

from typing import Any, cast

from storage.errors import SessionLockedError, SessionNotFoundError, StaleSessionError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.messages import UserMessage
from storage.protocols import BlobStore, Deletable, PathReader
from storage.testing.clause import clause
from storage.testing.subject import AbilityAbsent, Subject, chain, expect, record


@clause("R12", "a second writer is refused at opening, or loses with StaleSessionError and writes nothing")
async def one_writer(subject: Subject) -> None:
    first = await subject.storage()
    begin = record(0, "first writer")
    await subject.commit(first, begin)
    try:
        second = await subject.storage()
    except SessionLockedError:
        await subject.commit(first, record(1, "it goes on", parent=begin.id))
        return
    await run_in_worker(second.read)
    winner = record(1, "second writer", parent=begin.id)
    await subject.commit(second, winner)
    try:
        await subject.commit(first, record(1, "too late", parent=begin.id))
    except StaleSessionError:
        await run_in_worker(first.close)
        await run_in_worker(second.close)
        found = await subject.read_all()
        expect([item.id for item in found] == [begin.id, winner.id], "the loser wrote")
        return
    expect(False, "two writers took the same place")


@clause("R12", "a writer that was closed does not keep the next one out")
async def writers_follow_each_other(subject: Subject) -> None:
    for number in range(3):
        log = await subject.log()
        expect(len(log.index) == number, "the next writer does not see what the last one wrote")
        await log.append_message(UserMessage(content=f"{number}"))
        await log.aclose()


@clause("R12", "a reader is let in beside the writer, writes nothing, and sees what is added when it refreshes")
async def readers_see_what_is_added(subject: Subject) -> None:
    writer = await subject.log()
    first = await writer.append_message(UserMessage(content="first"))
    reader = await subject.log("read")
    expect(reader.leaf_id == first, "the reader does not see what is there")
    expect(not reader.writable, "a reader may write")
    added = [writer.append_message(UserMessage(content=f"{number}")) for number in range(700)]
    await writer.flush()
    await reader.refresh()
    expect(reader.leaf_id == added[-1].entry_id, "the reader does not see what was added")
    expect(len(reader.index) == 701, f"the reader sees {len(reader.index)} entries, not 701")
    await reader.refresh()
    expect(len(reader.index) == 701, "refreshed once more, it sees entries twice")


@clause("R12", "a reader commits nothing")
async def readers_do_not_write(subject: Subject) -> None:
    writer = await subject.storage()
    kept = record(0)
    await subject.commit(writer, kept)
    reader = await subject.storage("read")
    await run_in_worker(reader.read)
    try:
        await subject.commit(reader, record(1, parent=kept.id))
    except Exception:  # noqa: BLE001, S110 - any error will do; what counts is that nothing is written
        pass
    await run_in_worker(writer.close)
    found = await subject.read_all()
    expect([item.id for item in found] == [kept.id], "a reader wrote")


@clause("R15", "reading leaves no trace, and one session knows nothing of another")
async def sessions_are_apart(subject: Subject) -> None:
    other = f"{subject.name}-other"
    log = await subject.log()
    await log.append_message(UserMessage(content="here"))
    apart = await subject.log(name=other)
    expect(not len(apart.index), "a new session holds another one's entries")
    expect(apart.storage.info.header.id != log.storage.info.header.id, "two sessions have one id")


@clause("delete", "a deleted session is gone")
async def deleted_is_gone(subject: Subject) -> None:
    storage = await subject.storage()
    if not isinstance(storage, Deletable):
        raise AbilityAbsent("it has no delete()")
    await subject.commit(storage, *chain(2))
    await run_in_worker(storage.delete)
    try:
        found = await subject.read_all()
    except (SessionNotFoundError, StaleSessionError):
        return
    expect(not found, "its records are still there")


@clause("path", "a path that is read alone is the path of the whole")
async def paths_are_read_alone(subject: Subject) -> None:
    storage = await subject.storage()
    if not isinstance(storage, PathReader):
        raise AbilityAbsent("it has no read_path()")
    records = chain(5)
    branch = record(5, "branch", parent=records[1].id)
    await subject.commit(storage, *records, branch)
    found = await run_in_worker(lambda: cast("Any", storage).read_path(branch.id))
    expect([item.id for item in found] == [records[0].id, records[1].id, branch.id], "it is another path")


@clause("blobs", "a large output that was stored comes back")
async def blobs_come_back(subject: Subject) -> None:
    storage = await subject.storage()
    if not isinstance(storage, BlobStore):
        raise AbilityAbsent("it has no write_blob() and read_blob()")
    name, data = new_id(), bytes(range(256)) * 1000
    await run_in_worker(lambda: storage.write_blob(name, data))
    expect(await run_in_worker(lambda: storage.read_blob(name)) == data, "it came back changed")
    try:
        await run_in_worker(lambda: storage.read_blob(new_id()))
    except LookupError:
        return
    expect(False, "a blob that is not there was read")
