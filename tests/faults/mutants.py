"""Backends that break one rule each, to see that the conformance suite notices.

Most stand around a session in memory; those about files and crashes are JSONL sessions, opened or used in a wrong way.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from storage import (
    CommitFailed,
    JsonlStorage,
    Memory,
    MemoryStorage,
    Record,
    SessionLockedError,
    SessionStorage,
    StaleSessionError,
    new_header,
    parse_header,
)
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
    """A session in memory that breaks nothing, with ``read_path`` and ``wait_for_change`` as well."""

    shares_all = False
    lets_everybody_in = False
    readers_write = False
    told_of_the_owner: dict[str, Any] = {"owner": {"pid": 1}}  # noqa: RUF012 - never changed
    waited_at = -1
    """How many records there were when it was last asked for changes."""

    def wait_for_change(self, timeout: float) -> bool:
        """Looks again and again."""
        until = time.monotonic() + timeout
        while len(self.memory.records) == self.waited_at:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        self.waited_at = len(self.memory.records)
        return True

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


class StartsAnew(Mutant):
    """Whatever was read before."""

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        return super().read(limit=limit)


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


class Forgets(Mutant):
    """Everything."""

    def commit(self, records: Sequence[Record]) -> Any:
        pass


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


class SleepsOn(Mutant):
    """Is woken by nothing."""

    def wait_for_change(self, timeout: float) -> bool:
        return False


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


class TearsWhatItKept(JsonlStorage):
    """Says that nothing of a failed batch is there, and leaves what was written of it."""

    def _cut_back(self, lines: list[bytes], written: int, error: OSError) -> Any:
        self._size += written
        return CommitFailed(f"no space: {error}", committed=0)


class ForgetsFailedWrites(JsonlStorage):
    """Tells nobody that the disk took nothing."""

    def commit(self, records: Sequence[Record]) -> Any:
        try:
            return super().commit(records)
        except CommitFailed:
            return None


class ForgetsFailedSyncs(JsonlStorage):
    """Tells nobody that a sync failed."""

    def _sync(self) -> None:
        try:
            super()._sync()
        except OSError:
            pass


class SyncsInline(JsonlStorage):
    """Syncs on the event loop."""

    def commit(self, records: Sequence[Record]) -> Any:
        sync = super().commit(records)
        if sync is not None:
            sync()


class LeavesTraces(JsonlStorage):
    """A reader leaves a mark."""

    def close(self) -> None:
        if not self.info.writable:
            Path(f"{self.path}.read").touch(0o600)
        super().close()


class KeepsFilesOpen(JsonlStorage):
    """Until it is collected."""

    _kept: int | None = None

    def close(self) -> None:
        if self._kept is None and self._descriptor >= 0:
            self._kept = os.dup(self._descriptor)
        super().close()

    def __del__(self) -> None:
        if self._kept is not None:
            os.close(self._kept)
        super().__del__()


class Sealed(JsonlStorage):
    """Lets nobody open its file to write, itself included."""

    def commit(self, records: Sequence[Record]) -> Any:
        os.chmod(self.path, 0o400)
        return super().commit(records)


class LocksByName(JsonlStorage):
    """Takes it for a writer that a file is there."""

    marker: Path | None = None

    @classmethod
    async def open_or_create(cls, path: Any, **options: Any) -> JsonlStorage:
        marker = Path(f"{path}.writer")
        try:
            marker.touch(0o600, exist_ok=False)
        except FileExistsError as error:
            raise SessionLockedError("in use") from error
        storage = await super().open_or_create(path, **options)
        cast("LocksByName", storage).marker = marker
        return storage

    def close(self) -> None:
        super().close()
        if self.marker is not None:
            self.marker.unlink(missing_ok=True)


# --- what a newcomer writes


class Lines:
    """A backend as it is written first: ``open``, a line each, and never a sync. Without a lock, it compares."""

    def __init__(self, path: Path, mode: Mode) -> None:
        self.path = path
        if not path.exists():
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(new_header().to_line() + b"\n")
        self.mode = mode
        self.closed = False

    @property
    def info(self) -> StorageInfo:
        with open(self.path, "rb") as file:
            return StorageInfo(header=parse_header(file.readline()), writable=self.mode == "write")

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        lines = self.path.read_bytes().split(b"\n")[1:-1]
        stop = None if limit is None else after_seq + 1 + limit
        return [parse_record(line, seq) for seq, line in enumerate(lines)][after_seq + 1 : stop]

    def commit(self, records: Sequence[Record]) -> None:
        if self.closed or self.mode == "read":
            raise ValueError("not open to write")
        if records and records[0].seq != len(self.read()):
            raise StaleSessionError("somebody else was quicker")
        with open(self.path, "ab") as file:
            file.writelines(item.data + b"\n" for item in records)

    def close(self) -> None:
        self.closed = True


def lines_in(folder: str) -> StorageOpener:
    """Those in a folder."""
    return lambda name, mode: Lines(Path(folder, name), mode)


class Hangs(Mutant):
    """A commit of more than one waits for what never comes, until ``let_go`` is set."""

    let_go = threading.Event()

    def commit(self, records: Sequence[Record]) -> Any:
        if len(records) > 1:
            self.let_go.wait()
        return super().commit(records)


class BelongsToOneThread(Mutant):
    """As a connection of SQLite's does, unless it is told otherwise."""

    def __init__(self, memory: Memory, *, writable: bool) -> None:
        super().__init__(memory, writable=writable)
        self.thread: int | None = None

    def commit(self, records: Sequence[Record]) -> Any:
        self.thread = self.thread or threading.get_ident()
        if self.thread != threading.get_ident():
            raise ValueError("made in another thread")
        return super().commit(records)


class Generates(Mutant):
    """Reads by and by."""

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Any:
        yield from super().read(after_seq=after_seq, limit=limit)


class ComesLate(Mutant):
    """Refuses the second writer, in words of its own."""

    def commit(self, records: Sequence[Record]) -> Any:
        try:
            return super().commit(records)
        except StaleSessionError as error:
            raise KeyError(records[0].seq) from error


class CannotBeClosed(Mutant):
    """Raises when it is closed, and is closed."""

    def close(self) -> None:
        super().close()
        raise OSError("closing failed")
