"""One session in one file, one line an entry: readable with any editor, appended to and never rewritten.

The newline is the commit mark. A failed write is cut back to the last whole line; whatever cannot be shown to be right
taints the storage. The file is looked at before each write and after it, for pi takes no lock (R12).
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from storage import files
from storage.copying import renumbered
from storage.errors import (
    CommitFailed,
    DamagedSessionError,
    SessionExistsError,
    SessionNotFoundError,
    StaleSessionError,
    StorageError,
)
from storage.event_loops import Breath, run_in_worker
from storage.file_lock import WriterLock
from storage.header import SessionHeader, new_header
from storage.line_scan import LineScan, is_blank
from storage.protocols import Corrupt, Durability, Mode, Record, SessionWarning, StorageInfo, TornTail

_PIECE = 1024 * 1024


class JsonlStorage:
    """A ``SessionStorage`` over one JSONL file. Made by ``create``, ``open`` and ``open_or_create``.

    Beside ``chat.jsonl`` lie ``chat.jsonl.lock`` (the writer's) and, after a repair, ``chat.jsonl.torn-<offset>``.
    """

    def __init__(
        self, path: str, descriptor: int, scan: LineScan, lock: WriterLock | None, durability: Durability, info: StorageInfo
    ) -> None:
        """Use ``create``, ``open`` or ``open_or_create``."""
        self._path = path
        self._descriptor = descriptor
        self._scan = scan
        self._lock = lock
        self._durable = durability == "fsync"
        self._info = info
        self._loaded: deque[Record] = deque()
        self._writing = info.writable
        self._size = os.fstat(descriptor).st_size
        self._next_seq = scan.seq
        status = os.fstat(descriptor)
        self._identity = (status.st_dev, status.st_ino)

    @classmethod
    async def create(
        cls,
        path: str | os.PathLike[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
        durability: Durability = "fsync",
    ) -> JsonlStorage:
        """A new session, with copies of ``records`` if given; made whole or not at all.

        Raises ``SessionExistsError`` if there is anything at ``path``, ``SessionLockedError``, ``InvalidIdError`` and
        ``StorageError``.
        """
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)
        place = os.path.abspath(os.fspath(path))
        return await run_in_worker(
            lambda: _named(place, lambda: _create(cls, place, header, renumbered(records), durability, 0)), undo=cls.close
        )

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
        place = os.path.abspath(os.fspath(path))
        return await run_in_worker(
            lambda: _named(place, lambda: _open(cls, place, mode, durability, on_torn_tail, on_corrupt, lock_timeout)),
            undo=cls.close,
        )

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
        place = os.path.abspath(os.fspath(path))

        def open_or_create() -> JsonlStorage:
            try:
                return _open(cls, place, "write", durability, on_torn_tail, on_corrupt, lock_timeout)
            except SessionNotFoundError:
                header = new_header(session_id=session_id, cwd=cwd)
                return _create(cls, place, header, [], durability, lock_timeout, replace_empty=on_torn_tail == "repair")

        return await run_in_worker(lambda: _named(place, open_or_create), undo=cls.close)

    @property
    def info(self) -> StorageInfo:
        """The header and the state."""
        return self._info

    @property
    def path(self) -> str:
        """The file's absolute path."""
        return self._path

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``. What opening has read is handed out once, then the file is looked at again."""
        loaded = self._loaded
        if loaded and loaded[0].seq > after_seq:
            count = len(loaded) if limit is None else min(limit, len(loaded))
            return [loaded.popleft() for _ in range(count)]
        if after_seq >= self._next_seq - 1:
            return [] if self._writing else self._read_new(limit)
        return self._read_again(after_seq, limit)

    def hold(self, records: Iterable[Record]) -> None:
        """Keep what opening has read until the log asks for it."""
        self._loaded.extend(records)

    def _read_new(self, limit: int | None) -> Sequence[Record]:
        """What another process appended since; the tail is read again from the last accepted newline."""
        self._check_still_there()
        scan = self._scan
        scan.tail = b""
        breath = Breath()
        try:
            for piece in _pieces(self._descriptor, scan.accepted):
                for record in scan.feed(piece):
                    self._loaded.append(record)
                    breath.take()
        except DamagedSessionError:
            # A line that is being written this moment may be seen half; whoever asks again reads it from its beginning.
            self._scan = _scan_to(self._descriptor, self._next_seq, scan)
            raise
        self._next_seq = scan.seq
        count = len(self._loaded) if limit is None else min(limit, len(self._loaded))
        return [self._loaded.popleft() for _ in range(count)]

    def _read_again(self, after_seq: int, limit: int | None) -> Sequence[Record]:
        self._check_still_there()
        scan = LineScan(path=self._path, on_corrupt="skip" if self._scan.bad_lines else "raise")
        found: list[Record] = []
        for piece in _pieces(self._descriptor, 0):
            for record in scan.feed(piece):
                if record.seq > after_seq:
                    found.append(record)
                    if len(found) == limit:
                        return found
        return found

    def _check_still_there(self) -> None:
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
        if records[0].seq != self._next_seq or not self._writing:
            raise StaleSessionError(
                f"the next entry of this file is {self._next_seq}, not {records[0].seq}; open the session anew", path=self._path
            )
        lines = [record.data for record in records]
        lines.append(b"")
        data = b"\n".join(lines)
        self._check_place()
        written = 0
        try:
            written = files.write(self._descriptor, data)
            while written < len(data):
                written += files.write(self._descriptor, memoryview(data)[written:])
        except OSError as error:
            raise self._cut_back(lines, written, error) from error
        size = self._size + len(data)
        status = os.fstat(self._descriptor)
        if status.st_size != size or status.st_nlink == 0:
            self._give_up(len(data), status)
        self._size = size
        self._next_seq += len(records)
        return self._sync if self._durable else None

    def _sync(self) -> None:
        files.sync_data(self._descriptor)

    def _check_place(self) -> None:
        """Before a write: the file at our path is still ours, and ends where we left it."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError as error:
            raise StaleSessionError("the file was deleted; nothing was written; open the session anew", path=self._path) from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise StaleSessionError("the file was replaced; nothing was written; open the session anew", path=self._path)
        if status.st_size != self._size:
            raise StaleSessionError(
                f"someone else changed the file: it has {status.st_size:,} bytes, we left {self._size:,}; nothing was "
                "written; open the session anew",
                path=self._path,
            )

    def _give_up(self, length: int, status: os.stat_result) -> None:
        """After a write that did not land where it should: take it back if it is the file's end, and write no more."""
        end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if status.st_size == end and end > self._size + length:
            files.truncate(self._descriptor, end - length)
        raise StaleSessionError(
            "someone else changed the file while we wrote; our entry was taken back where it was the file's end; open the "
            "session anew",
            path=self._path,
        )

    def _cut_back(self, lines: list[bytes], written: int, error: OSError) -> StorageError:
        """After a failed write: keep the whole lines, cut the bytes after the last newline, and show that it worked."""
        kept = 0
        committed = 0
        for line in lines[:-1]:
            if kept + len(line) + 1 > written:
                break
            kept += len(line) + 1
            committed += 1
        unknown = StorageError(f"a write failed, and the file could not be cut back: {error}; open the session anew", path=self._path)
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

    def close(self) -> None:
        """Close the file and free the lock. Idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._writing = False
            os.close(descriptor)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def delete(self) -> None:
        """Delete the file and what lies beside it. Only the writer may."""
        lock = self._lock
        self._lock = None
        self.close()
        delete_session_files(self._path)
        if lock is not None:
            lock.release()
            _remove(self._path + ".lock")


def delete_session_files(path: str) -> None:
    """Remove a session's file and its side files, but not the lock file, which its holder removes last."""
    folder, name = os.path.split(path)
    _remove(path)
    for entry in os.listdir(folder):
        if entry.startswith((f"{name}.torn-", f".{name}.")):
            _remove(os.path.join(folder, entry))
    files.sync_folder(folder)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _named(path: str, action: Callable[[], JsonlStorage]) -> JsonlStorage:
    """An ``OSError`` without a name of ours becomes a ``StorageError`` that names the path: unreadable is not missing."""
    try:
        return action()
    except StorageError:
        raise
    except OSError as error:
        if isinstance(error, SessionExistsError) or error.__class__.__module__ == "storage.errors":
            raise
        raise StorageError(f"cannot open the session: {error.strerror or error}; nothing was changed", path=path) from error


def _pieces(descriptor: int, offset: int) -> Iterator[bytes]:
    while piece := os.pread(descriptor, _PIECE, offset):
        yield piece
        offset += len(piece)


def _scan_to(descriptor: int, seq: int, old: LineScan) -> LineScan:
    """A scan that stands before entry ``seq``, as the old one did before it met a bad line."""
    scan = LineScan(path=old._path, on_corrupt="skip" if old.bad_lines else "raise")  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    for piece in _pieces(descriptor, 0):
        for line in piece.splitlines(keepends=True):
            for _ in scan.feed(line):
                pass
            if scan.seq >= seq and scan.header is not None:
                return scan
    return scan


def _open(
    cls: type[JsonlStorage],
    path: str,
    mode: Mode,
    durability: Durability,
    on_torn_tail: TornTail,
    on_corrupt: Corrupt,
    lock_timeout: float,
) -> JsonlStorage:
    try:
        os.stat(path)
    except FileNotFoundError:
        raise SessionNotFoundError("there is no session here; create one, or check the path", path=path) from None
    writing = mode == "write"
    lock = WriterLock.acquire(path + ".lock", lock_timeout) if writing else None
    descriptor = -1
    try:
        descriptor = files.open_file(path, writing=writing)
        scan = LineScan(path=path, on_corrupt=on_corrupt)
        records = _scan_file(descriptor, scan)
        header = _header_of(scan, path)
        tail = scan.tail_warning()
        warnings = [*scan.warnings]
        reason = ""
        if tail is not None:
            if on_torn_tail == "raise":
                raise DamagedSessionError(tail.message, path=path, line=tail.line)
            if writing and on_torn_tail == "repair" and not scan.bad_lines:
                warnings.append(_set_tail_aside(path, descriptor, scan))
            else:
                warnings.append(tail)
                reason = f"{tail.message} (line {tail.line})"
        if scan.bad_lines:
            reason = f"{scan.bad_lines} bad lines were skipped, so the session can only be read"
        if not writing:
            reason = reason or "the session was opened for reading; open it with mode='write' to append"
        if reason and lock is not None:
            lock.release()  # somebody else may repair it
            lock = None
        info = StorageInfo(
            header=header,
            writable=not reason,
            inline=True,
            warnings=tuple(warnings),
            place=path,
            read_only_reason=reason,
        )
        storage = cls(path, descriptor, scan, lock, durability, info)
        storage.hold(records)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        if lock is not None:
            lock.release()
        raise
    return storage


def _scan_file(descriptor: int, scan: LineScan) -> list[Record]:
    records: list[Record] = []
    breath = Breath()
    for piece in _pieces(descriptor, 0):
        for count, record in enumerate(scan.feed(piece)):
            records.append(record)
            if count & 31 == 31:
                breath.take()
    return records


def _header_of(scan: LineScan, path: str) -> SessionHeader:
    if scan.header is None:
        raise SessionNotFoundError(
            "the file holds no committed line, so there is no session yet; open_or_create makes one"
            + ("" if is_blank(scan.tail) else " and sets the bytes aside"),
            path=path,
        )
    return scan.header


def _set_tail_aside(path: str, descriptor: int, scan: LineScan) -> SessionWarning:
    """Move the bytes after the last newline to a side file, durably, and only then cut them off."""
    line = scan.line + 1
    length = len(scan.tail)
    side = _write_side_file(path, scan.accepted, scan.tail)
    files.truncate(descriptor, scan.accepted)
    if os.fstat(descriptor).st_size != scan.accepted:
        raise StorageError("the unterminated tail could not be cut off", path=path, line=line)
    files.sync_data(descriptor)
    scan.tail = b""
    return SessionWarning(
        "tail_repaired",
        f"line {line} had {length:,} bytes without a newline, which were never committed; they were moved to {side}",
        line,
    )


def _write_side_file(path: str, offset: int, data: bytes) -> str:
    side = f"{path}.torn-{offset}"
    while os.path.exists(side):
        side = f"{path}.torn-{offset}-{secrets.token_hex(3)}"
    descriptor = files.create_file(side)
    try:
        _write_all(descriptor, data)
        files.sync_data(descriptor)
    finally:
        os.close(descriptor)
    files.sync_folder(os.path.dirname(path))
    return side


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[files.write(descriptor, view) :]


def _create(
    cls: type[JsonlStorage],
    path: str,
    header: SessionHeader,
    records: list[Record],
    durability: Durability,
    lock_timeout: float,
    *,
    replace_empty: bool = False,
) -> JsonlStorage:
    """Write everything to a temporary file beside ``path``, sync it, and link it to its name, which must be free."""
    folder, name = os.path.split(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.path.lexists(path) and not replace_empty:
        raise SessionExistsError("there is something here already; open it, or choose another place", path=path)
    lock = WriterLock.acquire(path + ".lock", lock_timeout)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
    descriptor = -1
    try:
        if replace_empty:
            _remove_uncommitted(path)
        descriptor = files.create_file(temporary)
        _write_lines(descriptor, [header.to_line(), *(record.data for record in records)])
        if durability == "fsync":
            files.sync_data(descriptor)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise SessionExistsError("there is something here already; open it, or choose another place", path=path) from None
        os.unlink(temporary)
        if durability == "fsync":
            files.sync_folder(folder)
        scan = LineScan(path=path)
        scan.header = header
        scan.seq = len(records)
        info = StorageInfo(header=header, writable=True, inline=True, place=path)
        storage = cls(path, descriptor, scan, lock, durability, info)
        storage.hold(records)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        _remove(temporary)
        lock.release()
        raise
    return storage


def _write_lines(descriptor: int, lines: Iterable[bytes]) -> None:
    block = bytearray()
    for line in lines:
        block += line
        block += b"\n"
        if len(block) >= _PIECE:
            _write_all(descriptor, bytes(block))
            block.clear()
    _write_all(descriptor, bytes(block))


def _remove_uncommitted(path: str) -> None:
    """Take a file without a committed line out of the way; bytes that are no white space are kept beside it."""
    try:
        descriptor = files.open_file(path, writing=False)
    except FileNotFoundError:
        return
    try:
        scan = LineScan(path=path)
        _scan_file(descriptor, scan)
    finally:
        os.close(descriptor)
    if scan.header is not None:
        raise SessionExistsError("another process made a session here this moment; open it", path=path)
    if not is_blank(scan.tail):
        _write_side_file(path, scan.accepted, scan.tail)
    _remove(path)
