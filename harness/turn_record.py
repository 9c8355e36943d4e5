"""What a turn writes, and in what order: each fact is committed before the next step depends on it (R23)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.events import TurnReason
from harness.recovery import interrupted_result
from harness.session import Session, SessionTurn
from harness.tools.definition import Tool
from storage.entries import Entry, MessageEntry, TurnEndEntry
from storage.errors import QueueFullError
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
    begun: bool = False
    """Whether its tool was called: from here on it may have done something."""
    result: ToolResultMessage | None = None
    recorded: PendingWrite | None = None
    """Its result's write, once that was handed to the log, which keeps what it was handed unless the store fails."""


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

    @property
    def is_open(self) -> bool:
        """Whether it began on disk (or will, once the log is drained), and did not end there."""
        return _holds(self.start) and not _holds(self.ending)

    async def put(self, entry: Entry) -> PendingWrite:
        """Hand an entry to the log. At once, unless too much is waiting: then after that was written."""
        while True:
            try:
                return self.turn.append_entry(entry)
            except QueueFullError:
                await self.session.flush()

    async def write(self, entry: Entry) -> str:
        """Hand an entry to the log and wait until it is committed. Returns its id."""
        return await (await self.put(entry))

    async def write_result(self, state: CallState, result: ToolResultMessage) -> str:
        """Record the one result of a call."""
        state.result = result
        state.recorded = await self.put(MessageEntry(message=result))
        return await state.recorded

    async def end(self, reason: TurnReason, **more: Any) -> str:
        """Write the ``turn_end``, once. Returns its id."""
        self.ending = await self.put(TurnEndEntry(turn=self.number, reason=reason, **more))
        return await self.ending

    async def close_early(self, reason: TurnReason, *, provider: str, model_id: str, why: str | None) -> str:
        """End a turn that cannot go on: what was heard of a reply, a result for each call, and the ``turn_end``.

        Everything is handed to the log before anything is waited for, so that a second cancellation cannot come
        between. Returns the ``turn_end``'s id.
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
        for state in self.calls if _holds(self.reply) else ():
            if not _holds(state.recorded):
                result = state.result or interrupted_result(state.call, begun=state.begun)
                state.recorded = await self.put(MessageEntry(message=result))
        return await self.end(reason, **({} if why is None else {"error": why}))


def _holds(write: PendingWrite | None) -> bool:
    """Whether a write was handed to the log and did not fail."""
    return write is not None and write.error is None
