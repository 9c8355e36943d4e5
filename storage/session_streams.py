"""Whole sessions on their way from one repository to another, a few records in memory at a time.

A session is read from its beginning to its end into a file of our own (``RecordSpool``), checked on the way, and made
anew from that: so nobody waits for a transaction while the source is read, and a session of any size can be moved.
"""

from __future__ import annotations

import os
import struct
import tempfile
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Final, Protocol, Self, overload, runtime_checkable

from storage.blobs import Blobs
from storage.decode import parse_record
from storage.errors import DamagedSessionError, StorageError, UnsupportedEntryError
from storage.header import SessionHeader
from storage.protocols import BlobStore, Record, SessionStorage, SessionWarning
from storage.record_pages import read_page

PAGE: Final = 256
"""Records that are read, written and told of at once."""

_IN_MEMORY: Final = 1024 * 1024
_HEAD = struct.Struct("<IIIB")


@dataclass(frozen=True, slots=True)
class SessionStream:
    """A session that is read once, from its first entry to its last. Everything of it blocks.

    ``warnings`` says, when the records were taken, what was noticed and lost nothing.
    """

    place: str
    header: SessionHeader
    records: Iterator[Record]
    blob_names: Callable[[], Sequence[str]]
    read_blob: Callable[[str], bytes]
    warnings: Callable[[], Sequence[SessionWarning]] = tuple


@runtime_checkable
class StreamsSessions(Protocol):
    """**Protocol:** a repository that sessions can be migrated from and into. Both methods block."""

    def reading(self, session_id: str) -> AbstractContextManager[SessionStream]:
        """The session, to be read once from its beginning to its end, as it was committed.

        Nothing is written, and no lock is taken. Raises ``SessionNotFoundError``, ``DamagedSessionError`` (also while the
        records are taken), ``UnsupportedVersionError`` and ``StorageError``.
        """
        ...

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Blobs) -> None:
        """A new session with exactly this header, these records (whose places count from 0) and these blobs.

        Made whole or not at all, as durably as ``create`` makes it. ``records`` may lie in a file: they are not kept.
        Raises ``SessionExistsError`` and what ``create`` raises.
        """
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """**Protocol:** a repository that says beforehand what would go wrong with every session. Both methods block."""

    def identity(self) -> object:
        """What two repositories of one place have in common, however it is spelled; ``None`` where nothing is yet."""
        ...

    def check_receiving(self) -> None:
        """Raise, if no session can be made here, whichever it is. At most empty tables are made.

        A look, and no promise: a disk that is full shows when it is written to. Raises ``StorageError``,
        ``DamagedSessionError`` where something else is, and ``UnsupportedVersionError``.
        """
        ...


def check_writable(path: str) -> None:
    """Raise ``StorageError`` unless ``path`` can be written, or made in the nearest folder above it that is there."""
    here = path
    while not os.path.lexists(here):
        here = os.path.dirname(here)
    if here != path and not os.path.isdir(here):
        raise StorageError(f"nothing can be made here, for {here} is no folder; choose another place", path=path)
    effective = os.access in os.supports_effective_ids
    if not os.access(here, os.W_OK | (os.X_OK if os.path.isdir(here) else 0), effective_ids=effective):
        raise StorageError(
            f"nothing can be written here: {here} is read-only, or somebody else's; choose another place", path=path
        )


def identity_of(path: str) -> object:
    """The ``identity`` of a folder or file: the same for each of its names."""
    try:
        status = os.stat(path)
    except OSError:
        return None  # who goes on with it is told
    return status.st_dev, status.st_ino


def stream_of(storage: SessionStorage) -> SessionStream:
    """A storage that was opened to be read, as a stream. Its ``read`` should not read all for each page."""

    def records() -> Iterator[Record]:
        after = -1
        while page := read_page(storage, after_seq=after, limit=PAGE):
            yield from page
            after = page[-1].seq

    store = storage if isinstance(storage, BlobStore) else None

    def read_blob(name: str) -> bytes:
        if store is None:
            raise LookupError(name)
        return store.read_blob(name)

    return SessionStream(
        place=storage.info.place,
        header=storage.info.header,
        records=records(),
        blob_names=store.blob_names if store is not None else tuple,
        read_blob=read_blob,
        warnings=lambda: storage.info.warnings,
    )


