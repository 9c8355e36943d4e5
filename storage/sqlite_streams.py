"""Sessions of a SQLite database, read and made a piece at a time: for migrations (``storage.session_streams``). Blocking."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from storage.blobs import Blobs, blob_not_found, check_blob_name
from storage.header import SessionHeader, parse_header
from storage.protocols import Durability, Record
from storage.session_streams import SessionStream
from storage.sqlite_database import Database
from storage.sqlite_opening import create_session, meaning, missing, place_of, read_record, real_path
from storage.sqlite_sessions import blob_content, blob_names, find_session, read_piece

_DOING = "the session cannot be read"


@contextmanager
def reading_rows(path: str, session_id: str) -> Generator[SessionStream]:
    """The session of that id in the database at ``path``; see ``StreamsSessions.reading``."""
    path = real_path(path)
    place = place_of(path, session_id)
    database = meaning(path, _DOING, lambda: Database.use(path, writing=False))
    try:
        found = meaning(path, _DOING, lambda: database.read(lambda c: find_session(c, session_id, path)))
        header = parse_header(found.header, path=place)

        def records() -> Iterator[Record]:
            seq = 0
            while seq < found.next_seq:
                after = seq - 1
                lines = meaning(
                    path,
                    _DOING,
                    lambda after=after: database.read(lambda c: read_piece(c, found, after, found.next_seq, place)),
                )
                for at, data in lines:
                    if at != seq:
                        raise missing(seq, at, place)
                    yield read_record(at, data, place)
                    seq += 1
                if not lines:
                    raise missing(seq, found.next_seq, place)

        def names() -> Sequence[str]:
            return meaning(path, _DOING, lambda: database.read(lambda c: blob_names(c, found.number)))

        def read_blob(name: str) -> bytes:
            check_blob_name(name)
            content = meaning(path, _DOING, lambda: database.read(lambda c: blob_content(c, found.number, name)))
            if content is None:
                raise blob_not_found(name, path=place)
            return content[1]

        yield SessionStream(place, header, records(), names, read_blob)
    finally:
        database.release()


def receive_rows(
    path: str, header: SessionHeader, records: Sequence[Record], blobs: Blobs, durability: Durability
) -> None:
    """A new session in the database at ``path``, in one transaction; see ``StreamsSessions.receive``.

    What it has in common with its parent, if that is in this database already, is referred to, not copied.
    """
    meaning(
        path,
        "the session cannot be made",
        lambda: create_session(path, header, records, durability, blobs, indexed=False).close(),
    )
