"""A session as a folder with a file for each entry: good to look at, to diff, and to keep under version control.

A commit writes and syncs a temporary file for each entry, renames them in order, and syncs the folder once for the
batch. Which files there are and how they are read: ``entry_folder``. How they are written: ``entry_folder_writing``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Self, TypeVar

from storage import files
from storage.blob_folder import BlobFolder
from storage.blob_storage import DiskBlobs
from storage.blobs import Blobs
from storage.copying import renumbered
from storage.entry_folder import (
    BLOBS,
    ENTRIES,
    LOCK,
    FolderContents,
    entry_file_name,
    name_some,
)
from storage.entry_folder_lifetime import (
    create_folder,
    delete_folder,
    is_ours,
    prepare_folder,
    read_header,
    read_header_or_stand_in,
    remove_leftovers,
    set_tail_aside,
)
from storage.entry_folder_reading import FolderReader
from storage.entry_folder_writing import remove_files, write_entries
from storage.errors import (
    CommitFailed,
    DamagedSessionError,
    InvalidEntryError,
    InvalidIdError,
    ReadOnlySessionError,
    SessionClosedError,
    SessionError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from storage.event_loops import run_in_worker
from storage.file_lock import WriterLock, open_when_free
from storage.header import SessionHeader, new_header
from storage.identifiers import absolute_place, check_entry_name
from storage.protocols import (
    Corrupt,
    Durability,
    Mode,
    Record,
    SessionWarning,
    StorageInfo,
    TornTail,
)

T = TypeVar("T")
_Unnameable = InvalidIdError | InvalidEntryError
_SALVAGED = "it is damaged, and was opened to save what can be read (on_corrupt='skip')"


class EntryFileStorage(DiskBlobs):
    """One session in a folder: ``metadata.json`` and ``entries/<id>.json``.

    Made by ``create``, ``open`` and ``open_or_create``; for one open session or log, which closes it.
    """

    def __init__(self, folder: str, header: SessionHeader, lock: WriterLock | None, durability: Durability) -> None:
        """Takes over ``lock``. Nothing is read yet; use one of the constructors below."""
        self._folder = folder
        self._durable = durability == "fsync"
        self._lock = lock
        self._closed = False
        self._reader = FolderReader(folder)
        self._blobs = BlobFolder(os.path.join(folder, BLOBS))
        self._info = self._describe(header, [], [])

    @classmethod
    async def create(
        cls,
        where: str | os.PathLike[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
        blobs: Blobs = (),
        durability: Durability = "fsync",
    ) -> Self:
        """A new session in the folder ``where``, holding copies of ``records`` and ``blobs``: made whole or not at all.

        Raises ``SessionExistsError`` if the folder is there and not empty, ``InvalidIdError`` and ``StorageError``.
        """
        folder = absolute_place(where)
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)
        copies = renumbered(records)
        return await run_in_worker(
            lambda: _named(folder, lambda: cls._create(folder, header, copies, durability, blobs)), undo=cls.close
        )

    @classmethod
    async def open(
        cls,
        where: str | os.PathLike[str],
        *,
        mode: Mode = "write",
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "read_only",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> Self:
        """The session in the folder ``where``. Waits at most ``lock_timeout`` seconds for another writer to end.

        Raises ``SessionNotFoundError``, ``SessionLockedError``, ``DamagedSessionError``, ``UnsupportedVersionError``
        and ``StorageError`` (it cannot be read); nothing was then changed. Cancelled, it leaves nothing open.
        """
        folder = absolute_place(where)
        attempt = partial(cls._open, folder, mode, durability, on_torn_tail, on_corrupt)
        return await open_when_free(lambda: _named(folder, attempt), lock_timeout, undo=cls.close)

    @classmethod
    async def open_or_create(
        cls,
        where: str | os.PathLike[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "repair",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> Self:
        """The session in ``where``, begun now if there is none; an unterminated tail is set aside, and that is said."""
        folder = absolute_place(where)
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)

        def attempt() -> Self:
            try:
                return cls._open(folder, "write", durability, on_torn_tail, on_corrupt)
            except SessionNotFoundError:
                try:
                    return cls._begin(folder, header, durability)
                except SessionExistsError:
                    # Somebody else was quicker, or it is something that is not ours: now opening says which.
                    try:
                        return cls._open(folder, "write", durability, on_torn_tail, on_corrupt)
                    except SessionNotFoundError as error:
                        raise SessionExistsError(
                            "this folder holds other things and no session; choose a folder of its own", path=folder
                        ) from error

        return await open_when_free(lambda: _named(folder, attempt), lock_timeout, undo=cls.close)

    @property
    def info(self) -> StorageInfo:
        """The header, whether it may be written, and what was found at opening."""
        return self._info

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``; behind the last one it looks for what another process added."""
        self._check_open()
        return self._reader.read(after_seq, limit, alone=self._is_alone())

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Write a file for each record, in order; returns the sync of the folder, once for all of them."""
        self._check_open()
        if not self._info.writable:
            raise ReadOnlySessionError(self._info.read_only_reason or "opened for reading", path=self._folder)
        if not records:
            return None
        reader = self._reader
        if records[0].seq != len(reader):
            raise reader.stale(f"the next entry is number {len(reader)}, not {records[0].seq}")
        if not self._is_alone():
            raise reader.stale("the writer's lock is not ours any more (was this process forked?)")
        reader.check_as_left()
        named, refused = self._check_names(records)
        stopped: OSError | None = None
        committed = 0
        if named:
            committed, stopped = write_entries(reader.entries, named, durable=self._durable)
            if not reader.take_note():
                remove_files([os.path.join(reader.entries, entry_file_name(record.id)) for record in named[:committed]])
                raise reader.stale("its header was replaced or removed while we wrote")
        for record in named[:committed]:
            reader.remember(record.id)
        sync = partial(files.sync_folder, reader.entries) if self._durable and committed else None
        cause = stopped or refused
        if cause is None:
            return sync
        message = cause.message if isinstance(cause, _Unnameable) else str(cause)
        raise CommitFailed(
            f"{committed} of {len(records)} entries were written: {message}",
            committed=committed,
            sync=sync,
            path=self._folder,
        ) from cause

    def _may_write(self) -> bool:
        return self._info.writable and self._is_alone()

    def _check_still_ours(self) -> None:
        self._reader.check_header()

    def close(self) -> None:
        """Give the writer's lock up. Idempotent."""
        self._closed = True
        self._reader.forget()
        if self._lock is not None:
            self._lock.release()

    def delete(self) -> None:
        """Close and delete the session with everything in its folder, and what crashes left of it beside it.

        Raises ``SessionLockedError`` if another writer is at work, and ``StorageError``.
        """
        lock = self._lock
        if lock is None or not lock.held:
            lock = WriterLock.acquire(os.path.join(self._folder, LOCK))
        self._closed = True
        self._reader.forget()
        delete_folder(self._folder, lock)
        _named(self._folder, lambda: remove_leftovers(self._folder))

    # ---- opening

    @classmethod
    def _create(
        cls,
        folder: str,
        header: SessionHeader,
        records: Sequence[Record],
        durability: Durability,
        blobs: Blobs = (),
    ) -> Self:
        names: dict[str, str] = {}
        for record in records:
            names[_check_name(record.id, {}, names)] = record.id
        lock = create_folder(folder, header, records, blobs, durable=durability == "fsync")
        return cls._made(folder, header, lock, durability, records)

    @classmethod
    def _begin(cls, folder: str, header: SessionHeader, durability: Durability) -> Self:
        if os.path.isdir(folder) and os.listdir(folder) and is_ours(folder):
            lock = prepare_folder(folder, header, durable=durability == "fsync")
            return cls._made(folder, header, lock, durability, ())
        return cls._create(folder, header, (), durability)

    @classmethod
    def _made(
        cls, folder: str, header: SessionHeader, lock: WriterLock, durability: Durability, records: Sequence[Record]
    ) -> Self:
        try:
            storage = cls(folder, header, lock, durability)
            storage._reader.adopt(records)
        except BaseException:
            lock.release()
            raise
        return storage

    @classmethod
    def _open(
        cls, folder: str, mode: Mode, durability: Durability, on_torn_tail: TornTail, on_corrupt: Corrupt
    ) -> Self:
        # Before anything is made: no lock file where there is no session.
        header, lost = read_header_or_stand_in(folder, on_corrupt)
        lock: WriterLock | None = None
        if mode == "write":
            try:
                lock = WriterLock.acquire(os.path.join(folder, LOCK))
            except StorageError:
                read_header(folder)  # deleted this moment: then it says so
                raise
        try:
            if lock is not None:
                header, lost = read_header_or_stand_in(folder, on_corrupt)
            storage = cls(folder, header, lock, durability)
            storage._load(on_torn_tail, on_corrupt, lost)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        if not storage._info.writable and lock is not None:
            lock.release()  # it will not write; whoever repairs it needs the lock
        return storage

    def _load(self, on_torn_tail: TornTail, on_corrupt: Corrupt, lost: DamagedSessionError | None) -> None:
        contents = self._reader.load(alone=self._is_alone(), salvaging=on_corrupt == "skip", lost=lost)
        if contents.damage and (on_corrupt == "raise" or (lost is not None and not contents.entries)):
            raise contents.damage[0]
        warnings: list[SessionWarning] = []
        reasons = [] if self._lock is not None else ["it was opened for reading"]
        # What a writer is just making is no leftover.
        others = [name for name in contents.others if self._lock is not None or not name.endswith(".tmp")]
        if others:
            found = f"left alone in {ENTRIES}/, being no entries: {name_some(others)}"
            warnings.append(SessionWarning("foreign_file", found))
        if on_corrupt == "skip":
            warnings += [SessionWarning("damaged_entry", str(error), None, error.entry_id) for error in contents.damage]
            reasons += [_SALVAGED] if contents.damage else []
        if contents.tail:
            self._handle_tail(contents, on_torn_tail, warnings, reasons)
        self._info = self._describe(self._info.header, warnings, reasons)

    def _handle_tail(
        self, contents: FolderContents, on_torn_tail: TornTail, warnings: list[SessionWarning], reasons: list[str]
    ) -> None:
        names = name_some([entry_file_name(entry.id) for entry in contents.tail])
        first = contents.tail[0].id
        what = f"unterminated tail: no entry holds seq {len(contents.entries)}, but its batch goes on ({names})"
        if on_torn_tail == "raise":
            raise DamagedSessionError(f"{what}; on_torn_tail='repair' sets it aside", path=self._folder, entry_id=first)
        if on_torn_tail == "repair" and self._lock is not None:
            self._reader.check_all()
            torn = set_tail_aside(self._folder, contents.tail)
            self._reader.note_change()
            warnings.append(SessionWarning("tail_repaired", f"{what}; moved to {torn}", None, first))
        else:
            reasons.append("it ends in an unterminated tail, which on_torn_tail='repair' sets aside")
            warnings.append(SessionWarning("unterminated_tail", f"{what}; it is not shown", None, first))

    def _describe(self, header: SessionHeader, warnings: list[SessionWarning], reasons: list[str]) -> StorageInfo:
        return StorageInfo(
            header,
            writable=not reasons,
            warnings=tuple(warnings),
            place=self._folder,
            read_only_reason="; ".join(reasons),
            ids_are_file_names=True,
            salvaged=_SALVAGED in reasons,
        )

    def _is_alone(self) -> bool:
        return self._lock is not None and self._lock.held

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the session's storage was closed; open it again", path=self._folder)

    def _check_names(self, records: Sequence[Record]) -> tuple[Sequence[Record], _Unnameable | None]:
        """The records up to the first whose id cannot be a file's name here, and why it cannot."""
        known = self._reader.names
        names: dict[str, str] = {}
        for count, record in enumerate(records):
            try:
                lower = _check_name(record.id, known, names)
            except (InvalidIdError, InvalidEntryError) as error:
                return records[:count], error
            names[lower] = record.id
        return records, None


def _named(folder: str, action: Callable[[], T]) -> T:
    """What ``action`` returns; an ``OSError`` from it names the session: what cannot be read is not missing."""
    try:
        return action()
    except SessionError:
        raise
    except OSError as error:
        raise StorageError(f"the session's files cannot be used: {error}; nothing was changed", path=folder) from error


def _check_name(entry_id: str, known: dict[str, str], names: dict[str, str]) -> str:
    """The id in lower case. Raises unless it may be a file's name beside ``known`` and ``names``, which have it so."""
    check_entry_name(entry_id)
    lower = entry_id.lower()
    namesake = known.get(lower) or names.get(lower)
    if namesake is not None:
        raise InvalidEntryError(
            f"the session has an entry {namesake!r} already, and not every file system tells apart two names that "
            "differ only in case; choose another id",
            entry_id=entry_id,
        )
    return lower