class LazyRecords(Sequence[Record]):
    """Records that are made when they are asked for, in a slice of them too."""

    @abstractmethod
    def record_at(self, place: int) -> Record:
        """The one at ``place``, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        places = range(len(self))[index]
        return _Part(self, places) if isinstance(places, range) else self.record_at(places)


class _Part(LazyRecords):
    """Some of ``records``."""

    def __init__(self, records: LazyRecords, places: range) -> None:
        self._records = records
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def record_at(self, place: int) -> Record:
        return self._records.record_at(self._places[place])


class RecordSpool(LazyRecords):
    """Records in a temporary file without a name: a sequence that is hardly in memory. Close it, or use ``with``.

    Only where each one lies is kept. For one thread at a time.
    """

    def __init__(self) -> None:
        """Nothing is in it."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by ``close``
        self._starts = array("q", [0])
        self.bytes: int = 0
        """Of all lines."""

    def append(self, record: Record) -> None:
        """Put one more at the end."""
        entry_id, kind = record.id.encode(), record.type.encode()
        parent = record.parent_id.encode() if record.parent_id is not None else b""
        head = _HEAD.pack(len(entry_id), len(parent), len(kind), record.parent_id is not None)
        try:
            self._file.seek(self._starts[-1])
            self._file.write(b"".join((head, entry_id, parent, kind, record.data)))
            self._file.flush()
            self._starts.append(self._file.tell())
        except OSError as error:
            raise StorageError(
                f"there is no room for the session on its way: {error.strerror}; free some, or set TMPDIR to another folder",
                path=tempfile.gettempdir(),
            ) from error
        self.bytes += len(record.data)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def record_at(self, place: int) -> Record:
        """Read from the file."""
        start, end = self._starts[place], self._starts[place + 1]
        self._file.seek(start)
        data = self._file.read(end - start)
        id_length, parent_length, kind_length, has_parent = _HEAD.unpack_from(data)
        at = _HEAD.size
        entry_id = data[at : (at := at + id_length)].decode()
        parent = data[at : (at := at + parent_length)].decode()
        kind = data[at : (at := at + kind_length)].decode()
        return Record(place, entry_id, parent if has_parent else None, kind, data[at:])

    def close(self) -> None:
        """Let go of the file, and so of what is in it."""
        try:
            self._file.close()
        except OSError:
            pass  # what could not be written is not needed any more

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WholeTree:
    """Checks, record by record, that a session is whole and ours: what may be moved as it is."""

    def __init__(self, place: str) -> None:
        """Nothing was seen yet. ``place`` is for the errors."""
        self._place = place
        self._ids: set[str] = set()
        self.leaf_id: str | None = None

    def take(self, record: Record) -> None:
        """The next record. Raises ``DamagedSessionError``, and ``UnsupportedEntryError`` for what another program wrote."""
        seq = len(self._ids)
        line = record.line or seq + 2
        if record.seq != seq:
            raise self._damaged(f"line {line}: expected seq {seq}, found {record.seq}", line)
        if not record.data.startswith(b'{"seq":%d,' % seq):
            raise foreign(self._place, f"the entry at line {line} has no place of ours (seq): another program wrote it")
        if record.id in self._ids:
            raise self._damaged(f"line {line}: the id {record.id!r:.140} was used before", line)
        target = None
        if record.type == "leaf":
            facts = record.facts or parse_record(record.data, seq, path=self._place, line_number=line).facts
            target = facts.target if facts is not None else None
        for needed in (record.parent_id, target):
            if needed is not None and needed not in self._ids:
                raise self._damaged(
                    f"line {line}: {record.id!r:.140} points to {needed!r:.140}, which is not before it", line
                )
        self._ids.add(record.id)
        self.leaf_id = target if record.type == "leaf" else record.id

    def _damaged(self, what: str, line: int) -> DamagedSessionError:
        return DamagedSessionError(
            f"invalid session record at {what}; nothing was changed", path=self._place, line=line
        )


def foreign(place: str, why: str) -> UnsupportedEntryError:
    """The error for a session that another program wrote, or wrote on."""
    return UnsupportedEntryError(
        f"{why}; only what is all ours is moved as it is: 'branchline import FILE --root TO' makes a session of ours of it",
        path=place,
    )
