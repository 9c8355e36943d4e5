"""What stands in the tables for one session: finding it, making it, reading its lines, adding to them, deleting it.

Functions over a connection, each called inside a transaction. A fork of a session of the same file refers to the lines
that both have, from the first on, and so do the blobs: only what differs is written.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from storage.errors import SessionExistsError, SessionNotFoundError, StaleSessionError
from storage.header import SessionHeader
from storage.protocols import Record
from storage.summaries import Digest

_NUMBER_SHIFT = 32
_LAST_SEQ = (1 << _NUMBER_SHIFT) - 1
_LINES_AT_ONCE = 256
_PIECE_BYTES = 1024 * 1024


class Part(NamedTuple):
    """Lines of a session, from ``first`` to before ``end``, that are kept under the number of ``owner``."""

    first: int
    end: int
    owner: int


class Found(NamedTuple):
    """A session as it stands in the tables."""

    number: int
    id: str
    header: bytes
    parts: tuple[Part, ...]
    """Where its lines are, in order; the last part is its own."""
    has_first_message: bool
    next_seq: int


class HeadFacts(NamedTuple):
    """What a listing shows of some lines: the first user message, and the newest name."""

    first_message: str | None
    name: str | None
    is_named: bool
    """Whether there was a ``session_info`` among them, which may also have taken the name away."""


class Blob(NamedTuple):
    """A blob of a session to be made: its bytes, or the number of the content that is there already."""

    name: str
    data: bytes | None
    content: int | None


class SpooledBlobs(Iterable[Blob]):
    """Blobs in a file, of which one at a time is in memory, each time they are gone through."""

    def __init__(self, spool: IO[bytes], taken: Sequence[tuple[str, int, int | None]]) -> None:
        """``taken``: the name, the length, and the number of the content that is there already, of each."""
        self._spool = spool
        self._taken = taken

    def __iter__(self) -> Iterator[Blob]:
        place = 0
        for name, length, content in self._taken:
            data = None
            if content is None:
                self._spool.seek(place)
                data = self._spool.read(length)
                place += length
            yield Blob(name, data, content)


def as_bytes(value: object) -> bytes:
    """What stands in a column for bytes. Somebody who edits with SQL makes text of it; anything else is nothing."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return value if isinstance(value, bytes) else b""


def place(number: int, seq: int) -> int:
    """The key of a line."""
    return (number << _NUMBER_SHIFT) + seq


def find_session(connection: sqlite3.Connection, session_id: str | None, path: str) -> Found:
    """The session of that id; without one, the only session of the file. Raises ``SessionNotFoundError``."""
    if session_id is None:
        rows = connection.execute("SELECT id FROM sessions LIMIT 9").fetchall()
        if not rows:
            raise SessionNotFoundError("there is no session in this database yet; create one", path=path)
        if len(rows) > 1:
            shown = ", ".join(sorted(row[0] for row in rows)[:8]) + (", …" if len(rows) > 8 else "")
            raise SessionNotFoundError(
                f"there is more than one session in this database; say which, by session_id: {shown}",
                path=path,
                matches=sorted(row[0] for row in rows),
            )
        session_id = str(rows[0][0])
    row = connection.execute(
        "SELECT number, header, first_message IS NOT NULL, next_seq FROM sessions JOIN progress ON session = number "
        "WHERE folded_id = ? AND id = ?",
        (session_id.lower(), session_id),
    ).fetchone()
    if row is None:
        twin = connection.execute("SELECT id FROM sessions WHERE folded_id = ?", (session_id.lower(),)).fetchone()
        hint = f"; there is {twin[0]!r}, which is another id" if twin else ""
        raise SessionNotFoundError(f"there is no session {session_id!r}{hint}", path=path)
    number, header, has_first_message, next_seq = row
    return Found(number, session_id, as_bytes(header), _parts(connection, number), bool(has_first_message), next_seq)


