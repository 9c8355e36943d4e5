"""A session in memory, under the same rules as on disk: for tests, and for conversations nobody will ask for again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from storage.blobs import Blobs, blob_exists, blob_not_found, check_blob_name
from storage.copying import renumbered
from storage.errors import ReadOnlySessionError, SessionClosedError, SessionLockedError, StaleSessionError
from storage.event_loops import run_in_worker
from storage.header import SessionHeader, new_header
from storage.protocols import Durability, Mode, Record, StorageInfo


class Memory:
    """What a file is to ``JsonlStorage``: the committed records, and who writes."""

    def __init__(self, header: SessionHeader, records: list[Record], blobs: Blobs = ()) -> None:
        self.header = header
        self.records = records
        self.blobs: dict[str, bytes] = dict(blobs)
        self.writer: MemoryStorage | None = None
        self.deleted = False


class MemoryStorage:
    """A ``SessionStorage`` over a ``Memory``. Made by ``create`` and ``open``."""

    def __init__(self, memory: Memory, *, writable: bool) -> None:
        """Use ``create`` or ``open``."""
        self.memory = memory
        self._writable = writable
        self._info = StorageInfo(header=memory.header, writable=writable, inline=True, place="memory")
        if writable:
            memory.writer = self

    @classmethod
    async def create(
        cls,
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
        blobs: Blobs = (),
        durability: Durability = "fsync",
    ) -> MemoryStorage:
        """A new session. ``durability`` is taken for symmetry: memory has none."""
        del durability
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)
        return cls(Memory(header, renumbered(records), await gathered(blobs)), writable=True)

    @classmethod
    async def open(cls, memory: Memory | MemoryStorage, *, mode: Mode = "write") -> MemoryStorage:
        """The same memory once more, under the same rules: one writer (``SessionLockedError``), readers always."""
        if isinstance(memory, MemoryStorage):
            memory = memory.memory
        if memory.deleted:
            raise StaleSessionError("this session was deleted")
        if mode == "write" and memory.writer is not None:
            raise SessionLockedError(
                "the session in memory has a writer in this process; close it first", owner={"pid": os.getpid()}
            )
        return cls(memory, writable=mode == "write")

    @property
    def info(self) -> StorageInfo:
        """The header and the state."""
        return self._info

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``, at most ``limit``."""
        stop = None if limit is None else after_seq + 1 + limit
        return self.memory.records[after_seq + 1 : stop]

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Keep ``records``."""
        if not self._writable:
            raise _read_only()
        if self.memory.deleted:
            raise StaleSessionError("the session in memory was deleted", path="memory")
        if self.memory.writer is not self:
            raise SessionClosedError("this storage is closed; open the session anew", path="memory")
        if not records:
            return None
        if records[0].seq != len(self.memory.records):
            raise StaleSessionError(
                f"the next entry of this session is {len(self.memory.records)}, not {records[0].seq}; open it anew"
            )
        self.memory.records.extend(records)
        return None

    def close(self) -> None:
        """Let another writer in."""
        if self.memory.writer is self:
            self.memory.writer = None

    def delete(self) -> None:
        """Forget all records. Raises ``SessionLockedError`` while somebody else writes."""
        if self.memory.writer not in (None, self):
            raise SessionLockedError(
                "the session in memory has a writer in this process; close it first", owner={"pid": os.getpid()}
            )
        self.close()
        self.memory.deleted = True
        self.memory.records.clear()
        self.memory.blobs.clear()

    def write_blob(self, name: str, data: bytes) -> None:
        """Keep ``data`` under ``name``."""
        check_blob_name(name)
        if not self._writable:
            raise _read_only()
        if self.memory.deleted or self.memory.writer is not self:
            raise SessionClosedError("the session in memory was deleted or closed")
        if name in self.memory.blobs:
            raise blob_exists(name, path="memory")
        self.memory.blobs[name] = data

    def read_blob(self, name: str) -> bytes:
        """What is kept under ``name``."""
        try:
            return self.memory.blobs[check_blob_name(name)]
        except KeyError:
            raise blob_not_found(name, path="memory") from None

    def blob_names(self) -> Sequence[str]:
        """All names, sorted."""
        return sorted(self.memory.blobs)


def _read_only() -> ReadOnlySessionError:
    return ReadOnlySessionError("the session was opened for reading; open it with mode='write'", path="memory")


async def gathered(blobs: Blobs) -> list[tuple[str, bytes]]:
    """All of ``blobs``, read in a worker: they may come from a disk."""
    return await run_in_worker(lambda: [(check_blob_name(name), data) for name, data in blobs]) if blobs else []
