"""One session's way from one repository to another: read, compared with what is there, made or finished, and checked.

The source is only read. What is there and equal is passed over, what was cut short is finished, and what is something
else under the same id is refused.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, TypeVar

import anyio

from storage.errors import (
    BranchlineError,
    SessionError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from storage.event_loops import Breath, run_in_worker
from storage.jsonl_file import naming
from storage.protocols import BlobStore, Record, SessionStorage, SessionWarning
from storage.repository import SessionRepository
from storage.session_streams import PAGE, LazyRecords, RecordSpool, SessionStream, StreamsSessions, WholeTree, foreign

T = TypeVar("T")

_PAGE_BYTES: Final = 4 * 1024 * 1024

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


class SessionMove:
    """One session's way. The steps run in workers, one after the other."""

    def __init__(self, source: SessionRepository, target: SessionRepository, tell: Tell | None) -> None:
        self._source = _streams(source)
        self._target = _streams(target)
        self._repository = target
        self._tell = tell or _nobody
        self._stop = threading.Event()
        self._blob_names: Sequence[str] = ()
        self._digests: dict[str, bytes] = {}
        self.in_target = False
        """Whether it is the target that is asked, so that what fails is the target."""

    async def run(self, session_id: str) -> MigratedSession:
        stack = ExitStack()
        try:
            spool = stack.enter_context(RecordSpool())
            stream = await self._step(lambda: stack.enter_context(self._source.reading(session_id)))
            tree = await self._step(lambda: self._read(stream, spool))
            self.in_target = True
            there = await self._make_or_look(stream, spool)
            outcome: Outcome = "migrated"
            if there is not None:
                outcome = "already_there"
                if there.entries < len(spool) or there.missing_blobs:
                    outcome = "finished"
                    await self._finish(stream, spool, there)
            try:
                await self._step(lambda: self._verify(stream, spool, tree.leaf_id))
            except BranchlineError as error:
                if there is None:  # nobody was told of it, so it must not be listed
                    await self._take_back(stream.header.id, error)
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
        except OSError as error:
            if isinstance(error, BranchlineError):
                raise
            raise StorageError(f"the session could not be migrated: {error}", path=error.filename) from error
        finally:
            await run_in_worker(stack.close)

    async def _make_or_look(self, stream: SessionStream, spool: RecordSpool) -> _There | None:
        """What the target has of it; ``None`` where it had nothing, and now has it all."""
        there = await self._step(lambda: self._look(stream, spool))
        if there is None:
            try:
                await self._step(lambda: self._make(stream, spool))
            except SessionExistsError:
                there = await self._step(lambda: self._look(stream, spool))  # somebody else made it this moment
                if there is None:
                    raise
        return there

    async def _take_back(self, session_id: str, error: BranchlineError) -> None:
        try:
            with anyio.CancelScope(shield=True):  # who is cancelled here must not leave it there
                await self._repository.delete(session_id)
        except BranchlineError as left:
            raise StorageError(
                f"{error.message}; and it could not be deleted there again ({left.message}): do that before you use it",
                path=error.path,
            ) from error

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

        def read() -> None:
            for page in self._pages(stream.records):
                for record in page:
                    tree.take(record)
                    spool.append(record)
                self._tell(sum(len(record.data) for record in page))
            # Once, and after the entries: those that they name are there, and what comes later is of a later moment.
            self._blob_names = stream.blob_names()

        naming(stream.place, read, "the session cannot be read")
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
                return _There(same, more, [name for name in self._blob_names if name not in names])
        except SessionNotFoundError:
            return None

    def _blobs(self, stream: SessionStream, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            if self._stop.is_set():
                raise _Stopped
            data = self._read_blob(stream, name)
            self._digests[name] = hashlib.sha256(data).digest()
            yield name, data

    def _read_blob(self, stream: SessionStream, name: str) -> bytes:
        """A blob of the source; that it cannot be read says nothing of the target."""
        self.in_target = False
        data = stream.read_blob(name)
        self.in_target = True
        return data

    def _make(self, stream: SessionStream, spool: RecordSpool) -> None:
        names = self._blob_names
        # What takes an iterator must expect that it reads this very database; most sessions have no blobs.
        self._target.receive(stream.header, _Watched(spool, self._stop), self._blobs(stream, names) if names else ())

    async def _finish(self, stream: SessionStream, spool: RecordSpool, there: _There) -> None:
        """The target has the beginning: add the rest, as any writer would."""
        storage: SessionStorage = await self._repository.open(stream.header.id, mode="write")

        def add() -> None:
            naming(storage.info.place, lambda: self._add(stream, spool, there, storage), "the rest cannot be added")

        try:
            await self._step(add)
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
            for name in self._blob_names:
                if self._stop.is_set():
                    raise _Stopped
                digest = self._digests.get(name) or hashlib.sha256(self._read_blob(stream, name)).digest()
                if hashlib.sha256(there.read_blob(name)).digest() != digest:
                    raise _not_as_written(there, f"the large output {name}")
                self._digests[name] = digest


class _Watched(LazyRecords):
    """Records whose reading ends where somebody was cancelled."""

    def __init__(self, records: LazyRecords, stop: threading.Event) -> None:
        self._records = records
        self._stop = stop

    def __len__(self) -> int:
        return len(self._records)

    def record_at(self, place: int) -> Record:
        if self._stop.is_set():
            raise _Stopped
        return self._records.record_at(place)


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