def _parts(connection: sqlite3.Connection, number: int) -> tuple[Part, ...]:
    rows = connection.execute(
        "SELECT first_seq, end_seq, owner FROM shared WHERE session = ? ORDER BY first_seq", (number,)
    ).fetchall()
    end = rows[-1][1] if rows else 0
    return (*map(Part._make, rows), Part(end, _LAST_SEQ, number))


def count_lines(connection: sqlite3.Connection, number: int, path: str) -> int:
    """The next ``seq``. Raises ``StaleSessionError`` for a session that was deleted since it was found."""
    row = connection.execute("SELECT next_seq FROM progress WHERE session = ?", (number,)).fetchone()
    if row is None:
        raise StaleSessionError("the session was deleted; nothing was written; open another one", path=path)
    return row[0]


def read_lines(
    connection: sqlite3.Connection, parts: Sequence[Part], after_seq: int, end: int, limit: int | None
) -> Generator[tuple[int, object]]:
    """The lines after ``after_seq`` and before ``end``, at most ``limit``, as (seq, bytes)."""
    left = _LAST_SEQ if limit is None else limit
    for part in parts:
        first, stop = max(part.first, after_seq + 1), min(part.end, end)
        if first >= stop or left <= 0:
            continue
        base = place(part.owner, 0)
        cursor = connection.execute(
            "SELECT place, data FROM entries WHERE place >= ? AND place < ? ORDER BY place LIMIT ?",
            (base + first, base + stop, left),
        )
        try:
            while rows := cursor.fetchmany(_LINES_AT_ONCE):
                left -= len(rows)
                for key, data in rows:
                    yield key - base, data
        finally:
            cursor.close()


def read_piece(
    connection: sqlite3.Connection, session: Found, after_seq: int, end: int, path: str
) -> list[tuple[int, object]]:
    """About the next MiB of lines, before ``end``.

    Raises ``StaleSessionError`` for a session that was deleted between two pieces: its lines are not lost, they are gone.
    """
    count_lines(connection, session.number, path)
    found: list[tuple[int, object]] = []
    size = 0
    lines = read_lines(connection, session.parts, after_seq, end, None)
    for seq, data in lines:
        found.append((seq, data))
        size += len(data) if isinstance(data, bytes) else 0
        if size >= _PIECE_BYTES:
            break
    lines.close()
    return found


def facts_in(records: Sequence[Record], *, with_first_message: bool) -> HeadFacts | None:
    """What a listing will show of ``records``; ``None`` if that is nothing."""
    digest = Digest()
    is_named = False
    for record in records:
        if record.type == "session_info":
            digest.take(record.data)
            is_named = True
        elif with_first_message and record.type == "message" and digest.first_message is None:
            digest.take(record.data)
    if digest.first_message is None and not is_named:
        return None
    return HeadFacts(digest.first_message, digest.name, is_named)


def add_lines(
    connection: sqlite3.Connection,
    number: int,
    records: Sequence[Record],
    facts: HeadFacts | None,
    path: str,
) -> None:
    """Add ``records``, whose first must have the next place. Raises ``StaleSessionError``, and then writes nothing."""
    seq = records[0].seq
    size = sum([len(record.data) for record in records]) + len(records)
    changed = connection.execute(
        "UPDATE progress SET next_seq = ?, bytes = bytes + ?, modified = max(?, modified) "
        "WHERE session = ? AND next_seq = ?",
        (seq + len(records), size, time.time_ns(), number, seq),
    ).rowcount
    if changed != 1:
        expected = count_lines(connection, number, path)
        raise StaleSessionError(
            f"the next entry of this session is {expected}, not {seq}; nothing was written; open the session anew",
            path=path,
        )
    _insert_lines(connection, number, records)
    if facts is not None:
        _store_facts(connection, number, facts)


def _insert_lines(connection: sqlite3.Connection, number: int, records: Sequence[Record]) -> None:
    if len(records) == 1:
        connection.execute("INSERT INTO entries VALUES (?, ?)", (place(number, records[0].seq), records[0].data))
    else:
        base = place(number, 0)
        connection.executemany(
            "INSERT INTO entries VALUES (?, ?)", ((base + record.seq, record.data) for record in records)
        )


