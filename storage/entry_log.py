"""The log: every rule of the record, once, above any backend.

It takes a snapshot of each entry at the call, gives it its place in the tree when its turn comes, has the backend commit
it, and only then shows it. What it returns is decoded anew from the committed bytes, so it shares nothing with the store.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, cast
from weakref import WeakValueDictionary

import anyio

from storage.assembling import LEAF, Assembler
from storage.blob_calls import BlobCalls
from storage.decode import decode_entry
from storage.entries import Entry
from storage.entry_path import IndexedPath
from storage.errors import ReadOnlySessionError, SessionClosedError, SessionLockedError, WrongEventLoopError
from storage.event_loops import EventLoop, current_loop, in_slices, run_in_worker
from storage.index import NONE, EntryIndex
from storage.messages import Message
from storage.pending_write import PendingWrite
from storage.protocols import Indexed, Record, SessionStorage, SessionWarning
from storage.record_pages import read_page
from storage.snapshot import snapshot_of_entry, snapshot_of_message
from storage.write_queue import WriteQueue, failure

_PAGE = 2048
_open_logs: WeakValueDictionary[int, EntryLog] = WeakValueDictionary()
"""The open logs by their storage's identity: a log keeps its storage alive, so the number stays its own."""


class _Awaitable(Awaitable[None]):
    def __init__(self, steps: Callable[[], Generator[Any, Any, None]]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, None]:
        return self._steps()


