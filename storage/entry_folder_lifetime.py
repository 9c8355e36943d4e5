"""How a session's folder begins and ends: made whole or not at all, repaired by moving aside, deleted as a whole."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import chain

from storage import files
from storage.blob_folder import BlobFolder
from storage.blobs import Blobs
from storage.entry_folder import (
    BLOBS,
    ENTRIES,
    LOCK,
    METADATA,
    TORN,
    StoredEntry,
    entry_file_bytes,
    entry_file_name,
    list_entry_names,
    name_some,
)
from storage.entry_folder_writing import remove_files, write_all_files
from storage.errors import (
    DamagedSessionError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from storage.file_lock import WriterLock
from storage.header import SessionHeader, parse_header, stand_in_header
from storage.protocols import Corrupt, Record

_BOM = b"\xef\xbb\xbf"
_LONGEST_NAME = 200
_ATTEMPTS = 5
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


def read_header(folder: str) -> SessionHeader:
    """The header in ``folder``.

    Raises ``SessionNotFoundError`` where there is no session yet, ``DamagedSessionError`` for entries without a header,
    ``UnsupportedVersionError``, and ``StorageError`` for what cannot be read.
    """
    path = os.path.join(folder, METADATA)
    try:
        # Not by open alone: for a pipe in its place that would wait for ever.
        with open(files.open_file(path, writing=False), "rb") as file:
            line = file.read().removeprefix(_BOM).strip()
    except (FileNotFoundError, NotADirectoryError):
        line = b""
    except OSError as error:
        raise StorageError(f"the session's header cannot be read: {error.strerror}", path=path) from error
    if line:
        return parse_header(line, path=path)
    if _has_entries(folder):
        raise DamagedSessionError(
            "there are entries, but no header: put metadata.json back (a backup's, or another session's with this "
            "session's id in it); the folder was left as it is",
            path=path,
        )
    raise SessionNotFoundError("there is no session here yet; create one, or use open_or_create", path=folder)


def read_header_or_stand_in(folder: str, on_corrupt: Corrupt) -> tuple[SessionHeader, DamagedSessionError | None]:
    """The header in ``folder``; in salvage, for one that is damaged, another that stands in for it, and the damage."""
    try:
        return read_header(folder), None
    except DamagedSessionError as error:
        if on_corrupt == "raise":
            raise
        return stand_in_header(os.path.basename(folder)), error


def _has_entries(folder: str) -> bool:
    try:
        return bool(list_entry_names(os.path.join(folder, ENTRIES))[0])
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageError(f"the folder cannot be read: {error.strerror}", path=folder) from error


def create_folder(
    folder: str, header: SessionHeader, records: Sequence[Record], blobs: Blobs = (), *, durable: bool
) -> WriterLock:
    """Make a session that holds ``records`` and ``blobs``, whole or not at all, and take its lock.

    It is built beside its place, in a hidden folder that no listing shows, and renamed: nobody ever sees a part of it.
    Raises ``SessionExistsError`` if anything but an empty folder is there.
    """
    _check_free(folder)
    parent, name = os.path.split(folder)
    try:
        made = make_parents(parent)
        building, lock = _begin_folder(os.path.join(parent, f".{name[:_LONGEST_NAME]}.creating-"))
    except OSError as error:
        if isinstance(error, SessionError):
            raise
        raise StorageError(f"no session can be made here: {error.strerror}", path=folder) from error
    moved = False
    try:
        BlobFolder(os.path.join(building, BLOBS)).write_all(blobs, durable=durable)
        _fill(building, header, records, durable)
        if sys.platform == "win32":  # there a folder with an open file in it cannot be renamed
            lock.release()
        _rename_folder(building, folder)
        moved = True
        lock.path = os.path.join(folder, LOCK)
        if sys.platform == "win32":
            lock = WriterLock.acquire(lock.path)
        if durable:
            for changed in [parent, *made]:
                files.sync_folder(changed)
    except BaseException as error:
        lock.release()
        if moved:  # nobody was told of it, so it must not be listed
            _rename_folder(folder, building)
        shutil.rmtree(building, ignore_errors=True)  # the first error is the one to tell
        if isinstance(error, OSError) and not isinstance(error, SessionError):
            why = f"the session could not be made, and nothing of it is left: {error}"
            raise StorageError(why, path=folder) from error
        raise
    return lock


def _begin_folder(start: str) -> tuple[str, WriterLock]:
    """A new folder whose name begins with ``start``, locked first of all: so it can be told from what a crash left behind.

    Until it is locked, whoever cleans up may take it for that; then another one is begun.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        building = start + os.urandom(4).hex()
        os.mkdir(building, 0o700)
        try:
            return building, WriterLock.acquire(os.path.join(building, LOCK))
        except (SessionLockedError, StorageError) as error:
            taken = isinstance(error, SessionLockedError) or not os.path.lexists(building)
            if not taken:
                shutil.rmtree(building, ignore_errors=True)  # the first error is the one to tell
            if not taken or not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


