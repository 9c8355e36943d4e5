"""Sessions in a PostgreSQL database as a repository, over one pool of connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, Unpack

from storage.base_repository import BaseRepository, NewSession, Opening, OpeningOrNew
from storage.blobs import Blobs
from storage.copying import renumbered
from storage.errors import SessionNotFoundError, StorageError
from storage.event_loops import run_in_worker
from storage.file_lock import open_when_free
from storage.header import SessionHeader, new_header, parse_header
from storage.identifiers import check_session_id, new_id
from storage.postgres import PostgresStorage, delete_in
from storage.postgres_checking import identity_of, problems_of, why_read_only
from storage.postgres_pool import Pool, Settings, shared_pool
from storage.postgres_sessions import Found as FoundSession
from storage.postgres_sessions import Segment, check_tip, find, read_lines, segments_in
from storage.postgres_wire import (
    Connection,
    Row,
    bigint,
    bigints,
    boolean,
    instant,
    microseconds,
    number,
    text,
    uuids,
)
from storage.protocols import Durability, Record
from storage.repository import Mark, SessionPage, SessionSummary, check_prefix, mark_before, match_prefix
from storage.session_streams import SessionStream, stream_of
from storage.summaries import (
    Digest,
    digest_all,
    digest_members,
    header_members,
    summarise,
)

T = TypeVar("T")

_AT_ONCE = 64
"""Sessions that are summarised in one go, which a cancellation waits for."""

_MATCHES = 1000
_PAGE = 1024
_ENDS = 32
_END_BYTES = 64 * 1024

_LIST = """
SELECT session, first, bases, base_ends, id, header, modified, size FROM branchline_sessions
WHERE $1::boolean OR (modified, id) < ($2::timestamptz, $3::text COLLATE "C")
ORDER BY modified DESC, id DESC LIMIT $4::bigint
"""

# Of each of some stretches ($1 their numbers, $2 keys, $3 first places, $4 ends) at most so many lines and so many bytes,
# from its beginning or its end.
_LINES_AT = """
SELECT stretch.number, line.data
FROM unnest($1::bigint[], $2::uuid[], $3::bigint[], $4::bigint[]) AS stretch(number, session, first, stop),
LATERAL (
    SELECT seq, data FROM (
        SELECT seq, data, sum(octet_length(data)) OVER (ORDER BY seq {order}) AS bytes FROM (
            SELECT seq, data FROM branchline_entries
            WHERE session = stretch.session AND seq >= stretch.first AND seq < stretch.stop
            ORDER BY seq {order} LIMIT $5::bigint
        ) AS ends
    ) AS measured WHERE bytes <= $6::bigint
) AS line
ORDER BY stretch.number, line.seq
"""


class PostgresRepository(BaseRepository[PostgresStorage]):
    """A ``SessionRepository`` over one database. Its sessions share at most ``connections`` connections.

    Their appends are sent together where they meet, so four connections carry hundreds of sessions. ``answer_seconds``:
    how long an answer of the server may take, and how long a lost connection is tried to be made again before an append
    gives up. ``lease_seconds``: how long the session of a writer on another machine that died stays locked.
    ``direct_dsn``: an address that leads past a transaction pooler, for being told of changes. ``together=False``: send the
    appends of each session alone, for a cluster in which a statement has to stay on one shard.

    The connections are closed when the repository and all storages it opened are gone. Needs the extra:
    ``pip install 'branchline[postgres]'``.
    """

    def __init__(
        self,
        dsn: str,
        *,
        durability: Durability = "fsync",
        connections: int = 4,
        answer_seconds: float = 30.0,
        lease_seconds: int = 30,
        direct_dsn: str | None = None,
        together: bool = True,
    ) -> None:
        """Connects to nothing yet. Raises ``ValueError`` for what cannot work."""
        self.durability: Durability = durability
        self._settings = Settings(dsn, connections, answer_seconds, lease_seconds, direct_dsn, together)
        self._kept: tuple[int, Pool] | None = None

    @property
    def place(self) -> str:
        """The address, without a password."""
        return self._pool.place

    async def _create(self, session_id: str | None, **new: Unpack[NewSession]) -> PostgresStorage:
        session_id = new_id() if session_id is None else session_id
        header = new_header(session_id=session_id, cwd=new["cwd"], parent_session=new["parent_session"])
        copies = renumbered(new["records"])
        return await run_in_worker(
            lambda: PostgresStorage.make_in(self._pool, header, copies, new["blobs"], self.durability),
            undo=PostgresStorage.close,
        )

    async def _open(self, session_id: str, **opening: Unpack[Opening]) -> PostgresStorage:
        mode, on_corrupt = opening["mode"], opening["on_corrupt"]  # nothing is ever torn here
        check_session_id(session_id)
        return await open_when_free(
            lambda: PostgresStorage.open_in(self._pool, session_id, mode, self.durability, on_corrupt),
            opening["lock_timeout"],
            undo=PostgresStorage.close,
        )

    async def _open_or_create(self, session_id: str, **opening: Unpack[OpeningOrNew]) -> PostgresStorage:
        header = new_header(session_id=session_id, cwd=opening["cwd"])
        return await open_when_free(
            lambda: PostgresStorage.open_or_make_in(self._pool, header, self.durability, opening["on_corrupt"]),
            opening["lock_timeout"],
            undo=PostgresStorage.close,
        )

    async def list(self, *, after: str | None = None, limit: int = 50, deep: bool = False) -> SessionPage:
        """The sessions, the one that was written to last first; see ``SessionRepository.list``.

        Of a session that is being written to, time of change and size are up to a third of ``lease_seconds`` old.
        """
        mark = mark_before(after, limit)
        rows = await run_in_worker(partial(self._rows, mark, limit + 1))
        found = [_Listed.of(row) for row in rows[:limit]]
        summaries: list[SessionSummary] = []
        for start in range(0, len(found), _AT_ONCE):
            some = found[start : start + _AT_ONCE]
            summaries += await run_in_worker(partial(self._summarise_all, some, deep))
        return SessionPage(tuple(summaries), str(found[-1].mark) if len(rows) > limit else None)

    async def find(self, prefix: str) -> str:
        """The id that ``prefix`` names; see ``SessionRepository.find``."""
        check_prefix(prefix)
        ids = await run_in_worker(partial(self._ids, prefix))
        return match_prefix(prefix, ids, place=self.place)

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        """The session, read once and a page at a time; see ``StreamsSessions``. Blocking."""
        storage = PostgresStorage.open_in(self._pool, check_session_id(session_id), "read", self.durability)
        try:
            yield stream_of(storage)
        finally:
            storage.close()

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Blobs) -> None:
        """A new session, to the byte; see ``StreamsSessions``. Blocking."""
        check_session_id(header.id)
        PostgresStorage.make_in(self._pool, header, records, blobs, self.durability).close()

    def identity(self) -> object:
        """The server, the database and the schema; see ``LooksAhead``. Blocking."""
        return self._look(identity_of, None)

    def check_receiving(self) -> None:
        """See that the tables are there, or make them, and may be written; see ``LooksAhead``. Blocking."""
        pool = self._pool
        pool.ready(make=True)
        why = pool.call(why_read_only)
        if why is not None:
            raise StorageError(f"nothing can be written here: {why}; choose another place", path=pool.place)

    async def delete(self, session_id: str, *, lock_timeout: float = 0) -> None:
        """Delete the session and what no fork refers to; see ``SessionRepository.delete``."""
        check_session_id(session_id)
        await open_when_free(lambda: self._delete(session_id), lock_timeout, undo=lambda _: None)

    async def check(self) -> list[str]:
        """What is wrong with the tables as a whole, a line each: what belongs to nothing. Nothing is changed."""
        return await run_in_worker(lambda: self._look(problems_of, []))

    # --- blocking, in a worker

    @property
    def _pool(self) -> Pool:
        """This process's: a forked child gets one of its own."""
        if self._kept is None or self._kept[0] != os.getpid():
            self._kept = (os.getpid(), shared_pool(self._settings))
        return self._kept[1]

    def _look(self, work: Callable[[Connection], T], otherwise: T) -> T:
        """What ``work`` finds; ``otherwise`` where there are not even tables."""
        pool = self._pool
        try:
            pool.ready(make=False)
        except SessionNotFoundError:
            return otherwise
        return pool.call(work)

    def _rows(self, mark: Mark | None, limit: int) -> Sequence[Row]:
        values = (
            boolean(mark is None),
            instant(mark.changed // 1000 if mark is not None else 0),
            text(mark.id if mark is not None else ""),
            bigint(limit),
        )
        none: Sequence[Row] = ()
        return self._look(lambda connection: connection.run(_LIST, *values), none)

    def _ids(self, prefix: str) -> Sequence[str]:
        def ids(connection: Connection) -> Sequence[str]:
            beginning = prefix.lower()
            rows = connection.run(
                "SELECT s.id FROM branchline_names n JOIN branchline_sessions s ON s.session = n.session "
                'WHERE n.name >= $1::text COLLATE "C" AND n.name < $2::text COLLATE "C" ORDER BY n.name LIMIT $3::bigint',
                text(beginning),
                text(beginning + "\x7f"),
                bigint(_MATCHES),
            )
            return [(row[0] or b"").decode() for row in rows]

        none: Sequence[str] = ()
        return self._look(ids, none)

    def _delete(self, session_id: str) -> None:
        pool = self._pool
        pool.ready(make=False)
        found = pool.call(lambda connection: find(connection, session_id, place=pool.place))
        durable = self.durability == "fsync"
        delete_in(pool, found, None, durable=durable, place=f"{pool.place} {session_id}")

    def _summarise_all(self, listed: Sequence[_Listed], deep: bool) -> Sequence[SessionSummary]:
        digests = {} if deep else self._digests(listed)
        return [self._summarise(one, digests.get(one.found.session), deep=deep) for one in listed]

    def _summarise(self, listed: _Listed, digest: Digest | None, *, deep: bool) -> SessionSummary:
        place = f"{self.place} {listed.found.id}"

        def look_at_header() -> dict[str, Any]:
            return header_members(parse_header(listed.found.header, path=place)) | {"size": listed.size}

        def look_at_ends() -> dict[str, Any]:
            return digest_members(digest or Digest(), deep=False)

        def look_at_all() -> dict[str, Any]:
            size = len(listed.found.header) + 1

            def lines() -> Iterator[bytes]:
                nonlocal size
                for line in self._all_lines(listed.found, place):
                    size += len(line) + 1
                    yield line

            digest = digest_all(lines())
            return digest_members(digest, deep=True) | {"size": size}

        return summarise(
            listed.found.id, place, listed.mark.changed, None, look_at_header, look_at_all if deep else look_at_ends
        )

    def _all_lines(self, found: FoundSession, place: str) -> Iterator[bytes]:
        last = -1
        while True:
            lines = self._pool.call(partial(_page_of, found.segments, last))
            if not lines:
                self._pool.call(partial(check_tip, found=found, after_seq=last, place=place))
                return
            for last, line in lines:  # noqa: B007 - the last one is where the next page begins
                yield line

    def _digests(self, listed: Sequence[_Listed]) -> dict[bytes, Digest]:
        """The digest of the first and the last lines of each, by its key."""
        heads = [(number, one.found.segments[0]) for number, one in enumerate(listed)]
        tails = [(number, segment) for number, one in enumerate(listed) for segment in one.found.segments[-2:]]

        def look(connection: Connection) -> dict[bytes, Digest]:
            digests = [Digest() for _ in listed]
            for order, stretches in (("ASC", heads), ("DESC", tails)):
                for place, line in _lines_at(connection, stretches, order):
                    if order == "ASC" or b'"session_info"' in line:
                        digests[place].take(line)
            return {one.found.session: digest for one, digest in zip(listed, digests, strict=True)}

        return self._pool.call(look)


class _Listed(NamedTuple):
    """A session, as a page of the listing has it."""

    found: FoundSession
    mark: Mark
    size: int

    @classmethod
    def of(cls, row: Row) -> _Listed:
        session_id = (row[4] or b"").decode()
        found = FoundSession(row[0] or b"", session_id, row[5] or b"", segments_in(row))
        return cls(found, Mark(microseconds(row[6]) * 1000, session_id), number(row[7]))


def _page_of(segments: Sequence[Segment], after_seq: int, connection: Connection) -> Sequence[tuple[int, bytes]]:
    return read_lines(connection, segments, after_seq, _PAGE)


def _lines_at(
    connection: Connection, stretches: Sequence[tuple[int, Segment]], order: Literal["ASC", "DESC"] | str
) -> Iterator[tuple[int, bytes]]:
    rows = connection.run(
        _LINES_AT.format(order=order),
        bigints([place for place, _ in stretches]),
        uuids([segment.session for _, segment in stretches]),
        bigints([segment.first for _, segment in stretches]),
        bigints([segment.end for _, segment in stretches]),
        bigint(_ENDS),
        bigint(_END_BYTES),
    )
    for place, line in rows:
        yield number(place), line or b""
