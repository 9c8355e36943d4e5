"""Lines of progress from tools, which may be on the event loop or in a thread, to whoever watches the turn."""

from __future__ import annotations

import threading
from collections import deque
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

    async def settle(self) -> None:
        """Wait until the lines that wait are told: before the end of their call is."""
        ...


class NobodyWatches:
    """Drops every line."""

    def reporter(self, call: ToolCall) -> Callable[[str], None]:  # noqa: ARG002 - as the protocol has it
        """A function that does nothing."""
        return lambda _message: None

    async def settle(self) -> None:
        """Nothing waits."""


class WatchedProgress:
    """Hands lines on as ``ToolProgress`` events; lines that nobody takes in time are dropped, so no tool ever waits."""

    def __init__(self, emit: Callable[[AgentEvent], Awaitable[None]]) -> None:
        self._emit = emit
        self._waiting: deque[ToolProgress] = deque()
        self._more = anyio.Event()
        self._telling = anyio.Lock()
        self._is_over = False
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
        if len(self._waiting) < _MAX_WAITING and not self._is_over:  # progress is only for those who watch now
            self._waiting.append(event)
            self._more.set()

    async def settle(self) -> None:
        """Tell the lines that wait. When it returns, none that was reported before is still to be told."""
        if not self._waiting and not self._telling.locked():
            return  # nearly always
        async with self._telling:  # one at a time: of two that are being told, either could come first
            while self._waiting:
                await self._emit(self._waiting.popleft())

    async def hand_on(self) -> None:
        """Emit each line as it comes, until cancelled."""
        while True:
            while not self._waiting:
                self._more = anyio.Event()
                await self._more.wait()
            await self.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._waiting.clear()
