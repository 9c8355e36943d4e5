"""The tables of a database of sessions, and how a file comes to the version that this program reads.

``entries.place`` is the session's number times 2³², plus ``seq``: the entries of a session lie side by side in one tree,
and no index has to be written with them. What changes with every append stands in ``progress``, in short rows, apart from
what hardly ever changes. ``shared`` says which of a fork's first entries are those of another session's number.
"""

from __future__ import annotations

import sqlite3

from storage.errors import DamagedSessionError, UnsupportedVersionError

APPLICATION_ID = 0x42726C6E
"""``Brln``: how a database of ours is told from anybody else's."""

_VERSION_1 = (
    """
    CREATE TABLE sessions (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL,
        folded_id TEXT NOT NULL UNIQUE,
        header BLOB NOT NULL,
        first_message TEXT,
        name TEXT
    )
    """,
    """
    CREATE TABLE progress (
        session INTEGER PRIMARY KEY,
        next_seq INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        modified INTEGER NOT NULL
    )
    """,
    "CREATE TABLE entries (place INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    """
    CREATE TABLE shared (
        session INTEGER NOT NULL,
        first_seq INTEGER NOT NULL,
        end_seq INTEGER NOT NULL,
        owner INTEGER NOT NULL,
        PRIMARY KEY (session, first_seq)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX shared_by_owner ON shared (owner)",
    "CREATE TABLE contents (number INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    """
    CREATE TABLE blobs (
        session INTEGER NOT NULL,
        name TEXT NOT NULL,
        content INTEGER NOT NULL,
        PRIMARY KEY (session, name)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX blobs_by_content ON blobs (content)",
    """
    CREATE VIEW session_entries AS
        SELECT sessions.id AS session, parts.first_seq + entries.place - parts.first_place AS seq,
            CAST(entries.data AS TEXT) AS data
        FROM (
            SELECT session, first_seq, (owner << 32) + first_seq AS first_place, (owner << 32) + end_seq AS end_place
                FROM shared
            UNION ALL
            SELECT progress.session, 0, progress.session << 32, (progress.session + 1) << 32 FROM progress
        ) AS parts
        JOIN sessions ON sessions.number = parts.session
        JOIN entries ON entries.place >= parts.first_place AND entries.place < parts.end_place
    """,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_VERSION_1,)
"""The statements that lead to version 1, from there to version 2, and so on. What is here never changes."""


def check_version(connection: sqlite3.Connection, path: str) -> int:
    """The version of the tables in a file; 0 where it is empty. Looks only.

    Raises ``UnsupportedVersionError`` for a newer one, and ``DamagedSessionError`` for somebody else's database.
    """
    begins = not connection.in_transaction  # as of one moment: somebody may be making the tables just now
    if begins:
        connection.execute("BEGIN")
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        if begins and connection.in_transaction:
            connection.execute("ROLLBACK")
    if application == APPLICATION_ID and version > len(MIGRATIONS):
        raise UnsupportedVersionError(
            f"the tables of this database are of version {version}, and this program reads up to {len(MIGRATIONS)}; use a "
            "newer branchline; the file was left as it is",
            path=path,
            version=version,
        )
    if application == APPLICATION_ID and version >= 1:
        return version
    if tables or application or version:
        raise DamagedSessionError(
            "this is another program's database, not one of sessions; the file was left as it is; choose another file",
            path=path,
        )
    return 0


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the tables to the newest version. Call it inside ``BEGIN IMMEDIATE``: others may want to do the same."""
    version = check_version(connection, path)
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