class EntryLog:
    """One session's entries, in order, on one event loop. Made by ``open``; closed by ``aclose``.

    All methods belong to the loop that opened it; from elsewhere they raise ``WrongEventLoopError`` and touch nothing.
    """

    def __init__(self, storage: SessionStorage, loop: EventLoop, index: EntryIndex) -> None:
        """Use ``open``."""
        self.storage = storage
        self.index = index
        info = storage.info
        self.inline: bool = info.inline
        self.commit: Callable[[Sequence[Record]], Callable[[], None] | None] = storage.commit
        self._names = info.ids_are_file_names
        self._place = index.place
        self._assembler = Assembler(index, place=self._place, ids_are_file_names=self._names)
        self.assemble: Callable[[list[PendingWrite]], list[Record]] = self._assembler.assemble
        self._loop = loop
        self._queue = WriteQueue(loop, self)
        self._taint: BaseException | None = None
        self._closed = False
        self._closing: anyio.Event | None = None
        self._reading = anyio.Lock()
        self._reader = threading.Lock()
        """Held in a worker: closing waits for a read that was cancelled but has not ended yet."""
        self._read_only = _read_only_reason(storage, index)
        self.blobs: BlobCalls = BlobCalls(self)
        """What is kept beside the entries."""

    @classmethod
    async def open(cls, storage: SessionStorage) -> EntryLog:
        """Read the whole of ``storage`` once, and index it.

        Raises ``DamagedSessionError`` (a bad line, a duplicate id, a wrong place), ``StorageError`` where ``read`` gives
        no sequence, and what the storage raises. The storage is not closed then; who opened it does that.
        """
        loop = current_loop()
        index = storage.take_index() if isinstance(storage, Indexed) else None
        if index is None:
            index = EntryIndex(foreign=storage.info.header.branchline is None)
            index.salvaged = storage.info.salvaged
        index.place = storage.info.place or None
        while True:
            after = len(index) - 1
            records = await run_in_worker(partial(read_page, storage, after_seq=after, limit=_PAGE))
            if not records:
                break
            await in_slices(_added(index, records))
        log = cls(storage, loop, index)
        _open_logs[id(storage)] = log
        return log

    @staticmethod
    def check_free(storage: SessionStorage) -> None:
        """Raise ``SessionLockedError`` if ``storage`` carries an open session: an object carries one."""
        other = _open_logs.get(id(storage))
        if other is not None and not other.is_closed:
            raise SessionLockedError("this storage object carries an open session; make another one to open it again")

    @property
    def is_closed(self) -> bool:
        """Whether closing it has begun."""
        return self._closed

    @property
    def writable(self) -> bool:
        """Whether it takes appends."""
        return self._read_only is None and self._taint is None and not self._closed

    @property
    def read_only_reason(self) -> str | None:
        """Why it takes no appends, from the start."""
        return self._read_only

    @property
    def warnings(self) -> tuple[SessionWarning, ...]:
        """What was found at opening (and by ``refresh``) that lost nothing."""
        broken = [
            SessionWarning(
                "broken_link",
                f"entry {entry_id!r} points to {missing!r}, which "
                + ("comes only later" if missing in self.index.ids else "is not in this session"),
                line,
                entry_id,
            )
            for entry_id, missing, line in self.index.broken
        ]
        return (*self.storage.info.warnings, *self.index.warnings, *broken)

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits to be written, or is being written."""
        return self._queue.is_idle

    @property
    def leaf_id(self) -> str | None:
        """The leaf after the last committed entry."""
        return self.index.leaf_id

    # --- writing

    def append_message(self, message: Message, *, parent_id: Any = LEAF) -> PendingWrite:
        """Record ``message`` as it is now; see ``append``."""
        self.check_writable()
        write = snapshot_of_message(self._queue, message, parent_id)
        self._queue.put(write)
        return write

    def append(self, entry: Entry, *, check: Callable[[], None] | None = None, from_leaf: bool = False) -> PendingWrite:
        """Record ``entry`` as it is now: validated and serialised at this call, whatever becomes of it afterwards (R6).

        It hangs from the leaf at the time its turn comes, or from ``entry.parent_id`` if that was given (``None``: a new
        root). ``check`` is called when its turn comes, with everything before it committed; what it raises is what
        becomes of this write, and of no other. ``from_leaf`` writes the leaf at that time as the entry's ``fromId``.

        Raises ``InvalidEntryError`` (naming the path to a value that JSON would alter), ``QueueFullError``,
        ``ReadOnlySessionError``, ``SessionClosedError``, ``StorageError`` (tainted) and ``WrongEventLoopError``; then
        nothing was queued. The write itself can fail with ``InvalidEntryError`` (duplicate id, missing parent).
        """
        self.check_writable()
        write = snapshot_of_entry(self._queue, entry, check, from_leaf=from_leaf, ids_are_file_names=self._names)
        self._queue.put(write)
        return write

    def accept(self, records: Sequence[Record]) -> None:
        """These are committed: from now on they are seen."""
        add = self.index.add
        for record in records:
            add(record)
        if self._names:
            self._assembler.accept(records)

    def taint(self, error: BaseException) -> None:
        """Nobody knows what the store holds now: no I/O is tried again, and everything raises this first error."""
        if self._taint is None:
            self._taint = error

    # --- reading

    async def entry(self, entry_id: str) -> Entry:
        """An entry, decoded anew. Raises ``EntryNotFoundError``."""
        await self.settled()
        return decode_entry(self.index.line(self.index.seq_of(entry_id)))

    async def entries(self, *, after_seq: int = -1, limit: int = 1000) -> list[Entry]:
        """A page of entries in the order they were committed, at most ``limit`` after ``after_seq``."""
        if limit < 0 or after_seq < -1:
            raise ValueError("limit is at least 0, and after_seq at least -1")
        await self.settled()
        stop = min(len(self.index), after_seq + 1 + limit)
        return await self.decode(range(after_seq + 1, stop))

    async def decode(self, places: Sequence[int]) -> list[Entry]:
        """The entries at ``places``, in chunks that let the loop breathe. Bad lines that were skipped are left out."""
        lines = self.index.lines
        entries: list[Entry] = []

        def decode() -> Iterator[None]:
            for count, seq in enumerate(places):
                line = lines[seq]
                if line is not None:
                    entries.append(decode_entry(line))
                if not count & 15:
                    yield

        await in_slices(decode())
        return entries

    async def path(self, leaf_id: str | object | None = LEAF) -> IndexedPath:
        """The path to an entry (``LEAF``: the leaf; ``None``: before the first entry), lazily decoded.

        Raises ``EntryNotFoundError``, and ``BrokenPathError`` where it runs through a parent that is not there.
        """
        await self.settled()
        if leaf_id is LEAF:
            leaf_id = self.index.leaf_id
        path = IndexedPath(self.index, NONE if leaf_id is None else self.index.seq_of(cast("str", leaf_id)))
        path.check()
        return path

    async def settled(self) -> None:
        """Wait for the writes that were called before. Their failures belong to them; a tainted log raises here."""
        self.check_usable()
        await _Awaitable(self._queue.drain)
        self.check_usable()

    async def flush(self) -> None:
        """Write everything that was queued. Raises the first failure that nobody was told of yet."""
        await self.settled()
        self._raise_unseen()

    async def refresh(self) -> list[SessionWarning]:
        """Show what another process added since (readers); a writer only flushes, for nobody else may write.

        Raises ``StaleSessionError`` if the store lost what was read before.
        """
        await self.settled()
        if self.writable:
            return []
        before = len(self.index.warnings)
        async with self._reading:
            index = self.index
            while True:
                after = len(index) - 1
                records = await run_in_worker(partial(self._read_more, after))
                self.check_usable()
                if not records:
                    break
                await in_slices(_added(index, records))
        return index.warnings[before:]

    def _read_more(self, after_seq: int) -> Sequence[Record]:
        with self._reader:
            return [] if self._closed else read_page(self.storage, after_seq=after_seq, limit=_PAGE)

    def _close(self, close: Callable[[], None] | None) -> None:
        self.blobs.end()
        with self._reader:
            try:
                if close is not None:
                    close()
            finally:
                self.storage.close()

    async def aclose(self, *, close: Callable[[], None] | None = None) -> None:
        """Write what is queued, and close the storage (by ``close``, if given), whatever happens. Idempotent.

        A cancellation is let through when the storage is closed. When the loop that opened it has ended, it may be
        closed on another one; what was queued then is lost, as a ``ResourceWarning`` says. Raises the first failure
        that nobody was told of.
        """
        if self._closing is not None:
            await self._closing.wait()
            return
        gone = self._loop.is_over()
        if not gone:
            self.check_loop()
        self._closed = True
        self._closing = anyio.Event()
        if gone:
            self._warn_of_lost()
        try:
            if self._taint is None and not gone:
                await _Awaitable(self._queue.drain_stubbornly)
        finally:
            try:
                await run_in_worker(partial(self._close, close))
            finally:
                self._closing.set()
        self._raise_unseen()

    def _raise_unseen(self) -> None:
        unseen = self._queue.unseen
        if unseen:
            error = next(iter(unseen)).error
            unseen.clear()
            if error is not None:
                raise error

    # --- checks

    def check_loop(self) -> None:
        """Raise ``WrongEventLoopError`` on another event loop, and in another thread, than it was opened in."""
        if not self._loop.is_current():
            raise WrongEventLoopError(
                "a session belongs to the event loop that opened it; open it again on this one, after closing it there",
                path=self._place,
            )

    def check_usable(self) -> None:
        """Raise if it cannot be read: another loop, closed, or tainted."""
        self.check_loop()
        if self._closed:
            raise SessionClosedError("the session is closed; open it again", path=self._place)
        if self._taint is not None:
            raise failure(self._taint)

    def check_writable(self) -> None:
        """Raise if it takes no appends."""
        if self._closed or self._taint is not None or not self._loop.is_current():
            self.check_usable()
        if self._read_only is not None:
            raise ReadOnlySessionError(self._read_only, path=self._place)

    def __del__(self) -> None:
        if getattr(self, "_queue", None) and not self._closed:
            self._warn_of_lost()

    def _warn_of_lost(self) -> None:
        if not len(self._queue):
            return
        warnings.warn(
            f"a log was dropped with {len(self._queue)} entries that were never written; await the writes, or close the "
            "session",
            ResourceWarning,
            source=self,
            stacklevel=1,
        )


def _added(index: EntryIndex, records: Sequence[Record]) -> Iterator[None]:
    for count, record in enumerate(records):
        index.add(record)
        if not count & 15:
            yield


def _read_only_reason(storage: SessionStorage, index: EntryIndex) -> str | None:
    info = storage.info
    if not info.writable:
        return info.read_only_reason or "the session was opened for reading; open it with mode='write' to append"
    if index.broken:
        entry_id, missing, line = index.broken[0]
        where = f" at line {line}" if line is not None else ""
        return (
            f"entry {entry_id!r}{where} points to {missing!r}, which is not there, so the tree is damaged and takes no "
            "appends; fork a healthy path into a new session"
        )
    return None
