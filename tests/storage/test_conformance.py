"""The conformance suite: every backend of ours passes it, and it fails a backend that breaks a rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage import (
    CommitFailed,
    EntryFileStorage,
    JsonlStorage,
    Memory,
    MemoryStorage,
    PostgresStorage,
    Record,
    SessionLockedError,
    SessionStorage,
    SqliteStorage,
)
from storage.event_loops import run_in_worker
from storage.protocols import Durability, Mode
from storage.testing import ConformanceReport, FolderOpener, StorageOpener, check_storage

pytestmark = pytest.mark.anyio

OPTIONAL = {"a path that is read alone is the path of the whole"}
WATCHING = {"who waits for a change is woken by one, and comes back without one when the time is up"}


def memory_opener() -> Callable[[str, Mode], Any]:
    """Sessions in memory, by name."""
    memories: dict[str, Memory] = {}

    async def open_(name: str, mode: Mode) -> SessionStorage:
        if name in memories:
            return await MemoryStorage.open(memories[name], mode=mode)
        storage = await MemoryStorage.create()
        memories[name] = storage.memory
        return storage

    return open_


def disk_opener(backend: Any, folder: Path, durability: Durability = "os") -> StorageOpener:
    """Sessions in a folder."""

    async def open_(name: str, mode: Mode) -> SessionStorage:
        place = folder / name
        if mode == "read":
            return await backend.open(place, mode="read")
        return await backend.open_or_create(place, durability=durability)

    return open_


def sqlite_opener(folder: Path, durability: Durability) -> StorageOpener:
    """Sessions of one database."""

    async def open_(name: str, mode: Mode) -> SessionStorage:
        file = folder / "all.sqlite"
        if mode == "read":
            return await SqliteStorage.open(file, session_id=name, mode="read")
        return await SqliteStorage.open_or_create(file, session_id=name, durability=durability)

    return open_


def postgres_opener(dsn: str, durability: Durability) -> StorageOpener:
    """Sessions of one database."""

    async def open_(name: str, mode: Mode) -> SessionStorage:
        if mode == "read":
            return await PostgresStorage.open(dsn, session_id=name, mode="read")
        return await PostgresStorage.open_or_create(dsn, session_id=name, durability=durability)

    return open_


def in_folder(kind: str) -> FolderOpener | None:
    """What opens sessions of that backend in a folder of their own, synced; ``None`` where there are no files of ours."""
    if kind.startswith("sqlite"):
        return lambda folder: sqlite_opener(Path(folder), "fsync")
    if kind in ("jsonl", "entry files"):
        backend = JsonlStorage if kind == "jsonl" else EntryFileStorage
        return lambda folder: disk_opener(backend, Path(folder), "fsync")
    return None


@pytest.mark.parametrize(
    "kind", ["memory", "jsonl", "entry files", "sqlite", "sqlite, synced", "postgres", "postgres, synced"]
)
async def test_our_backends_conform(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every backend passes every clause, but those for abilities it does not have."""
    if kind == "memory":
        opener: StorageOpener = memory_opener()
    elif kind.startswith("sqlite"):
        opener = sqlite_opener(tmp_path, "os" if kind == "sqlite" else "fsync")
    elif kind.startswith("postgres"):
        dsn = request.getfixturevalue("postgres_server").dsn()
        opener = postgres_opener(dsn, "os" if kind == "postgres" else "fsync")
    else:
        opener = disk_opener(JsonlStorage if kind == "jsonl" else EntryFileStorage, tmp_path)
    report = await check_storage(opener, in_folder=in_folder(kind))
    report.raise_for_failures()
    absent = {result.clause: result.detail for result in report.absent}
    reasons = ("in_folder", "power loss", "seen", "info.inline")
    about_files = {sentence for sentence, why in absent.items() if any(reason in why for reason in reasons)}
    assert absent.keys() - about_files == OPTIONAL | (set() if kind.startswith("postgres") else WATCHING)
    expected = {"memory": 9, "postgres": 9, "sqlite": 5, "entry files": 1, "jsonl": 0}
    assert len(about_files) == expected[kind.split(",", maxsplit=1)[0]]
    assert len(report.passed) >= 45
    rules = {result.rule for result in report.results}
    assert {"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12"} <= rules


