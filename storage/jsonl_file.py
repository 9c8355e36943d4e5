"""Opening, creating, repairing and deleting the file of a JSONL session. Nothing here knows the log."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from storage import files
from storage.blob_folder import BlobFolder
from storage.blobs import Blobs
from storage.copying import index_of
from storage.errors import (
    BranchlineError,
    DamagedSessionError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from storage.event_loops import Breath, in_slices, run_in_worker
from storage.file_lock import WriterLock, open_when_free
from storage.header import SessionHeader
from storage.index import EntryIndex
from storage.line_scan import LineScan, is_blank
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

_PIECE = 1024 * 1024
_LINES_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A session's file, open: how far it was read, what was found, and the writer's lock, if it may be written."""

    path: str
    descriptor: int
    scan: LineScan
    lock: WriterLock | None
    info: StorageInfo
    index: EntryIndex
    """What was read or written, indexed."""

    def close(self) -> None:
        """Close the file and free the lock."""
        os.close(self.descriptor)
        if self.lock is not None:
            self.lock.release()


def naming(
    path: str, action: Callable[[], T], what: str = "cannot open the session", then: str = "nothing was changed"
) -> T:
    """Run ``action``; a system's ``OSError`` becomes a ``StorageError`` that names the path. Unreadable is not missing."""
    try:
        return action()
    except BranchlineError:
        raise
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror or error}; {then}", path=path) from error


