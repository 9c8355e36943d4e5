"""Clauses about blobs: whole or not there, never changed, and gone with their session."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import anyio

from storage.errors import BlobNotFoundError, SessionNotFoundError, StaleSessionError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.protocols import BlobStore, Deletable, Mode, SessionStorage
from storage.testing.clause import clause
from storage.testing.subject import AbilityAbsent, Subject, chain, expect

DATA = bytes(range(256)) * 1000
"""Every byte, and more of them than one read of a pipe or page gives."""


async def _store(subject: Subject, mode: Mode = "write") -> BlobStore:
    storage = await subject.storage(mode)
    if not isinstance(storage, BlobStore):
        raise AbilityAbsent("it has no write_blob(), read_blob() and blob_names()")
    return storage


async def _close(store: BlobStore) -> None:
    await run_in_worker(cast("SessionStorage", store).close)


async def _refused(call: Callable[[], object], otherwise: str) -> None:
    try:
        await run_in_worker(call)
    except Exception:  # noqa: BLE001 - any error will do; what counts is that it is refused
        return
    expect(False, otherwise)


@clause("blobs", "a large output that was stored comes back, and is there after reopening")
async def blobs_come_back(subject: Subject) -> None:
    store = await _store(subject)
    names = [new_id(), new_id(), "A.name-of_ours.7"]
    blobs = dict(zip(names, (DATA, b"", b"\r\n\0"), strict=True))
    for name, data in blobs.items():
        await run_in_worker(lambda name=name, data=data: store.write_blob(name, data))
    for name, data in blobs.items():
        expect(await run_in_worker(lambda name=name: store.read_blob(name)) == data, "it came back changed")
    expect([*await run_in_worker(store.blob_names)] == sorted(names), "its names are not those, sorted")
    await _close(store)
    store = await _store(subject)
    for name, data in blobs.items():
        expect(await run_in_worker(lambda name=name: store.read_blob(name)) == data, "it was changed by reopening")
    expect([*await run_in_worker(store.blob_names)] == sorted(names), "after reopening its names are others")


@clause("blobs", "a blob that is not there is a BlobNotFoundError")
async def missing_blobs_are_named(subject: Subject) -> None:
    store = await _store(subject)
    expect(not await run_in_worker(store.blob_names), "a new session has blobs")
    try:
        await run_in_worker(lambda: store.read_blob(new_id()))
    except BlobNotFoundError:
        return
    expect(False, "a blob that is not there was read")


@clause("blobs", "a blob never changes: a name is used once")
async def blobs_never_change(subject: Subject) -> None:
    store = await _store(subject)
    name = new_id()
    await run_in_worker(lambda: store.write_blob(name, b"first"))
    await _refused(lambda: store.write_blob(name, b"second"), "a name was used twice")
    expect(await run_in_worker(lambda: store.read_blob(name)) == b"first", "a blob was replaced")


@clause("blobs", "a name that is no safe file name is refused, to write and to read")
async def unsafe_names_are_refused(subject: Subject) -> None:
    store = await _store(subject)
    for name in ("../x", "/tmp/x", "a\\b", ".", "..", "a..b", "", " ", "x\0y", "x" * 129, ".x", "x.", "con"):
        for call in (lambda name=name: store.write_blob(name, b""), lambda name=name: store.read_blob(name)):
            try:
                await run_in_worker(call)
            except ValueError:
                continue
            expect(False, f"{name[:20]!r} was taken")
    expect(not await run_in_worker(store.blob_names), "something was stored")


@clause("blobs", "several are written at once, beside the record, which does not count them")
async def blobs_are_written_side_by_side(subject: Subject) -> None:
    store = await _store(subject)
    names = [new_id() for _ in range(8)]

    async def write(name: str) -> None:
        await run_in_worker(lambda: store.write_blob(name, name.encode() * 1000))

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(write, name)
        group.start_soon(subject.commit, cast("SessionStorage", store), *chain(3))
    for name in names:
        expect(await run_in_worker(lambda name=name: store.read_blob(name)) == name.encode() * 1000, "one was changed")
    await _close(store)
    expect(len(await subject.read_all()) == 3, "the record holds other entries than were committed")


@clause("blobs", "a reader reads blobs and writes none")
async def readers_write_no_blobs(subject: Subject) -> None:
    store = await _store(subject)
    name = new_id()
    await run_in_worker(lambda: store.write_blob(name, DATA))
    reader = await _store(subject, "read")
    expect(await run_in_worker(lambda: reader.read_blob(name)) == DATA, "a reader does not see it")
    await _refused(lambda: reader.write_blob(new_id(), b""), "a reader wrote a blob")
    expect([*await run_in_worker(store.blob_names)] == [name], "something was stored")


@clause("blobs", "a closed storage writes no blobs")
async def closed_storages_write_no_blobs(subject: Subject) -> None:
    store = await _store(subject)
    await _close(store)
    await _refused(lambda: store.write_blob(new_id(), b""), "a closed storage wrote a blob")
    expect(not await run_in_worker((await _store(subject)).blob_names), "something was stored")


@clause("blobs", "blobs are gone with their session")
async def blobs_are_deleted(subject: Subject) -> None:
    store = await _store(subject)
    if not isinstance(store, Deletable):
        raise AbilityAbsent("it has no delete()")
    name = new_id()
    await run_in_worker(lambda: store.write_blob(name, DATA))
    await run_in_worker(store.delete)
    try:
        again = await _store(subject)
        expect(not await run_in_worker(again.blob_names), "its blobs are still there")
        await run_in_worker(lambda: again.read_blob(name))
    except (SessionNotFoundError, StaleSessionError, BlobNotFoundError):
        return
    expect(False, "a blob of a deleted session was read")
