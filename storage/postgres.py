"""Sessions in a PostgreSQL database: many in one, written from many machines, each by one writer at a time.

The record is the lines, byte for byte, under a key of the session and their place. An append is one statement that
compares the writer's fence and the place and writes all of the batch or nothing (R12). A lost connection is survived: what
became of the append is looked up, so that it is never there twice.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Self, TypeVar

from storage.blobs import Blobs, blob_exists, blob_not_found, check_blob_name
from storage.copying import renumbered
from storage.decode import parse_record
from storage.errors import (
    DamagedSessionError,
    ReadOnlySessionError,
    SessionClosedError,
    SessionExistsError,
    SessionNotFoundError,
    StaleSessionError,
    StorageError,
)
from storage.event_loops import Breath, run_in_worker
from storage.file_lock import open_when_free
from storage.header import SessionHeader, new_header, parse_header
from storage.identifiers import check_session_id
from storage.postgres_blobs import BlobsOnce, Outcome, blob_names, read_blob, write_blob
from storage.postgres_following import Follower
from storage.postgres_leases import Lease, forget, forgotten_on_error, give_up, new_holder
from storage.postgres_pool import Pool, Settings, shared_pool
from storage.postgres_sessions import Found, check_tip, create, delete, find, hold, missing_line, read_lines
from storage.postgres_wire import Connection
from storage.protocols import (
    Corrupt,
    Durability,
    Mode,
    Record,
    SessionWarning,
    StorageInfo,
    TornTail,
)

T = TypeVar("T")

_ATTEMPTS = 3
_PAGE = 1024
_SALVAGED = "it is damaged, and was opened to save what can be read (on_corrupt='skip')"


class PostgresStorage:
    """One session in a PostgreSQL database. Made by ``create``, ``open`` and ``open_or_create``.

    ``dsn`` is an address as libpq reads it: ``postgresql://user@host/database``, several hosts and ``target_session_attrs``
    for failover included. Storages of one address share the connections of their process; see ``PostgresRepository`` for
    how many, and for all other settings. Needs the extra: ``pip install 'branchline[postgres]'``.
    """

    def __init__(
        self, pool: Pool, found: Found, header: SessionHeader, lease: Lease | None, durability: Durability
    ) -> None:
        """Takes over ``lease``. Use one of the constructors below."""
        self._pool: Pool | None = pool
        self._found = found
        self._lease = lease
        self._durable = durability == "fsync"
        self._place = f"{pool.place} {found.id}"
        self._settings = pool.settings
        self._bad: dict[int, SessionWarning] = {}
        self._follower: Follower | None = None
        self._info = StorageInfo(header=header, writable=lease is not None, place=self._place)
        if lease is not None:
            pool.keeper.add(lease)

    # --- constructors

    @classmethod
    async def create(
        cls,
        dsn: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
        blobs: Blobs = (),
        durability: Durability = "fsync",
    ) -> Self:
        """A new session, holding ``records`` and ``blobs``: made whole or not at all, the tables too if there are none.

        The first of ``records`` that are those of ``parent_session`` in this database, byte for byte, are not copied but
        referred to. Raises ``SessionExistsError`` (also for an id that differs only in case), ``InvalidIdError`` and
        ``StorageError``.
        """
        header = new_header(session_id=session_id, cwd=cwd, parent_session=parent_session)
        copies = renumbered(records)
        return await run_in_worker(
            lambda: cls.make_in(shared_pool(Settings(dsn)), header, copies, blobs, durability), undo=cls.close
        )

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        session_id: str,
        mode: Mode = "write",
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "read_only",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> Self:
        """The session of that id. Nothing is written, but that a writer holds it.

        Nothing is ever torn here. ``on_corrupt="skip"`` shows what is left around lines that somebody damaged, to read
        only. ``lock_timeout``: seconds to wait for another writer.

        Raises ``SessionNotFoundError``, ``SessionLockedError``, ``DamagedSessionError``, ``UnsupportedVersionError`` and
        ``StorageError``.
        """
        del on_torn_tail
        check_session_id(session_id)
        return await open_when_free(
            lambda: cls.open_in(shared_pool(Settings(dsn)), session_id, mode, durability, on_corrupt),
            lock_timeout if mode == "write" else 0,
            undo=cls.close,
        )

    @classmethod
    async def open_or_create(
        cls,
        dsn: str,
        *,
        session_id: str,
        cwd: str | os.PathLike[str] | None = None,
        durability: Durability = "fsync",
        on_torn_tail: TornTail = "repair",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> Self:
        """The session of that id for writing; a new one if there is none yet."""
        del on_torn_tail
        header = new_header(session_id=session_id, cwd=cwd)
        return await open_when_free(
            lambda: cls.open_or_make_in(shared_pool(Settings(dsn)), header, durability, on_corrupt),
            lock_timeout,
            undo=cls.close,
        )

    # --- the same, blocking, over a pool

    @classmethod
    def make_in(
        cls, pool: Pool, header: SessionHeader, records: Sequence[Record], blobs: Blobs, durability: Durability
    ) -> Self:
        """A new session over ``pool``; see ``create``."""
        pool.ready(make=True)
        session, holder = uuid.uuid4().bytes, new_holder()
        given = BlobsOnce(blobs, pool.place)

        def make(connection: Connection) -> tuple[Found, Lease]:
            return create(
                connection,
                session,
                holder,
                header,
                records,
                given,
                pool.settings.lease_seconds,
                durable=durability == "fsync",
                place=pool.place,
            )

        # Blobs are read while they are written, from a session that may need this pool's connections.
        with forgotten_on_error(holder):
            found, lease = pool.call(make, extra=not isinstance(blobs, Sequence))
        return cls(pool, found, header, lease, durability)

    @classmethod
    def open_in(
        cls, pool: Pool, session_id: str, mode: Mode, durability: Durability, on_corrupt: Corrupt = "raise"
    ) -> Self:
        """The session of that id over ``pool``; see ``open``."""
        pool.ready(make=False)
        found = pool.call(lambda connection: find(connection, session_id, place=pool.place))
        header = parse_header(found.header, path=f"{pool.place} {session_id}")
        lease = None
        skips = on_corrupt == "skip"
        if mode == "write" and not skips:
            lease = hold(pool, found, place=f"{pool.place} {session_id}")
        opened = cls(pool, found, header, lease, durability)
        if skips:
            opened._look_for_damage()
            if mode == "write" and not opened._bad:
                opened.close()
                return cls.open_in(pool, session_id, mode, durability)
        return opened

    @classmethod
    def open_or_make_in(
        cls, pool: Pool, header: SessionHeader, durability: Durability, on_corrupt: Corrupt = "raise"
    ) -> Self:
        """The session of the header's id over ``pool``, or a new one with that header."""
        attempts_left = _ATTEMPTS
        while True:
            try:
                return cls.open_in(pool, header.id, "write", durability, on_corrupt)
            except SessionNotFoundError:
                attempts_left -= 1
            try:
                return cls.make_in(pool, header, (), (), durability)
            except SessionExistsError:
                if not attempts_left:
                    raise
                # Somebody made it between our two looks, so now it can be opened; unless its id differs in case.

    # --- the record

    @property
    def info(self) -> StorageInfo:
        """The header and the state."""
        return self._info

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``: at most ``limit``, and of large ones fewer at a time."""
        found: list[Record] = []
        if limit is not None and limit <= 0:
            return found
        breath = Breath()
        last = after_seq
        while limit is None or not found:
            lines = self._lines(last, limit)
            if not lines:
                while last + 1 in self._bad:
                    last += 1
                self._check_tip(last)
                break
            for seq, data in lines:
                last += 1
                while seq != last and last in self._bad:
                    last += 1
                if seq != last:
                    raise missing_line(last, seq, place=self._place)
                if seq not in self._bad:
                    found.append(parse_record(data, seq, path=self._place, line_number=seq + 2))
                breath.take()
        return found

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Write ``records`` with one statement, together with those of other sessions that are due; durable at once."""
        if not records:
            return None
        pool, lease = self._writer()
        pool.batches.commit(pool, lease, records, durable=self._durable)
        return None

    def wait_for_change(self, timeout: float) -> bool:
        """Wait until there may be more to read, at most ``timeout`` seconds; whether there may. Blocking, for a worker.

        The server tells it (LISTEN) where it can; through a pooler it is looked up a few times a second. It may come back
        early for nothing. Raises ``SessionClosedError``, and ``StorageError`` if the database cannot be reached.
        """
        pool = self._checked()
        if self._follower is None:
            self._follower = Follower(pool, self._found.session)
        return self._follower.wait(timeout)

    def close(self) -> None:
        """Let the next writer in, and go of the connections, if nobody else uses them. Idempotent."""
        pool, self._pool = self._pool, None
        lease, self._lease = self._lease, None
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        if pool is None or lease is None or not lease.ours:
            return
        pool.keeper.remove(lease)
        with contextlib.suppress(StorageError):  # who cannot be told finds the lease run out
            pool.call(lambda connection: give_up(connection, lease))
        forget(lease.holder)

    def delete(self) -> None:
        """Delete the session, its blobs, and its entries as far as no fork refers to them.

        Raises ``SessionLockedError`` while somebody else writes, ``SessionNotFoundError`` if it is gone.
        """
        pool, lease = self._pool or shared_pool(self._settings), self._lease
        self._lease = None
        self.close()
        if lease is not None and lease.ours:
            pool.keeper.remove(lease)
        else:
            lease = None
        delete_in(pool, self._found, lease, durable=self._durable, place=self._place)

    # --- blobs

    def write_blob(self, name: str, data: bytes) -> None:
        """Keep ``data`` in a row of its own."""
        check_blob_name(name)
        pool, lease = self._writer()
        tried = False

        def write(connection: Connection) -> Outcome:
            nonlocal tried
            again, tried = tried, True
            return write_blob(connection, lease, name, data, durable=self._durable, again=again)

        outcome = pool.call(write, patient=True)
        if outcome == "exists":
            raise blob_exists(name, path=self._place)
        if outcome == "stale":
            raise StaleSessionError(
                "the session was deleted, or taken over, by someone else; open it anew", path=self._place
            )

    def read_blob(self, name: str) -> bytes:
        """What is kept under ``name``."""
        check_blob_name(name)
        data = self._call(lambda connection: read_blob(connection, self._found.session, name))
        if data is None:
            raise blob_not_found(name, path=self._place)
        return data

    def blob_names(self) -> Sequence[str]:
        """All names, sorted."""
        return self._call(lambda connection: blob_names(connection, self._found.session))

    # --- what they share

    def _checked(self) -> Pool:
        if self._pool is None:
            raise SessionClosedError("this storage is closed; open the session anew", path=self._place)
        return self._pool

    def _writer(self) -> tuple[Pool, Lease]:
        """What is needed to write. Raises ``SessionClosedError``, ``ReadOnlySessionError`` and ``StaleSessionError``."""
        pool, lease = self._checked(), self._lease
        if lease is None:
            raise ReadOnlySessionError(
                self._info.read_only_reason
                or "the session was opened for reading; open it with mode='write' to append",
                path=self._place,
            )
        if not lease.ours:
            raise StaleSessionError(
                "the writer's lease is another process's (was this one forked?); nothing was written; open the session anew",
                path=self._place,
            )
        return pool, lease

    def _call(self, work: Callable[[Connection], T]) -> T:
        return self._checked().call(work)

    def _lines(self, after_seq: int, limit: int | None) -> Sequence[tuple[int, bytes]]:
        return self._call(lambda connection: read_lines(connection, self._found.segments, after_seq, limit))

    def _check_tip(self, seq: int) -> None:
        self._call(lambda connection: check_tip(connection, self._found, seq, place=self._place))

    def _look_for_damage(self) -> None:
        """Read everything, and remember the places that cannot be read or are missing."""
        last = -1
        while lines := self._lines(last, _PAGE):
            for seq, data in lines:
                for missing in range(last + 1, seq):
                    self._note(missing, "it is missing")
                last = seq
                try:
                    parse_record(data, seq, path=self._place, line_number=seq + 2)
                except DamagedSessionError as error:
                    self._note(seq, error.message.partition("; ")[0])
        for missing in range(last + 1, self._found.first):
            self._note(missing, "it is missing")
        if self._bad:
            self._info = StorageInfo(
                header=self._info.header,
                writable=False,
                warnings=tuple(self._bad.values()),
                place=self._place,
                read_only_reason=_SALVAGED,
                salvaged=True,
            )

    def _note(self, seq: int, why: str) -> None:
        self._bad[seq] = SessionWarning("bad_line", f"entry {seq} was left out: {why}", seq + 2)

    def __del__(self) -> None:
        if getattr(self, "_lease", None) is not None:
            self.close()  # first: where warnings are errors, nothing comes after them
            warnings.warn(f"a session was dropped without being closed: {self._place}", ResourceWarning, stacklevel=1)


def delete_in(pool: Pool, found: Found, lease: Lease | None, *, durable: bool, place: str) -> None:
    """Delete a session; see ``PostgresStorage.delete``. Without a ``lease`` it is taken first, and let go if that fails."""
    held = lease or hold(pool, found, place=place)
    tried = False

    def work(connection: Connection) -> None:
        nonlocal tried
        again, tried = tried, True
        delete(connection, held, durable=durable, again=again, place=place)

    try:
        pool.call(work)
    except BaseException:
        with contextlib.suppress(StorageError):  # who cannot be told finds the lease run out
            pool.call(lambda connection: give_up(connection, held))
        raise
    finally:
        forget(held.holder)
