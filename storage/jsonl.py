"""One session in one file, one line an entry: readable with any editor, appended to and never rewritten.

The newline is the commit mark. A failed write is cut back to the last whole line; whatever cannot be shown to be right
taints the storage. The file is looked at before each write and after it, for pi takes no lock (R12).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from storage import files
from storage.blob_folder import BlobFolder
from storage.blob_storage import DiskBlobs
from storage.blobs import Blobs
from storage.copying import renumbered
from storage.errors import (
    CommitFailed,
    StaleSessionError,
    StorageError,
)
from storage.event_loops import Breath, run_in_worker
from storage.file_lock import WriterLock, open_when_free
from storage.header import new_header
from storage.identifiers import absolute_place
from storage.index import EntryIndex
from storage.jsonl_file import (
    OpenFile,
    blob_folder,
    create_session_file,
    delete_session,
    naming,
    open_session_file,
    pieces,
)
from storage.line_scan import LineScan
from storage.locked_storage import LockedStorage
from storage.open_or_make import open_or_make
from storage.protocols import Corrupt, Durability, Mode, Record, TornTail


class JsonlStorage(LockedStorage, DiskBlobs):
    """A ``SessionStorage`` over one JSONL file. Made by ``create``, ``open`` and ``open_or_create``.

    Beside ``chat.jsonl`` lie ``chat.jsonl.lock`` (the writer's), ``chat.blobs/`` if there are blobs, and, after a repair,
    ``chat.jsonl.torn-<offset>``.
    """

    def __init__(self, opened: OpenFile, durability: Durability) -> None:
        """Use ``create``, ``open`` or ``open_or_create``."""
        super().__init__(opened.info, opened.lock, opened.index, opened.scan.seq, durability)
        self._path = opened.path
        self._descriptor = opened.descriptor
        self._scan = opened.scan
        self._loaded: deque[Record] = deque()
        """What was appended by others and read, as long as it may be asked for again."""
        self._loaded_from = self._scan.seq
        self._scan_before = self._scan
        self._asked: int | None = None
        status = os.fstat(self._descriptor)
        self._size = status.st_size
        self._device, self._inode = status.st_dev, status.st_ino
        self._path_bytes = os.fsencode(self._path)
        self._blobs = BlobFolder(blob_folder(self._path))

    @classmethod
    async def create(
        cls,
        path: str | os.PathLike[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
        blobs: Blobs = (),
        durability: Durability = "fsync",
    ) -> JsonlStorage:
        """A new session, with copies of ``records`` and ``blobs`` if given; made whole or not at all.

        Raises ``SessionExistsError`` if there is anything at ``path``, ``SessionLockedError``, ``InvalidIdError`` and
        ``StorageError``.
        """
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)
        place = absolute_place(path)
        opened = await run_in_worker(
            lambda: naming(
                place, lambda: create_session_file(place, header, renumbered(records), durability, blobs=blobs)
            ),
            undo=OpenFile.close,
        )
        return cls(opened, durability)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "write",
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "read_only",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> JsonlStorage:
        """The session at ``path``, every committed line checked. Nothing is written, but the writer's lock file.

        ``on_torn_tail``: bytes without a newline at the end make it ``"read_only"``, are set aside (``"repair"``), or
        are an error (``"raise"``). ``on_corrupt="skip"`` shows what is left around bad lines, to read only.
        ``lock_timeout``: seconds to wait for another writer.

        Raises ``SessionNotFoundError``, ``SessionLockedError``, ``DamagedSessionError`` naming the line,
        ``UnsupportedVersionError`` and ``StorageError`` (unreadable).
        """
        opened = await open_session_file(absolute_place(path), mode, on_torn_tail, on_corrupt, lock_timeout)
        return cls(opened, durability)

    @classmethod
    async def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "repair",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> JsonlStorage:
        """The session at ``path`` for writing; a new one if there is none yet.

        A file without a committed line is none yet: its bytes are set aside. Committed text without a header is damage.
        """
        place = absolute_place(path)
        aside = on_torn_tail == "repair"

        def make() -> OpenFile:
            header = new_header(session_id=session_id, cwd=cwd)
            # Behind a symlink it is the real file that is made, as it is the real one that is opened.
            return create_session_file(
                os.path.realpath(place), header, [], durability, replace_empty=True, set_aside=aside
            )

        opened = await open_or_make(
            lambda: open_session_file(place, "write", on_torn_tail, on_corrupt, lock_timeout),
            lambda: open_when_free(lambda: naming(place, make), lock_timeout, undo=OpenFile.close),
        )
        return cls(opened, durability)

    @property
    def path(self) -> str:
        """The file's absolute path."""
        return self._path

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``. Behind the last one a reader looks at the file anew."""
        if limit == 0:
            return []
        known = self._next_seq if self._writing else self._loaded_from
        if after_seq + 1 < known:
            found = self._read_again(after_seq, known, limit)
            if found or self._writing:
                return found
        self._forget_until(after_seq)
        if self._loaded and after_seq == self._asked:
            # Asked once more, so the last answer was not taken: for a duplicate id in it, say, which may be mended by now.
            self._loaded.clear()
            self._scan, self._next_seq = self._scan_before, self._loaded_from
        self._asked = after_seq
        if not self._loaded and not self._writing:
            self._read_new()
            self._forget_until(after_seq)
        return list(islice(self._loaded, limit))

    def _forget_until(self, seq: int) -> None:
        """What was handed out stays until it is not asked for again: the one who asked may have been cancelled."""
        loaded = self._loaded
        while loaded and loaded[0].seq <= seq:
            loaded.popleft()

    def _read_new(self) -> None:
        """What another process appended since; the tail is read again from the last accepted newline."""
        self._check_still_there()
        scan = self._scan.copy()  # after a failure one begins where one stood: a line may be seen while it is written
        scan.tail = b""
        found: list[Record] = []
        breath = Breath()
        for piece in pieces(self._descriptor, scan.accepted):
            for _ in scan.feed(piece, found.append):
                breath.take()
        self._scan_before, self._scan = self._scan, scan
        self._loaded_from = self._next_seq
        self._next_seq = scan.seq
        self._loaded = deque(found)

    def _read_again(self, after_seq: int, end: int, limit: int | None) -> Sequence[Record]:
        self._check_still_there()
        scan = LineScan(path=self._path, on_corrupt="skip" if self._scan.skips else "raise")
        index = EntryIndex()  # knows duplicate ids
        index.salvaged = scan.skips
        found: list[Record] = []

        def add(record: Record) -> None:
            index.add(record)
            found.append(record)

        breath = Breath()
        for piece in pieces(self._descriptor, 0):
            for _ in scan.feed(piece, add):
                breath.take()
        return [record for record in found if after_seq < record.seq < end][:limit]

    def _check_still_there(self) -> None:
        self._check_open()
        status = os.fstat(self._descriptor)
        if status.st_nlink == 0:
            raise StaleSessionError("the file was deleted or replaced; open the session anew", path=self._path)
        if status.st_size < self._scan.accepted:
            raise StaleSessionError(
                f"the file has {status.st_size:,} bytes, fewer than the {self._scan.accepted:,} that were read; someone cut "
                "it; open the session anew",
                path=self._path,
            )

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Append ``records`` with one write; the sync that makes them durable is returned, if durability asks for it."""
        self._check_next(records, "file")
        if not records:
            return None
        data = records[0].data + b"\n" if len(records) == 1 else b"\n".join([*(record.data for record in records), b""])
        descriptor = self._descriptor
        if self._durable or os.lseek(descriptor, 0, os.SEEK_END) != self._size:
            self._check_place()
        written = 0
        try:
            written = files.write(descriptor, data)
            while written < len(data):
                written += files.write(descriptor, memoryview(data)[written:])
        except OSError as error:
            raise self._cut_back([record.data for record in records], written, error) from error
        size = self._size + len(data)
        # With a sync still to come, the path is looked at once more after that. Without one it is looked at here; what
        # was written into a file that was deleted or replaced before is taken back, as if it had been seen before.
        if (self._durable or not self._is_ours(size)) and not self._has_landed(size):
            self._give_up(data)
        self._size = size
        self._next_seq += len(records)
        return self._sync if self._durable else None

    def _sync(self) -> None:
        """Make it durable, and look once more: what is synced into a file that is no longer ours is in no session."""
        files.sync_data(self._descriptor)
        if not self._is_ours(None):
            raise StaleSessionError(
                "the file was deleted or replaced while we wrote; open the session anew", path=self._path
            )

    def _is_ours(self, size: int | None) -> bool:
        """Whether what lies at our path is the file that we opened, and of this size."""
        try:
            status = os.stat(self._path_bytes)
        except FileNotFoundError:
            return False
        if status.st_ino != self._inode or status.st_dev != self._device:
            return False
        return size is None or status.st_size == size

    def _has_landed(self, size: int) -> bool:
        """Whether our last byte went where it should, whatever somebody appended behind it: the next write sees that."""
        if os.lseek(self._descriptor, 0, os.SEEK_CUR) != size:
            return False
        return self._durable or self._is_ours(None)

    def _check_place(self) -> None:
        """Before a write: the file at our path is still ours, and ends where we left it."""
        try:
            status = os.stat(self._path_bytes)
        except FileNotFoundError as error:
            raise StaleSessionError(
                "the file was deleted; nothing was written; open the session anew", path=self._path
            ) from error
        if status.st_ino != self._inode or status.st_dev != self._device:
            raise StaleSessionError(
                "the file was replaced; nothing was written; open the session anew", path=self._path
            )
        if status.st_size != self._size:
            raise StaleSessionError(
                f"someone else changed the file: it has {status.st_size:,} bytes, we left {self._size:,}; nothing was "
                "written; open the session anew",
                path=self._path,
            )

    def _give_up(self, data: bytes) -> None:
        """After a write that did not land where it should: take it back if it is the file's end, and write no more."""
        end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if os.fstat(self._descriptor).st_size == end:
            # All of it, or, if the system took less than it said, what is there of it: nothing but our own is ever cut.
            for start in (end - len(data), self._size):
                there = os.pread(self._descriptor, end - start, start) if 0 <= start < end else b""
                if there and data.endswith(there):
                    files.truncate(self._descriptor, start)
                    break
        raise StaleSessionError(
            "someone else changed the file while we wrote; our entry was taken back where it was the file's end; open the "
            "session anew",
            path=self._path,
        )

    def _cut_back(self, lines: list[bytes], written: int, error: OSError) -> StorageError:
        """After a failed write: keep the whole lines, cut the bytes after the last newline, and show that it worked."""
        kept = 0
        committed = 0
        for line in lines:
            if kept + len(line) + 1 > written:
                break
            kept += len(line) + 1
            committed += 1
        unknown = StorageError(
            f"a write failed, and the file could not be cut back: {error}; open the session anew", path=self._path
        )
        try:
            if os.fstat(self._descriptor).st_size != self._size + written:
                return unknown
            if kept < written:
                files.truncate(self._descriptor, self._size + kept)
            if os.fstat(self._descriptor).st_size != self._size + kept:
                return unknown
        except OSError as second:
            unknown.__context__ = second
            return unknown
        self._size += kept
        self._next_seq += committed
        return CommitFailed(
            f"the file could not be written: {error}",
            committed=committed,
            sync=self._sync if self._durable and committed else None,
            path=self._path,
        )

    def _check_still_ours(self) -> None:
        if not self._is_ours(None):
            raise StaleSessionError("the file was deleted or replaced; open the session anew", path=self._path)

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def delete(self) -> None:
        """Delete the file and all beside it. Raises ``SessionLockedError`` while somebody else writes, ``StorageError``."""
        lock = self._lock
        if lock is None or not lock.held:
            lock = WriterLock.acquire(self._path + ".lock")
        self._lock = None
        try:
            self.close()
            delete_session(self._path, lock)
        finally:
            lock.release()
