"""Clauses about several users of one session: one writer, any readers; and about optional abilities."""

from __future__ import annotations

from typing import Any, Final, cast

import anyio
import anyio.lowlevel

from storage.entry_log import EntryLog
from storage.errors import SessionLockedError, SessionNotFoundError, StaleSessionError
from storage.event_loops import run_in_worker
from storage.messages import UserMessage
from storage.protocols import Deletable, PathReader, SessionStorage, Watchable
from storage.testing.clause import clause
from storage.testing.subject import AbilityAbsent, ClauseError, Subject, chain, expect, expect_ids, expect_same, record

_EARLY: Final = 20
"""How often it may come back for nothing."""


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
    except Exception as error:
        why = f"a second writer was refused with {type(error).__name__}, not with SessionLockedError: {error}"
        raise ClauseError(why) from error
    await run_in_worker(second.read)
    winner = record(1, "second writer", parent=begin.id)
    await subject.commit(second, winner)
    try:
        await subject.commit(first, record(1, "too late", parent=begin.id))
    except StaleSessionError:
        await run_in_worker(first.close)
        await run_in_worker(second.close)
        found = await subject.read_all()
        expect_same(found, [begin, winner], "the loser wrote")
        return
    except Exception as error:
        why = f"the writer who came too late got {type(error).__name__}, not StaleSessionError: {error}"
        raise ClauseError(why) from error
    expect(
        False,
        "two writers took the same place; refuse the second one at opening (SessionLockedError), or compare records[0].seq "
        "with the store at each commit (StaleSessionError)",
    )


@clause("R12", "who holds a session is named to a second writer")
async def the_owner_is_named(subject: Subject) -> None:
    await subject.storage()
    try:
        await subject.storage()
    except SessionLockedError as error:
        expect(error.details.get("owner"), "SessionLockedError.details has no 'owner'")
        return
    raise AbilityAbsent("it lets several writers open a session, and compares when they commit")


@clause("R12", "two writers that fight for a session lose nothing that was acknowledged to either")
async def writers_fight(subject: Subject) -> None:
    acknowledged: dict[str, list[str]] = {"one": [], "two": []}

    async def say(log: EntryLog, who: str) -> bool:
        try:
            acknowledged[who].append(await log.append_message(UserMessage(content=who)))
        except StaleSessionError:
            return False  # the other one was quicker; what was acknowledged before stays
        return True

    async def begin_at_once() -> None:
        logs = {"one": await subject.log()}
        try:
            logs["two"] = await subject.log()
        except SessionLockedError:
            pass
        for who in (*logs, *logs, "one"):
            await say(logs[who], who)
        for log in logs.values():
            await subject.give_up(log)

    async def fight(who: str) -> None:
        while len(acknowledged[who]) < 12:
            try:
                log = await subject.log()
            except SessionLockedError:
                await anyio.sleep(0.001)
                continue
            for _ in range(3):
                if not await say(log, who):
                    break
                await anyio.lowlevel.checkpoint()
            await subject.give_up(log)

    await begin_at_once()
    async with anyio.create_task_group() as group:
        for who in acknowledged:
            group.start_soon(fight, who)
    found = await subject.read_all()
    ids = [item.id for item in found]
    for who, expected in acknowledged.items():
        expect([one for one in ids if one in expected] == expected, f"writer {who} lost entries, or their order")
    expect(len(ids) == sum(map(len, acknowledged.values())), "entries are there that nobody was told of, or twice")
    expect([item.seq for item in found] == list(range(len(found))), "two entries took the same place")


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


@clause("R12", "a reader that follows a writer sees each entry once, in order, and nothing half")
async def readers_follow(subject: Subject) -> None:
    writer = await subject.log()
    await writer.append_message(UserMessage(content="first"))
    reader = await subject.log("read")
    seen: list[str] = []
    done = anyio.Event()

    async def write() -> None:
        for number in range(60):
            await writer.append_message(UserMessage(content=f"{number} " + "x" * 3000))
        done.set()

    async def follow() -> None:
        while True:
            last = done.is_set()
            await reader.refresh()
            seen.extend(entry.id for entry in await reader.entries(after_seq=len(seen) - 1))
            if last:
                return
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        group.start_soon(follow)
    written = [entry.id for entry in await writer.entries()]
    expect_ids(seen, written, "the reader saw something else than was written")


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
    expect_same(await subject.read_all(), [kept], "a reader wrote")


@clause("R15", "one session knows nothing of another")
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


@clause("watch", "who waits for a change is woken by one, and comes back without one when the time is up")
async def changes_wake(subject: Subject) -> None:
    writer = await subject.storage()
    first, second = chain(2)
    await subject.commit(writer, first)
    reader = await subject.storage("read")
    if not isinstance(reader, Watchable):
        raise AbilityAbsent("it has no wait_for_change()")
    watchable: Watchable = reader
    for _ in range(_EARLY):
        if not await run_in_worker(lambda: watchable.wait_for_change(0.05)):
            break
    else:
        expect(False, f"nothing changed, and wait_for_change() said {_EARLY} times that something may have")
    woken: list[bool] = []

    async def wait() -> None:
        woken.append(await run_in_worker(lambda: watchable.wait_for_change(10)))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(0.05)
        await subject.commit(writer, second)
    expect(woken == [True], "a record was committed, and wait_for_change() said that nothing changed")
    found = await run_in_worker(lambda: cast("SessionStorage", reader).read(after_seq=0))
    expect_same(found, [second], "it was woken, and does not see what was committed")
