"""Tasks that wait for a write and are cancelled, in either way; for the tests of cancellation."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import anyio
import anyio.abc
import anyio.lowlevel

from storage import EntryLog, PendingWrite, StorageError
from storage.testing import FaultyStorage, Gate
from tests.storage.places import Place

Way = Literal["scope", "native"]


class Waiter:
    """A task that awaits a write, and can be cancelled in either way."""

    def __init__(self, write: PendingWrite, way: Way) -> None:
        self.write = write
        self.way = way
        self.outcome = "waiting"
        self.scope = anyio.CancelScope()
        self.task: asyncio.Task[None] | None = None
        self.ended = anyio.Event()

    async def run(self) -> None:
        """Await it, and note what came of that."""
        cancelled = anyio.get_cancelled_exc_class()
        try:
            if self.way == "scope":
                with self.scope:
                    await self._wait(cancelled)
            else:
                await self._wait(cancelled)
        except cancelled:
            pass  # asyncio's own cancellation of this very task, which ends here
        finally:
            self.ended.set()

    async def _wait(self, cancelled: type[BaseException]) -> None:
        try:
            await self.write
        except cancelled:
            self.outcome = "cancelled"
            raise
        except StorageError:
            self.outcome = "failed"
        else:
            self.outcome = "acknowledged"

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Begin to wait."""
        if self.way == "scope":
            group.start_soon(self.run)
        else:
            self.task = asyncio.get_running_loop().create_task(self.run())
            self.task.add_done_callback(lambda _: self.ended.set())  # also if it never came to run

    def cancel(self) -> None:
        """Cancel the waiting."""
        if self.task is not None:
            self.task.cancel()
        else:
            self.scope.cancel()


async def reached(gate: Gate) -> None:
    """Wait until a call has come to the gate."""
    with anyio.fail_after(60):
        while not gate.reached.is_set():
            await anyio.sleep(0.0005)


async def a_few_turns() -> None:
    """Let the loop go round."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def faulty_log(place: Place, **options: Any) -> tuple[EntryLog, FaultyStorage]:
    """A log over a new session, with its storage to slow down."""
    storage = FaultyStorage(await place.create(**options))
    return await EntryLog.open(storage), storage
