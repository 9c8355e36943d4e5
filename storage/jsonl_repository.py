"""Sessions as JSONL files in one folder: ``<root>/<session id>.jsonl``."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from storage.blobs import Blobs
from storage.errors import SessionNotFoundError
from storage.event_loops import run_in_worker
from storage.file_lock import WriterLock, open_when_free
from storage.folder_repository import FolderRepository
from storage.header import SessionHeader
from storage.identifiers import absolute_place, check_session_id, is_safe_name
from storage.jsonl import JsonlStorage
from storage.jsonl_file import BegunFile, delete_session_files, left_behind
from storage.jsonl_streams import reading_file, receive_file
from storage.migrating import MigrationReport, read_old_session, write_old_session
from storage.protocols import Record
from storage.repository import Mark, SessionSummary
from storage.session_streams import SessionStream
from storage.summaries import (
    digest_all,
    digest_head_and_tail,
    digest_members,
    header_in,
    header_members,
    summarise,
)

READ_AT_EACH_END = 64 * 1024
"""Bytes that a listing reads from the beginning, and from the end, of a file."""


class JsonlRepository(FolderRepository[JsonlStorage]):
    """A ``SessionRepository`` of JSONL files. Its side files (``.lock``, ``.torn-<offset>``) and blobs are no sessions."""

    suffix: ClassVar[str] = ".jsonl"

    storage_type = JsonlStorage

    async def take_in(self, source: str | os.PathLike[str], session_id: str | None = None) -> MigrationReport:
        """Make a session here of a session file from elsewhere, pi's older versions too; ``source`` is only read.

        Its id is ``session_id``, else the file's own if that can be one here, else a new one. Raises what
        ``migrate_pi_file`` raises; ``SessionExistsError`` also for an id that differs only in case.
        """
        place = absolute_place(source)
        if session_id is not None:
            check_session_id(session_id)

        def take() -> MigrationReport:
            old = read_old_session(place)
            own_id = old.header.id if is_safe_name(old.header.id) else None
            free_id, path = self._free(session_id or own_id)
            return write_old_session(old, path, free_id, self.durability)

        return await run_in_worker(take)

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        """The session, read once and a few lines at a time; see ``StreamsSessions``. Blocking."""
        with reading_file(self._existing(session_id)) as stream:
            yield stream

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Blobs) -> None:
        """A new session, to the byte; see ``StreamsSessions``. Blocking."""
        receive_file(self._free(header.id)[1], header, records, blobs, self.durability)

    async def delete(self, session_id: str, *, lock_timeout: float = 0) -> None:
        """Delete the file and its side files; see ``SessionRepository.delete``."""
        path = self.path_of(session_id)

        def attempt() -> None:
            try:
                self._existing(session_id)
            except SessionNotFoundError:
                if not os.path.isdir(self.root) or not left_behind(path):
                    raise
                # A deletion that was interrupted: what it left is still this session's.
            lock = WriterLock.acquire(path + ".lock")
            try:
                delete_session_files(path)
                lock.remove()
            finally:
                lock.release()

        await open_when_free(lambda: self._deleting(path, attempt), lock_timeout, undo=lambda _: None)

    def _id_of(self, item: os.DirEntry[str]) -> str | None:
        if not item.name.endswith(self.suffix) or item.name.startswith("."):
            return None
        is_session = item.is_symlink() or item.is_file(follow_symlinks=False)
        return item.name.removesuffix(self.suffix) if is_session else None

    def _changed_at(self, item: os.DirEntry[str]) -> int:
        return item.stat(follow_symlinks=False).st_mtime_ns

    def _summarise(self, mark: Mark, path: str, *, deep: bool) -> SessionSummary:
        head: bytes = b""
        whole = False

        def look_at_ends() -> dict[str, Any]:
            nonlocal head, whole
            size, head, tail = _read_ends(path)
            whole = tail is None
            return {"size": size} | digest_members(digest_head_and_tail(head, tail), deep=False)

        def look_at_header() -> dict[str, Any]:
            return header_members(header_in(head, whole=whole, path=path))

        def look_at_all() -> dict[str, Any]:
            begun = BegunFile(path, "read", "raise")
            try:
                digest = digest_all(record.data for record in begun.records())
                opened = begun.finish("read_only")
                return header_members(opened.info.header) | digest_members(digest, deep=True)
            finally:
                begun.close()

        looks = [look_at_ends, look_at_header, look_at_all]
        return summarise(mark.id, path, mark.changed, None, *(looks if deep else looks[:2]))


def _read_ends(path: str) -> tuple[int, bytes, bytes | None]:
    """The file's size, its first bytes, and its last ones, or ``None`` if the first are all."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(descriptor).st_size
        if size <= 2 * READ_AT_EACH_END:
            return size, os.read(descriptor, 2 * READ_AT_EACH_END), None
        head = os.read(descriptor, READ_AT_EACH_END)
        # One byte more: if that is a newline, the first line of the tail is whole.
        os.lseek(descriptor, size - READ_AT_EACH_END - 1, os.SEEK_SET)
        return size, head, os.read(descriptor, READ_AT_EACH_END + 1)
    finally:
        os.close(descriptor)
