"""What a turn writes, and in what order: each fact is committed before the next step depends on it (R23)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

from harness.events import TurnReason
from harness.recovery import interrupted_result
from harness.session import Session, SessionTurn
from harness.tools.definition import Tool
from storage.entries import ApprovalResolvedEntry, Entry, MessageEntry, ModelChangeEntry, TurnEndEntry
from storage.errors import QueueFullError, StorageError
from storage.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage
from storage.pending_write import PendingWrite


@dataclass(slots=True)
class CallState:
    """One call of the newest reply, and how far it is."""

    call: ToolCall
    entry_id: str
    """The reply that it belongs to."""
    tool: Tool | None = None
    prepared: Any = None
    refusal: str | None = None
    """Why it is not run, in words for the model."""
    arguments: dict[str, Any] = field(init=False)
    """What it runs with: the model's own, unless a hook gave it others."""
    preview: str | None = None
    """What the person is shown, or was when it was asked before."""
    asked_arguments: dict[str, Any] | None = None
    """The arguments that a question of before was about."""
    question: PendingWrite | None = None
    """Its ``approval_requested``, once that was handed to the log in this process."""
    question_id: str = ""
    """The id of that entry, once it is on disk."""
    is_decided: bool = False
    """Whether its ``approval_resolved`` was handed to the log."""
    is_deferred: bool = False
    """Whether the person decides later."""
    is_checked: bool = False
    """Whether its tool has looked at its arguments, or it was refused."""
    start: PendingWrite | None = None
    """Its ``tool_start``, once that was handed to the log."""
    begun: bool = False
    """Whether its tool was called: from here on it may have done something."""
    result: ToolResultMessage | None = None
    recorded: PendingWrite | None = None
    """Its result's write, once that was handed to the log, which keeps what it was handed unless the store fails."""

    def __post_init__(self) -> None:
        self.arguments = self.call.arguments

    @property
    def idempotency_key(self) -> str:
        """Unique for the call, in all sessions: the reply's entry has an id of its own, and the call one within it."""
        return f"{self.entry_id}/{self.call.id}"

    @property
    def is_asked(self) -> bool:
        """Whether its question is on record."""
        return bool(self.question_id) or self.question is not None

    @property
    def is_waiting(self) -> bool:
        """Whether its question is on record, and no answer."""
        return self.is_asked and not self.is_decided


@dataclass(slots=True)
class TurnRecord:
    """The writes of one turn."""

    session: Session
    turn: SessionTurn
    number: int
    calls: list[CallState] = field(default_factory=list[CallState])
    heard: list[str] = field(default_factory=list[str])
    """The pieces of text of a reply that is not recorded yet."""
    start: PendingWrite | None = None
    reply: PendingWrite | None = None
    """The newest reply's write: the one that ``calls`` belong to."""
    ending: PendingWrite | None = None
    reason: TurnReason | None = None
    """How it ended, once that was handed to the log."""
    is_resumed: bool = False
    """Whether its beginning, and the reply that ``calls`` belong to, were on disk before."""
    is_suspended: bool = False
    """Whether it waits for a person, and so is left open."""
    _unsettled: list[PendingWrite] = field(default_factory=list[PendingWrite])
    """What was handed to the log, less what is known to be committed."""

    @property
    def is_open(self) -> bool:
        """Whether it began on disk (or will, once the log is drained), and is to end there."""
        began = self.is_resumed or _holds(self.start)
        return began and not self.is_suspended and not _holds(self.ending)

    def _has_reply(self) -> bool:
        """Whether the reply that ``calls`` belong to is on record (or will be, once the log is drained)."""
        return _holds(self.reply) or (self.reply is None and self.is_resumed)

    async def put(self, entry: Entry | ToolResultMessage) -> PendingWrite:
        """Hand an entry, or a result, to the log. At once, unless too much is waiting: then after that was written."""
        while True:
            try:
                is_result = isinstance(entry, ToolResultMessage)
                write = self.turn.append_message(entry) if is_result else self.turn.append_entry(entry)
            except QueueFullError:
                await self.session.flush()
            else:
                self._unsettled = [other for other in self._unsettled if not other.is_done() or other.error is not None]
                self._unsettled.append(write)
                return write

    async def write(self, entry: Entry) -> str:
        """Hand an entry to the log and wait until it is committed. Returns its id."""
        return await (await self.put(entry))

    async def write_result(self, state: CallState, result: ToolResultMessage) -> str:
        """Record the one result of a call."""
        state.result = result
        state.recorded = await self.put(result)
        return await state.recorded

    async def tell(self, error: StorageError) -> None:
        """Have ``error``, which the turn raises, tell of all its writes that the store failed.

        Some are handed to the log and awaited later (a call's start goes with the reply). Closing the session would raise
        of these what was raised already. A cancellation is let through when that is done.
        """
        with anyio.CancelScope(shield=True):
            for write in self._unsettled:
                if isinstance(write.error, StorageError) and write.error is not error:
                    with suppress(StorageError):  # told by ``error``
                        await write

    async def resolve(self, state: CallState, decision: str, reason: str | None = None) -> PendingWrite:
        """Hand the answer to a call's question to the log."""
        entry = ApprovalResolvedEntry(call_id=state.call.id, decision=decision, reason=reason or None, ignorable=True)
        write = await self.put(entry)
        state.is_decided = True
        return write

    async def end(self, reason: TurnReason, **more: Any) -> str:
        """Write the ``turn_end``, once. Returns its id."""
        self.ending = await self.put(TurnEndEntry(turn=self.number, reason=reason, **more))
        self.reason = reason
        return await self.ending

    async def close_early(
        self,
        reason: TurnReason,
        *,
        provider: str,
        model_id: str,
        why: str | None,
        chosen: ModelChangeEntry | None = None,
    ) -> str:
        """End a turn that cannot go on: what was heard of a reply, a result for each call, and the ``turn_end``.

        ``chosen``: to be recorded behind half a reply, where another model was chosen meanwhile. Everything is handed to
        the log before anything is waited for, so that a second cancellation cannot come between.
        Returns the ``turn_end``'s id.
        """
        if self.heard:
            partial = AssistantMessage(
                content=[TextContent(text="".join(self.heard))],
                provider=provider,
                model=model_id,
                stop_reason="aborted" if reason == "cancelled" else "error",
                error_message=why,
            )
            self.heard.clear()
            await self.put(MessageEntry(message=partial))
            if chosen is not None:
                await self.put(chosen)
        for state in self.calls if self._has_reply() else ():
            if state.is_waiting:
                await self.resolve(state, "cancelled")
            if not _holds(state.recorded):
                result = state.result or interrupted_result(state.call, begun=state.begun)
                state.recorded = await self.put(result)
        return await self.end(reason, **({} if why is None else {"error": why}))


def _holds(write: PendingWrite | None) -> bool:
    """Whether a write was handed to the log and did not fail."""
    return write is not None and write.error is None
