"""Clauses about what a crash leaves: in copies of the files as they are, and in every state a power loss may leave."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from storage.errors import SessionLockedError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.protocols import BlobStore, Record, SessionStorage
from storage.testing.clause import clause
from storage.testing.crash_disk import CrashDisk, CrashState, UnseenChangeError
from storage.testing.faulty_disk import FaultyDisk
from storage.testing.subject import AbilityAbsent, ClauseError, Subject, chain, expect, expect_same

MOST_STATES = 400
"""How many states are tried; of more than that some, evenly spread."""

_COPY = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)"


def _copy(source: str, target: str) -> None:
    # In a process of its own: closing a file that SQLite has open takes its locks away from the whole process.
    subprocess.run([sys.executable, "-I", "-S", "-c", _COPY, source, target], check=True)  # noqa: S603 - our own line


@clause("R9", "a killed process loses nothing that was acknowledged: its files, copied while it writes on, hold it")
async def copies_hold_what_was_acknowledged(subject: Subject) -> None:
    folder = subject.folder()
    storage = await subject.within(folder).storage()
    records = chain(5)
    done = 0
    for size in (1, 3, 1):
        await subject.commit(storage, *records[done : done + size])
        done += size
        copied = subject.folder()
        await run_in_worker(lambda copied=copied: _copy(folder, copied))
        try:
            found = await subject.within(copied).read_all()
        except SessionLockedError as error:
            why = "the lock of a writer that died keeps the next one out; lock an open file: that a file exists says nothing"
            raise ClauseError(f"{why} ({error})") from error
        expect_same(found, records[:done], "the copy does not hold what was acknowledged")


@clause("R13", "whatever a power loss leaves: what was acknowledged is there, nothing half is, and it goes on")
async def power_loss_is_survived(subject: Subject) -> None:
    records = chain(6)

    async def write(storage: SessionStorage, disk: CrashDisk) -> None:
        disk.mark(0)
        for start, end in ((0, 1), (1, 4), (4, 6)):
            await subject.commit(storage, *records[start:end])
            disk.mark(end)

    await _after_each_crash(subject, write, lambda opened, state: _look(subject, opened, state, records))


async def _look(subject: Subject, opened: SessionStorage, state: CrashState, records: Sequence[Record]) -> None:
    """What was acknowledged is there, and perhaps more of ``records``; and it goes on."""
    found = await run_in_worker(opened.read)
    expect_same(found, records[: len(found)], "what is there after a crash was not committed so")
    promised = cast("int", state.marks[-1]) if state.marks else 0
    expect(
        len(found) >= promised,
        f"{promised} records were acknowledged, {len(found)} are there after a crash; before that, sync the file, and the "
        "folder of a name that is new",
    )
    await subject.commit(opened, *chain(1, start=len(found), parent=found[-1].id if found else None))
    expect(len(await run_in_worker(opened.read)) == len(found) + 1, "after a crash it does not go on")


@clause("R9", "a sync that fails is told: what is acknowledged all the same is there, whatever a power loss leaves")
async def failed_syncs_are_told(subject: Subject) -> None:
    syncs = await _syncs_of_a_commit(subject)
    if not syncs:
        raise AbilityAbsent("no sync of it can be seen: C code does it, or nobody")
    records = chain(2)
    for number in range(1, syncs + 1):

        async def write(storage: SessionStorage, disk: CrashDisk, number: int = number) -> None:
            await subject.commit(storage, records[0])
            disk.mark(1)
            with FaultyDisk(disk.folder) as faulty:
                faulty.fail("fsync", OSError(errno.EIO, os.strerror(errno.EIO)), at=number)
                try:
                    await subject.commit(storage, records[1])
                except Exception:  # noqa: BLE001 - any error tells it
                    return
            disk.mark(2)

        try:
            await _after_each_crash(subject, write, lambda opened, state: _look(subject, opened, state, records))
        except ClauseError as error:
            raise ClauseError(f"sync number {number} of a commit failed: {error}") from error


async def _syncs_of_a_commit(subject: Subject) -> int:
    folder = subject.folder()
    storage = await subject.within(folder).storage()
    records = chain(2)
    await subject.commit(storage, records[0])
    with FaultyDisk(folder) as disk:
        await subject.commit(storage, records[1])
    return disk.counts["fsync"]


@clause("blobs", "whatever a power loss leaves: a blob is there whole or not at all")
async def blobs_survive_power_loss(subject: Subject) -> None:
    data = b"0123456789" * 100
    names = [new_id(), new_id()]

    async def write(storage: SessionStorage, disk: CrashDisk) -> None:
        for name in names:
            await run_in_worker(lambda name=name: _blobs(storage).write_blob(name, data))
            disk.mark(name)

    async def look(opened: SessionStorage, state: CrashState) -> None:
        found = await run_in_worker(_blobs(opened).blob_names)
        expect(set(state.marks) <= set(found), "a blob that was stored is gone after a crash")
        for name in found:
            expect(await run_in_worker(lambda name=name: _blobs(opened).read_blob(name)) == data, "a blob is not whole")

    await _after_each_crash(subject, write, look)


def _blobs(storage: SessionStorage) -> BlobStore:
    if not isinstance(storage, BlobStore):
        raise AbilityAbsent("it has no write_blob(), read_blob() and blob_names()")
    return storage


async def _after_each_crash(
    subject: Subject,
    write: Callable[[SessionStorage, CrashDisk], Awaitable[None]],
    look: Callable[[SessionStorage, CrashState], Awaitable[None]],
) -> None:
    folder = subject.folder()
    try:
        with CrashDisk(folder) as disk:
            storage = await subject.within(folder).storage()
            await write(storage, disk)
            await run_in_worker(storage.close)
    except UnseenChangeError as error:
        raise AbilityAbsent(f"a power loss cannot be replayed: {error}") from error
    states = disk.states(cuts=8)
    for state in states[:: -(-len(states) // MOST_STATES)]:
        made = subject.folder()
        state.make(made)
        within = subject.within(made)
        try:
            opened = await within.storage()
        except Exception as error:
            why = f"after a crash it cannot be opened ({type(error).__name__}: {error})"
            raise ClauseError(f"{why}; {_shown(state)}") from error
        try:
            await look(opened, state)
        except ClauseError as error:
            raise ClauseError(f"{error}; {_shown(state)}") from error
        await within.close()


def _shown(state: CrashState) -> str:
    files = [f"{path} ({len(data)} bytes)" for path, data in sorted(state.tree.items()) if data is not None]
    return f"on the disk lay {', '.join(files) or 'nothing'}"


@clause("R16", "its files are for their owner alone: 0600, and folders 0700")
async def files_are_private(subject: Subject) -> None:
    if sys.platform == "win32":
        raise AbilityAbsent("Windows keeps no modes")
    folder = subject.folder()
    within = subject.within(folder)
    storage = await within.storage()
    await subject.commit(storage, *chain(2))
    for above, folders, files in os.walk(folder):
        for names, mode in ((folders, 0o700), (files, 0o600)):
            for name in names:
                found = stat.S_IMODE(os.stat(os.path.join(above, name)).st_mode)
                # What is closed even to its owner is as private.
                expect(found | mode == mode, f"{name} has the mode {found:o}, not {mode:o}")