class BegunFile:
    """A session's file that is being opened: locked if it is to be written, and read piece by piece through ``scan``."""

    def __init__(self, path: str, mode: Mode, on_corrupt: Corrupt) -> None:
        """Lock and open, or raise and leave nothing behind. Blocking. Behind a symlink, the real file is locked."""
        path = os.path.realpath(path)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise SessionNotFoundError("there is no session here; create one, or check the path", path=path) from None
        if not stat.S_ISREG(status.st_mode):
            raise StorageError("this is not a file; give the path of a session's file", path=path)
        self.path = path
        self.writing: bool = mode == "write"
        self.index: EntryIndex = EntryIndex()
        self.index.salvaged = on_corrupt == "skip"
        self.scan: LineScan = LineScan(path=path, on_corrupt=on_corrupt)
        self.lock = WriterLock.acquire(path + ".lock", 0) if self.writing else None
        try:
            self.descriptor: int = files.open_file(path, writing=self.writing)
        except BaseException:
            self._free()
            raise

    def piece(self, offset: int) -> bytes:
        """At most 1 MiB from ``offset`` on; nothing at the end."""
        return os.pread(self.descriptor, _PIECE, offset)

    def read_piece(self, data: bytes) -> Iterator[None]:
        """Check and index the next bytes; pauses after every few lines."""
        scan, index = self.scan, self.index
        offset = 0
        while scan.header is None and (end := data.find(b"\n", offset) + 1):
            yield from scan.feed(data[offset:end], index.add)
            offset = end
        if not len(index) and scan.header is not None:
            index.foreign = scan.header.branchline is None
        yield from scan.feed(data[offset:] if offset else data, index.add)

    def records(self) -> Iterator[Record]:
        """All records, read here and now, with pauses for the event loop's thread. Blocking."""
        breath = Breath()
        found: list[Record] = []
        for piece in pieces(self.descriptor, 0):
            for _ in self.scan.feed(piece, found.append):
                breath.take()
                yield from found
                found.clear()
        yield from found

    def finish(self, on_torn_tail: TornTail) -> OpenFile:
        """All is read: decide about bytes without a newline, and whether it may be written. Blocking."""
        scan, path = self.scan, self.path
        header = _header_of(scan, path)
        if scan.lost_header is not None and not self.index.ids:
            raise scan.lost_header  # and nothing else is an entry: it is no session at all
        tail = scan.tail_warning()
        warnings = [*scan.warnings]
        reason = ""
        if tail is not None:
            if on_torn_tail == "raise":
                raise DamagedSessionError(tail.message, path=path, line=tail.line)
            if self.writing and on_torn_tail == "repair" and not (scan.bad_lines or scan.gaps):
                warnings.append(_set_tail_aside(path, self.descriptor, scan))
            else:
                warnings.append(tail)
                reason = f"{tail.message} (line {tail.line})"
        if scan.bad_lines or scan.gaps:
            lost = f"{scan.bad_lines} bad lines were skipped" if scan.bad_lines else "entries are missing"
            reason = f"{lost}, so the session can only be read"
        if not self.writing:
            reason = reason or "the session was opened for reading; open it with mode='write' to append"
        if reason:
            self._free()  # somebody else may repair it
        info = StorageInfo(
            header=header,
            writable=not reason,
            inline=True,
            warnings=tuple(warnings),
            place=path,
            read_only_reason=reason,
            salvaged=scan.skips,
        )
        return OpenFile(path, self.descriptor, scan, self.lock, info, self.index)

    def close(self) -> None:
        """Opening failed: close the file and free the lock."""
        os.close(self.descriptor)
        self._free()

    def _free(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None


async def open_session_file(
    path: str, mode: Mode, on_torn_tail: TornTail, on_corrupt: Corrupt, lock_timeout: float
) -> OpenFile:
    """Open and read the whole file; see ``JsonlStorage.open``.

    What waits for the disk is done in a worker; the lines are checked on the event loop, half a millisecond at a time:
    that is Python's own work, which a thread would only take from the loop, for milliseconds on end.
    """
    begun = await open_when_free(
        lambda: naming(path, lambda: BegunFile(path, mode, on_corrupt)), lock_timeout, undo=BegunFile.close
    )
    try:
        offset = 0
        while piece := await run_in_worker(partial(naming, path, partial(begun.piece, offset))):
            offset += len(piece)
            await in_slices(begun.read_piece(piece))
        return await run_in_worker(lambda: naming(path, lambda: begun.finish(on_torn_tail)))
    except BaseException:
        await run_in_worker(begun.close)
        raise


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
        files.write_all(descriptor, data)
        files.sync_data(descriptor)
    except BaseException:
        _remove(side)
        raise
    finally:
        os.close(descriptor)
    files.sync_folder(os.path.dirname(path))
    return side


def create_session_file(
    path: str,
    header: SessionHeader,
    records: Sequence[Record],
    durability: Durability,
    *,
    blobs: Blobs = (),
    replace_empty: bool = False,
    set_aside: bool = False,
    indexed: bool = True,
) -> OpenFile:
    """Write everything to a temporary file beside ``path``, sync it, and link it to its name, which must be free.

    The blobs are there before that: whoever sees the session finds them. Without ``indexed``, nothing of the records is
    kept in memory, and the session is to be closed.
    """
    folder, name = os.path.split(path)
    made = files.create_folders(folder)
    if os.path.lexists(path) and not replace_empty:
        raise SessionExistsError("there is something here already; open it, or choose another place", path=path)
    lock = WriterLock.acquire(path + ".lock", 0)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
    descriptor = -1
    linked = False
    folder_of_blobs = BlobFolder(blob_folder(path))
    kept: list[str] = []
    try:
        if replace_empty:
            _remove_uncommitted(path, set_aside=set_aside)
        descriptor = files.create_file(temporary)
        _write_lines(descriptor, chain([header.to_line()], (record.data for record in records)))
        if durability == "fsync":
            files.sync_data(descriptor)
        kept = folder_of_blobs.write_all(blobs, durable=durability == "fsync")
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise SessionExistsError(
                "there is something here already; open it, or choose another place", path=path
            ) from None
        linked = True
        os.unlink(temporary)
        if durability == "fsync":
            for changed in (folder, *map(os.path.dirname, made)):
                files.sync_folder(changed)
        scan = LineScan(path=path)
        scan.header = header
        scan.seq = len(records)
        index = index_of(records) if indexed else EntryIndex()
        info = StorageInfo(header=header, writable=True, inline=True, place=path)
        return OpenFile(path, descriptor, scan, lock, info, index)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        _remove(temporary)
        if linked:
            _remove(path)  # nobody was told of it, so it must not be listed
        folder_of_blobs.remove(kept)
        lock.release()
        raise


def _write_lines(descriptor: int, lines: Iterable[bytes]) -> None:
    rest = iter(lines)
    while block := list(islice(rest, _LINES_AT_ONCE)):
        block.append(b"")
        files.write_all(descriptor, b"\n".join(block))


def _remove_uncommitted(path: str, *, set_aside: bool) -> None:
    """Take a file without a committed line out of the way; bytes that are no white space are kept beside it.

    Raises ``DamagedSessionError`` if there are such bytes and they were not to be set aside.
    """
    try:
        descriptor = files.open_file(path, writing=False)
    except FileNotFoundError:
        return
    try:
        scan = LineScan(path=path)
        for piece in pieces(descriptor, 0):
            for _ in scan.feed(piece, lambda _: None):
                pass
    finally:
        os.close(descriptor)
    if scan.header is not None:
        raise SessionExistsError("another process made a session here this moment; open it", path=path)
    if not is_blank(scan.tail):
        if not set_aside:
            raise DamagedSessionError(
                "the file holds bytes but no committed line; open with on_torn_tail='repair' to set them aside",
                path=path,
            )
        _write_side_file(path, scan.accepted, scan.tail)
    _remove(path)


def delete_session(path: str, lock: WriterLock) -> None:
    """Delete a session whose lock is held, and the lock file last. Raises ``StorageError``; then it can be tried again."""

    def delete() -> None:
        delete_session_files(path)
        lock.remove()

    naming(path, delete, "cannot delete all of the session", "delete it again")


def delete_session_files(path: str) -> None:
    """Remove a session's file, its blobs and its side files, but not the lock file, which its holder removes last."""
    folder = os.path.dirname(path)
    _remove(path)
    files.sync_folder(folder)  # or a crash could bring the session back without its blobs
    for side in side_files(path):
        _remove(side)
    BlobFolder(blob_folder(path)).delete()
    files.sync_folder(folder)


def blob_folder(path: str) -> str:
    """Where the blobs of a session's file lie: ``chat.blobs`` beside ``chat.jsonl``.

    Behind any other name something else is put, so that no two files of a folder ever share one.
    """
    return path.removesuffix(".jsonl") + ".blobs" if path.endswith(".jsonl") else path + ".blobs-folder"


def left_behind(path: str) -> bool:
    """Whether an interrupted deletion left anything of a session, the lock file aside."""
    return bool(side_files(path)) or os.path.isdir(blob_folder(path))


def side_files(path: str) -> list[str]:
    """What repairs and crashed creations left beside a session's file; the lock file is none of them.

    The whole name is matched: ``x.jsonl.torn-1`` is a session id too, and the side files of that one are not ours.
    """
    folder, name = os.path.split(path)
    ours = re.compile(rf"{re.escape(name)}\.torn-[0-9]+(?:-[0-9a-f]{{6}})?|\.{re.escape(name)}\.[0-9a-f]{{12}}\.tmp")
    return [os.path.join(folder, found) for found in os.listdir(folder) if ours.fullmatch(found)]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def pieces(descriptor: int, offset: int) -> Iterator[bytes]:
    """The file's bytes from ``offset`` on, 1 MiB at a time."""
    while piece := os.pread(descriptor, _PIECE, offset):
        yield piece
        offset += len(piece)
