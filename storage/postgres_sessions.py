"""What stands in PostgreSQL for one session: finding it, making it, reading its lines, deleting it.

Functions over a connection. A fork of a session of the same database refers to the lines that both have, from the first
on, instead of copying them; they stay as long as anybody refers to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from storage.blobs import Blobs, check_blob_name
from storage.errors import DamagedSessionError, SessionExistsError, SessionNotFoundError, StaleSessionError
from storage.header import SessionHeader
from storage.postgres_leases import Lease, forgotten_on_error, new_holder, take, this_owner
from storage.postgres_schema import PAGE, TIP
from storage.postgres_wire import (
    Connection,
    Row,
    bigint,
    bigints,
    boolean,
    byteas,
    items_of,
    number,
    text,
    transaction,
    uuids,
)
from storage.protocols import Record

if TYPE_CHECKING:
    from storage.postgres_pool import Pool

LAST: Final = (1 << 63) - 1
_PAGE_BYTES: Final = 8 * 1024 * 1024
_INSERT_BYTES: Final = 4 * 1024 * 1024
_INSERT_RECORDS: Final = 1024
_DIGESTS: Final = 8192
_MOST_BASES: Final = 64
"""Segments a session is read from; a fork that would need more is a copy."""


class Segment(NamedTuple):
    """Lines of a session, from place ``first`` to before ``end``, that are kept under the key ``session``."""

    session: bytes
    first: int
    end: int


class Found(NamedTuple):
    """A session as it stands in the tables."""

    session: bytes
    id: str
    header: bytes
    segments: tuple[Segment, ...]
    """Where its lines are, in order; the last segment is its own."""

    @property
    def first(self) -> int:
        """The place of the first entry that is its own."""
        return self.segments[-1].first


def segments_of(session: bytes, first: int, bases: Sequence[bytes], ends: Sequence[int]) -> tuple[Segment, ...]:
    """The segments, from what a row says."""
    starts = [0, *ends]
    shared = [Segment(base, start, end) for base, start, end in zip(bases, starts, ends, strict=False)]
    return (*shared, Segment(session, first, LAST))


def segments_in(row: Row) -> tuple[Segment, ...]:
    """The segments of a row that begins with ``session, first, bases, base_ends``."""
    return segments_of(row[0] or b"", number(row[1]), items_of(row[2]), [number(end) for end in items_of(row[3])])


def find(connection: Connection, session_id: str, *, place: str) -> Found:
    """The session of that id. Raises ``SessionNotFoundError``."""
    rows = connection.run(
        'SELECT session FROM branchline_names WHERE name = $1::text COLLATE "C"', text(session_id.lower())
    )
    if rows:
        rows = connection.run(
            "SELECT session, first, bases, base_ends, id, header FROM branchline_sessions WHERE session = $1::uuid",
            rows[0][0],
        )
    found_id = (rows[0][4] or b"").decode() if rows else ""
    if found_id != session_id:
        hint = f"; there is {found_id!r}, which is another id" if found_id else ""
        raise SessionNotFoundError(f"there is no session {session_id!r}{hint}", path=place)
    return Found(rows[0][0] or b"", found_id, rows[0][5] or b"", segments_in(rows[0]))


def hold(pool: Pool, found: Found, *, place: str) -> Lease:
    """The writer's place of a session that was found. Raises ``SessionNotFoundError`` if it was deleted since."""
    holder, seconds = new_holder(), pool.settings.lease_seconds
    with forgotten_on_error(holder):
        lease = pool.call(lambda connection: take(connection, found.session, holder, seconds, place=place))
        if lease is None:
            raise SessionNotFoundError(f"there is no session {found.id!r} any more", path=place)
        return lease


def read_lines(
    connection: Connection, segments: Sequence[Segment], after_seq: int, limit: int | None
) -> Sequence[tuple[int, bytes]]:
    """A page of lines after ``after_seq`` as (seq, bytes): at most ``limit``, and after the first about 8 MiB.

    It begins with the next line that is there: where a stretch is missing, behind it.
    """
    start = after_seq + 1
    most = bigint(LAST if limit is None else limit)
    for segment in segments:
        if start < segment.end:
            rows = connection.run(
                PAGE, segment.session, bigint(start), bigint(segment.end), most, bigint(_PAGE_BYTES), prepared=True
            )
            if rows:
                return [(number(row[0]), row[1] or b"") for row in rows]
            start = segment.end
    return []


