"""Sessions in memory: a repository for tests, with the same rules as those on disk."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import anyio
import anyio.lowlevel

from storage.base_repository import BaseRepository, NewSession, Opening, OpeningOrNew
from storage.blobs import Blobs
from storage.copying import renumbered
from storage.errors import SessionExistsError, SessionLockedError
from storage.event_loops import run_in_worker
from storage.header import SessionHeader, new_header
from storage.identifiers import check_session_id, new_id
from storage.memory import Memory, MemoryStorage, gathered
from storage.open_or_make import open_or_make
from storage.protocols import Record
from storage.repository import (
    Mark,
    SessionPage,
    SessionSummary,
    check_prefix,
    marks_of_page,
    match_prefix,
    namesake_of,
    no_such_session,
)
from storage.session_streams import SessionStream, stream_of
from storage.summaries import (
    digest_all,
    digest_members,
    header_members,
    parse_time,
    summarise,
    time_in,
)

_WAIT = 0.01


class MemoryRepository(BaseRepository[MemoryStorage]):
    """A ``SessionRepository`` that is gone with the process. What tears or rots on disk does not happen here."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._guard = threading.Lock()
        """Held for no longer than it takes to look and to put: ``receive`` does so in a worker, the rest on the loop."""

    async def _create(self, session_id: str | None, **new: Unpack[NewSession]) -> MemoryStorage:
        await anyio.lowlevel.checkpoint()
        session_id = self._free(session_id)  # before anything is read
        kept = await gathered(new["blobs"])
        return self._make(session_id, new["cwd"], new["parent_session"], new["records"], kept)

    async def _open(self, session_id: str, **opening: Unpack[Opening]) -> MemoryStorage:
        end = time.monotonic() + _checked(opening["lock_timeout"])
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                return await MemoryStorage.open(self._existing(session_id), mode=opening["mode"])
            except SessionLockedError:
                if time.monotonic() >= end:
                    raise
                await anyio.sleep(_WAIT)

    async def _open_or_create(self, session_id: str, **opening: Unpack[OpeningOrNew]) -> MemoryStorage:
        return await open_or_make(
            lambda: self.open(session_id, lock_timeout=opening["lock_timeout"]),
            lambda: self.create(session_id, cwd=opening["cwd"]),
        )

    async def list(self, *, after: str | None = None, limit: int = 50, deep: bool = False) -> SessionPage:
        """The sessions, the one that was written to last first; see ``SessionRepository.list``."""
        living = self._living()
        marks = {Mark(_changed_at(memory), session_id): memory for session_id, memory in living.items()}
        page, rest = marks_of_page(marks, after, limit)
        found = await run_in_worker(lambda: [_summary(mark, marks[mark], deep=deep) for mark in page])
        return SessionPage(tuple(found), rest)

    async def find(self, prefix: str) -> str:
        """The id that ``prefix`` names; see ``SessionRepository.find``."""
        await anyio.lowlevel.checkpoint()
        return match_prefix(check_prefix(prefix), self._living(), place="memory")

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        """The session, read once; see ``StreamsSessions``. Blocking."""
        yield stream_of(MemoryStorage(self._existing(session_id), writable=False))

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Blobs) -> None:
        """A new session, to the byte; see ``StreamsSessions``. Blocking."""
        self._put(Memory(header, list(records), blobs))

    async def delete(self, session_id: str, *, lock_timeout: float = 0) -> None:
        """Forget the session; see ``SessionRepository.delete``."""
        storage = await self.open(session_id, lock_timeout=lock_timeout)
        storage.delete()
        with self._guard:
            if self._memories.get(session_id) is storage.memory:  # nobody has put another one there already
                del self._memories[session_id]

    def _make(
        self,
        session_id: str,
        cwd: str | os.PathLike[str] | None,
        parent_session: str | None,
        records: Iterable[Record],
        blobs: Blobs = (),
    ) -> MemoryStorage:
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)
        storage = MemoryStorage(Memory(header, renumbered(records), blobs), writable=True)
        self._put(storage.memory)
        return storage

    def _put(self, memory: Memory) -> None:
        """Keep it. Raises ``SessionExistsError`` if there is one of that id by now."""
        with self._guard:
            self._memories[self._free(memory.header.id)] = memory

    def _living(self) -> dict[str, Memory]:
        """The sessions that nobody deleted through their own storage."""
        memories = self._memories.copy()  # ``receive`` adds to them in a worker
        return {session_id: memory for session_id, memory in memories.items() if not memory.deleted}

    def _existing(self, session_id: str) -> Memory:
        living = self._living()
        if check_session_id(session_id) not in living:
            raise no_such_session(session_id, living, place="memory")
        return living[session_id]

    def _free(self, session_id: str | None) -> str:
        session_id = check_session_id(new_id() if session_id is None else session_id)
        living = self._living()
        taken = session_id if session_id in living else namesake_of(session_id, living)
        if taken is not None:
            raise SessionExistsError(f"there is a session {taken!r} already; choose another id", path="memory")
        return session_id


def _checked(lock_timeout: float) -> float:
    if math.isnan(lock_timeout):
        raise ValueError("lock_timeout is not a number; give the seconds to wait, 0 for not at all")
    return lock_timeout


def _changed_at(memory: Memory) -> int:
    """When its last entry was made, in nanoseconds since 1970."""
    changed = time_in(memory.records[-1].data) if memory.records else parse_time(memory.header.timestamp)
    return int(changed.timestamp() * 1_000_000) * 1000 if changed is not None else 0


def _summary(mark: Mark, memory: Memory, *, deep: bool) -> SessionSummary:
    records: Sequence[Record] = tuple(memory.records)

    def look() -> dict[str, Any]:
        size = sum(len(record.data) + 1 for record in records)
        digest = digest_all(record.data for record in records)
        return {"size": size} | header_members(memory.header) | digest_members(digest, deep=deep)

    return summarise(mark.id, "memory", mark.changed, None, look)
