"""Blobs in PostgreSQL: a row each, written beside the entries and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from storage.blobs import Blobs
from storage.errors import StorageError
from storage.postgres_leases import Lease
from storage.postgres_wire import Connection, boolean, text

Outcome = Literal["written", "exists", "stale"]

# The session's row is kept from being deleted meanwhile, and not locked against its appends: a large blob takes long. What
# is compared is the holder: the holder itself moves the fence when an append's connection was lost.
_WRITE = """
WITH ours AS MATERIALIZED (
    SELECT session FROM branchline_sessions WHERE session = $1::uuid AND holder = $2::uuid FOR KEY SHARE
), put AS (
    INSERT INTO branchline_blobs (session, name, data) SELECT session, $3::text, $4::bytea FROM ours
    ON CONFLICT DO NOTHING RETURNING name
)
SELECT ours.session, (SELECT name FROM put),
    CASE WHEN NOT $5::boolean THEN set_config('synchronous_commit', 'off', true)
         WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
FROM ours
"""


def write_blob(connection: Connection, lease: Lease, name: str, data: bytes, *, durable: bool, again: bool) -> Outcome:
    """Store a blob. ``again``: an answer got lost, so one with the same bytes is ours."""
    rows = connection.run(_WRITE, lease.session, lease.holder, text(name), data, boolean(durable))
    if not rows:
        return "stale"
    if rows[0][1] is not None or (again and read_blob(connection, lease.session, name) == data):
        return "written"
    return "exists"


def read_blob(connection: Connection, session: bytes, name: str) -> bytes | None:
    """What is kept under ``name``; ``None`` if nothing is."""
    rows = connection.run(
        "SELECT data FROM branchline_blobs WHERE session = $1::uuid AND name = $2::text", session, text(name)
    )
    return (rows[0][0] or b"") if rows else None


def blob_names(connection: Connection, session: bytes) -> Sequence[str]:
    """All names, sorted."""
    rows = connection.run("SELECT name FROM branchline_blobs WHERE session = $1::uuid ORDER BY name", session)
    return [(row[0] or b"").decode() for row in rows]


class BlobsOnce:
    """Blobs that are iterated once. A transaction that was lost in the middle cannot be made again from them."""

    def __init__(self, blobs: Blobs, place: str) -> None:
        """Not begun."""
        self._blobs = blobs
        self._place = place
        self._begun = False

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        if self._begun and not isinstance(self._blobs, Sequence):
            raise StorageError(
                "the connection was lost while the session was made; nothing of it is there; try again",
                path=self._place,
            )
        self._begun = True
        yield from self._blobs
