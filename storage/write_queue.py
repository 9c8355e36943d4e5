"""Writes wait here for their turn: first in, first out, committed in batches, by whoever awaits one (R6–R10).

There is no background task. Who awaits an open write starts the batch at the head of the queue, and so on until its own
is settled; while a batch is under way, it belongs to the queue: the worker's completion settles it, whatever is thrown
into the task that started it. As long as anybody waits, the completion starts the next batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol

from storage import workers
from storage.errors import CommitFailed, QueueFullError, StaleSessionError, StorageError
from storage.event_loops import EventLoop
from storage.pending_write import PendingWrite
from storage.protocols import Record

MAXIMUM_QUEUED_BYTES: Final = 16 * 1024 * 1024
MAXIMUM_BATCH_BYTES: Final = 1024 * 1024
MAXIMUM_BATCH_WRITES: Final = 256
MAXIMUM_INLINE_BYTES: Final = 64 * 1024


class _Stubborn:
    """A write that even a cancelled task waits for."""

    def __init__(self, write: PendingWrite) -> None:
        self._write = write
        self.is_done = write.is_done
        self.register = write.register
        self.unregister = write.unregister

    def must_stay(self) -> bool:
        return True


class Committer(Protocol):
    """What the queue writes through."""

    inline: bool

    def assemble(self, writes: list[PendingWrite], /) -> list[Record]:
        """Give parent and place to each; those that fail their checks are settled and taken out of ``writes``."""
        ...

    def commit(self, records: Sequence[Record], /) -> Callable[[], None] | None:
        """The storage's ``commit``."""
        ...

    def accept(self, records: Sequence[Record]) -> None:
        """These are committed: show them."""
        ...

    def taint(self, error: BaseException) -> None:
        """It is not known what the store holds: nothing is asked of it again."""
        ...


class Batch:
    """Writes that are committed with one write and one sync."""

    __slots__ = ("error", "records", "writes")

    def __init__(self, writes: list[PendingWrite], records: list[Record]) -> None:
        self.writes: list[PendingWrite] = writes
        self.records: list[Record] = records
        self.error: BaseException | None = None

    def size(self) -> int:
        """Bytes of its lines."""
        if len(self.records) == 1:
            return len(self.records[0].data)
        return sum([len(record.data) for record in self.records])


