"""The tables in PostgreSQL, how they come about and change, and the statements that are run again and again.

Everything of a session is found by its key (``session``), a random UUID, so that a cluster can be sharded by it; only
``branchline_names``, the directory from ids to keys, is not. Bytes are kept as they are: a line is a ``bytea``.
"""

from __future__ import annotations

import time
from typing import Final

from storage.errors import StorageError, UnsupportedVersionError
from storage.postgres_wire import Connection, Refused, Row, Value, bigint, number, transaction

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # An id differs from every other in more than case, so the directory is keyed by its small letters.
        """CREATE TABLE branchline_names (
            name text COLLATE "C" PRIMARY KEY,
            session uuid NOT NULL
        )""",
        # ``first``: the place of the first entry that is the session's own; those before are read from ``bases``, each up
        # to its ``base_ends``. ``fence`` counts the writers; ``holder`` is the present one's secret, ``owner`` its name.
        """CREATE TABLE branchline_sessions (
            session uuid PRIMARY KEY,
            id text COLLATE "C" NOT NULL,
            header bytea NOT NULL,
            first bigint NOT NULL DEFAULT 0,
            bases uuid[] NOT NULL DEFAULT '{}',
            base_ends bigint[] NOT NULL DEFAULT '{}',
            size bigint NOT NULL,
            shared_size bigint NOT NULL DEFAULT 0,
            modified timestamptz NOT NULL DEFAULT now(),
            fence bigint NOT NULL DEFAULT 0,
            holder uuid,
            owner text,
            held_until timestamptz,
            followed_until timestamptz
        ) WITH (fillfactor = 70)""",
        "CREATE INDEX branchline_sessions_modified ON branchline_sessions (modified DESC, id DESC)",
        """CREATE TABLE branchline_entries (
            session uuid NOT NULL,
            seq bigint NOT NULL,
            data bytea NOT NULL,
            PRIMARY KEY (session, seq)
        )""",
        # Which forks still read the entries of a session before ``shared_end``: they stay when that session is deleted.
        """CREATE TABLE branchline_shares (
            session uuid NOT NULL,
            child uuid NOT NULL,
            shared_end bigint NOT NULL,
            PRIMARY KEY (session, child)
        )""",
        """CREATE TABLE branchline_blobs (
            session uuid NOT NULL,
            name text COLLATE "C" NOT NULL,
            data bytea NOT NULL,
            PRIMARY KEY (session, name)
        )""",
    ),
)
"""From nothing to version 1, from 1 to 2, and so on. One that was released is never changed."""

VERSION: Final = len(MIGRATIONS)

NO_TABLE: Final = "42P01"
_NOT_SUPPORTED: Final = "0A000"
_RACES: Final = ("42P07", "23505", "42710", "40001", "40P01", "55P03")
_ATTEMPTS: Final = 10
_PAUSE: Final = 0.05


def installed_version(connection: Connection) -> int:
    """The version of the tables that are there; 0 if there are none. Raises ``UnsupportedVersionError`` for a newer one."""
    try:
        rows = connection.run("SELECT version::bigint FROM branchline_schema WHERE one = 1")
    except Refused as refused:
        if refused.sqlstate == NO_TABLE:
            return 0
        raise
    version = number(rows[0][0]) if rows else 0
    if version > VERSION:
        raise UnsupportedVersionError(
            f"the tables are of schema version {version}, and this program knows up to {VERSION}; use a newer branchline; "
            "nothing was changed",
            version=version,
        )
    return version


def migrate(connection: Connection) -> None:
    """Bring the tables to our version, in one transaction; several processes at once take turns.

    The row that holds the version is the lock, so that it works through a pooler and on engines without table locks.
    """
    attempts = _ATTEMPTS
    while installed_version(connection) < VERSION:
        try:
            connection.run(
                "CREATE TABLE IF NOT EXISTS branchline_schema (one bigint PRIMARY KEY, version bigint NOT NULL)"
            )
            connection.run("INSERT INTO branchline_schema VALUES (1, 0) ON CONFLICT DO NOTHING")
            with transaction(connection):
                rows = connection.run("SELECT version FROM branchline_schema WHERE one = 1 FOR UPDATE")
                for steps in MIGRATIONS[number(rows[0][0]) :]:
                    for step in steps:
                        connection.run(step)
                connection.run("UPDATE branchline_schema SET version = $1::bigint WHERE one = 1", bigint(VERSION))
        except Refused as refused:
            if connection.in_transaction:
                connection.run("ROLLBACK")
            attempts -= 1
            # Two that make the first table at once disturb each other.
            if refused.sqlstate not in _RACES or not attempts:
                raise StorageError(
                    f"the tables could not be made: {refused}; nothing was changed; give this user CREATE on the schema, or "
                    "have its owner open a session once"
                ) from refused.error
            time.sleep(_PAUSE)


