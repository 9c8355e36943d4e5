"""Clauses about writing: snapshots, order, batches, cancellation, and what is there when it was acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from storage.entries import CustomEntry, MessageEntry
from storage.entry_log import EntryLog
from storage.errors import InvalidEntryError, StaleSessionError, StorageError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.messages import UserMessage
from storage.pending_write import PendingWrite
from storage.protocols import Record
from storage.testing.clause import clause
from storage.testing.faulty_storage import FaultyStorage
from storage.testing.native_cancelling import cancelled_natively
from storage.testing.subject import ClauseError, Subject, chain, expect, expect_ids, expect_same, record


def _is_chain(records: Sequence[Record]) -> bool:
    parents = [None, *(item.id for item in records[:-1])]
    return [item.parent_id for item in records] == parents


@clause("R5", "a value that JSON would change is refused, and nothing of it is stored")
async def lossy_values_are_refused(subject: Subject) -> None:
    log = await subject.log()
    for value in (float("nan"), {1, 2}, (1, 2), {1: "x"}, b"bytes"):
        try:
            await log.append(CustomEntry(custom_type="x", data={"score": value}))
        except InvalidEntryError as error:
            expect("data.score" in error.message, f"the error does not name the path: {error.message}")
        else:
            expect(False, f"{value!r} was taken")
    await log.aclose()
    expect(not await subject.read_all(), "something was stored")


@clause("R6", "an entry is what it was at the call")
async def snapshots_are_taken_at_the_call(subject: Subject) -> None:
    log = await subject.log()
    message = UserMessage(content="before")
    write = log.append_message(message)
    message.content = "after"
    entry_id = write.entry_id
    expect(await write == entry_id == await write, "its id is another one when it is awaited")
    await log.aclose()
    entry = await (await subject.log()).entry(entry_id)
    expect(isinstance(entry, MessageEntry) and entry.message.text == "before", "a later change was stored")


@clause("R7", "ten appends called side by side make a chain of ten")
async def parallel_appends_make_a_chain(subject: Subject) -> None:
    log = await subject.log()
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(log.append_message(UserMessage(content=str(number))).wait)
    await log.aclose()
    found = await subject.read_all()
    expect(len(found) == 10, f"{len(found)} of 10 entries are there")
    expect(_is_chain(found), "they are no chain in the order of the calls")


@clause("R7", "a write that fails its checks fails alone")
async def failures_are_single(subject: Subject) -> None:
    log = await subject.log()
    good = log.append_message(UserMessage(content="before"))
    orphan = log.append(CustomEntry(custom_type="x", parent_id="nobody"))
    double = log.append(CustomEntry(custom_type="x", id=good.entry_id))
    last = log.append_message(UserMessage(content="after"))
    for write in (orphan, double):
        try:
            await write
        except InvalidEntryError:
            continue
        expect(False, "an orphan or a duplicate id was taken")
    await good
    await last
    await log.aclose()
    found = await subject.read_all()
    expect_ids(
        [item.id for item in found], [good.entry_id, last.entry_id], "the others are not there as they were called"
    )


@clause("R8", "600 writes that one caller waits for are all there, in order")
async def long_queues_are_written(subject: Subject) -> None:
    log = await subject.log()
    writes = [log.append_message(UserMessage(content=f"{number}")) for number in range(600)]
    await writes[-1]
    await log.aclose()
    found = await subject.read_all()
    expect_ids([item.id for item in found], [write.entry_id for write in writes], "600 were written in one go")
    expect(_is_chain(found), "they are no chain")


@clause("R8", "cancelled writes are written once or not at all, and the log goes on")
async def cancellation_tears_nothing(subject: Subject) -> None:
    faulty = FaultyStorage(await subject.storage())
    faulty.slow_down("commit", 0.002)
    log = await EntryLog.open(faulty)
    acknowledged: list[str] = []
    called: list[str] = []

    async def keep(write: PendingWrite) -> None:
        acknowledged.append(await write)

    for delay in (0, 0.0005, 0.001, 0.002, 0.003, 0.005):
        with anyio.move_on_after(delay):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    write = log.append_message(UserMessage(content=f"cancelled after {delay} s"))
                    called.append(write.entry_id)
                    group.start_soon(keep, write)
    last = await log.append_message(UserMessage(content="last"))
    await log.aclose()
    expect(not faulty.overlaps, "the storage was called while another call was running")
    found = [item.id for item in await subject.read_all()]
    expect(set(acknowledged) <= set(found), "an acknowledged entry is missing")
    expect_ids(found, [*called, last], "batches followed each other")


@clause("R8", "tasks that the event loop itself cancels lose nothing and tear nothing")
async def native_cancellation_tears_nothing(subject: Subject) -> None:
    faulty = FaultyStorage(await subject.storage())
    faulty.slow_down("commit", 0.002)
    log = await EntryLog.open(faulty)
    called: list[str] = []
    for delay in (0, 0.0005, 0.001, 0.002, 0.003):
        writes = [log.append_message(UserMessage(content=f"cancelled after {delay} s")) for _ in range(3)]
        called += [write.entry_id for write in writes]
        await cancelled_natively(writes[-1].wait, delay)
    last = await log.append_message(UserMessage(content="last"))
    await log.aclose()
    expect(not faulty.overlaps, "the storage was called while another call was running")
    found = [item.id for item in await subject.read_all()]
    expect_ids(found, [*called, last], "batches followed each other")


@clause("R9", "what was acknowledged is there for others before anything is closed")
async def acknowledged_is_committed(subject: Subject) -> None:
    log = await subject.log()
    entry_id = await log.append_message(UserMessage(content="here"))
    found = await subject.read_all("read")
    expect([item.id for item in found] == [entry_id], "a reader does not see it")


@clause("R10", "after a commit that failed and kept k records, the log goes on behind them")
async def known_failures_are_survived(subject: Subject) -> None:
    faulty = FaultyStorage(await subject.storage())
    log = await EntryLog.open(faulty)
    first = OSError(28, "No space left on device")
    faulty.fail_commit(first, keep=2)
    writes = [log.append_message(UserMessage(content=f"{number}")) for number in range(5)]
    causes: list[BaseException | None] = []
    for write in writes:
        try:
            await write
        except StorageError as error:
            causes.append(error.__cause__)
    expect(len(causes) == 3, f"{len(causes)} writes failed, not the last three")
    expect(all(cause is first for cause in causes), "the cause is not the one first error")
    last = await log.append_message(UserMessage(content="the disk was emptied"))
    await log.aclose()
    found = await subject.read_all()
    kept = [writes[0].entry_id, writes[1].entry_id, last]
    expect_ids([item.id for item in found], kept, "of a batch of 5 two were committed, then one more")
    expect(_is_chain(found), "they are no chain")


@clause("R10", "records that do not go on from what the store holds are refused, and nothing is written")
async def wrong_places_are_refused(subject: Subject) -> None:
    storage = await subject.storage()
    kept = chain(2)
    await subject.commit(storage, *kept)
    for wrong in (0, 1, 3):
        try:
            await subject.commit(storage, record(wrong, parent=kept[0].id))
        except StaleSessionError:
            continue
        except Exception as error:
            why = f"place {wrong}, where 2 is the next, was refused with {type(error).__name__}, not StaleSessionError"
            raise ClauseError(f"{why}: {error}") from error
        expect(False, f"place {wrong} was taken where 2 was the next")
    await run_in_worker(storage.close)
    expect_same(await subject.read_all(), kept, "something was written")


@clause("R10", "an empty commit writes nothing, and the next one goes on")
async def empty_commits_do_nothing(subject: Subject) -> None:
    storage = await subject.storage()
    records = chain(2)
    for item in records:
        await subject.commit(storage)
        await subject.commit(storage, item)
    await subject.commit(storage)
    await run_in_worker(storage.close)
    expect_same(await subject.read_all(), records, "an empty commit left something")


@clause("R10", "a closed storage takes nothing, and can be closed again")
async def closed_is_closed(subject: Subject) -> None:
    storage = await subject.storage()
    kept = record(0)
    await subject.commit(storage, kept)
    await run_in_worker(storage.close)
    await run_in_worker(storage.close)
    try:
        await subject.commit(storage, record(1, parent=kept.id))
    except Exception:  # noqa: BLE001, S110 - any error will do; what counts is that nothing is written
        pass
    expect_same(await subject.read_all(), [kept], "a closed storage wrote")


@clause("R16", "an unsafe entry id is refused at the call where ids are file names")
async def unsafe_ids_are_refused(subject: Subject) -> None:
    log = await subject.log()
    if not log.storage.info.ids_are_file_names:
        ids = ["../odd id/\n", "x" * 129, "漢" * 90, "con", "CON"]
        for entry_id in ids:
            await log.append(CustomEntry(custom_type="x", id=entry_id))
        await log.aclose()
        found = await subject.read_all()
        expect([item.id for item in found] == ids, "not all ids with odd characters are there as they were given")
        return
    for entry_id in ("../x", "/tmp/x", "a\\b", ".", "..", "a..b", " ", "x\0y", "x" * 129, "漢" * 90, "x."):
        try:
            log.append(CustomEntry(custom_type="x", id=entry_id))
        except ValueError:
            continue
        expect(False, f"{entry_id[:20]!r} was taken")
    lower = new_id()
    await log.append(CustomEntry(custom_type="x", id=lower))
    twin = log.append(CustomEntry(custom_type="x", id=lower.upper()))
    after = log.append_message(UserMessage(content="after"))
    try:
        await twin
    except InvalidEntryError:
        await after
        return
    expect(lower.upper() == lower, "an id that differs only in case was taken")
