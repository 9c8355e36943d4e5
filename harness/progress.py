"""Lines of progress from tools, which may be on the event loop or in a thread, to whoever watches the turn."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

import anyio
import anyio.from_thread

from harness.events import AgentEvent, ToolProgress
from storage.messages import ToolCall

_MAX_WAITING = 100


class ProgressLine(Protocol):
    """**Protocol:** where a call's lines go."""

    def reporter(self, call: ToolCall) -> Callable[[str], None]:
        """What the call's tool is given."""
        ...


class NobodyWatches:
    """Drops every line."""

    def reporter(self, call: ToolCall) -> Callable[[str], None]:  # noqa: ARG002 - as the protocol has it
        """A function that does nothing."""
        return lambda _message: None


class WatchedProgress:
    """Hands lines on as ``ToolProgress`` events; lines that nobody takes in time are dropped, so no tool ever waits."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[ToolProgress](_MAX_WAITING)
        self._thread = threading.get_ident()

    def reporter(self, call: ToolCall) -> Callable[[str], None]:
        """A function for the call's tool, to be called on the event loop or in a thread that ``anyio`` started."""

        def report(message: str) -> None:
            event = ToolProgress(call, str(message))
            if threading.get_ident() == self._thread:
                self._put(event)
            else:
                anyio.from_thread.run_sync(self._put, event)

        return report

    def _put(self, event: ToolProgress) -> None:
        try:
            self._send.send_nowait(event)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return  # nobody keeps up, or the turn is over: progress is only for those who watch now

    async def hand_on(self, emit: Callable[[AgentEvent], Awaitable[None]]) -> None:
        """Emit each line as it comes, until cancelled."""
        async for event in self._receive:
            await emit(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send.close()
        self._receive.close()