# For each session of a batch ($1 keys, $2 fences, $3 first places): lock its row, compare the fence and the place, and
# put its records ($4 keys, $5 places, $6 lines), or nothing of it. $7: it must survive power loss; a server that is set
# to promise even more is left so. A row that somebody has locked is passed over, or all the others would wait with it:
# who is not among the answers is sent alone, by a statement that waits, and is told there whether it was that or is stale.
# The order of the locks is the same everywhere, so that nobody waits in a circle where an engine cannot pass over them.
APPEND: Final = """
WITH ours AS MATERIALIZED (
    SELECT s.session, s.followed_until > now() AS followed
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS given(session, fence, place)
    JOIN branchline_sessions s ON s.session = given.session AND s.fence = given.fence
    WHERE given.place = coalesce(
        (SELECT e.seq + 1 FROM branchline_entries e WHERE e.session = given.session ORDER BY e.seq DESC LIMIT 1), s.first
    )
    ORDER BY s.session
    FOR NO KEY UPDATE OF s SKIP LOCKED
), put AS (
    INSERT INTO branchline_entries (session, seq, data)
    SELECT lines.session, lines.seq, lines.data
    FROM unnest($4::uuid[], $5::bigint[], $6::bytea[]) AS lines(session, seq, data)
    WHERE lines.session IN (SELECT ours.session FROM ours)
)
SELECT ours.session, CASE WHEN ours.followed THEN pg_notify('branchline', ours.session::text) END,
    CASE WHEN NOT $7::boolean THEN set_config('synchronous_commit', 'off', true)
         WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
FROM ours
"""

# The same for one session ($1 key, $2 fence, $3 first place, $4 places, $5 lines, $6 whether it must survive power loss):
# it costs the server less, and stays on one shard of a cluster.
APPEND_ONE: Final = """
WITH ours AS MATERIALIZED (
    SELECT s.session, s.followed_until > now() AS followed
    FROM branchline_sessions s
    WHERE s.session = $1::uuid AND s.fence = $2::bigint AND $3::bigint = coalesce(
        (SELECT e.seq + 1 FROM branchline_entries e WHERE e.session = $1::uuid ORDER BY e.seq DESC LIMIT 1), s.first
    )
    FOR NO KEY UPDATE OF s SKIP LOCKED
), put AS (
    INSERT INTO branchline_entries (session, seq, data)
    SELECT ours.session, lines.seq, lines.data FROM ours, unnest($4::bigint[], $5::bytea[]) AS lines(seq, data)
)
SELECT ours.session, CASE WHEN ours.followed THEN pg_notify('branchline', ours.session::text) END,
    CASE WHEN NOT $6::boolean THEN set_config('synchronous_commit', 'off', true)
         WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
FROM ours
"""


def untold(statement: str) -> str:
    """An append for an engine that cannot tell news (CockroachDB)."""
    return statement.replace("pg_notify('branchline', ours.session::text)", "NULL")


def waiting(statement: str) -> str:
    """The same statement, which waits for rows that somebody has locked instead of passing over them."""
    return statement.replace(" SKIP LOCKED", "")


def run_past_locks(connection: Connection, statement: str, *values: Value, prepared: bool = False) -> list[Row]:
    """Run a statement that passes over locked rows. An engine that cannot do that waits for them."""
    try:
        return connection.run(statement, *values, prepared=prepared)
    except Refused as refused:
        if refused.sqlstate != _NOT_SUPPORTED:
            raise
        return connection.run(waiting(statement), *values, prepared=prepared)


# A page of the lines of one session at places from $2 up to, not with, $3, at most $4 of them, and after the first no
# more than about $5 bytes.
PAGE: Final = """
SELECT seq, data FROM (
    SELECT seq, data, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before
    FROM branchline_entries
    WHERE session = $1::uuid AND seq >= $2::bigint AND seq < $3::bigint
    ORDER BY seq LIMIT $4::bigint
) page WHERE before <= $5::bigint ORDER BY seq
"""

