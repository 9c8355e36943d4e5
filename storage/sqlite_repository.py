"""The sessions of one SQLite database: listed from what is kept in columns, forked by reference."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, Unpack

from storage.base_repository import BaseRepository, NewSession, Opening, OpeningOrNew
from storage.blobs import Blobs
from storage.errors import DamagedSessionError, SessionNotFoundError, StaleSessionError
from storage.event_loops import Breath, run_in_worker
from storage.file_lock import open_when_free
from storage.header import SessionHeader, parse_header
from storage.identifiers import absolute_place, check_session_id
from storage.protocols import Durability, Record
from storage.repository import Mark, SessionPage, SessionSummary, check_prefix, mark_before, match_prefix
from storage.session_streams import SessionStream, check_writable, identity_of
from storage.sqlite import SqliteStorage
from storage.sqlite_checking import problems_of
from storage.sqlite_database import Database
from storage.sqlite_opening import delete_from, meaning, missing, place_of, read_record, real_path, rewrite, take_lock
from storage.sqlite_sessions import Listed, find_session, ids_beginning, list_sessions, read_piece
from storage.sqlite_streams import reading_rows, receive_rows
from storage.summaries import header_members, summarise

T = TypeVar("T")


class _DeletedMeanwhileError(Exception):
    """A session was deleted after it was listed and before it was read: it is not in the listing, then."""


class SqliteRepository(BaseRepository[SqliteStorage]):
    """A ``SessionRepository`` in one database file. It is open while one of its sessions is, or while a call runs.

    What a new session, a fork above all, and its parent in the same file have in common from the first entry on is
    shared, not copied. A transaction leaves no torn tail.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "fsync") -> None:
        """``path`` is the database's file; it is made (0600) with the first session."""
        self.path: str = absolute_place(path)
        self.durability: Durability = durability

    async def _create(self, session_id: str | None, **new: Unpack[NewSession]) -> SqliteStorage:
        return await SqliteStorage.create(self.path, session_id=session_id, durability=self.durability, **new)

    async def _open(self, session_id: str, **opening: Unpack[Opening]) -> SqliteStorage:
        session_id = check_session_id(session_id)
        return await SqliteStorage.open(self.path, session_id=session_id, durability=self.durability, **opening)

    async def _open_or_create(self, session_id: str, **opening: Unpack[OpeningOrNew]) -> SqliteStorage:
        return await SqliteStorage.open_or_create(
            self.path, session_id=check_session_id(session_id), durability=self.durability, **opening
        )

    async def list(self, *, after: str | None = None, limit: int = 50, deep: bool = False) -> SessionPage:
        """The sessions, the one that was written to last first; see ``SessionRepository.list``.

        No line is read for it, unless ``deep`` is asked for. One that is written to between two pages moves to the front.
        """
        mark = mark_before(after, limit)
        before = (mark.changed, mark.id) if mark is not None else None
        return await run_in_worker(lambda: self._list(before, limit, deep))

    async def find(self, prefix: str) -> str:
        """The id that ``prefix`` names; see ``SessionRepository.find``."""
        check_prefix(prefix)
        ids = await run_in_worker(
            lambda: self._reading("the sessions cannot be listed", lambda c: ids_beginning(c, prefix), [])
        )
        return match_prefix(prefix, ids, place=self.path)

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        """The session, read once and a piece at a time; see ``StreamsSessions``. Blocking."""
        with reading_rows(self.path, check_session_id(session_id)) as stream:
            yield stream

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Blobs) -> None:
        """A new session, to the byte; see ``StreamsSessions``. Blocking."""
        check_session_id(header.id)
        receive_rows(self.path, header, records, blobs, self.durability)

    def identity(self) -> object:
        """The file; see ``LooksAhead``. Blocking."""
        return identity_of(self.path)

    def check_receiving(self) -> None:
        """See that the file is a database of ours, or none yet, and can be written; see ``LooksAhead``. Blocking."""
        self._reading("no session can be made here", lambda _: None, None)
        path = real_path(self.path)
        check_writable(path)
        check_writable(os.path.dirname(path))  # the log lies beside it

    async def delete(self, session_id: str, *, lock_timeout: float = 0) -> None:
        """Delete the session, so that nothing of it is left in the file or its log; see ``SessionRepository.delete``.

        What its forks share with it stays for them until the last of them is deleted. In a file of more than 32 MiB,
        fragments may linger inside pages that are in use, where SQLite once moved a row; ``vacuum`` removes them.
        """
        check_session_id(session_id)

        def attempt() -> None:
            path = real_path(self.path)
            doing = "the session could not be deleted"
            if self._reading(doing, lambda c: find_session(c, session_id, path), None) is None:
                raise SessionNotFoundError(f"there is no session {session_id!r}", path=self.path)
            lock = take_lock(path, session_id)
            try:
                delete_from(path, session_id, place_of(path, session_id))
                lock.remove()
            finally:
                lock.release()

        guarded = partial(meaning, self.path, "the session could not be deleted", attempt)
        await open_when_free(guarded, lock_timeout, undo=lambda _: None)

    async def vacuum(self) -> None:
        """Write the file anew, without the room that deleted sessions left. Others wait meanwhile; it needs as much disk.

        Raises ``SessionNotFoundError`` where there is no database, and ``StorageError``.
        """

        def run() -> None:
            database = Database.use(real_path(self.path), writing=True)
            try:
                rewrite(database)
            finally:
                database.release()

        await run_in_worker(lambda: meaning(self.path, "the database cannot be rewritten", run))

    async def check(self) -> list[str]:
        """What is wrong with the file as a whole, a line each: its pages and indexes, and what belongs to nothing.

        Every page is read, and nothing is changed. Raises ``StorageError`` and ``DamagedSessionError``.
        """
        return await run_in_worker(lambda: self._reading("the database cannot be checked", problems_of, []))

    # ---- blocking, in a worker

    def _reading(self, doing: str, work: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """What ``work`` finds in the database; ``nothing`` where there is none yet."""

        def run() -> T:
            try:
                database = Database.use(real_path(self.path), writing=False)
            except SessionNotFoundError:
                return nothing
            try:
                return database.read(work)
            finally:
                database.release()

        return meaning(self.path, doing, run)

    def _list(self, before: tuple[int, str] | None, limit: int, deep: bool) -> SessionPage:
        rows = self._reading("the sessions cannot be listed", lambda c: list_sessions(c, before, limit + 1), [])
        page = rows[:limit]
        breath = Breath()
        summaries: list[SessionSummary] = []
        for row in page:
            breath.take()
            with suppress(_DeletedMeanwhileError):
                summaries.append(self._summarise(row, deep))
        rest = str(Mark(page[-1].modified, page[-1].id)) if len(rows) > limit else None
        return SessionPage(tuple(summaries), rest)

    def _summarise(self, row: Listed, deep: bool) -> SessionSummary:
        path = real_path(self.path)
        place = place_of(path, row.id)

        def look() -> dict[str, Any]:
            return {"first_message": row.first_message, "name": row.name}

        def look_at_header() -> dict[str, Any]:
            return header_members(parse_header(row.header, path=place))

        def look_at_all() -> dict[str, Any]:
            self._check_lines(row.id, place)
            return {"entries": row.next_seq}

        looks = [look, look_at_header, look_at_all]
        return summarise(row.id, place, row.modified, row.bytes, *(looks if deep else looks[:2]))

    def _check_lines(self, session_id: str, place: str) -> None:
        """Read and check every line of a session. Raises ``DamagedSessionError``; for one that is gone, the error for it."""
        try:
            self._check_each_line(session_id, place)
        except (SessionNotFoundError, StaleSessionError) as error:
            # Stale is a database that was replaced, too; then this asks the new one, and says what is wrong with it.
            if session_id not in self._reading(
                "the session cannot be read", lambda c: ids_beginning(c, session_id), []
            ):
                raise _DeletedMeanwhileError from error
            raise

    def _check_each_line(self, session_id: str, place: str) -> None:
        path = real_path(self.path)
        doing = "the session cannot be read"
        found = self._reading(doing, lambda c: find_session(c, session_id, path), None)
        if found is None:
            return
        expected = 0
        breath = Breath()
        ids: set[str] = set()
        while lines := self._reading(
            doing, lambda c, after=expected - 1: read_piece(c, found, after, found.next_seq, place), []
        ):
            for seq, data in lines:
                breath.take()
                if seq != expected:
                    raise missing(expected, seq, place)
                expected = seq + 1
                record = read_record(seq, data, place)
                if record.id in ids:
                    raise DamagedSessionError(f"the id {record.id!r} was used before", path=place, line=seq + 2)
                ids.add(record.id)
        if expected < found.next_seq:
            raise missing(expected, found.next_seq, place)
