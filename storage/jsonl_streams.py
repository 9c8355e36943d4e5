"""Files of lines, read and made a few lines at a time: for migrations (``storage.session_streams``). Blocking."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice

from storage.blob_folder import BlobFolder
from storage.blobs import Blobs
from storage.file_lock import WriterLock
from storage.header import SessionHeader
from storage.jsonl_file import BegunFile, blob_folder, create_session_file, naming, side_files
from storage.protocols import Durability, Record, SessionWarning
from storage.session_streams import SessionStream


@contextmanager
def reading_file(path: str) -> Generator[SessionStream]:
    """The session in the file ``path``; see ``StreamsSessions.reading``. What has no newline is not part of it."""
    begun = naming(path, lambda: BegunFile(path, "read", "raise"))
    try:
        records = begun.records()
        first = naming(path, lambda: list(islice(records, 1)))  # by then the header is read
        header = begun.scan.header
        if header is None:  # there is none, and this says what there is
            header = begun.finish("read_only").info.header
        blobs = BlobFolder(blob_folder(begun.path))

        def warnings() -> Sequence[SessionWarning]:
            tail = begun.scan.tail_warning()
            return [*begun.scan.warnings, *([tail] if tail is not None else [])]

        yield SessionStream(begun.path, header, chain(first, records), blobs.names, blobs.read, warnings)
    finally:
        begun.close()


def receive_file(
    path: str, header: SessionHeader, records: Sequence[Record], blobs: Blobs, durability: Durability
) -> None:
    """The file ``path``, made whole or not at all; see ``StreamsSessions.receive``. What a killed one left goes first."""

    def make() -> None:
        _remove_unfinished(path)
        create_session_file(path, header, records, durability, blobs=blobs, indexed=False).close()

    naming(path, make)


def _remove_unfinished(path: str) -> None:
    if not os.path.isdir(os.path.dirname(path)) or os.path.lexists(path):
        return
    left = [side for side in side_files(path) if side.endswith(".tmp")] + [*BlobFolder(blob_folder(path)).unfinished()]
    if left:
        lock = WriterLock.acquire(f"{path}.lock")  # nobody makes it at this moment
        try:
            for side in left:
                with suppress(FileNotFoundError):  # whoever was at work there has come to its end
                    os.unlink(side)
        finally:
            lock.release()
