"""One turn: the prompt, requests and calls by turns, and an end, whatever happens (R23, R24)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from compaction.kept_units import KeptUnits
from harness.approvals import Approve
from harness.calls import CallRunner, Emit
from harness.choices import Choices
from harness.compactor import Compactor
from harness.events import (
    AgentEvent,
    MessageDelivered,
    MessageFinished,
    PromptRecorded,
    TurnEnded,
    TurnReason,
    TurnStarted,
    TurnSuspended,
)
from harness.hook_chain import TurnHooks
from harness.message_queue import MessageQueue, QueuedMessage
from harness.models.events import ReplyFinished, TextDelta
from harness.models.protocol import ChatModel, KeepsConnections
from harness.progress import ProgressLine
from harness.replies import fit_for_record
from harness.requests import NextRequest, RequestMaker
from harness.settings import AgentSettings
from harness.suspension import SuspendedTurn, pending_calls
from harness.tools.definition import Tool
from harness.turn_limits import TurnLimits
from harness.turn_record import CallState, TurnRecord
from storage.entries import MessageEntry, ModelChangeEntry, TurnStartEntry
from storage.errors import BranchlineError, BudgetError, CompactionError, ContextOverflowError, ModelError, StorageError
from storage.messages import AssistantMessage, UserMessage
from storage.pending_write import PendingWrite

FAILED_STOPS = frozenset({"error", "aborted"})


class Turn:
    """One turn of a harness. ``run`` it once."""

    def __init__(
        self,
        record: TurnRecord,
        choices: Choices,
        requests: RequestMaker,
        compactor: Compactor,
        queue: MessageQueue,
        settings: AgentSettings,
        *,
        emit: Emit,
        emit_at_once: Emit,
        progress: ProgressLine,
        working_directory: Path | None,
        hooks: TurnHooks,
        approve: Approve | None,
    ) -> None:
        """``emit`` hands an event on and may wait for it to be taken; ``emit_at_once`` never waits."""
        self.reply: AssistantMessage | None = None
        """The last reply, once the turn has completed and that is recorded."""
        self._record = record
        self._choices = choices
        self._model = choices.model
        """The one that was asked last."""
        self._offered: dict[str, Tool] = choices.offered(choices.recorded_tools)
        """The tools that the newest request offered: no other is run."""
        self._requests = requests
        self._compactor = compactor
        self._queue = queue
        self._settings = settings
        self._limits = TurnLimits(settings)
        self._kept = KeptUnits()
        """What the requests are made of."""
        self._connections = AsyncExitStack()
        self._held: list[ChatModel] = []
        self._emit = emit
        self._emit_at_once = emit_at_once
        self._hooks = hooks
        self._calls = CallRunner(
            record,
            self._offered,
            settings,
            hooks=hooks,
            approve=approve,
            emit=emit,
            progress=progress,
            working_directory=working_directory,
        )

    async def run(self, begins_with: UserMessage | SuspendedTurn) -> AssistantMessage:
        """Run the turn to its end, from the prompt or from where it was suspended; the last reply.

        Raises ``PendingCallError`` where it comes to wait for a person: then it has no end. Otherwise ``ModelError`` when
        the model fails for good or calls tools for ever, ``HookError``, and what the session raises; each after
        ``turn_end: failed``. A cancellation goes on up after ``turn_end: cancelled``.
        """
        record = self._record
        try:
            unanswered = None
            if isinstance(begins_with, SuspendedTurn):
                unanswered = self._take_up(begins_with)
            else:
                await self._begin(begins_with)
            with self._limits.clock():
                async with self._connections:
                    reply = await self._converse(unanswered)
            entry_id = ""
            with anyio.CancelScope(shield=True):  # whoever cancels from here on comes after the end
                entry_id = await record.end("completed")
        except BaseException as error:
            if record.is_open:
                await self._end_early(error)
            if isinstance(error, StorageError):
                await record.tell(error)
            raise
        self.reply = reply
        event = TurnEnded(record.number, "completed", entry_id)
        try:
            await self._emit(event)
        except anyio.get_cancelled_exc_class():
            await self._emit_at_once(event)  # it is over and recorded, whoever is not waited for any more
            raise
        return reply

    def _take_up(self, turn: SuspendedTurn) -> AssistantMessage:
        self._record.is_resumed = True
        self._record.calls = turn.calls
        for reply in turn.replies:
            self._limits.count(reply)
        return turn.reply

    async def _begin(self, prompt: UserMessage) -> None:
        record = self._record
        record.start = await record.put(TurnStartEntry(turn=record.number))
        await self._emit(TurnStarted(record.number, await record.start))
        await self._deliver(await self._queue.waiting(("next_turn",)))
        entry_id = await record.write(MessageEntry(message=prompt))
        await self._emit(PromptRecorded(prompt, entry_id))

    async def _converse(self, unanswered: AssistantMessage | None) -> AssistantMessage:
        """``unanswered``: the reply whose calls still have to be run, where the turn is taken up again."""
        if unanswered is None:
            await self._deliver(await self._next_messages(stops=False))
        while True:
            reply = unanswered or await self._next_reply()
            unanswered = None
            if reply.stop_reason in FAILED_STOPS:
                raise ModelError(f"{self._model.provider} gave up: {reply.error_message or reply.stop_reason}")
            if self._record.calls:
                await self._calls.run(reply)
                await self._suspend_if_waiting()
            messages = await self._next_messages(stops=not self._record.calls)
            if not self._record.calls and not messages:
                return reply  # nothing is awaited between this look at the queue and the ``turn_end``
            self._limits.check()
            await self._deliver(messages)

    async def _suspend_if_waiting(self) -> None:
        """Leave the turn open where a person decides later. Raises ``PendingCallError`` then."""
        if all(state.result is not None for state in self._record.calls):
            return
        self._record.is_suspended = True
        waiting = tuple(state.call for state in self._record.calls if state.is_waiting)
        await self._emit(TurnSuspended(self._record.number, waiting))
        raise pending_calls(self._record.number, waiting)

    async def _next_messages(self, *, stops: bool) -> Sequence[QueuedMessage]:
        """The waiting messages to deliver now: steers, and follow-ups where the turn would stop without them."""
        settings = self._settings
        waiting = await self._queue.waiting(("steer", "follow_up") if stops else ("steer",))
        for kind, mode in (("steer", settings.steering_mode), ("follow_up", settings.follow_up_mode)):
            messages = [queued for queued in waiting if queued.kind == kind]
            if messages:
                return messages if mode == "all" else messages[:1]
        return []

    async def _deliver(self, messages: Sequence[QueuedMessage]) -> None:
        entries = await self._queue.deliver(messages, self._record.put)
        for queued, entry in zip(messages, entries, strict=True):
            await self._emit(MessageDelivered(queued.kind, queued.message, queued.entry_id, entry.id))

    async def _next_reply(self) -> AssistantMessage:
        """The reply to the next request; where that is too long for the model, to a shorter one, once."""
        asked = await self._next_request()
        try:
            return await self._reply_to(asked)
        except ContextOverflowError as error:
            if self._record.heard or not self._compactor.note_overflow(error, asked.context.tokens):
                raise
            overflow = error
        try:
            shorter = await self._next_request()
        except (BudgetError, CompactionError) as error:
            raise overflow from error
        if shorter.shows_the_same_as(asked):
            raise overflow
        return await self._reply_to(shorter)

    async def _next_request(self) -> NextRequest:
        self._hooks.check()
        asked = await self._requests.make(self._record, self._emit, self._hooks, self._limits.spend, self._kept)
        tools = self._choices.tools
        self._model = asked.model
        await self._hold(asked.model)
        self._offered.clear()
        self._offered.update((tool.name, tools[tool.name]) for tool in asked.request.tools if tool.name in tools)
        return asked

    async def _hold(self, model: ChatModel) -> None:
        """Keep the model's connections to the end of the turn."""
        if any(model is held for held in self._held):
            return
        self._held.append(model)
        if isinstance(model, KeepsConnections):
            await self._connections.enter_async_context(model.connected())

    async def _reply_to(self, asked: NextRequest) -> AssistantMessage:
        self._record.calls = []
        reply, write = await self._ask(asked)
        await self._emit(MessageFinished(reply, await write))
        return reply

    async def _ask(self, asked: NextRequest) -> tuple[AssistantMessage, PendingWrite]:
        """The model's reply, handed to the log; its pieces are handed on as they come.

        The disk is at work while the model's connection is made ready for the next request.
        """
        model = self._model
        reply: AssistantMessage | None = None
        failure: Exception | None = None
        write: PendingWrite | None = None
        try:
            async with model.stream(asked.request) as events:
                async for event in events:
                    if isinstance(event, ReplyFinished):
                        reply = fit_for_record(event.message, provider=model.provider, model_id=model.model_id)
                        try:
                            write = await self._take(reply, asked)
                        except Exception as error:  # noqa: BLE001 - raised below: it is not the model's
                            failure = error
                        break
                    if isinstance(event, TextDelta):
                        self._record.heard.append(event.text)
                    await self._emit(event)
        except Exception as error:
            if isinstance(error, ModelError) and reply is None:
                raise
            raise ModelError(f"the model {model.model_id!r} failed with a {type(error).__name__}") from error
        if failure is not None:
            raise failure
        if reply is None or write is None:
            raise ModelError(f"the stream of the model {model.model_id!r} ended without a reply")
        return reply, write

    async def _take(self, reply: AssistantMessage, asked: NextRequest) -> PendingWrite:
        """Have the reply written, and with it what follows from it at once."""
        record = self._record
        log = record.session.log
        if not log.is_settled or log.leaf_id != asked.leaf_id:
            asked.facts.leaf_id = asked.leaf_id  # others append: the reply will not hang from what it was shown
        entry = MessageEntry(message=reply, request=asked.facts)
        write = record.reply = await record.put(entry)
        record.heard.clear()
        record.calls = [CallState(call, entry.id) for call in reply.tool_calls]
        self._limits.count(reply)
        chosen = self._chosen_meanwhile()
        if chosen is not None:
            await record.put(chosen)
        if record.calls and chosen is None and reply.stop_reason not in FAILED_STOPS:
            await self._calls.note_starts(reply)
        write.begin()
        return write

    def _chosen_meanwhile(self) -> ModelChangeEntry | None:
        """To be recorded again behind the reply of the model before it, which else would count as the newest word."""
        asked, chosen = self._model, self._choices.model
        if (asked.provider, asked.model_id) == (chosen.provider, chosen.model_id):
            return None
        return ModelChangeEntry(provider=chosen.provider, model_id=chosen.model_id)

    async def _end_early(self, error: BaseException) -> None:
        reason: TurnReason = "failed" if isinstance(error, Exception) else "cancelled"
        why = f"{error.code}: {error.message}" if isinstance(error, BranchlineError) else None
        entry_id = None
        with anyio.CancelScope(shield=True):
            try:
                entry_id = await self._record.close_early(
                    reason,
                    provider=self._model.provider,
                    model_id=self._model.model_id,
                    why=why,
                    chosen=self._chosen_meanwhile(),
                )
            except BranchlineError as second:
                # The first error is the one to know; what this one left open, recover() closes after reopening.
                error.add_note(f"The turn could not be closed either: {second}")
        if entry_id is not None:
            # Outside the shield: whoever should take the event may be gone.
            event = TurnEnded(self._record.number, reason, entry_id)
            await (self._emit if reason == "failed" else self._emit_at_once)(event)


async def emit_to_nobody(_event: AgentEvent) -> None:
    """For turns that nobody watches."""
