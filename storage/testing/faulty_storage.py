"""A storage that fails when it is told to, around any other: for testing what an app does when its disk does not.

::

    storage = FaultyStorage(await JsonlStorage.create("chat.jsonl"))
    session = await Session.open(storage)
    storage.fail_commit(OSError(errno.ENOSPC, "No space left on device"), keep=0)

Commits and syncs are counted from 1, from the moment it was made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

from storage.errors import CommitFailed, SettingsError
from storage.protocols import Record, SessionStorage, StorageInfo

Step = Literal["commit", "sync"]


class StorageCall(NamedTuple):
    """A call that reached the storage (``"read"``, ``"commit"``, ``"sync"``, ``"close"``), with how many records."""

    name: str
    records: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException
    keep: int | None = None
    written: bool = False


class Gate:
    """Holds every commit, or every sync, until it is opened. Made by ``FaultyStorage.hold``."""

    def __init__(self) -> None:
        """Closed."""
        self.reached: threading.Event = threading.Event()
        """Set when a call has come to the gate."""
        self._open = threading.Event()

    def open(self) -> None:
        """Let through who waits, and everybody after. Idempotent."""
        self._open.set()

    def pass_through(self) -> None:
        """Wait here until it is open. Called in a worker thread."""
        self.reached.set()
        self._open.wait()


class FaultyStorage:
    """A ``SessionStorage`` around ``storage`` that fails, waits and counts as it is told.

    Its commits are made in a worker thread, so that they can be slow or held; ``inline=True`` leaves them on the event
    loop where ``storage`` allows that, and then nothing may be slow. The optional abilities of ``storage`` (``delete``,
    …) are not passed on; use ``inner`` for them.
    """

    def __init__(self, storage: SessionStorage, *, inline: bool = False) -> None:
        """Nothing fails yet. Raises ``SettingsError`` for the awaitable of a storage."""
        if isinstance(cast("object", storage), Awaitable):
            if isinstance(cast("object", storage), Coroutine):
                cast("Coroutine[Any, Any, SessionStorage]", storage).close()
            raise SettingsError(
                "FaultyStorage stands around a storage that is open, and this one is to be awaited first: "
                "FaultyStorage(await …)",
                setting="storage",
                expected="an open storage",
            )
        self.inner = storage
        self.calls: list[StorageCall] = []
        """Every call so far, in order, failed ones too."""
        self.overlaps: int = 0
        """How often a call began while another was running; the log never lets that happen."""
        self._inline = inline
        self._running = 0
        self._guard = threading.Lock()
        self._counts = {"commit": 0, "sync": 0}
        self._failures: dict[tuple[Step, int], _Failure] = {}
        self._seconds = {"commit": 0.0, "sync": 0.0}
        self._gates: dict[Step, Gate] = {}

    # --- what goes wrong

    def fail_commit(
        self, error: BaseException, *, keep: int | None = None, written: bool = False, at: int | None = None
    ) -> None:
        """Make commit number ``at`` (default: the next one) fail.

        ``keep=k``: the first ``k`` records are committed and made durable, and ``CommitFailed(committed=k)`` is raised
        from ``error``: it is known what the store holds. Without it, ``error`` itself is raised, and nobody can know:
        then nothing was written, or, with ``written=True``, everything.
        """
        self._plan("commit", at, _Failure(error, keep, written))

    def fail_sync(self, error: BaseException, *, at: int | None = None) -> None:
        """Make sync number ``at`` (default: the next one) fail with ``error``. Its records are written, but not durable."""
        self._plan("sync", at, _Failure(error))

    def slow_down(self, step: Step, seconds: float) -> None:
        """Make every commit, or every sync, take ``seconds`` longer from now on. 0 ends that."""
        self._seconds[step] = seconds

    def hold(self, step: Step) -> Gate:
        """Stop every commit (before it writes) or sync at a gate, until the gate is opened."""
        gate = self._gates[step] = Gate()
        return gate

    def _plan(self, step: Step, at: int | None, failure: _Failure) -> None:
        number = self._counts[step] + 1 if at is None else at
        if number <= self._counts[step]:
            raise ValueError(f"{step} number {number} has been made already")
        self._failures[step, number] = failure

    # --- what happened

    def count(self, name: str) -> int:
        """How many calls of ``name`` there were."""
        return sum(call.name == name for call in self.calls)

    # --- the storage

    @property
    def info(self) -> StorageInfo:
        """The inner storage's."""
        info = self.inner.info
        return replace(info, inline=info.inline and self._inline)

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """What the inner storage reads."""
        with self._call("read"):
            return self.inner.read(after_seq=after_seq, limit=limit)

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Commit, unless this one is to fail."""
        with self._call("commit", len(records)):
            failure = self._begin("commit")
            if failure is None:
                return self._syncing(self.inner.commit(records))
            if failure.keep is not None:
                kept = records[: failure.keep]
                sync = self.inner.commit(kept) if kept else None
                raise CommitFailed(
                    f"a fault was injected after {len(kept)} of {len(records)} records: {failure.error}",
                    committed=len(kept),
                    sync=self._syncing(sync),
                ) from failure.error
            if failure.written:
                self.inner.commit(records)
            raise failure.error

    def close(self) -> None:
        """Close the inner storage."""
        with self._call("close"):
            self.inner.close()

    def _syncing(self, sync: Callable[[], None] | None) -> Callable[[], None] | None:
        if sync is None:
            return None

        def faulty_sync() -> None:
            with self._call("sync"):
                failure = self._begin("sync")
                if failure is not None:
                    raise failure.error
                sync()

        return faulty_sync

    def _begin(self, step: Step) -> _Failure | None:
        self._counts[step] += 1
        gate = self._gates.get(step)
        if gate is not None:
            gate.pass_through()
        if self._seconds[step]:
            time.sleep(self._seconds[step])
        return self._failures.pop((step, self._counts[step]), None)

    def _call(self, name: str, records: int = 0) -> _Call:
        return _Call(self, StorageCall(name, records))

    def enter(self, call: StorageCall) -> None:
        """A call begins."""
        with self._guard:
            self.calls.append(call)
            self.overlaps += self._running > 0
            self._running += 1

    def leave(self) -> None:
        """A call ends."""
        with self._guard:
            self._running -= 1


class _Call:
    """One call that is under way."""

    def __init__(self, storage: FaultyStorage, call: StorageCall) -> None:
        self._storage = storage
        self._what = call

    def __enter__(self) -> None:
        self._storage.enter(self._what)

    def __exit__(self, *_: object) -> None:
        self._storage.leave()