def check_tip(connection: Connection, found: Found, after_seq: int, *, place: str) -> None:
    """There is nothing after ``after_seq``: see that this is so because it is the end.

    Raises ``StaleSessionError`` where the session was deleted, or has lost what was read before, and
    ``DamagedSessionError`` where a fork ends within what it shares.
    """
    rows = connection.run(TIP, found.session, bigint(after_seq + 1), prepared=True)
    if not rows:
        raise StaleSessionError("the session was deleted; open another one", path=place)
    if after_seq + 1 < found.first:
        raise missing_line(after_seq + 1, found.first, place=place)
    if after_seq >= found.first and rows[0][1] is None:
        raise StaleSessionError(
            f"entry {after_seq} was read before and is not there any more (was a backup restored, or has an older copy of "
            "the database taken over?); open the session anew",
            path=place,
        )


def missing_line(seq: int, following: int, *, place: str) -> DamagedSessionError:
    """The error for an entry that somebody removed."""
    return DamagedSessionError(
        f"invalid session record at line {seq + 2}: entry {seq} is missing (the next one is {following}); nothing was "
        "changed, and opening with on_corrupt='skip' shows the rest",
        path=place,
        line=seq + 2,
    )


# --- making


def make_durable(connection: Connection, durable: bool) -> None:
    """For the transaction that is open: whether it must survive power loss."""
    connection.run(
        "SELECT CASE WHEN NOT $1::boolean THEN set_config('synchronous_commit', 'off', true) "
        "WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END",
        boolean(durable),
    )


def create(
    connection: Connection,
    session: bytes,
    holder: bytes,
    header: SessionHeader,
    records: Sequence[Record],
    blobs: Blobs,
    seconds: int,
    *,
    durable: bool,
    place: str,
) -> tuple[Found, Lease]:
    """Make a session under the new key ``session``, and the lease of its writer ``holder``, in one transaction.

    Asked again with the same keys after its outcome got lost, it finds what it made. Raises ``SessionExistsError``.
    """
    line = header.to_line()
    size = len(line) + 1 + size_of(records)
    with transaction(connection):
        make_durable(connection, durable)
        is_free = connection.run(
            "INSERT INTO branchline_names (name, session) VALUES ($1::text, $2::uuid) ON CONFLICT DO NOTHING RETURNING name",
            text(header.id.lower()),
            session,
        )
        if not is_free:
            return _made_before(connection, session, header, holder, seconds, place)
        shared = _shared(connection, header.parent_session, records) if records else ()
        first = shared[-1].end if shared else 0
        connection.run(
            "INSERT INTO branchline_sessions "
            "(session, id, header, first, bases, base_ends, fence, holder, owner, held_until, size, shared_size) "
            "VALUES ($1::uuid, $2::text, $3::bytea, $4::bigint, $5::uuid[], $6::bigint[], 1, $7::uuid, $8::text, "
            "now() + $9::bigint * interval '1 second', $10::bigint, $11::bigint)",
            session,
            text(header.id),
            line,
            bigint(first),
            uuids([segment.session for segment in shared]),
            bigints([segment.end for segment in shared]),
            holder,
            text(this_owner()),
            bigint(seconds),
            bigint(size),
            bigint(size_of(records[:first])),
        )
        for segment in shared:
            connection.run(
                "INSERT INTO branchline_shares (session, child, shared_end) VALUES ($1::uuid, $2::uuid, $3::bigint) "
                "ON CONFLICT (session, child) DO UPDATE SET shared_end = excluded.shared_end",
                segment.session,
                session,
                bigint(segment.end),
            )
        _insert(connection, session, records[first:])
        for name, data in blobs:
            connection.run(
                "INSERT INTO branchline_blobs (session, name, data) VALUES ($1::uuid, $2::text, $3::bytea)",
                session,
                text(check_blob_name(name)),
                data,
            )
    return Found(session, header.id, line, (*shared, Segment(session, first, LAST))), Lease(session, holder, 1, size)


def _made_before(
    connection: Connection, session: bytes, header: SessionHeader, holder: bytes, seconds: int, place: str
) -> tuple[Found, Lease]:
    """The name is taken: by ourselves, when an answer got lost on its way, or by somebody else."""
    rows = connection.run(
        "UPDATE branchline_sessions SET fence = fence + 1, holder = $2::uuid, "
        "held_until = now() + $3::bigint * interval '1 second' WHERE session = $1::uuid RETURNING fence, size",
        session,
        holder,
        bigint(seconds),
    )
    if rows:
        return find(connection, header.id, place=place), Lease(session, holder, number(rows[0][0]), number(rows[0][1]))
    rows = connection.run(
        "SELECT id FROM branchline_sessions WHERE session = "
        "(SELECT session FROM branchline_names WHERE name = $1::text)",
        text(header.id.lower()),
    )
    twin = (rows[0][0] or b"").decode() if rows else header.id
    how = "already" if twin == header.id else "already, which differs only in case"
    raise SessionExistsError(f"there is a session {twin!r} {how}; open it, or choose another id", path=place)


def size_of(records: Sequence[Record]) -> int:
    """Bytes of their lines, with a newline each, as a listing counts them."""
    return sum([len(record.data) for record in records]) + len(records)


