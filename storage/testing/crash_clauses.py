"""Clauses about what a crash leaves: in copies of the files as they are, and in every state a power loss may leave."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import cast

from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.protocols import BlobStore, SessionStorage
from storage.testing.clause import clause
from storage.testing.crash_disk import CrashDisk, CrashState
from storage.testing.subject import AbilityAbsent, Subject, chain, expect, record

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
        found = await subject.within(copied).read_all()
        expect([item.data for item in found] == [item.data for item in records[:done]], "the copy holds something else")


@clause("R13", "whatever a power loss leaves: what was acknowledged is there, nothing half is, and it goes on")
async def power_loss_is_survived(subject: Subject) -> None:
    records = chain(6)
    more = record(0, "after the crash")

    async def write(storage: SessionStorage, disk: CrashDisk) -> None:
        disk.mark(0)
        for start, end in ((0, 1), (1, 4), (4, 6)):
            await subject.commit(storage, *records[start:end])
            disk.mark(end)

    async def look(opened: SessionStorage, state: CrashState) -> None:
        found = [item.data for item in await run_in_worker(opened.read)]
        whole = [item.data for item in records]
        expect(found == whole[: len(found)], "what is there after a crash is not how it began")
        promised = cast("int", state.marks[-1]) if state.marks else 0
        expect(len(found) >= promised, f"{promised} records were acknowledged, {len(found)} are there after a crash")
        line = more.data.replace(b'"seq":0', b'"seq":%d' % len(found))
        await subject.commit(opened, more._replace(seq=len(found), data=line))
        expect(len(await run_in_worker(opened.read)) == len(found) + 1, "after a crash it does not go on")

    await _after_each_crash(subject, write, look)


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
    except RuntimeError as error:
        raise AbilityAbsent(f"a power loss cannot be replayed: {error}") from error
    states = disk.states(cuts=8)
    for state in states[:: -(-len(states) // MOST_STATES)]:
        made = subject.folder()
        state.make(made)
        within = subject.within(made)
        await look(await within.storage(), state)
        await within.close()


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
                expect(found == mode, f"{name} has the mode {found:o}, not {mode:o}")
