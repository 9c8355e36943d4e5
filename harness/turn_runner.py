"""Running the turns of a harness: one at a time, held from the moment in which it is taken, with everything wired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from harness.approvals import Approve
from harness.calls import Emit
from harness.choices import Choices
from harness.compactor import Compactor
from harness.hook_chain import HookChain, TurnHooks
from harness.message_queue import MessageQueue
from harness.progress import NobodyWatches, ProgressLine
from harness.requests import RequestMaker
from harness.running_turn import RunningTurn
from harness.session import Session, SessionTurn
from harness.settings import AgentSettings
from harness.suspension import SuspendedTurn, beginning, close_suspended, next_turn_number, suspended_turn
from harness.turn import Turn, emit_to_nobody
from harness.turn_record import TurnRecord
from harness.turn_stream import HeldTurn, TurnStream
from storage.errors import BusyError
from storage.messages import AssistantMessage, UserMessage

T = TypeVar("T")


class TurnRunner:
    """Runs the turns of ``owner``, which holds the session once ``take_over`` was awaited."""

    def __init__(
        self,
        session: Session,
        owner: object,
        take_over: Callable[[], Awaitable[None]],
        choices: Choices,
        requests: RequestMaker,
        compactor: Compactor,
        queue: MessageQueue,
        settings: AgentSettings,
        hooks: HookChain,
        approve: Approve | None,
    ) -> None:
        self.running: RunningTurn | None = None
        """The turn that runs, is about to, or is being recorded to its end."""
        self._session = session
        self._owner = owner
        self._take_over = take_over
        self._choices = choices
        self._requests = requests
        self._compactor = compactor
        self._queue = queue
        self._settings = settings
        self._hooks = hooks
        self._approve = approve

    async def alone(self, message: UserMessage | None) -> AssistantMessage:
        """A turn that nobody iterates over. ``None``: the one that waits."""
        if self._hooks.with_own("on_event"):
            async with self.watched(lambda: message) as events:
                async for _ in events:
                    pass
            return events.reply
        running, begins_with = await self._begin_turn(message)
        try:
            return await self._run_turn(running, begins_with, emit_to_nobody, emit_to_nobody, NobodyWatches())
        finally:
            self._end_turn(running)

    def watched(self, message: Callable[[], UserMessage | None]) -> TurnStream:
        """A turn that somebody iterates over; ``message`` is called when it begins."""

        async def begin() -> HeldTurn:
            running, begins_with = await self._begin_turn(message())

            async def run(emit: Emit, emit_at_once: Emit, progress: ProgressLine) -> AssistantMessage:
                return await self._run_turn(running, begins_with, emit, emit_at_once, progress)

            notices = running.notices
            return HeldTurn(run, notices.hand_on, notices.emit_after, lambda: self._end_turn(running))

        return TurnStream(begin)

    async def close_suspended(self) -> None:
        """End a turn that waits for a person, unless another one runs."""
        if self.running is not None or await suspended_turn(self._session.log) is None or self.running is not None:
            return
        closing = self._hold()
        try:
            closing.hand = self._session.begin_turn(self._owner)
            await close_suspended(self._session)
        finally:
            self._end_turn(closing)

    async def instead(self, work: Callable[[SessionTurn], Awaitable[T]]) -> T:
        """Do ``work`` with a hand on the session, where no turn runs, and none can begin until it is done.

        ``AgentHarness.abort`` cancels it, and then this raises ``TurnAbortedError``. Raises ``BusyError`` as a turn does.
        """
        running = self._hold()
        try:
            await self._take_over()
            hand = running.hand = self._session.begin_turn(self._owner)
            return await running.run_change(lambda: work(hand))
        finally:
            self._end_turn(running)

    async def _begin_turn(self, message: UserMessage | None) -> tuple[RunningTurn, UserMessage | SuspendedTurn]:
        """Hold the session's one turn, until ``_end_turn``; with what it begins with: ``None`` is the one that waits.

        Raises ``BusyError`` and ``PendingCallError``; cancelled, it holds nothing.
        """
        running = self._hold()
        try:
            await self._take_over()
            begins_with = await beginning(self._session.log, message, can_ask=self._approve is not None)
            await self._compactor.check()
            running.hand = self._session.begin_turn(self._owner)
        except BaseException:
            self._end_turn(running)
            raise
        return running, begins_with

    def _hold(self) -> RunningTurn:
        """From here to ``_end_turn`` nobody else begins a turn."""
        self._session.log.check_loop()
        if self.running is not None:
            raise BusyError("a turn is running; let it end, steer it, or abort it, before the next one")
        self.running = RunningTurn(self._session.log.settled)
        return self.running

    def _end_turn(self, running: RunningTurn) -> None:
        """Once for each turn that was begun, or held."""
        if self.running is running:
            self.running = None
        running.end()

    async def _run_turn(
        self,
        running: RunningTurn,
        begins_with: UserMessage | SuspendedTurn,
        emit: Emit,
        emit_at_once: Emit,
        progress: ProgressLine,
    ) -> AssistantMessage:
        hand = running.hand
        assert hand is not None  # noqa: S101 - ``_begin_turn`` has taken it

        async def work() -> AssistantMessage:
            number = await next_turn_number(self._session.log, begins_with)
            hooks = TurnHooks(self._hooks, number, begins_with)
            running.notices.emit = hooks.before(emit)
            record = TurnRecord(self._session, hand, number)
            turn = running.turn = Turn(
                record,
                self._choices,
                self._requests,
                self._compactor,
                self._queue,
                self._settings,
                emit=running.notices.emit_after,
                emit_at_once=hooks.after(emit_at_once),
                progress=progress,
                working_directory=self._working_directory(),
                hooks=hooks,
                approve=self._approve,
            )
            return await hooks.around(lambda: turn.run(begins_with), record)

        return await running.run(work)

    def _working_directory(self) -> Path | None:
        if self._settings.working_directory is not None:
            return self._settings.working_directory
        cwd = self._session.header.cwd
        return None if cwd is None else Path(cwd)