class Broken(MemoryStorage):
    """A backend that breaks a rule, by the name of the fault."""

    fault = ""
    stored: dict[int, list[Record]]

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        if self.fault == "ignores the limit":
            return super().read(after_seq=after_seq)
        if self.fault == "gives its own list":
            return self.memory.records
        records = super().read(after_seq=after_seq, limit=limit)
        if self.fault == "changes odd text":
            return [record._replace(data=record.data.replace("\u2028".encode(), b" ")) for record in records]
        return records

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        if self.fault == "writes anywhere" and not self.memory.deleted:
            self.memory.records.extend(records)
            return None
        if self.fault == "writes when closed":
            self.memory.writer = self
        if self.fault == "forgets some" and len(records) > 3:
            super().commit(records[:-1])
            return None
        if self.fault == "raises the wrong error" and len(self.memory.records) != records[0].seq:
            raise ValueError("no")
        if self.fault == "fails long queues" and len(records) > 100:
            raise CommitFailed("too many", committed=0)
        if self.fault == "writes backwards":
            return super().commit([*reversed(records)]) if len(records) == 1 else self._backwards(records)
        return super().commit(records)

    def write_blob(self, name: str, data: bytes) -> None:
        if self.fault == "replaces blobs":
            self.memory.blobs.pop(name, None)
        if self.fault in ("takes any name for a blob", "lets readers keep blobs"):
            self.memory.blobs[name] = data
        elif self.fault == "cuts blobs":
            super().write_blob(name, data[:4096])
        else:
            super().write_blob(name, data)

    def read_blob(self, name: str) -> bytes:
        if self.fault == "makes blobs up" and name not in self.memory.blobs:
            return b""
        return super().read_blob(name)

    def _backwards(self, records: Sequence[Record]) -> None:
        self.memory.records.extend(reversed(records))

    def delete(self) -> None:
        if self.fault != "deletes nothing":
            super().delete()
        else:
            self.close()


FAULTS = {
    "ignores the limit": "R2",
    "changes odd text": "R1",
    "writes anywhere": "R10",
    "writes when closed": "R10",
    "forgets some": "R8",
    "raises the wrong error": "R10",
    "fails long queues": "R8",
    "writes backwards": "R7",
    "deletes nothing": "delete",
    "lets two writers in": "R12",
    "lets readers write": "R12",
    "replaces blobs": "blobs",
    "takes any name for a blob": "blobs",
    "lets readers keep blobs": "blobs",
    "cuts blobs": "blobs",
    "makes blobs up": "blobs",
}


async def check_broken(fault: str) -> ConformanceReport:
    """The report on a backend with that fault."""
    memories: dict[str, Memory] = {}

    async def open_(name: str, mode: Mode) -> SessionStorage:
        if name not in memories:
            memories[name] = (await MemoryStorage.create()).memory
            memories[name].writer = None
        memory = memories[name]
        if mode == "write" and memory.writer is not None and fault != "lets two writers in":
            raise SessionLockedError("in use")
        writable = mode == "write" or fault == "lets readers write"
        if fault == "lets two writers in":
            storage: Any = TwoWriters(memory, writable=writable)
        else:
            storage = Broken(memory, writable=writable)
        storage.fault = fault
        return storage

    return await check_storage(open_, seconds_per_clause=10)


class TwoWriters(Broken):
    """Whoever commits becomes the writer, and takes the next place, whatever it asked for."""

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        self.memory.writer = self
        self.memory.records.extend(records)
        return None


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_broken_backend_fails(fault: str) -> None:
    """Each of these faults fails a clause of its rule, and the report says so, as text, as data, and as an exception."""
    report = await check_broken(fault)
    assert FAULTS[fault] in {result.rule for result in report.failed}
    with pytest.raises(AssertionError, match="breaks its rules"):
        report.raise_for_failures()
    assert f"{len(report.failed)} failed" in str(report)
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["failed"] == len(report.failed) > 0
    assert {clause["outcome"] for clause in plain["clauses"]} >= {"passed", "failed"}


async def test_what_is_absent_is_no_failure() -> None:
    """A backend without readers is asked for none: those clauses are absent, and the report raises nothing."""
    opener = memory_opener()

    def without_readers(name: str, mode: Mode) -> Any:
        if mode == "read":
            raise NotImplementedError
        return opener(name, mode)

    report = await check_storage(without_readers)
    report.raise_for_failures()
    assert len(report.absent) > len(OPTIONAL)
    assert all(result.detail for result in report.absent)


async def test_a_backend_that_cannot_even_open() -> None:
    """It never raises: an opener that fails makes every clause fail, with the reason and the traceback."""

    def opener(name: str, mode: Mode) -> SessionStorage:
        raise OSError(f"no {name} here for {mode}")

    report = await check_storage(opener)
    assert report.passed == []
    assert all("OSError: no " in result.detail for result in report.failed)
    assert len(report.failed) + len(report.absent) == len(report.results)
    assert "Traceback" in report.failed[0].traceback


async def test_the_order_is_that_of_the_rules() -> None:
    """The report goes by rule number, whatever module a clause stands in."""
    report = await check_storage(memory_opener())
    numbers = [int(result.rule[1:]) for result in report.results if result.rule.startswith("R")]
    assert numbers == sorted(numbers)
    await run_in_worker(lambda: None)