def _insert(connection: Connection, session: bytes, records: Sequence[Record]) -> None:
    start = 0
    while start < len(records):
        stop, size = start, 0
        while stop < len(records) and stop - start < _INSERT_RECORDS and (size < _INSERT_BYTES or stop == start):
            size += len(records[stop].data)
            stop += 1
        some = records[start:stop]
        connection.run(
            "INSERT INTO branchline_entries (session, seq, data) "
            "SELECT $1::uuid, lines.seq, lines.data FROM unnest($2::bigint[], $3::bytea[]) AS lines(seq, data)",
            session,
            bigints([record.seq for record in some]),
            byteas([record.data for record in some]),
        )
        start = stop


def _shared(connection: Connection, parent_id: str | None, records: Sequence[Record]) -> tuple[Segment, ...]:
    """Which lines of ``records``, from the first on, are there already as those of the parent, byte for byte.

    The parent's row is locked against its deletion until the transaction ends.
    """
    if parent_id is None:
        return ()
    rows = connection.run(
        "SELECT session, first, bases, base_ends, id FROM branchline_sessions WHERE session = "
        "(SELECT session FROM branchline_names WHERE name = $1::text) FOR KEY SHARE",
        text(parent_id.lower()),
    )
    if not rows or (rows[0][4] or b"").decode() != parent_id:
        return ()
    parent = segments_in(rows[0])
    if len(parent) > _MOST_BASES:
        return ()
    same = _common_beginning(connection, parent, records)
    return tuple(segment._replace(end=min(segment.end, same)) for segment in parent if segment.first < same)


def _common_beginning(connection: Connection, segments: Sequence[Segment], records: Sequence[Record]) -> int:
    """Compared by digests, so that the lines need not travel."""
    same = 0
    for segment in segments:
        end = min(segment.end, len(records))
        while same < end:
            rows = connection.run(
                "SELECT seq, sha256(data) FROM branchline_entries "
                "WHERE session = $1::uuid AND seq >= $2::bigint AND seq < $3::bigint ORDER BY seq",
                segment.session,
                bigint(same),
                bigint(min(end, same + _DIGESTS)),
            )
            if not rows:
                return same
            for seq, digest in rows:
                if number(seq) != same or digest != hashlib.sha256(records[same].data).digest():
                    return same
                same += 1
    return same


# --- deleting


def delete(connection: Connection, lease: Lease, *, durable: bool, again: bool, place: str) -> None:
    """Delete a session that is held, with all that nobody else refers to, in one transaction.

    What forks refer to stays, for them alone, until the last of them goes. ``again``: an answer got lost, so if it is gone,
    we did it. Raises ``StaleSessionError`` if the lease is another's by now, or the session is gone.
    """
    session = lease.session
    with transaction(connection):
        make_durable(connection, durable)
        rows = connection.run(
            "SELECT session, first, bases, base_ends, id, followed_until > now() FROM branchline_sessions "
            "WHERE session = $1::uuid AND holder = $2::uuid FOR UPDATE",
            session,
            lease.holder,
        )
        if not rows:
            if again and not connection.run("SELECT 1 FROM branchline_sessions WHERE session = $1::uuid", session):
                return
            raise StaleSessionError("the session was deleted, or taken over, by someone else", path=place)
        bases = sorted({segment.session for segment in segments_in(rows[0])[:-1]})
        connection.run(
            "DELETE FROM branchline_names WHERE name = $1::text AND session = $2::uuid",
            text((rows[0][4] or b"").decode().lower()),
            session,
        )
        connection.run("DELETE FROM branchline_sessions WHERE session = $1::uuid", session)
        connection.run("DELETE FROM branchline_blobs WHERE session = $1::uuid", session)
        _delete_unshared(connection, session)
        if rows[0][5] == boolean(True):
            connection.run("SELECT pg_notify('branchline', $1::uuid::text)", session)
        for base in bases:
            # All who share it, in one order: of two that are deleted at once, the second sees that it is the last.
            connection.run(
                "SELECT child FROM branchline_shares WHERE session = $1::uuid ORDER BY child FOR UPDATE", base
            )
            connection.run("DELETE FROM branchline_shares WHERE session = $1::uuid AND child = $2::uuid", base, session)
            # Locked, so that of the base and its last fork, deleted at once, one sees that the other is gone.
            if not connection.run("SELECT 1 FROM branchline_sessions WHERE session = $1::uuid FOR KEY SHARE", base):
                _delete_unshared(connection, base)


def _delete_unshared(connection: Connection, session: bytes) -> None:
    """Of a session that is gone: the entries that no fork refers to."""
    connection.run(
        "DELETE FROM branchline_entries WHERE session = $1::uuid AND seq >= "
        "coalesce((SELECT max(shared_end) FROM branchline_shares WHERE session = $1::uuid), 0)",
        session,
    )
