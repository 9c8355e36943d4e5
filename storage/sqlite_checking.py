"""What can be wrong with a database of sessions as a whole, beside what is wrong with one of them. Looks only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

_MOST: Final = 20
"""Problems that SQLite itself lists, at most."""

_COUNTS: Final = (
    (
        "sessions without a count of their entries",
        "SELECT count(*) FROM sessions WHERE number NOT IN (SELECT session FROM progress)",
    ),
    (
        "counts of entries without a session",
        "SELECT count(*) FROM progress WHERE session NOT IN (SELECT number FROM sessions)",
    ),
    (
        "large outputs without a session",
        "SELECT count(*) FROM blobs WHERE session NOT IN (SELECT number FROM sessions)",
    ),
    (
        "large outputs without their bytes",
        "SELECT count(*) FROM blobs WHERE content NOT IN (SELECT number FROM contents)",
    ),
    (
        "large outputs that belong to nothing",
        "SELECT count(*) FROM contents WHERE number NOT IN (SELECT content FROM blobs)",
    ),
)

_NEXT_OWNER: Final = "SELECT place >> 32 FROM entries WHERE place >= ? ORDER BY place LIMIT 1"

# Of the entries of a session that is gone: those that no fork refers to.
_LEFT_OVER: Final = """
SELECT count(*) FROM entries WHERE place >= :session << 32 AND place < (:session + 1) << 32 AND NOT EXISTS (
    SELECT 1 FROM shared WHERE owner = :session AND (place & 4294967295) >= first_seq AND (place & 4294967295) < end_seq
)
"""


def problems_of(connection: sqlite3.Connection) -> list[str]:
    """Everything that is wrong, a line each: pages, indexes, and what belongs to nothing."""
    found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_MOST})") if row[0] != "ok"]
    if found:
        return found  # what the tables say cannot be relied upon
    for what, query in _COUNTS:
        (count,) = connection.execute(query).fetchone()
        if count:
            found.append(f"{count:,} {what}")
    left_over = sum(_left_over(connection))
    if left_over:
        found.append(f"{left_over:,} entries that belong to no session")
    return found


def _left_over(connection: sqlite3.Connection) -> Iterator[int]:
    start = -1 << 62
    while (row := connection.execute(_NEXT_OWNER, (start,)).fetchone()) is not None:
        (owner,) = row
        if connection.execute("SELECT 1 FROM sessions WHERE number = ?", (owner,)).fetchone() is None:
            (count,) = connection.execute(_LEFT_OVER, {"session": owner}).fetchone()
            yield count
        start = (owner + 1) << 32