def _store_facts(connection: sqlite3.Connection, number: int, facts: HeadFacts) -> None:
    if facts.first_message is not None:
        connection.execute(
            "UPDATE sessions SET first_message = ? WHERE number = ? AND first_message IS NULL",
            (facts.first_message, number),
        )
    if facts.is_named:
        connection.execute("UPDATE sessions SET name = ? WHERE number = ?", (facts.name, number))


# --- making


def common_beginning(connection: sqlite3.Connection, parent: Found, records: Sequence[Record], path: str) -> int:
    """How many of ``records``, from the first on, are byte for byte the lines of ``parent``.

    Raises ``StaleSessionError`` for a parent that was deleted since it was found.
    """
    count = 0
    end = min(parent.next_seq, len(records))
    while lines := read_piece(connection, parent, count - 1, end, path):
        ours = [(record.seq, record.data) for record in records[count : count + len(lines)]]
        if lines == ours:
            count += len(lines)
            continue
        return count + next(at for at, (line, own) in enumerate(zip(lines, ours, strict=True)) if line != own)
    return count


def check_free(connection: sqlite3.Connection, session_id: str, path: str) -> None:
    """Raise ``SessionExistsError`` if there is a session of that id, or of one that differs only in case."""
    twin = connection.execute("SELECT id FROM sessions WHERE folded_id = ?", (session_id.lower(),)).fetchone()
    if twin is not None:
        how = "already" if twin[0] == session_id else "which differs only in case"
        raise SessionExistsError(f"there is a session {twin[0]!r} {how}; open it, or choose another id", path=path)


def make_session(
    connection: sqlite3.Connection,
    header: SessionHeader,
    records: Sequence[Record],
    facts: HeadFacts,
    parent: Found | None,
    shared: int,
    blobs: Iterable[Blob],
    path: str,
) -> Found:
    """A new session. The first ``shared`` of ``records`` are those of ``parent``, which must still be there.

    Goes through ``blobs`` twice. Raises ``SessionExistsError`` and, for a parent or a blob that is gone,
    ``StaleSessionError``; then nothing is written.
    """
    check_free(connection, header.id, path)
    gone = StaleSessionError("what the fork refers to was deleted this moment", path=path)
    if parent is not None:
        same = connection.execute("SELECT header FROM sessions WHERE number = ?", (parent.number,)).fetchone()
        if same is None:
            raise gone
    for blob in blobs:
        if blob.data is None:
            there = connection.execute("SELECT 1 FROM contents WHERE number = ?", (blob.content,)).fetchone()
            if there is None:
                raise gone
    line = header.to_line()
    number = (
        connection.execute(
            "INSERT INTO sessions (id, folded_id, header, first_message, name) VALUES (?, ?, ?, ?, ?)",
            (header.id, header.id.lower(), line, facts.first_message, facts.name),
        ).lastrowid
        or 0
    )
    size = len(line) + 1 + sum([len(record.data) for record in records]) + len(records)
    connection.execute("INSERT INTO progress VALUES (?, ?, ?, ?)", (number, len(records), size, time.time_ns()))
    parts: list[Part] = []
    if parent is not None and shared:
        parts = [Part(part.first, min(part.end, shared), part.owner) for part in parent.parts if part.first < shared]
        connection.executemany("INSERT INTO shared VALUES (?, ?, ?, ?)", [(number, *part) for part in parts])
    if shared < len(records):
        _insert_lines(connection, number, records[shared:])
    for blob in blobs:
        add_blob(connection, number, blob)
    return Found(
        number,
        header.id,
        line,
        (*parts, Part(shared, _LAST_SEQ, number)),
        facts.first_message is not None,
        len(records),
    )


# --- blobs


