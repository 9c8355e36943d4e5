"""Reading a session's folder: once at opening, then on from there, and never past somebody else's change (R12)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from storage.decode import parse_record
from storage.entry_folder import (
    ENTRIES,
    METADATA,
    FolderContents,
    StoredEntry,
    entry_file_name,
    list_entry_names,
    read_entry_file,
    read_folder,
)
from storage.errors import DamagedSessionError, StaleSessionError, StorageError
from storage.event_loops import Breath
from storage.protocols import Record

_SETTLED_NANOSECONDS = 2_000_000_000
"""A folder's time of change may be this coarse; only when it is older, an unchanged time means an unchanged folder."""

_READER_TRIES = 4
_READER_WAIT = 0.02


class FolderReader:
    """The entries of one folder in order, and how the folder looked when we last saw or changed it."""

    def __init__(self, folder: str) -> None:
        """Looks at the folder; ``load`` reads it."""
        self.folder = folder
        self.entries: str = os.path.join(folder, ENTRIES)
        self._header = os.path.join(folder, METADATA)
        self.names: dict[str, str] = {}
        """Each id in lower case, and as it is."""
        self._ids: list[str | None] = []
        self._unread: dict[int, bytes] = {}
        self._salvaged = False
        self._identity = self._look_at_header()
        self._changed = 0
        self._settled = False

    def __len__(self) -> int:
        """How many places there are, those that salvage left empty included."""
        return len(self._ids)

    # ---- at opening

    def load(self, *, alone: bool, salvaging: bool = False, lost: DamagedSessionError | None = None) -> FolderContents:
        """Read everything. ``alone``: no writer can be at work, so what is missing now is missing for good.

        ``salvaging``: every entry is parsed, and what is no record is left out; its place stays empty. Where anything is
        damaged (``lost``: the header), an unterminated tail is shown too, for nothing will ever be appended.
        """
        self.note_change()
        try:
            contents = self._read_settled(alone)
        except DamagedSessionError as error:
            if not salvaging:
                raise
            contents = FolderContents(damage=[error])
        if lost is not None:
            contents.damage.insert(0, lost)
        self._take(contents.entries)
        if salvaging:
            self._salvaged = True
            contents.damage += self._leave_out_bad(0)
            if contents.damage and contents.tail:
                start = len(self._ids)
                self._take(contents.tail)
                contents.entries += contents.tail
                contents.tail = []
                contents.damage += self._leave_out_bad(start)
        return contents

    def check_all(self) -> None:
        """Parse every entry that was read. Raises ``DamagedSessionError``: before anything is moved, all has to be whole."""
        breath = Breath()
        for seq, line in self._unread.items():
            breath.take()
            self._parse(seq, self._ids[seq] or "", line)

    def adopt(self, records: Sequence[Record]) -> None:
        """These were just written to a new folder: they need not be read."""
        self.note_change()
        for record in records:
            self.remember(record.id)
            self._unread[record.seq] = record.data

    def _leave_out_bad(self, start: int) -> list[DamagedSessionError]:
        damage: list[DamagedSessionError] = []
        breath = Breath()
        for seq in range(start, len(self._ids)):
            entry_id = self._ids[seq]
            breath.take()
            try:
                if entry_id is not None:
                    self._parse(seq, entry_id, self._unread[seq])
            except DamagedSessionError as error:
                damage.append(error)
                self._ids[seq] = None
        return damage

    # ---- afterwards

    def read(self, after_seq: int, limit: int | None, *, alone: bool) -> Sequence[Record]:
        """The records after ``after_seq``; behind the last one the folder is looked at anew."""
        if after_seq + 1 >= len(self._ids):
            self._look_again(alone)
        records: list[Record] = []
        breath = Breath()
        for record in self._records(after_seq + 1):
            if limit is not None and len(records) >= limit:
                break
            records.append(record)
            breath.take()
        return records

    def forget(self) -> None:
        """Let go of what was read and never asked for."""
        self._unread.clear()

    def _records(self, start: int) -> Iterator[Record]:
        for seq in range(start, len(self._ids)):
            entry_id = self._ids[seq]
            if entry_id is not None:
                line = self._unread.pop(seq, None)
                yield self._parse(seq, entry_id, self._read_again(seq, entry_id) if line is None else line)

    def _read_again(self, seq: int, entry_id: str) -> bytes:
        path = os.path.join(self.entries, entry_file_name(entry_id))
        try:
            entry = read_entry_file(path, entry_id)
        except FileNotFoundError as error:
            raise self.stale(f"{entry_file_name(entry_id)} is gone") from error
        except OSError as error:
            raise StorageError(f"the entry cannot be read: {error.strerror}", path=path, entry_id=entry_id) from error
        if entry is None or entry.seq != seq:
            raise self.stale(f"{entry_file_name(entry_id)} was changed")
        return entry.line

    def _parse(self, seq: int, entry_id: str, line: bytes) -> Record:
        path = os.path.join(self.entries, entry_file_name(entry_id))
        try:
            record = parse_record(line, seq, path=path)
        except DamagedSessionError as error:
            error.entry_id = entry_id
            raise
        if record.id != entry_id:
            raise DamagedSessionError(
                f"invalid session record: id: {record.id!r:.140} is not the file's name", path=path, entry_id=entry_id
            )
        return record

    def _look_again(self, alone: bool) -> None:
        self.check_header()
        if self._salvaged or (self._folder_changed_at() == self._changed and (alone or self._settled)):
            return
        self.note_change()
        if not self._list_names().issuperset(name for name in self._ids if name is not None):
            raise self.stale("entries were removed")
        contents = self._read_settled(alone)
        if contents.damage:
            raise contents.damage[0]
        if alone and contents.entries:
            raise self.stale(f"somebody else added {entry_file_name(contents.entries[0].id)}")
        self._take(contents.entries)

    # ---- for a writer

    def check_header(self) -> None:
        """Raise ``StaleSessionError`` unless the header is the one that we opened."""
        if self._look_at_header() != self._identity:
            raise self.stale("its header was replaced or removed")

    def check_as_left(self) -> None:
        """Raise ``StaleSessionError`` unless the folder holds just the entries we know. O(1) if unchanged."""
        self.check_header()
        if self._folder_changed_at() == self._changed:
            return
        ids = self._list_names()
        for entry_id in ids:
            if self.names.get(entry_id.lower()) == entry_id:
                continue
            try:
                found = read_entry_file(os.path.join(self.entries, entry_file_name(entry_id)), entry_id)
            except (DamagedSessionError, FileNotFoundError) as error:
                raise self.stale(f"somebody else wrote {entry_file_name(entry_id)}") from error
            if found is not None:
                raise self.stale(f"somebody else added {entry_file_name(entry_id)}, which holds seq {found.seq}")
        if not ids.issuperset(self.names.values()):
            raise self.stale("entries were removed")
        self.note_change()

    def take_note(self) -> bool:
        """Note that the folder changed by our own hand. Whether it is still the one that we opened."""
        self._changed = self._folder_changed_at()
        self._settled = False
        return self._changed != 0 and self._look_at_header() == self._identity

    def remember(self, entry_id: str) -> None:
        """This id takes the next place."""
        self._ids.append(entry_id)
        lower = entry_id.lower()
        self.names[entry_id if lower == entry_id else lower] = entry_id

    def note_change(self) -> None:
        """The folder is about to be read, or is as we know it; remember when it changed."""
        self._changed = self._folder_changed_at()
        self._settled = time.time_ns() - self._changed > _SETTLED_NANOSECONDS

    def stale(self, why: str) -> StaleSessionError:
        """The error for a session that someone else changed."""
        return StaleSessionError(
            f"the session was changed by someone else: {why}; nothing more is written, open it anew", path=self.folder
        )

    # ---- the folder

    def _read_settled(self, alone: bool) -> FolderContents:
        """What is in the folder. A reader that meets a writer in mid-batch looks again before it reports."""
        tries = 1 if alone else _READER_TRIES
        while True:
            tries -= 1
            try:
                contents = read_folder(self.entries, known=self.names, start=len(self._ids))
            except FileNotFoundError as error:
                if not os.path.isdir(self.entries):
                    raise DamagedSessionError(
                        f"the folder {ENTRIES} is missing; put it back (an empty one, if the session has no entries)",
                        path=self.folder,
                    ) from error
                if tries <= 0:
                    raise StorageError("files vanish while they are read; open it again", path=self.folder) from error
            except OSError as error:
                raise StorageError(f"the session cannot be read: {error}", path=self.folder) from error
            else:
                if contents.is_settled or tries <= 0:
                    return contents
            time.sleep(_READER_WAIT)

    def _list_names(self) -> set[str]:
        try:
            return list_entry_names(self.entries)[0]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self.stale(f"the folder {ENTRIES} was removed") from error

    def _take(self, entries: Sequence[StoredEntry]) -> None:
        for entry in entries:
            self._ids.extend([None] * (entry.seq - len(self._ids)))
            self.remember(entry.id)
            self._unread[entry.seq] = entry.line

    def _look_at_header(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._header)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _folder_changed_at(self) -> int:
        try:
            return os.stat(self.entries).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            # Whoever reads the folder next says that it is gone.
            return 0
