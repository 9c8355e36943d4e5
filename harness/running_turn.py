"""The turn that runs: what others can do to it while it does."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

import anyio

from harness.events import AgentEvent
from storage.errors import BranchlineError, TurnAbortedError
from storage.pending_write import PendingWrite

if TYPE_CHECKING:
    from harness.calls import Emit
    from harness.session import SessionTurn
    from harness.turn import Turn
    from storage.messages import AssistantMessage

T = TypeVar("T")

_inside: ContextVar[RunningTurn | None] = ContextVar("branchline_turn", default=None)
"""The turn that this task belongs to: its own, and those of its tools and hooks."""


class Notices:
    """What others wrote while the turn ran, to be told when it is committed, in the order of the calls."""

    def __init__(self, settled: Callable[[], Awaitable[None]]) -> None:
        """``settled`` waits until all that was written before is committed (or failed)."""
        self._settled = settled
        self.emit: Emit | None = None
        """Where they are told; ``None`` until the turn is at work."""
        self._waiting: deque[tuple[PendingWrite, AgentEvent]] = deque()
        self._more = anyio.Event()
        self._telling = anyio.Lock()

    def add(self, write: PendingWrite, event: AgentEvent) -> None:
        """Have ``event`` told once ``write`` is committed; never, if that fails."""
        self._waiting.append((write, event))
        self._more.set()

    async def tell(self) -> None:
        """Tell what is committed by now. The turn does so before each event of its own."""
        if not self._waiting and not self._telling.locked():
            return  # nearly always
        async with self._telling:  # one at a time: of two that are being told, either could come first
            while self.emit is not None and self._waiting and self._waiting[0][0].is_done():
                write, event = self._waiting.popleft()
                if write.error is None:
                    await self.emit(event)

    async def hand_on(self) -> None:
        """Tell each as soon as it is committed, until cancelled: for a turn that somebody watches."""
        while True:
            while not self._waiting or self.emit is None:
                self._more = anyio.Event()
                await self._more.wait()
            try:
                await self._settled()
            except BranchlineError:
                return  # the store failed: that is the turn's to tell, and there is no news any more
            await self.tell()

    async def emit_after(self, event: AgentEvent) -> None:
        """Tell an event of the turn itself, behind what was committed before it."""
        await self.tell()
        if self.emit is not None:
            await self.emit(event)


class RunningTurn:
    """From the moment in which the turn is taken until its end is recorded."""

    def __init__(self, settled: Callable[[], Awaitable[None]]) -> None:
        self.notices: Notices = Notices(settled)
        self.hand: SessionTurn | None = None
        """Its hand on the session, once it has it."""
        self.turn: Turn | None = None
        """What does its work, once it is at work."""
        self.outer: RunningTurn | None = _inside.get()
        """The turn of another harness that this one is part of: a tool may have an agent of its own."""
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()

    @property
    def is_here(self) -> bool:
        """Whether the task that asks is part of it: a tool's, a hook's, or one of a turn inside of it."""
        turn = _inside.get()
        while turn is not None and turn is not self:
            turn = turn.outer
        return turn is self

    async def run(self, work: Callable[[], Awaitable[AssistantMessage]]) -> AssistantMessage:
        """Do the work of the turn, once. Raises ``TurnAbortedError`` where ``abort`` ended it before it had completed."""
        with self._entered():
            return await work()
        if self.turn is not None and self.turn.reply is not None:
            return self.turn.reply
        raise TurnAbortedError(
            "the turn was aborted; what it had begun is recorded to its end, and the next prompt goes on from there"
        )

    async def run_change(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something else than a turn in its place, once. Raises ``TurnAbortedError`` where ``abort`` ended it."""
        with self._entered():
            return await work()
        raise TurnAbortedError("it was aborted; what was not recorded by then is not, and the session is as it was")

    @contextmanager
    def _entered(self) -> Generator[None]:
        """Tasks that begin in here are part of it; ``abort`` ends the block, and is not heard behind it."""
        token = _inside.set(self)
        try:
            with self._scope:
                yield
        finally:
            _inside.reset(token)

    def abort(self) -> None:
        """Cancel it. It ends as cancelled, with a result for each call."""
        self._scope.cancel()

    def end(self) -> None:
        """It is over: others may write where they like. Idempotent."""
        if self.hand is not None:
            self.hand.end()
        self._over.set()

    async def wait(self) -> None:
        """Wait until it is over."""
        await self._over.wait()