def add_blob(connection: sqlite3.Connection, number: int, blob: Blob) -> None:
    """Store a blob under a name that is new, or let it refer to a content that is there."""
    content = blob.content
    if blob.data is not None:
        content = connection.execute("INSERT INTO contents (data) VALUES (?)", (blob.data,)).lastrowid
    connection.execute("INSERT INTO blobs VALUES (?, ?, ?)", (number, blob.name, content))


def blob_content(connection: sqlite3.Connection, number: int, name: str) -> tuple[int, bytes] | None:
    """The number and the bytes of a blob's content; ``None`` if there is no such blob."""
    row = connection.execute(
        "SELECT contents.number, contents.data FROM blobs JOIN contents ON contents.number = blobs.content "
        "WHERE session = ? AND name = ?",
        (number, name),
    ).fetchone()
    return (row[0], as_bytes(row[1])) if row is not None else None


def blob_names(connection: sqlite3.Connection, number: int) -> list[str]:
    """All names, sorted."""
    return sorted(
        row[0] for row in connection.execute("SELECT name FROM blobs WHERE session = ?", (number,)).fetchall()
    )


# --- deleting


def delete_session(connection: sqlite3.Connection, session_id: str, path: str) -> None:
    """Delete a session, and what nobody else refers to. What its forks refer to stays, for them alone, until they go."""
    found = find_session(connection, session_id, path)
    number = found.number
    contents = connection.execute("SELECT content FROM blobs WHERE session = ?", (number,)).fetchall()
    connection.execute("DELETE FROM blobs WHERE session = ?", (number,))
    connection.executemany(
        "DELETE FROM contents WHERE number = ? AND NOT EXISTS (SELECT 1 FROM blobs WHERE content = contents.number)",
        contents,
    )
    connection.execute("DELETE FROM shared WHERE session = ?", (number,))
    connection.execute("DELETE FROM progress WHERE session = ?", (number,))
    connection.execute("DELETE FROM sessions WHERE number = ?", (number,))
    for owner in {part.owner for part in found.parts}:
        if connection.execute("SELECT 1 FROM sessions WHERE number = ?", (owner,)).fetchone() is None:
            _delete_unshared(connection, owner)


def _delete_unshared(connection: sqlite3.Connection, owner: int) -> None:
    """Of a session that is deleted: the lines that no fork refers to."""
    rows = connection.execute(
        "SELECT first_seq, end_seq FROM shared WHERE owner = ? ORDER BY first_seq", (owner,)
    ).fetchall()
    kept = 0
    for first, end in (*rows, (_LAST_SEQ, _LAST_SEQ)):
        if kept < first:
            connection.execute(
                "DELETE FROM entries WHERE place >= ? AND place < ?", (place(owner, kept), place(owner, first))
            )
        kept = max(kept, end)


# --- listing


class Listed(NamedTuple):
    """What a listing reads of a session, without its lines."""

    id: str
    modified: int
    """Nanoseconds since 1970."""
    bytes: int
    next_seq: int
    header: bytes
    first_message: str | None
    name: str | None


def list_sessions(connection: sqlite3.Connection, before: tuple[int, str] | None, limit: int) -> list[Listed]:
    """The sessions, the one that was written to last first, at most ``limit`` behind ``before``."""
    modified, session_id = before or (None, None)
    rows = connection.execute(
        "SELECT id, modified, bytes, next_seq, header, first_message, name FROM progress JOIN sessions ON number = session "
        "WHERE :modified IS NULL OR modified < :modified OR (modified = :modified AND id < :id) "
        "ORDER BY modified DESC, id DESC LIMIT :limit",
        {"modified": modified, "id": session_id, "limit": limit},
    ).fetchall()
    return [Listed._make(row)._replace(header=as_bytes(row[4])) for row in rows]


def ids_beginning(connection: sqlite3.Connection, prefix: str) -> list[str]:
    """The ids that begin with ``prefix``, which is ASCII."""
    rows = connection.execute("SELECT id FROM sessions WHERE substr(id, 1, ?) = ?", (len(prefix), prefix)).fetchall()
    return [row[0] for row in rows]
