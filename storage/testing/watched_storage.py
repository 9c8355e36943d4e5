"""A backend's calls, each in a thread of its own: one that does not come back is named, and nobody waits for it.

A thread cannot be ended from outside, and the log waits for its worker whatever happens. So a backend that waits for
itself would stop the suite for ever. That no two calls come from the same thread also shows who relies on it.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from storage.protocols import Record, SessionStorage, StorageInfo
from storage.record_pages import read_page
from storage.testing.backend_frames import place_in_backend

T = TypeVar("T")

_ABILITIES = ("delete", "read_path", "write_blob", "read_blob", "blob_names", "take_index", "wait_for_change")


class Watch:
    """Waits for the calls of one clause, and no longer than its time."""

    def __init__(self) -> None:
        """There is all the time in the world; ``give`` limits it. ``end`` when nothing is called any more."""
        self._until: float | None = None
        self._guard = threading.Lock()
        self._last_may_end = threading.Event()
        self.overdue: str = ""
        """The first call that did not come back, and where it was at that moment."""

    def give(self, seconds: float) -> None:
        """From now on there are so many seconds."""
        self._until = time.monotonic() + seconds

    def end(self) -> None:
        """Let the thread of the last call end."""
        self._last_may_end.set()

    def call(self, name: str, function: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
        """What ``function`` returns, or raise what it raises. Raises ``TimeoutError`` if the time is up before.

        ``undo`` is called, in the thread that was left behind, with what ``function`` returns after that.
        """
        results: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()
        may_end = threading.Event()
        given_up = False

        def run() -> None:
            try:
                result = function()
                with self._guard:
                    too_late = given_up
                    if not too_late:
                        results.append(result)
                        done.set()
                if too_late and undo is not None:
                    undo(result)
            except BaseException as error:  # noqa: BLE001 - raised again below, where it was called
                errors.append(error)
            done.set()
            may_end.wait()  # until the next one has begun: the number of a thread that has ended is given out again

        thread = threading.Thread(target=run, name=f"conformance: {name}", daemon=True)
        thread.start()
        with self._guard:
            last, self._last_may_end = self._last_may_end, may_end
        last.set()
        if not done.wait(None if self._until is None else max(0.0, self._until - time.monotonic())):
            with self._guard:
                given_up = not done.is_set()
            if given_up:
                raise TimeoutError(self._note(name, thread.ident))
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()  # the error's traceback holds this frame: break the cycle
        return results[0]

    def _note(self, name: str, thread: int | None) -> str:
        frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it has no other name
        place = place_in_backend(traceback.extract_stack(frame)) if frame is not None else ""
        overdue = f"{name} has not come back" + (f"; it is in {place}" if place else "")
        self.overdue = self.overdue or overdue
        return overdue


class WatchedStorage:
    """A ``SessionStorage`` around another; made by ``watched``, which adds the abilities that the other has."""

    def __init__(self, storage: SessionStorage, watch: Watch) -> None:
        self._storage = storage
        self._watch = watch

    @property
    def info(self) -> StorageInfo:
        """The storage's own."""
        return self._storage.info

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """What the storage reads, as the log reads it: ``StorageError`` for what is no sequence."""
        return self._watch.call("read()", lambda: read_page(self._storage, after_seq=after_seq, limit=limit))

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Commit."""
        sync = self._watch.call("commit()", lambda: self._storage.commit(records))
        return None if sync is None else lambda: self._watch.call("the sync that commit() returned", sync)

    def close(self) -> None:
        """Close the storage."""
        self._watch.call("close()", self._storage.close)


def watched(storage: SessionStorage, watch: Watch) -> SessionStorage:
    """``storage``, with its optional abilities, watched."""

    def forward(name: str) -> Callable[..., Any]:
        def call(_: WatchedStorage, *given: Any) -> Any:
            return watch.call(f"{name}()", lambda: getattr(storage, name)(*given))

        return call

    abilities = {name: forward(name) for name in _ABILITIES if callable(getattr(storage, name, None))}
    kind: Any = type(f"Watched{type(storage).__name__}", (WatchedStorage,), abilities)
    return cast("SessionStorage", kind(storage, watch))
