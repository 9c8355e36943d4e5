"""A write that was taken, and what becomes of it: the handle that every ``append_*`` returns (R6)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from storage.errors import WrongEventLoopError

if TYPE_CHECKING:
    from storage.protocols import Facts
    from storage.write_queue import WriteQueue

_LINKS: Final = 80
"""Bytes of ``seq`` and parent id, about."""

_QUEUED: Final = 0
_UNDER_WAY: Final = 1
_COMMITTED: Final = 2
_FAILED: Final = 3


class PendingWrite:
    """A write that was taken and waits for its turn. Await it, any number of times, for the entry's id.

    ``entry_id`` is known at once. Awaiting is a checkpoint, also when the write is settled already. A task that is
    cancelled while the write is still queued leaves it queued; while it is being written, the cancellation waits for the
    outcome. Raises what became of the write: ``InvalidEntryError``, ``NotOnPathError``, ``StorageError``, …
    """

    __slots__ = (
        "_error",
        "_queue",
        "_state",
        "_wakes",
        "entry_id",
        "facts",
        "head",
        "id_json",
        "kind",
        "parent_id",
        "size",
        "tail",
    )

    check: Callable[[], None] | None = None
    """Called when its turn comes; what it raises is what becomes of it."""

    from_leaf: bool = False
    """Whether it names the leaf of that time as its ``fromId``."""

    def __init__(
        self,
        queue: WriteQueue,
        entry_id: str,
        id_json: bytes,
        kind: str,
        head: bytes,
        tail: bytes,
        parent_id: Any,
        facts: Facts,
    ) -> None:
        self.entry_id: str = entry_id
        self.id_json: bytes = id_json
        self.kind: str = kind
        self.head: bytes = head
        self.tail: bytes = tail
        self.parent_id: Any = parent_id
        self.facts: Facts = facts
        self.size: int = len(head) + len(tail) + _LINKS
        self._queue = queue
        self._state: int = _QUEUED
        self._error: BaseException | None = None
        self._wakes: list[Callable[[], None]] | None = None

    def __await__(self) -> Generator[Any, Any, str]:
        queue = self._queue
        loop = queue.loop
        if not loop.is_current():
            raise WrongEventLoopError(
                "this write belongs to another event loop or thread; await it where its session was opened"
            )
        # A checkpoint first, then drain: neighbours queue up meanwhile (one sync for them all), and a cancellation
        # here leaves the write cleanly queued.
        if loop.checkpoint_is_bare:
            yield
        else:
            yield from loop.checkpoint()
        if self._state == _QUEUED:
            queue.pump()
        if self._state < _COMMITTED:
            yield from queue.wait_for(self)
        if self._error is not None:
            raise self._queue.seen_failure(self, self._error)
        return self.entry_id

    async def wait(self) -> str:
        """The same as awaiting it, as a coroutine, for task groups."""
        return await self

    def begin(self) -> None:
        """Have the batch at the head of the queue committed from now on, without waiting for it.

        So something else can be done while the disk is at work. The write is no less to be awaited.
        """
        if self._state == _QUEUED:
            self._queue.pump()

    def is_done(self) -> bool:
        """Whether it is settled: committed or failed."""
        return self._state >= _COMMITTED

    def must_stay(self) -> bool:
        """Whether it is being written at this moment."""
        return self._state == _UNDER_WAY

    def register(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when it is settled."""
        if self._wakes is None:
            self._wakes = []
        self._wakes.append(wake)
        self._queue.awaited += 1

    def unregister(self, wake: Callable[[], None]) -> None:
        """Take that back."""
        if self._wakes is not None and wake in self._wakes:
            self._wakes.remove(wake)
            self._queue.awaited -= 1

    def under_way(self) -> None:
        """Its batch begins."""
        self._state = _UNDER_WAY

    def settle(self, error: BaseException | None) -> None:
        """Its outcome is known. Called once, on the event loop."""
        self._error = error
        self._state = _COMMITTED if error is None else _FAILED
        wakes = self._wakes
        if wakes:
            self._wakes = None
            self._queue.awaited -= len(wakes)
            for wake in wakes:
                wake()
        if error is not None:
            self._queue.unseen[self] = None  # until somebody is told: who only drains is not

    @property
    def error(self) -> BaseException | None:
        """Why it failed; ``None`` while it is open, and when it is committed."""
        return self._error

    def __repr__(self) -> str:
        state = ("queued", "being written", "committed", "failed")[self._state]
        return f"<PendingWrite {self.kind} {self.entry_id} {state}>"


class CheckedWrite(PendingWrite):
    """A write that needs a look at the tree when its turn comes."""

    __slots__ = ("check", "from_leaf")

    def __init__(
        self,
        queue: WriteQueue,
        entry_id: str,
        id_json: bytes,
        kind: str,
        head: bytes,
        tail: bytes,
        parent_id: Any,
        facts: Facts,
        check: Callable[[], None] | None,
        from_leaf: bool,
    ) -> None:
        super().__init__(queue, entry_id, id_json, kind, head, tail, parent_id, facts)
        self.check: Callable[[], None] | None = check
        self.from_leaf: bool = from_leaf
