"""One turn: the prompt, requests and calls by turns, and an end, whatever happens (R23, R24)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio

from harness.calls import CallRunner, Emit
from harness.events import (
    AgentEvent,
    MessageFinished,
    PromptRecorded,
    TurnEnded,
    TurnReason,
    TurnStarted,
)
from harness.models.events import ReplyFinished, TextDelta
from harness.models.protocol import ChatModel, ModelRequest
from harness.progress import ProgressLine
from harness.replies import fit_for_record
from harness.requests import RequestMaker
from harness.settings import AgentSettings
from harness.tools.definition import Tool
from harness.turn_record import CallState, TurnRecord
from storage.entries import MessageEntry, RequestFacts, TurnStartEntry
from storage.errors import BranchlineError, ModelError
from storage.messages import AssistantMessage, UserMessage

FAILED_STOPS = frozenset({"error", "aborted"})


class Turn:
    """One turn of a harness. ``run`` it once."""

    def __init__(
        self,
        record: TurnRecord,
        model: ChatModel,
        requests: RequestMaker,
        tools: Mapping[str, Tool],
        settings: AgentSettings,
        *,
        emit: Emit,
        emit_at_once: Emit,
        progress: ProgressLine,
        working_directory: Path | None,
    ) -> None:
        """``emit`` hands an event on and may wait for it to be taken; ``emit_at_once`` never waits."""
        self._record = record
        self._model = model
        self._requests = requests
        self._settings = settings
        self._emit = emit
        self._emit_at_once = emit_at_once
        self._calls = CallRunner(
            record, tools, settings, emit=emit, progress=progress, working_directory=working_directory
        )

    async def run(self, prompt: UserMessage) -> AssistantMessage:
        """Run the turn to its end; the last reply.

        Raises ``ModelError`` when the model fails for good or calls tools for ever, and what the session raises; each
        after ``turn_end: failed``. A cancellation goes on up after ``turn_end: cancelled``.
        """
        record = self._record
        try:
            await self._begin(prompt)
            reply = await self._converse()
            entry_id = await record.end("completed")
        except BaseException as error:
            if record.is_open:
                await self._end_early(error)
            raise
        await self._emit(TurnEnded(record.number, "completed", entry_id))
        return reply

    async def _begin(self, prompt: UserMessage) -> None:
        record = self._record
        record.start = await record.put(TurnStartEntry(turn=record.number))
        await self._emit(TurnStarted(record.number, await record.start))
        entry_id = await record.write(MessageEntry(message=prompt))
        await self._emit(PromptRecorded(prompt, entry_id))

    async def _converse(self) -> AssistantMessage:
        for _ in range(self._settings.max_steps):
            request, facts = await self._requests.make(self._record)
            reply = await self._reply_to(request, facts)
            if reply.stop_reason in FAILED_STOPS:
                raise ModelError(f"{self._model.provider} gave up: {reply.error_message or reply.stop_reason}")
            if not self._record.calls:
                return reply
            await self._calls.run(reply)
        raise ModelError(
            f"the turn reached its limit of {self._settings.max_steps} requests while the model still called tools; "
            "prompt again to go on, or raise max_steps",
            max_steps=self._settings.max_steps,
        )

    async def _reply_to(self, request: ModelRequest, facts: RequestFacts) -> AssistantMessage:
        record = self._record
        record.calls = []
        reply = await self._ask(request)
        entry = MessageEntry(message=reply, request=facts)
        record.reply = await record.put(entry)
        record.heard.clear()
        record.calls = [CallState(call, entry.id) for call in reply.tool_calls]
        await self._emit(MessageFinished(reply, await record.reply))
        return reply

    async def _ask(self, request: ModelRequest) -> AssistantMessage:
        """The model's reply, fit for the record; its pieces are handed on as they come."""
        model = self._model
        try:
            async with model.stream(request) as events:
                async for event in events:
                    if isinstance(event, ReplyFinished):
                        return fit_for_record(event.message, provider=model.provider, model_id=model.model_id)
                    if isinstance(event, TextDelta):
                        self._record.heard.append(event.text)
                    await self._emit(event)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the model {model.model_id!r} failed with a {type(error).__name__}") from error
        raise ModelError(f"the stream of the model {model.model_id!r} ended without a reply")

    async def _end_early(self, error: BaseException) -> None:
        reason: TurnReason = "failed" if isinstance(error, Exception) else "cancelled"
        why = f"{error.code}: {error.message}" if isinstance(error, BranchlineError) else None
        entry_id = None
        with anyio.CancelScope(shield=True):
            try:
                entry_id = await self._record.close_early(
                    reason, provider=self._model.provider, model_id=self._model.model_id, why=why
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
