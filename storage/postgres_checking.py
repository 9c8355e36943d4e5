"""What can be wrong with the tables in PostgreSQL as a whole, beside what is wrong with one session. Looks only."""

from __future__ import annotations

from typing import Final

from storage.postgres_wire import Connection, Refused, boolean, number

_COUNTS: Final = (
    (
        "sessions without a name in the directory",
        (
            "SELECT count(*)::bigint FROM branchline_sessions s WHERE NOT EXISTS "
            "(SELECT 1 FROM branchline_names n WHERE n.session = s.session)"
        ),
    ),
    (
        "names in the directory without a session",
        (
            "SELECT count(*)::bigint FROM branchline_names n WHERE NOT EXISTS "
            "(SELECT 1 FROM branchline_sessions s WHERE s.session = n.session)"
        ),
    ),
    (
        "references of forks that are gone",
        (
            "SELECT count(*)::bigint FROM branchline_shares h WHERE NOT EXISTS "
            "(SELECT 1 FROM branchline_sessions s WHERE s.session = h.child)"
        ),
    ),
    (
        "large outputs without a session",
        (
            "SELECT count(*)::bigint FROM branchline_blobs b WHERE NOT EXISTS "
            "(SELECT 1 FROM branchline_sessions s WHERE s.session = b.session)"
        ),
    ),
    (
        "sessions that have lost entries",  # the size in a row may be an old one, and then it is less
        (
            "SELECT count(*)::bigint FROM branchline_sessions s WHERE s.size > octet_length(s.header) + 1 + s.shared_size + "
            "coalesce((SELECT sum(octet_length(e.data) + 1) FROM branchline_entries e "
            "WHERE e.session = s.session AND e.seq >= s.first), 0)"
        ),
    ),
    (
        "forks that have lost entries which they share",
        (
            "SELECT count(*)::bigint FROM branchline_shares h WHERE NOT EXISTS "
            "(SELECT 1 FROM branchline_entries e WHERE e.session = h.session AND e.seq = h.shared_end - 1)"
        ),
    ),
    (
        "forks without their references, so that deleting a parent would take entries from them",
        (
            "SELECT count(DISTINCT s.session)::bigint FROM branchline_sessions s, "
            "unnest(s.bases, s.base_ends) AS base(session, stop) WHERE NOT EXISTS (SELECT 1 FROM branchline_shares h "
            "WHERE h.session = base.session AND h.child = s.session AND h.shared_end >= base.stop)"
        ),
    ),
    (
        "entries that belong to no session",
        (
            "SELECT count(*)::bigint FROM branchline_entries e WHERE NOT EXISTS "
            "(SELECT 1 FROM branchline_sessions s WHERE s.session = e.session) AND NOT EXISTS "
            "(SELECT 1 FROM branchline_shares h WHERE h.session = e.session AND e.seq < h.shared_end)"
        ),
    ),
)


_IDENTITY: Final = (
    "SELECT pg_postmaster_start_time()::text, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), "
    "to_regclass('branchline_names')::oid::bigint"
)

_MAY_WRITE: Final = (
    "SELECT current_setting('transaction_read_only') = 'on', bool_and(has_table_privilege(name, 'INSERT, UPDATE')) "
    "FROM unnest(ARRAY['branchline_names', 'branchline_sessions', 'branchline_entries', 'branchline_shares', "
    "'branchline_blobs']) AS name"
)


def identity_of(connection: Connection) -> object:
    """What tells this server, database and schema from every other, by whatever address it was reached."""
    try:
        return connection.run(_IDENTITY)[0]
    except Refused:
        return None  # not every engine that speaks PostgreSQL's language can tell


def why_read_only(connection: Connection) -> str | None:
    """Why nothing can be written to the tables that are there; ``None`` if it can."""
    try:
        read_only, may_write = connection.run(_MAY_WRITE)[0]
    except Refused:
        return None  # then writing tells
    if read_only == boolean(True):
        return "the database is read-only (is it a standby?)"
    return None if may_write == boolean(True) else "this user may not write to the tables"


def problems_of(connection: Connection) -> list[str]:
    """Everything that is wrong, a line each: what belongs to nothing. Pages and indexes are the server's to check."""
    counts = [(what, number(connection.run(query)[0][0])) for what, query in _COUNTS]
    return [f"{count:,} {what}" for what, count in counts if count]
