"""A turn as a stream of events: it runs beside whoever reads, one event at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from harness.calls import Emit
from harness.events import AgentEvent
from harness.first_failure import first_failure
from harness.progress import ProgressLine, WatchedProgress
from storage.errors import BusyError, TurnAbortedError
from storage.messages import AssistantMessage


@dataclass(frozen=True, slots=True)
class HeldTurn:
    """A turn that nobody else can begin any more: how it is run, and how it is given back, once."""

    run: Callable[[Emit, Emit, ProgressLine], Awaitable[AssistantMessage]]
    hand_on: Callable[[], Coroutine[Any, Any, None]]
    """Tells what others do to the turn while it runs, until cancelled."""
    tell: Emit
    """Tells a line of progress, to hooks and to whoever reads."""
    give_back: Callable[[], None]


class TurnStream(AsyncIterator[AgentEvent]):
    """The events of one turn. Enter it with ``async with``, which begins the turn, and iterate over it, once.

    The turn goes on as its events are taken. Leaving before its end cancels it, and waits until that is recorded. Entering
    raises ``BusyError`` where another turn runs; the iteration raises what the turn raises, and an error that nobody took
    is raised on leaving. After ``AgentHarness.abort`` the iteration ends with ``TurnEnded``, and only ``reply`` raises.
    """

    def __init__(self, begin: Callable[[], Awaitable[HeldTurn]]) -> None:
        """Use ``AgentHarness.stream``."""
        self._begin = begin
        self._entered = False
        self._held: HeldTurn | None = None
        self._group: TaskGroup | None = None
        self._reply: AssistantMessage | None = None
        self._error: Exception | None = None
        self._told = False
        self._taken: AgentEvent | None = None
        self._last: AgentEvent | None = None
        """The end of the turn, for a reader who comes for it when nobody waits for that."""

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
        if self._entered:
            raise BusyError("this stream was entered before; call stream() once for each turn")
        self._entered = True
        held = self._held = await self._begin()
        try:
            self._send, self._receive = anyio.create_memory_object_stream[AgentEvent](0)
            self._group = await anyio.create_task_group().__aenter__()
        except BaseException:
            self._give_back()
            raise
        self._group.start_soon(self._work, held)
        return self

    async def __anext__(self) -> AgentEvent:
        if self._group is None:
            raise BusyError(
                "the turn has not begun; write: async with harness.stream(…) as events: async for … in events"
            )
        try:
            while True:
                event = await self._receive.receive()
                if event is not self._taken:  # the end may be told twice, where it was cancelled as it was taken
                    self._taken = event
                    return event
        except (anyio.EndOfStream, anyio.ClosedResourceError):  # the turn is over, or the stream was left
            pass
        # Outside of the except: an error keeps the cause that it has.
        last, self._last = self._last, None
        if last is not None and last is not self._taken:
            return last
        if self._error is not None and not self._told:
            self._told = True
            if not isinstance(self._error, TurnAbortedError):  # its last event has said so
                raise self._error
        raise StopAsyncIteration

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
        failure: BaseException | None = None
        try:
            await group.__aexit__(*((kind, error, traceback) if of_group else (None, None, None)))
        except BaseExceptionGroup as failures:
            failure = first_failure(failures)  # raised as ``prompt`` raises it, with the cause that it has
        finally:
            self._give_back()  # where the work was cancelled before it began
        if failure is not None:
            raise failure
        if error is None and self._error is not None and not self._told:
            self._told = True
            if not isinstance(self._error, TurnAbortedError):
                raise self._error

    async def _work(self, held: HeldTurn) -> None:
        with self._send, WatchedProgress(held.tell) as progress:
            async with anyio.create_task_group() as group:
                group.start_soon(progress.hand_on)
                group.start_soon(held.hand_on)
                try:
                    self._reply = await held.run(self._emit, self._emit_at_once, progress)
                except Exception as error:  # noqa: BLE001 - handed on by __anext__ or __aexit__
                    self._error = error
                finally:
                    self._give_back()
                group.cancel_scope.cancel()

    def _give_back(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.give_back()

    async def _emit(self, event: AgentEvent) -> None:
        try:
            await self._send.send(event)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # whoever read has left, and the turn is being cancelled

    async def _emit_at_once(self, event: AgentEvent) -> None:
        try:
            self._send.send_nowait(event)
        except anyio.WouldBlock:
            self._last = event  # the turn is over, and waits for nobody
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # whoever read has left