def make_parents(folder: str) -> list[str]:
    """Make ``folder`` and those above it (0700), where they are missing; the folders whose names changed by that."""
    return [os.path.dirname(made) for made in files.create_folders(folder)]


def _check_free(folder: str) -> None:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        if not os.path.islink(folder):
            return
        names = ["a symbolic link"]
    except NotADirectoryError:
        names = ["a file"]
    except OSError as error:
        raise StorageError(f"the folder cannot be read: {error.strerror}", path=folder) from error
    if names:
        raise _exists(folder, f" ({name_some(sorted(names))})")


def _exists(folder: str, what: str = "") -> SessionExistsError:
    return SessionExistsError(f"there is something here already{what}; open it, or choose another place", path=folder)


def _fill(folder: str, header: SessionHeader, records: Sequence[Record], durable: bool) -> None:
    entries = os.path.join(folder, ENTRIES)
    os.mkdir(entries, 0o700)
    # Each is its own batch: it becomes visible as a whole, so a gap in it will never be an unterminated tail.
    contents = (
        (os.path.join(entries, entry_file_name(record.id)), entry_file_bytes(record, record.seq)) for record in records
    )
    header_file = (os.path.join(folder, METADATA), header.to_line() + b"\n")
    write_all_files(chain(contents, [header_file]), durable=durable)
    if durable:
        files.sync_folder(entries)
        files.sync_folder(folder)


def _rename_folder(source: str, target: str) -> None:
    try:
        if sys.platform == "win32" and os.path.isdir(target):
            os.rmdir(target)  # elsewhere an empty folder is replaced; one that is not empty is not, anywhere
        os.rename(source, target)
    except OSError as error:
        if error.errno in _IN_THE_WAY or isinstance(error, FileExistsError):
            raise _exists(target) from error
        raise


def prepare_folder(folder: str, header: SessionHeader, *, durable: bool) -> WriterLock:
    """Begin a session in a folder that is there but holds none: the rest of an earlier beginning, or nothing at all.

    Raises ``SessionExistsError`` if it holds anything that is not ours, or a session was begun meanwhile.
    """
    lock = WriterLock.acquire(os.path.join(folder, LOCK))
    try:
        try:
            read_header(folder)
        except SessionNotFoundError:
            pass
        else:
            raise _exists(folder)
        entries = os.path.join(folder, ENTRIES)
        if not os.path.isdir(entries):
            os.mkdir(entries, 0o700)
        temporary = os.path.join(folder, f".{METADATA}.{os.urandom(4).hex()}.tmp")
        try:
            write_all_files([(temporary, header.to_line() + b"\n")], durable=durable)
            if durable:
                files.sync_folder(entries)
            # The header comes last and at once: with it the session is there.
            files.rename(temporary, os.path.join(folder, METADATA))
        except BaseException:
            remove_files([temporary])
            raise
        if durable:
            files.sync_folder(folder)
    except OSError as error:
        lock.release()
        if isinstance(error, SessionError):
            raise
        raise StorageError(f"the session could not be made: {error.strerror}", path=folder) from error
    except BaseException:
        lock.release()
        raise
    return lock