class WriteQueue:
    """The queue of one log, on one event loop."""

    def __init__(self, loop: EventLoop, committer: Committer) -> None:
        self.loop = loop
        self._committer = committer
        self._queue: deque[PendingWrite] = deque()
        self._queued_bytes = 0
        self._batch: Batch | None = None
        self.awaited = 0
        """How many tasks wait for a write that is not settled."""
        self.unseen: dict[PendingWrite, None] = {}
        """Writes that failed while nobody waited for them: ``flush`` raises the first."""
        self.pump: Callable[[], None] = loop.protect(self._start_batch)
        """Commit one batch, if none is under way."""

    def __len__(self) -> int:
        """How many writes wait for their turn."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and no batch is under way."""
        return self._batch is None and not self._queue

    def put(self, write: PendingWrite) -> None:
        """Take a write. Raises ``QueueFullError``, and then it is not taken; an empty queue takes any one entry."""
        size = write.size
        if self._queued_bytes + size > MAXIMUM_QUEUED_BYTES and self._queue:
            raise QueueFullError(
                f"{self._queued_bytes:,} bytes in {len(self._queue):,} entries wait to be written, and this one has "
                f"{size:,}; nothing was queued. Await a pending write, or flush, then append again",
                queued_bytes=self._queued_bytes,
                entry_bytes=size,
                limit=MAXIMUM_QUEUED_BYTES,
            )
        self._queue.append(write)
        self._queued_bytes += size

    def wait_for(self, write: PendingWrite) -> Generator[Any, Any, None]:
        """Wait until ``write`` is settled, committing batches meanwhile. Does not raise its failure."""
        loop = self.loop
        while not write.is_done():
            if self._batch is not None:
                yield from loop.wait(write)
            else:
                self.pump()
                if self._batch is None and not write.is_done():
                    yield from loop.checkpoint()

    def drain(self) -> Generator[Any, Any, None]:
        """Wait until everything that was queued before this call is settled."""
        last = self._queue[-1] if self._queue else self._batch.writes[-1] if self._batch else None
        if last is not None:
            yield from self.loop.checkpoint()
            yield from self.wait_for(last)

    def drain_stubbornly(self) -> Generator[Any, Any, None]:
        """The same, but a cancellation waits until it is done. For closing, when nothing may be left behind."""
        last = self._queue[-1] if self._queue else self._batch.writes[-1] if self._batch else None
        if last is not None and not last.is_done():
            if self._batch is None:
                self.loop.call_soon(self.pump)
            yield from self.loop.wait(_Stubborn(last))

    def seen_failure(self, write: PendingWrite, error: BaseException) -> BaseException:
        """Somebody was told that ``write`` failed."""
        self.unseen.pop(write, None)
        return error

    def fail_queued(self, cause: BaseException) -> None:
        """Everything queued at this moment fails, with the same first error as its cause."""
        writes = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        for write in writes:
            write.settle(failure(cause))

    def _take(self) -> list[PendingWrite]:
        """The writes of the next batch. One with a check begins a batch: it is checked against what is committed."""
        queue = self._queue
        write = queue.popleft()
        writes = [write]
        size = write.size
        if not queue:
            self._queued_bytes = 0
            return writes
        while queue:
            write = queue[0]
            if (
                write.check is not None
                or size + write.size > MAXIMUM_BATCH_BYTES
                or len(writes) == MAXIMUM_BATCH_WRITES
            ):
                break
            queue.popleft()
            writes.append(write)
            size += write.size
        self._queued_bytes -= size
        return writes

    def _start_batch(self) -> None:
        """Commit one batch: here and now, or in a worker. Only when none is under way."""
        if self._batch is not None or not self._queue:
            return
        writes = self._take()
        try:
            records = self._committer.assemble(writes)
        except Exception as error:  # noqa: BLE001 - it settles every write of the batch, so that nobody waits for ever
            for write in writes:
                if not write.is_done():
                    write.settle(failure(error))
            self._continue()
            return
        if not records:
            self._continue()
            return
        batch = Batch(writes, records)
        if self._committer.inline and batch.size() <= MAXIMUM_INLINE_BYTES:
            self._commit_here(batch)
        else:
            self._hand_over(batch, lambda: self._commit_in_worker(batch))

    def _commit_here(self, batch: Batch) -> None:
        try:
            sync = self._committer.commit(batch.records)
        except BaseException as error:  # noqa: BLE001 - it settles every write of the batch; Ctrl-C is raised on below
            batch.error = error
            sync = error.sync if isinstance(error, CommitFailed) else None
        if sync is not None:
            self._hand_over(batch, lambda: self._sync(batch, sync))
            return
        self._complete(batch)
        if batch.error is not None and not isinstance(batch.error, Exception):
            raise batch.error

    def _hand_over(self, batch: Batch, job: Callable[[], None]) -> None:
        """The batch is under way in a worker: whoever waits for one of its writes stays until it is settled."""
        self._batch = batch
        for write in batch.writes:
            write.under_way()
        workers.submit(job, lambda: self.loop.call_soon_threadsafe(lambda: self._complete(batch)))

    def _commit_in_worker(self, batch: Batch) -> None:
        try:
            sync = self._committer.commit(batch.records)
        except BaseException as error:  # noqa: BLE001 - it settles every write of the batch
            batch.error = error
            sync = error.sync if isinstance(error, CommitFailed) else None
        if sync is not None:
            self._sync(batch, sync)

    def _sync(self, batch: Batch, sync: Callable[[], None]) -> None:
        try:
            sync()
        except BaseException as error:  # noqa: BLE001 - after a failed sync nothing is known, so the log is tainted
            if batch.error is not None:
                error.__context__ = batch.error
            batch.error = error

    def _complete(self, batch: Batch) -> None:
        """Settle a batch: the index first, then its writes, then the turn of the next."""
        self._batch = None
        error = batch.error
        if error is None:
            self._committer.accept(batch.records)
            for write in batch.writes:
                write.settle(None)
            self._continue()
            return
        committed = 0
        if isinstance(error, CommitFailed):
            committed = error.committed
            error = error.__cause__ or error
        else:
            self._committer.taint(error)
        if committed:
            self._committer.accept(batch.records[:committed])
            for write in batch.writes[:committed]:
                write.settle(None)
        for write in batch.writes[committed:]:
            write.settle(failure(error))
        self.fail_queued(error)
        self._continue()

    def _continue(self) -> None:
        if self.awaited and self._queue and self._batch is None:
            self.loop.call_soon(self.pump)


def failure(cause: BaseException) -> StorageError:
    """The error for one write or read that a failing store took along; ``cause`` is one and the same for all."""
    kind = StaleSessionError if isinstance(cause, StaleSessionError) else StorageError
    error = kind(
        cause.message if isinstance(cause, StorageError) else f"the store failed: {cause}",
        path=getattr(cause, "path", None) or getattr(cause, "filename", None),
    )
    error.__cause__ = cause
    return error
