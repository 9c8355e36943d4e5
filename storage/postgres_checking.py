"""What can be wrong with the tables in PostgreSQL as a whole, beside what is wrong with one session. Looks only."""

from __future__ import annotations

from typing import Final

from storage.postgres_wire import Connection, number

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
        "entries that belong to no session",
        (
            "SELECT count(*)::bigint FROM branchline_entries e WHERE NOT EXISTS "
            "(SELECT 1 FROM branchline_sessions s WHERE s.session = e.session) AND NOT EXISTS "
            "(SELECT 1 FROM branchline_shares h WHERE h.session = e.session AND e.seq < h.shared_end)"
        ),
    ),
)


def problems_of(connection: Connection) -> list[str]:
    """Everything that is wrong, a line each: what belongs to nothing. Pages and indexes are the server's to check."""
    counts = [(what, number(connection.run(query)[0][0])) for what, query in _COUNTS]
    return [f"{count:,} {what}" for what, count in counts if count]
