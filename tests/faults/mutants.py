"""Backends that break one rule each, to see that the conformance suite notices.

Most stand around a session in memory; those about files and crashes are JSONL sessions, opened or used in a wrong way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from storage import JsonlStorage, Memory, MemoryStorage, Record, SessionLockedError, SessionStorage, new_header
from storage.decode import parse_record
from storage.protocols import Durability, Mode, StorageInfo
from storage.testing.subject import StorageOpener, record


class Memories:
    """Sessions in memory by name, each opened as a ``kind``."""

    def __init__(self, kind: type[Mutant]) -> None:
        self.kind = kind
        self.memories: dict[str, Memory] = {}

    async def __call__(self, name: str, mode: Mode) -> SessionStorage:
        name = "the one" if self.kind.shares_all else name
        if name not in self.memories:
            storage = await MemoryStorage.create()
            self.memories[name] = storage.memory
            storage.close()
        memory = self.memories[name]
        if mode == "write" and memory.writer is not None and not self.kind.lets_everybody_in:
            raise SessionLockedError("in use", **self.kind.told_of_the_owner)
        return cast("SessionStorage", self.kind(memory, writable=mode == "write" or self.kind.readers_write))


class Mutant(MemoryStorage):
    """A session in memory that breaks nothing, with a ``read_path`` as well."""

    shares_all = False
    lets_everybody_in = False
    readers_write = False
    told_of_the_owner: dict[str, Any] = {"owner": {"pid": 1}}  # noqa: RUF012 - never changed

    def read_path(self, leaf_id: str) -> Sequence[Record]:
        """The path, from the parents."""
        known = {item.id: item for item in self.memory.records}
        path: list[Record] = []
        at: str | None = leaf_id
        while at is not None:
            path.insert(0, known[at])
            at = known[at].parent_id
        return path


def reading(change: Callable[[bytes], bytes]) -> type[Mutant]:
    """Gives other bytes than were committed."""

    class Reading(Mutant):
        def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
            found = super().read(after_seq=after_seq, limit=limit)
            changed = [(item, change(item.data)) for item in found]
            return [
                item
                if data == item.data
                else parse_record(data, item.seq)
                if data[-1:] == b"}"
                else item._replace(data=data)
                for item, data in changed
            ]

    return Reading


def replacing(old: bytes, new: bytes) -> type[Mutant]:
    """Gives ``new`` where ``old`` was committed."""
    return reading(lambda data: data.replace(old, new))


class NewHeaders(Mutant):
    @property
    def info(self) -> StorageInfo:
        return StorageInfo(header=new_header(), writable=self._writable, inline=True)


class ChangesTheFirst(Mutant):
    def commit(self, records: Sequence[Record]) -> Any:
        if records and records[0].seq == 3:
            first = self.memory.records[0]
            self.memory.records[0] = first._replace(data=first.data.replace(b"message 0", b"message X"))
        return super().commit(records)


class LosesTheLastOnClosing(Mutant):
    def close(self) -> None:
        if self.memory.writer is self and self.memory.records:
            self.memory.records.pop()
        super().close()


class IgnoresTheLimit(Mutant):
    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        return super().read(after_seq=after_seq)


class SkipsInPages(Mutant):
    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        found = list(super().read(after_seq=after_seq, limit=limit))
        return [*found[:1], *found[2:]] if limit == 7 else found


class NeverEmpty(Mutant):
    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        if not self.memory.records:
            self.memory.records.append(record(0, "nobody wrote this"))
        return super().read(after_seq=after_seq, limit=limit)


class WritesBackwards(Mutant):
    def commit(self, records: Sequence[Record]) -> Any:
        self.memory.records.extend(reversed(records))


class ForgetsTheLast(Mutant):
    """Of each batch of more than one."""

    def commit(self, records: Sequence[Record]) -> Any:
        self.memory.records.extend(records[:-1] if len(records) > 1 else records)


class Buffers(Mutant):
    """Writes when it is closed."""

    def __init__(self, memory: Memory, *, writable: bool) -> None:
        super().__init__(memory, writable=writable)
        self.kept: list[Record] = []

    def commit(self, records: Sequence[Record]) -> Any:
        self.kept.extend(records)

    def close(self) -> None:
        self.memory.records.extend(self.kept)
        self.kept.clear()
        super().close()


class WritesAnywhere(Mutant):
    def commit(self, records: Sequence[Record]) -> Any:
        self.memory.records.extend(records)


class ChokesOnNothing(Mutant):
    def commit(self, records: Sequence[Record]) -> Any:
        if not records:
            self.memory.records.append(record(len(self.memory.records), "empty"))
            return None
        return super().commit(records)


class WritesWhenClosed(Mutant):
    def commit(self, records: Sequence[Record]) -> Any:
        self.memory.writer = self
        return super().commit(records)

    def write_blob(self, name: str, data: bytes) -> None:
        self.memory.blobs[name] = data


class GivesItsOwnList(Mutant):
    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        if after_seq == -1 and limit is None:
            return self.memory.records
        return super().read(after_seq=after_seq, limit=limit)


class LetsTwoWrite(Mutant):
    lets_everybody_in = True

    def commit(self, records: Sequence[Record]) -> Any:
        self.memory.records.extend(records)


class LastOneWins(Mutant):
    lets_everybody_in = True

    def commit(self, records: Sequence[Record]) -> Any:
        self.memory.records[records[0].seq :] = records


class NamesNobody(Mutant):
    told_of_the_owner: dict[str, Any] = {}  # noqa: RUF012


class KeepsTheLock(Mutant):
    def close(self) -> None:
        pass


class ReadersStandStill(Mutant):
    def __init__(self, memory: Memory, *, writable: bool) -> None:
        super().__init__(memory, writable=writable)
        self.seen = list(memory.records)

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        return super().read(after_seq=after_seq, limit=limit) if self._writable else self.seen[after_seq + 1 :]


class ReadersSeeTwice(Mutant):
    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        found = list(super().read(after_seq=after_seq, limit=limit))
        return found if self._writable or not found else [found[0], *found]


class ReadersWrite(Mutant):
    readers_write = True

    def commit(self, records: Sequence[Record]) -> Any:
        self.memory.writer = self
        return super().commit(records)


class ReadersKeepBlobs(Mutant):
    def write_blob(self, name: str, data: bytes) -> None:
        self.memory.blobs[name] = data


class SharesAll(Mutant):
    shares_all = True
    lets_everybody_in = True


class GivesBuffers(Mutant):
    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        found = super().read(after_seq=after_seq, limit=limit)
        return [item._replace(data=cast("bytes", bytearray(item.data))) for item in found]


class CutsBlobs(Mutant):
    def write_blob(self, name: str, data: bytes) -> None:
        super().write_blob(name, data[:4096])


class MakesBlobsUp(Mutant):
    def read_blob(self, name: str) -> bytes:
        return self.memory.blobs.get(name, b"")


class ReplacesBlobs(Mutant):
    def write_blob(self, name: str, data: bytes) -> None:
        self.memory.blobs.pop(name, None)
        super().write_blob(name, data)


class DeletesNothing(Mutant):
    def delete(self) -> None:
        self.close()


class WrongPaths(Mutant):
    def read_path(self, leaf_id: str) -> Sequence[Record]:
        return self.memory.records


# --- files and crashes


def jsonl_in(durability: Durability = "fsync", kind: Any = JsonlStorage) -> Callable[[str], StorageOpener]:
    """JSONL sessions in a folder."""

    def in_folder(folder: str) -> StorageOpener:
        async def open_(name: str, mode: Mode) -> SessionStorage:
            place = Path(folder, f"{name}.jsonl")
            if mode == "read":
                return await kind.open(place, mode="read")
            return await kind.open_or_create(place, durability=durability)

        return open_

    return in_folder


class BuffersOnDisk(JsonlStorage):
    """Writes when it is closed."""

    kept: list[Record] | None = None

    def commit(self, records: Sequence[Record]) -> Any:
        self.kept = [*(self.kept or []), *records]

    def close(self) -> None:
        if self.kept:
            super().commit(self.kept)
            self.kept = None
        super().close()


class Readable(JsonlStorage):
    """Lets everybody read its file."""

    def commit(self, records: Sequence[Record]) -> Any:
        os.chmod(self.path, 0o644)
        return super().commit(records)
