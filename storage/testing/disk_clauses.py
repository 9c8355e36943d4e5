"""Clauses about files: a disk that fills up, where a sync may be made, and what opening to read and closing leave behind."""

from __future__ import annotations

import os
from typing import Final

from storage.errors import CommitFailed
from storage.event_loops import run_in_worker
from storage.protocols import Record, SessionStorage
from storage.testing.clause import clause
from storage.testing.faulty_disk import FaultyDisk
from storage.testing.subject import AbilityAbsent, ClauseError, Subject, chain, expect, expect_same

_ROOMS: Final = 9
"""After how many different numbers of bytes the disk is full."""

_PLENTY: Final = 1 << 40
_OPEN_FILES: Final = "/proc/self/fd"


async def _failure_of(subject: Subject, storage: SessionStorage, *records: Record) -> Exception | None:
    try:
        await subject.commit(storage, *records)
    except Exception as error:  # noqa: BLE001 - what it is tells what the store holds
        return error
    return None


@clause("R10", "where the disk fills up, what is kept is what the error says, nothing half, and it goes on")
async def full_disks_tear_nothing(subject: Subject) -> None:
    needed = await _bytes_of_a_batch(subject)
    for place in range(_ROOMS):
        await _fill_up(subject, needed * place // _ROOMS, needed)


async def _bytes_of_a_batch(subject: Subject) -> int:
    folder = subject.folder()
    storage = await subject.within(folder).storage()
    records = chain(4)
    await subject.commit(storage, records[0])
    with FaultyDisk(folder) as disk:
        disk.room = _PLENTY
        await subject.commit(storage, *records[1:])
        needed = _PLENTY - disk.room
    if not needed:
        raise AbilityAbsent("what it writes cannot be seen: C code does it, or another process")
    return needed


async def _fill_up(subject: Subject, room: int, needed: int) -> None:
    folder = subject.folder()
    within = subject.within(folder)
    storage = await within.storage()
    records = chain(5)
    await subject.commit(storage, records[0])
    with FaultyDisk(folder) as disk:
        disk.room = room
        failure = await _failure_of(subject, storage, *records[1:4])
        disk.heal()
        told = f"the disk took {room} of about {needed} bytes of a batch of 3, and commit() "
        if failure is None:
            kept = 4
            told += "raised nothing"
        elif isinstance(failure, CommitFailed):
            kept = 1 + failure.committed
            told += f"raised CommitFailed(committed={failure.committed})"
            if failure.sync is not None:
                await run_in_worker(failure.sync)
            again = await _failure_of(subject, storage, *records[kept:])
            expect(again is None, f"{told}; then there was room again, and it did not go on: {again!r:.200}")
            kept = 5
        else:
            kept = None
            told += f"raised {failure!r:.200}"
    await run_in_worker(storage.close)
    found = await _found(within, told)
    expect(found, f"{told}; opened anew, not even the record before the batch is there")
    expect_same(found, records[: len(found) if kept is None else kept], f"{told}; opened anew, it is not so")
    if kept is None:  # nobody knew, so it was opened anew; now it takes what comes next
        storage = await within.storage()
        more = chain(1, start=len(found), parent=found[-1].id)
        await subject.commit(storage, *more)
        await run_in_worker(storage.close)
        expect_same(await _found(within, told), [*found, *more], f"{told}; opened anew, it did not go on")


async def _found(within: Subject, told: str) -> list[Record]:
    try:
        return await within.read_all()
    except Exception as error:
        raise ClauseError(f"{told}; opened anew, it cannot be read ({type(error).__name__}: {error})") from error


@clause("R8", "a commit that may be called on the event loop (info.inline) does not sync there")
async def inline_commits_do_not_sync(subject: Subject) -> None:
    folder = subject.folder()
    storage = await subject.within(folder).storage()
    if not storage.info.inline:
        raise AbilityAbsent("info.inline is false, so its commits are called in a worker")
    with FaultyDisk(folder) as disk:
        sync = await run_in_worker(lambda: storage.commit(chain(1)))
        syncs = disk.counts["fsync"]
    expect(
        not syncs, "commit() synced, and the event loop would have waited; return the sync, or do not set info.inline"
    )
    if sync is not None:
        await run_in_worker(sync)


@clause("R15", "opening a session to read, reading and closing it change no file")
async def readers_leave_no_trace(subject: Subject) -> None:
    folder = subject.folder()
    within = subject.within(folder)
    storage = await within.storage()
    await subject.commit(storage, *chain(2))
    await run_in_worker(storage.close)
    before = _contents(folder)
    await within.read_all("read")
    after = _contents(folder)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path, b"") != after.get(path, b""))
    changed += sorted(before.keys() ^ after.keys())
    expect(not changed, f"a reader made, changed or removed {', '.join(dict.fromkeys(changed))}")


def _contents(folder: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for above, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


@clause("R10", "a closed storage keeps no file open")
async def closed_storages_let_go(subject: Subject) -> None:
    folder = subject.folder()
    if not os.path.isdir(_OPEN_FILES):
        raise AbilityAbsent(f"this system has no {_OPEN_FILES} to look at")
    within = subject.within(folder)
    storage = await within.storage()
    await subject.commit(storage, *chain(2))
    await run_in_worker(storage.close)
    await within.read_all()
    left = _open_below(os.path.realpath(folder))
    expect(not left, f"after close() these are open: {', '.join(left)}")


def _open_below(folder: str) -> list[str]:
    found: list[str] = []
    for number in os.listdir(_OPEN_FILES):
        try:
            path = os.readlink(os.path.join(_OPEN_FILES, number))
        except OSError:
            continue  # the one that listed them
        if path.startswith(folder + os.sep):
            found.append(os.path.relpath(path, folder))
    return sorted(found)