def is_ours(folder: str) -> bool:
    """Whether ``folder`` holds nothing but what this storage makes, so that a session may begin in it."""
    ours = (LOCK, ENTRIES, TORN, BLOBS, METADATA)
    return all(name in ours or name.startswith(f".{METADATA}.") for name in os.listdir(folder))


def set_tail_aside(folder: str, tail: Sequence[StoredEntry]) -> str:
    """Move the files of an unterminated tail out of the record, to ``torn/``; where they are now."""
    entries = os.path.join(folder, ENTRIES)
    torn = os.path.join(folder, TORN)
    try:
        if not os.path.isdir(torn):
            os.mkdir(torn, 0o700)
            files.sync_folder(folder)
        for entry in tail:  # cut short, it leaves a tail all the same: what is missing lies in the last batch
            name = entry_file_name(entry.id)
            target = os.path.join(torn, name)
            while os.path.lexists(target):
                target = os.path.join(torn, f"{entry.id}.{os.urandom(4).hex()}.json")
            files.rename(os.path.join(entries, name), target)
        files.sync_folder(torn)
        files.sync_folder(entries)
    except OSError as error:
        why = f"the unterminated tail cannot be moved to {TORN}/: {error.strerror}"
        raise StorageError(why, path=folder) from error
    return torn


def delete_folder(folder: str, lock: WriterLock) -> None:
    """Delete a session whose lock is held: gone at once for everybody who looks, then removed file by file.

    Raises ``StorageError``; what is then left lies in a hidden folder beside it, which ``remove_leftovers`` finds.
    """
    parent, name = os.path.split(folder)
    hidden = os.path.join(parent, f".{name[:_LONGEST_NAME]}.deleting-{os.urandom(4).hex()}")
    try:
        if sys.platform == "win32":  # there a folder with an open file in it cannot be renamed
            lock.remove()
        os.rename(folder, hidden)
        files.sync_folder(parent)
        _remove_folder(hidden)
        files.sync_folder(parent)
    except OSError as error:
        raise StorageError(f"the session could not be deleted: {error}", path=folder) from error
    finally:
        lock.release()


def _remove_folder(folder: str) -> None:
    """Remove all below ``folder``; the lock file last, by which the rest of an interrupted removal is known."""
    with os.scandir(folder) as found:
        for item in list(found):
            if item.is_dir(follow_symlinks=False):
                shutil.rmtree(item.path)
            elif item.name != LOCK:
                os.unlink(item.path)
    shutil.rmtree(folder)


def remove_leftovers(folder: str) -> int:
    """Remove what crashed creations and deletions of this name left beside it; how many there were."""
    parent, name = os.path.split(folder)
    starts = tuple(f".{name[:_LONGEST_NAME]}.{what}-" for what in ("creating", "deleting"))
    count = 0
    for found in os.listdir(parent):
        path = os.path.join(parent, found)
        if not found.startswith(starts) or os.path.islink(path) or not os.path.isdir(path):
            continue
        lock_file = os.path.join(path, LOCK)
        if not found.startswith(starts[0]) and not os.path.exists(lock_file):
            continue  # somebody removes it this moment, the lock file last
        try:
            lock = WriterLock.acquire(lock_file)
        except SessionLockedError:
            continue  # somebody is at work there
        except StorageError:
            if os.path.lexists(path):
                raise
            continue  # somebody else removed it this moment
        try:
            _remove_folder(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            continue  # somebody begins there, with a lock file of a new making
        finally:
            lock.release()
        count += 1
    return count
