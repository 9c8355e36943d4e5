"""Folders of entry files, read and made for migrations (``storage.session_streams``). Blocking.

To know the order of the files each has to be read, so while a folder is read, its lines are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from storage.blob_folder import BlobFolder
from storage.blobs import Blobs
from storage.entry_folder import BLOBS, TORN
from storage.entry_folder_lifetime import create_folder, read_header, remove_leftovers
from storage.entry_folder_reading import FolderReader
from storage.header import SessionHeader
from storage.identifiers import check_entry_name
from storage.protocols import Durability, Record, SessionWarning
from storage.session_streams import PAGE, SessionStream


@contextmanager
def reading_folder(folder: str) -> Generator[SessionStream]:
    """The session in ``folder``; see ``StreamsSessions.reading``. An unterminated tail is not part of it."""
    header = read_header(folder)
    reader = FolderReader(folder)
    contents = reader.load(alone=False)
    if contents.damage:
        raise contents.damage[0]
    end = len(reader)

    def records() -> Iterator[Record]:
        for start in range(0, end, PAGE):
            yield from reader.read(start - 1, min(PAGE, end - start), alone=False)

    warnings: list[SessionWarning] = []
    if contents.tail:
        count = len(contents.tail)
        warnings.append(
            SessionWarning(
                "unterminated_tail", f"{count} entries behind a gap were never committed; {TORN}/ is for them"
            )
        )
    blobs = BlobFolder(os.path.join(folder, BLOBS))
    yield SessionStream(folder, header, records(), blobs.names, blobs.read, lambda: warnings)


def receive_folder(
    folder: str, header: SessionHeader, records: Sequence[Record], blobs: Blobs, durability: Durability
) -> None:
    """The folder, made whole or not at all; see ``StreamsSessions.receive``. What a killed one left goes first.

    Raises ``InvalidIdError`` for entries whose ids are no names of files.
    """
    for record in records:
        check_entry_name(record.id)
    if os.path.isdir(os.path.dirname(folder)):
        remove_leftovers(folder)
    create_folder(folder, header, records, blobs, durable=durability == "fsync").release()
