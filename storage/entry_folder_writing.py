"""How entries become files: temporaries first, all written and synced, then renamed in order (R10, R13).

An entry's file is there whole or not at all. What stops a batch in the middle leaves its first entries committed and
nothing else behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from itertools import islice

from storage import files
from storage.entry_folder import entry_file_bytes, entry_file_name
from storage.protocols import Record

_OPEN_AT_ONCE = 32
"""Files that are written before they are synced: the first sync then takes the others along, mostly."""


def write_new_files(contents: Iterable[tuple[str, bytes]], *, durable: bool) -> tuple[int, OSError | None]:
    """Make a file for each path with its bytes: how many are whole (and synced), and what stopped the next one.

    What was made of that one stays for the caller to remove. A *sync* that fails raises its ``OSError``: then nothing
    is known.
    """
    whole = 0
    rest = iter(contents)
    while group := list(islice(rest, _OPEN_AT_ONCE)):
        descriptors: list[int] = []
        error: OSError | None = None
        try:
            for path, data in group:
                error = _write_new_file(path, data, descriptors)
                if error is not None:
                    break
            if durable:
                for descriptor in descriptors:
                    files.sync_data(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        whole += len(descriptors)
        if error is not None:
            return whole, error
    return whole, None


def write_all_files(contents: Iterable[tuple[str, bytes]], *, durable: bool) -> None:
    """The same, all or an ``OSError``; what was made by then stays for the caller to remove."""
    _, error = write_new_files(contents, durable=durable)
    if error is not None:
        raise error


def _write_new_file(path: str, data: bytes, descriptors: list[int]) -> OSError | None:
    """Write one file and add its descriptor, or return the error."""
    try:
        descriptor = files.create_file(path)
    except OSError as error:
        return error
    try:
        files.write_all(descriptor, data)
    except OSError as error:
        os.close(descriptor)
        return error
    descriptors.append(descriptor)
    return None


def write_entries(folder: str, records: Sequence[Record], *, durable: bool) -> tuple[int, OSError | None]:
    """Commit ``records`` as one batch, in order: how many ``folder`` holds now, and what stopped the next one.

    No file is replaced: the caller holds the writer's lock. The folder's own sync is still due. An exception means that
    it is not known what the folder holds. As far as it can be helped, no temporary is left behind in any case.
    """
    batch = records[0].seq
    # The clock, not random bytes: fetching those lets go of the interpreter, and where many sessions write side by side
    # each time is a wait in line. A name that is taken all the same is refused when the file is made.
    mark = f"{time.time_ns() & 0xFFFFFFFF:08x}"
    temporaries = [f"{folder}{os.sep}.{record.id}.{mark}.tmp" for record in records]
    contents = [entry_file_bytes(record, batch) for record in records]
    committed = 0
    try:
        whole, error = write_new_files(zip(temporaries, contents, strict=True), durable=durable)
        for temporary, record in islice(zip(temporaries, records, strict=True), whole):
            target = f"{folder}{os.sep}{entry_file_name(record.id)}"
            try:
                if os.path.lexists(target):
                    raise FileExistsError(f"{target} appeared while it was about to be written")
                files.rename(temporary, target)
            except OSError as stopped:
                error = stopped
                break
            committed += 1
    finally:
        remove_files(temporaries[committed:])
    return committed, error


def remove_files(paths: Sequence[str]) -> None:
    """Remove files of ours that nobody may miss."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            # Gone already, or the disk fails: it is no entry, and the next opening names what was left.
            pass
