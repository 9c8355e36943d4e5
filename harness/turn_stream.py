"""A turn as a stream of events: it runs beside whoever reads, one event at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from harness.calls import Emit
from harness.events import AgentEvent
from harness.progress import ProgressLine, WatchedProgress
from storage.errors import BusyError
from storage.messages import AssistantMessage

RunTurn = Callable[[Emit, Emit, ProgressLine], Awaitable[AssistantMessage]]


class TurnStream(AsyncIterator[AgentEvent]):
    """The events of one turn. Enter it with ``async with``, which begins the turn, and iterate over it, once.

    The turn goes on as its events are taken. Leaving before its end cancels it, and waits until that is recorded. The
    iteration raises what the turn raises; an error that nobody took is raised on leaving.
    """

    def __init__(self, run: RunTurn) -> None:
        """Use ``AgentHarness.stream``."""
        self._run = run
        self._group: TaskGroup | None = None
        self._reply: AssistantMessage | None = None
        self._error: Exception | None = None
        self._told = False

    @property
    def reply(self) -> AssistantMessage:
        """The last reply, once the turn has completed. Raises what the turn raised, or ``BusyError`` before its end."""
        if self._reply is not None:
            return self._reply
        if self._error is not None:
            self._told = True
            raise self._error
        raise BusyError("the turn has no reply: it did not come to its end; take all its events first")

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise BusyError("this stream was entered before; call stream() once for each turn")
        self._send, self._receive = anyio.create_memory_object_stream[AgentEvent](0)
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._work)
        return self

    async def __anext__(self) -> AgentEvent:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            if self._error is not None and not self._told:
                self._told = True
                raise self._error from None
            raise StopAsyncIteration from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        group = self._group
        if group is None:
            return
        group.cancel_scope.cancel()
        self._receive.close()
        # An error of the body is its own, not one of the group's: it goes on as it is.
        of_group = error is not None and isinstance(error, anyio.get_cancelled_exc_class())
        await group.__aexit__(*((kind, error, traceback) if of_group else (None, None, None)))
        if error is None and self._error is not None and not self._told:
            self._told = True
            raise self._error

    async def _work(self) -> None:
        with self._send, WatchedProgress() as progress:
            async with anyio.create_task_group() as group:
                group.start_soon(progress.hand_on, self._emit)
                try:
                    self._reply = await self._run(self._emit, self._emit_at_once, progress)
                except Exception as error:  # noqa: BLE001 - handed on by __anext__ or __aexit__
                    self._error = error
                group.cancel_scope.cancel()

    async def _emit(self, event: AgentEvent) -> None:
        try:
            await self._send.send(event)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # whoever read has left, and the turn is being cancelled

    async def _emit_at_once(self, event: AgentEvent) -> None:
        try:
            self._send.send_nowait(event)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # whoever read has left
