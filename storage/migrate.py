"""Sessions moved from one repository to another, of whatever backend: entries, header and blobs to the byte, and checked.

The source is only read. In the target a session is made whole or not at all, so that it can be stopped and begun again
at any moment: what is there and equal is passed over, what was cut short is finished, and what is something else under
the same id is refused.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, TypeVar, overload

import anyio

from storage.errors import (
    BranchlineError,
    SessionError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from storage.event_loops import Breath, run_in_worker
from storage.protocols import BlobStore, Record, SessionStorage, SessionWarning
from storage.repository import SessionRepository, SessionSummary
from storage.session_streams import PAGE, RecordSpool, SessionStream, StreamsSessions, WholeTree, foreign

T = TypeVar("T")

_PAGE_BYTES: Final = 4 * 1024 * 1024
_LISTED: Final = 500

Outcome = Literal["migrated", "finished", "already_there"]
Tell = Callable[[int], object]
"""Takes the number of bytes of entries that were read since the last time. Called in a worker's thread."""


@dataclass(frozen=True, slots=True)
class MigratedSession:
    """A session that is in the target now, whole, and was compared with the source after it was written.

    ``outcome``: ``"migrated"`` (it is new there), ``"finished"`` (the target had its beginning, or lacked blobs) or
    ``"already_there"`` (nothing had to be written). ``more``: entries that the target has behind those of the source,
    because it has gone on there.
    """

    session_id: str
    outcome: Outcome
    entries: int
    bytes: int
    blobs: int
    leaf_id: str | None
    parent_session: str | None
    more: int = 0
    warnings: tuple[SessionWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionMigration:
    """What became of one session of many: it is ``migrated``, or an ``error`` says why not."""

    session_id: str
    migrated: MigratedSession | None = None
    error: BranchlineError | None = None


async def migrate_session(
    source: SessionRepository, session_id: str, target: SessionRepository, *, tell: Tell | None = None
) -> MigratedSession:
    """Put the session of that id in ``source`` into ``target`` too, with its id, its header and all its bytes.

    Afterwards what ``target`` holds is read again and compared: each entry's bytes, their number, the leaf, each blob.
    A session that is written to meanwhile is there as it was at one moment; migrated once more, the rest is added.

    Raises ``SessionNotFoundError``; ``UnsupportedEntryError`` for a session that another program wrote (or wrote on);
    ``DamagedSessionError``; ``SessionExistsError`` where ``target`` has something else under this id; ``StorageError`` (also
    where what was written is not what was read); and what the backends raise. Nothing of the session is in the target
    then. Cancelled, it stops after the page that is under way, with nothing of the session in the target.
    """
    move = _Move(_streams(source), _streams(target), target, tell or _nobody)
    return await move.run(session_id)


async def migrate_all(
    source: SessionRepository,
    target: SessionRepository,
    session_ids: Iterable[str] | None = None,
    *,
    tell: Tell | None = None,
    each: Callable[[SessionMigration], object] | None = None,
) -> list[SessionMigration]:
    """Migrate these sessions, or all; one that cannot be does not stop the others, and its error is in the answer.

    A fork comes after the session it was forked from, so that the target can share what both have. ``each`` is told of
    every session when it is done. Raises what listing ``source`` raises; a cancellation is let through.
    """
    wanted = None if session_ids is None else set(session_ids)
    summaries = [found for found in await _all_of(source) if wanted is None or found.id in wanted]
    order = parents_first(summaries)
    order += [] if wanted is None else sorted(wanted.difference(order))  # not listed: opening says why
    results: list[SessionMigration] = []
    for session_id in order:
        try:
            done = SessionMigration(session_id, await migrate_session(source, session_id, target, tell=tell))
        except BranchlineError as error:
            done = SessionMigration(session_id, error=error)
        results.append(done)
        if each is not None:
            each(done)
    return results


def parents_first(summaries: Iterable[SessionSummary]) -> list[str]:
    """The ids, each after that of its parent, if that is among them.

    Otherwise the one written to last comes last, so that it is so in the target as well.
    """
    found = {each.id: each for each in sorted(summaries, key=lambda each: (each.modified, each.id))}
    order: dict[str, None] = {}
    for session_id in found:
        way: list[str] = []
        here: str | None = session_id
        while here in found and here not in order and here not in way:
            way.append(here)
            here = found[here].parent_session
        order.update(dict.fromkeys(reversed(way)))
    return list(order)


async def _all_of(source: SessionRepository) -> list[SessionSummary]:
    found: list[SessionSummary] = []
    after: str | None = None
    while True:
        page = await source.list(after=after, limit=_LISTED)
        found += page
        after = page.after
        if after is None:
            return found


def _streams(repository: SessionRepository) -> StreamsSessions:
    if not isinstance(repository, StreamsSessions):
        raise SessionError(
            f"{type(repository).__name__} cannot be migrated from or into: it has no reading() and receive() "
            "(storage.session_streams.StreamsSessions)"
        )
    return repository


class _Stopped(Exception):  # noqa: N818 - it is no error
    """Somebody was cancelled and waits for the worker."""


@dataclass(frozen=True, slots=True)
class _There:
    """What the target has of a session: so many of its entries from the first on, and so many behind the last."""

    entries: int
    more: int
    missing_blobs: Sequence[str]


class _Move:
    """One session's way. The steps run in workers, one after the other."""

    def __init__(
        self, source: StreamsSessions, target: StreamsSessions, repository: SessionRepository, tell: Tell
    ) -> None:
        self._source = source
        self._target = target
        self._repository = repository
        self._tell = tell
        self._stop = threading.Event()
        self._digests: dict[str, bytes] = {}

    async def run(self, session_id: str) -> MigratedSession:
        stack = ExitStack()
        try:
            spool = stack.enter_context(RecordSpool())
            stream = await self._step(lambda: stack.enter_context(self._source.reading(session_id)))
            tree = await self._step(lambda: self._read(stream, spool))
            there = await self._step(lambda: self._look(stream, spool))
            if there is None:
                outcome: Outcome = "migrated"
                await self._step(lambda: self._make(stream, spool))
            elif there.entries == len(spool) and not there.missing_blobs:
                outcome = "already_there"
            else:
                outcome = "finished"
                await self._finish(stream, spool, there)
            try:
                await self._step(lambda: self._verify(stream, spool, tree.leaf_id))
            except BranchlineError:
                if outcome == "migrated":  # nobody was told of it, so it must not be listed
                    await self._repository.delete(stream.header.id)
                raise
            return MigratedSession(
                session_id=stream.header.id,
                outcome=outcome,
                entries=len(spool),
                bytes=spool.bytes,
                blobs=len(self._digests),
                leaf_id=tree.leaf_id,
                parent_session=stream.header.parent_session,
                more=there.more if there is not None else 0,
                warnings=tuple(stream.warnings()),
            )
        finally:
            await run_in_worker(stack.close)

    async def _step(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a worker. Cancelled, tell it to stop, and wait until it has."""
        results: list[T] = []
        errors: list[BaseException] = []
        done = anyio.Event()

        async def run() -> None:
            try:
                with anyio.CancelScope(shield=True):
                    results.append(await run_in_worker(work))
            except Exception as error:  # noqa: BLE001 - raised below, outside of the group
                errors.append(error)
            finally:
                done.set()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                await done.wait()
            except BaseException:
                self._stop.set()
                raise
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()
        return results[0]

    # --- in a worker

    def _pages(self, records: Iterable[Record]) -> Iterator[Sequence[Record]]:
        """The records in pages of bounded size; stops where somebody was cancelled."""
        page: list[Record] = []
        size = 0
        breath = Breath()
        for record in records:
            if self._stop.is_set():
                raise _Stopped
            page.append(record)
            size += len(record.data)
            breath.take()
            if len(page) >= PAGE or size >= _PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page

    def _read(self, stream: SessionStream, spool: RecordSpool) -> WholeTree:
        if stream.header.branchline is None:
            raise foreign(stream.place, "another program (pi) wrote this session")
        tree = WholeTree(stream.place)
        for page in self._pages(stream.records):
            for record in page:
                tree.take(record)
                spool.append(record)
            self._tell(sum(len(record.data) for record in page))
        return tree

    def _look(self, stream: SessionStream, spool: RecordSpool) -> _There | None:
        """What is there already under this id. Raises ``SessionExistsError`` if it is something else."""
        session_id = stream.header.id
        try:
            with self._target.reading(session_id) as there:
                if there.header.to_line() != stream.header.to_line():
                    raise _other(there, "its header differs")
                same = more = 0
                for page in self._pages(there.records):
                    for record in page:
                        if same == len(spool):
                            more += 1
                        elif spool[same].data == record.data:
                            same += 1
                        else:
                            raise _other(there, f"its entry {same} differs")
                names = set(there.blob_names())
                return _There(same, more, [name for name in stream.blob_names() if name not in names])
        except SessionNotFoundError:
            return None

    def _blobs(self, stream: SessionStream, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            if self._stop.is_set():
                raise _Stopped
            data = stream.read_blob(name)
            self._digests[name] = hashlib.sha256(data).digest()
            yield name, data

    def _make(self, stream: SessionStream, spool: RecordSpool) -> None:
        names = stream.blob_names()
        # What takes an iterator must expect that it reads this very database; most sessions have no blobs.
        self._target.receive(stream.header, _Watched(spool, self._stop), self._blobs(stream, names) if names else ())

    async def _finish(self, stream: SessionStream, spool: RecordSpool, there: _There) -> None:
        """The target has the beginning: add the rest, as any writer would."""
        storage: SessionStorage = await self._repository.open(stream.header.id, mode="write")
        try:
            await self._step(lambda: self._add(stream, spool, there, storage))
        finally:
            await run_in_worker(storage.close)

    def _add(self, stream: SessionStream, spool: RecordSpool, there: _There, storage: SessionStorage) -> None:
        if there.missing_blobs:
            if not isinstance(storage, BlobStore):
                raise StorageError("the target keeps no blobs, and this session has some", path=storage.info.place)
            for name, data in self._blobs(stream, there.missing_blobs):
                storage.write_blob(name, data)
        for page in self._pages(spool[there.entries :]):
            sync = storage.commit(page)
            if sync is not None:
                sync()

    def _verify(self, stream: SessionStream, spool: RecordSpool, leaf_id: str | None) -> None:
        """Read the target once more, and compare. Raises ``StorageError``."""
        with self._target.reading(stream.header.id) as there:
            tree = WholeTree(there.place)
            if there.header.to_line() != stream.header.to_line():
                raise _not_as_written(there, "the header")
            count = 0
            for record in islice(there.records, len(spool)):
                if self._stop.is_set():
                    raise _Stopped
                if record.data != spool[count].data:
                    raise _not_as_written(there, f"entry {count}")
                tree.take(record)
                count += 1
            if count != len(spool) or tree.leaf_id != leaf_id:
                raise _not_as_written(there, f"the number of entries ({count} of {len(spool)})")
            for name in stream.blob_names():
                if self._stop.is_set():
                    raise _Stopped
                digest = self._digests.get(name) or hashlib.sha256(stream.read_blob(name)).digest()
                if hashlib.sha256(there.read_blob(name)).digest() != digest:
                    raise _not_as_written(there, f"the large output {name}")
                self._digests[name] = digest


class _Watched(Sequence[Record]):
    """A sequence whose reading ends where somebody was cancelled."""

    def __init__(self, records: Sequence[Record], stop: threading.Event) -> None:
        self._records = records
        self._stop = stop

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if self._stop.is_set():
            raise _Stopped
        if isinstance(index, slice):
            return _Watched(self._records[index], self._stop)
        return self._records[index]


def _other(there: SessionStream, why: str) -> SessionExistsError:
    return SessionExistsError(
        f"there is another session under the id {there.header.id!r} ({why}); it was left as it is: delete it there, or "
        "migrate into another place",
        path=there.place,
    )


def _not_as_written(there: SessionStream, what: str) -> StorageError:
    return StorageError(
        f"{what} is not what was written there; the source is as it was: see to that disk or database, delete this "
        "session there, and migrate it again",
        path=there.place,
    )


def _nobody(_: int) -> None:
    pass


__all__ = ["MigratedSession", "SessionMigration", "migrate_all", "migrate_session", "parents_first"]