# The tip: whether the session is there, and whether the entry before place $2 is.
TIP: Final = """
SELECT s.first, (SELECT e.seq FROM branchline_entries e WHERE e.session = s.session AND e.seq = $2::bigint - 1)
FROM branchline_sessions s WHERE s.session = $1::uuid
"""

# The lease is not synced: an append that is comes after it in the server's log and takes it along, and if the server
# forgets who held the session last, the fence is the older one's again, and the compare on the place still holds.

# Take the writer's place ($2 our secret, $3 our name, $4 seconds): it is free, was held too long, or belongs to $5, who
# is known to be dead. With it comes whose place it was. Its time begins when it is ours, however long the row was locked.
TAKE: Final = """
WITH before AS MATERIALIZED (
    SELECT session, holder FROM branchline_sessions
    WHERE session = $1::uuid AND (holder IS NULL OR held_until < now() OR holder = $5::uuid)
    FOR NO KEY UPDATE
)
UPDATE branchline_sessions s
SET fence = s.fence + 1, holder = $2::uuid, owner = $3::text,
    held_until = clock_timestamp() + $4::bigint * interval '1 second'
FROM before WHERE s.session = before.session
RETURNING s.fence, before.holder, s.size, set_config('synchronous_commit', 'off', true)
"""

# What a listing shows of a session whose writer died: the last it told may be some seconds old.
RECOUNT: Final = """
UPDATE branchline_sessions s SET modified = now(), size = octet_length(s.header) + 1 + coalesce(
    (SELECT sum(octet_length(e.data) + 1) FROM branchline_entries e WHERE e.session = s.session AND e.seq >= s.first), 0
) + s.shared_size
WHERE s.session = $1::uuid AND s.holder = $2::uuid
RETURNING s.size, set_config('synchronous_commit', 'off', true)
"""

WHO: Final = "SELECT holder, owner FROM branchline_sessions WHERE session = $1::uuid"

# A new fence for the writer itself: whatever of its statements is still under way somewhere is shut out. As durable ($4) as
# an append: one that is found is acknowledged, and a standby has it then, too.
MOVE_FENCE: Final = """
WITH ours AS MATERIALIZED (
    SELECT session FROM branchline_sessions WHERE session = $1::uuid AND holder = $2::uuid FOR NO KEY UPDATE
)
UPDATE branchline_sessions s
SET fence = s.fence + 1, held_until = clock_timestamp() + $3::bigint * interval '1 second'
FROM ours WHERE s.session = ours.session
RETURNING s.fence,
    CASE WHEN NOT $4::boolean THEN set_config('synchronous_commit', 'off', true)
         WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
"""

# $1 key, $2 our secret, $3 the session's size, $4 how many microseconds ago it became that.
GIVE_UP: Final = """
UPDATE branchline_sessions
SET holder = NULL, owner = NULL, held_until = NULL, size = $3::bigint,
    modified = CASE WHEN size <> $3::bigint THEN now() - $4::bigint * interval '1 microsecond' ELSE modified END
WHERE session = $1::uuid AND holder = $2::uuid
RETURNING set_config('synchronous_commit', 'off', true)
"""

# $1 keys, $2 secrets, $3 sizes, $4 how many microseconds ago they became that, $5 seconds. To run it twice does no harm. A
# row that somebody has locked is passed over, as by an append; those that were renewed come back.
RENEW: Final = """
WITH ours AS MATERIALIZED (
    SELECT s.session, given.size, given.age
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) AS given(session, holder, size, age)
    JOIN branchline_sessions s ON s.session = given.session AND s.holder = given.holder
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE branchline_sessions s
SET held_until = clock_timestamp() + $5::bigint * interval '1 second', size = ours.size,
    modified = CASE WHEN s.size <> ours.size THEN now() - ours.age * interval '1 microsecond' ELSE s.modified END
FROM ours WHERE s.session = ours.session
RETURNING s.session, set_config('synchronous_commit', 'off', true)
"""

FOLLOW: Final = """
UPDATE branchline_sessions SET followed_until = now() + $2::bigint * interval '1 second' WHERE session = $1::uuid
RETURNING set_config('synchronous_commit', 'off', true)
"""
