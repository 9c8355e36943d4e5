"""Sessions as folders of entry files in one folder: ``<root>/<session id>/``."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from storage.blobs import Blobs
from storage.entry_files import EntryFileStorage
from storage.entry_folder import (
    ENTRIES,
    LOCK,
    METADATA,
    entry_file_name,
    list_entry_names,
    read_entry_file,
)
from storage.entry_folder_lifetime import delete_folder, read_header, remove_leftovers
from storage.entry_folder_reading import FolderReader
from storage.entry_folder_streams import reading_folder, receive_folder
from storage.errors import DamagedSessionError, SessionNotFoundError
from storage.file_lock import WriterLock, open_when_free
from storage.folder_repository import FolderRepository
from storage.header import SessionHeader
from storage.protocols import Record
from storage.repository import Mark, SessionSummary
from storage.session_streams import SessionStream
from storage.summaries import digest_all, digest_members, header_members, summarise

READ_AT_EACH_END = 64 * 1024
"""Bytes that a listing reads of the first entries, and of the last, by the names of their files."""

_FILES_AT_EACH_END = 64
_SIZED_AT_MOST = 1000


class EntryFileRepository(FolderRepository[EntryFileStorage]):
    """A ``SessionRepository`` of folders with a file for each entry. Other folders under ``root`` are no sessions."""

    storage_type = EntryFileStorage

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        """The session, read once; see ``StreamsSessions``. Blocking."""
        with reading_folder(self._existing(session_id)) as stream:
            yield stream

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Blobs) -> None:
        """A new session, to the byte; see ``StreamsSessions``. Blocking."""
        receive_folder(self._free(header.id)[1], header, records, blobs, self.durability)

    async def delete(self, session_id: str, *, lock_timeout: float = 0) -> None:
        """Delete the folder, and what crashes left of it; see ``SessionRepository.delete``."""
        path = self.path_of(session_id)

        def attempt() -> None:
            try:
                self._existing(session_id)
            except SessionNotFoundError:
                if not os.path.isdir(self.root) or not remove_leftovers(path):
                    raise
                return
            if not _is_session(path):
                raise SessionNotFoundError(f"{session_id!r} is a folder, but no session; it was left alone", path=path)
            delete_folder(path, WriterLock.acquire(os.path.join(path, LOCK)))
            remove_leftovers(path)

        await open_when_free(lambda: self._deleting(path, attempt), lock_timeout, undo=lambda _: None)

    def _id_of(self, item: os.DirEntry[str]) -> str | None:
        if item.name.startswith(".") or not item.is_dir() or not _is_session(item.path):
            return None
        return item.name

    def _changed_at(self, item: os.DirEntry[str]) -> int:
        try:
            return os.stat(os.path.join(item.path, ENTRIES)).st_mtime_ns
        except FileNotFoundError:
            return item.stat().st_mtime_ns

    def _summarise(self, mark: Mark, path: str, *, deep: bool) -> SessionSummary:
        def look_at_ends() -> dict[str, Any]:
            lines, size = _read_ends(os.path.join(path, ENTRIES), sized=deep)
            return {"size": size} | digest_members(digest_all(lines), deep=False)

        def look_at_header() -> dict[str, Any]:
            return header_members(read_header(path))

        def look_at_all() -> dict[str, Any]:
            reader = FolderReader(path)
            damage = reader.load(alone=False).damage
            if damage:
                raise damage[0]
            return digest_members(digest_all(record.data for record in reader.read(-1, None, alone=False)), deep=True)

        looks = [look_at_header, look_at_ends, look_at_all]
        return summarise(mark.id, path, mark.changed, None, *(looks if deep else looks[:2]))


def _is_session(path: str) -> bool:
    """Whether the folder has a header, or entries that have lost theirs: damaged, but not to be hidden."""
    return os.path.lexists(os.path.join(path, METADATA)) or os.path.isdir(os.path.join(path, ENTRIES))


def _read_ends(folder: str, *, sized: bool) -> tuple[Sequence[bytes], int | None]:
    """Some of the first and the last lines, as far as they are known to be those, and the size of all files.

    Which entry is the first is known for certain only when its file was read; ids mostly sort by time, and only mostly.
    So of what was read only the run from the first place on is looked at, and behind it what gives a name.
    """
    names = sorted(list_entry_names(folder)[0])
    size = _size_of(folder, names) if sized or len(names) <= _SIZED_AT_MOST else None
    if len(names) <= 2 * _FILES_AT_EACH_END:
        first, last = names, []
    else:
        first, last = names[:_FILES_AT_EACH_END], names[: -_FILES_AT_EACH_END - 1 : -1]
    found: dict[int, bytes] = {}
    _read_some(folder, first, found, READ_AT_EACH_END if last else 2 * READ_AT_EACH_END)
    _read_some(folder, last, found, READ_AT_EACH_END)
    lines: list[bytes] = []
    while len(lines) in found:
        lines.append(found.pop(len(lines)))
    return [*lines, *(found[seq] for seq in sorted(found) if b'"session_info"' in found[seq])], size


def _read_some(folder: str, names: Sequence[str], found: dict[int, bytes], most: int) -> None:
    """Read files by their names until ``most`` bytes are reached; a file that is longer than that is left out."""
    for name in names:
        path = os.path.join(folder, entry_file_name(name))
        try:
            most -= os.stat(path).st_size
            if most < 0:
                return
            entry = read_entry_file(path, name)
        except (DamagedSessionError, FileNotFoundError):
            continue  # a listing names what opening finds only if it is asked to look deep
        if entry is not None:
            found[entry.seq] = entry.line


def _size_of(folder: str, names: Sequence[str]) -> int:
    size = 0
    for name in names:
        try:
            size += os.stat(os.path.join(folder, entry_file_name(name))).st_size
        except FileNotFoundError:
            continue
    return size
