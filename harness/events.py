"""What happens in a turn, as ``AgentHarness.stream`` tells it, in this order:

    TurnStarted, PromptRecorded,
    then for each request: TextDelta, ThinkingDelta and ToolCallDelta as they come, MessageFinished,
        and for each of its calls: ApprovalRequested and ApprovalResolved (if a person has to decide),
        ToolStarted (unless it was refused), ToolProgress, ToolFinished
    TurnEnded, or TurnSuspended where a person decides later; a turn that is resumed goes on with its calls

Before a request, where the context has grown too large for it: CompactionStarted, and CompactionFinished or
CompactionFailed.

Between these: MessageQueued when ``steer``, ``follow_up`` or ``next_turn`` was called while it ran, MessageDelivered when
such a message (or one that waited from before) took its place, those for the next turn before PromptRecorded; and
ModelChanged, ThinkingLevelChanged and ActiveToolsChanged when that was recorded.

Calls of one reply run side by side, so their events mix; each names its call. Whatever has an entry is committed before
its event is told: ``entry_id`` names it. A turn whose consumer has left tells nothing more.
"""  # noqa: D415

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.models.events import TextDelta, ThinkingDelta, ToolCallDelta
from storage.messages import AssistantMessage, ToolCall, ToolResultMessage, Usage, UserMessage

TurnReason = Literal["completed", "failed", "cancelled"]
"""How a turn ended."""

QueueKind = Literal["steer", "follow_up", "next_turn"]
"""Where a message that waits takes its place (see ``AgentHarness``)."""

CompactionCause = Literal["size", "overflow", "by_hand"]
"""Why a context is compacted: it has grown over the trigger, the provider found it too long, or a person wants it."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn began; ``turn`` counts the turns on the path, from 1. ``entry_id`` is that of its ``turn_start``."""

    turn: int
    entry_id: str


@dataclass(frozen=True, slots=True)
class PromptRecorded:
    """The prompt is on disk; the first request follows."""

    message: UserMessage
    entry_id: str


@dataclass(frozen=True, slots=True)
class MessageFinished:
    """A reply is whole, and on disk as it is here: with ids of its own where the vendor left or repeated them."""

    message: AssistantMessage
    entry_id: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call begins now. ``entry_id`` is that of its ``tool_start``."""

    call: ToolCall
    entry_id: str


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A line from a tool that is at work. Not recorded."""

    call: ToolCall
    message: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A call has its result, an error result included."""

    call: ToolCall
    result: ToolResultMessage
    entry_id: str


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A person is asked now about a call. ``call`` has its arguments as hooks left them; ``preview`` is the tool's."""

    call: ToolCall
    preview: str | None
    entry_id: str


@dataclass(frozen=True, slots=True)
class ApprovalResolved:
    """A person decided on a call."""

    call: ToolCall
    decision: Literal["approved", "denied"]
    reason: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class TurnSuspended:
    """The turn waits for a person's decision on ``calls``; all others have their results. Then ``PendingCallError``."""

    turn: int
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class MessageQueued:
    """A message waits for its place in the turn (or in the next one). ``entry_id`` is that of its ``queued`` entry."""

    kind: QueueKind
    message: UserMessage
    entry_id: str


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A message that waited is part of the turn now; the next request shows it.

    ``queued_id`` is that of its ``queued`` entry, ``entry_id`` that of the message itself.
    """

    kind: QueueKind
    message: UserMessage
    queued_id: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class ModelChanged:
    """Another model is asked from the next request on."""

    provider: str
    model_id: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class ThinkingLevelChanged:
    """Another thinking level counts from the next request on."""

    thinking_level: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class ActiveToolsChanged:
    """Other tools are offered from the next request on."""

    names: tuple[str, ...]
    entry_id: str


@dataclass(frozen=True, slots=True)
class CompactionStarted:
    """``messages`` of the context's older messages are being summarised; all of it has ``tokens_before`` tokens."""

    reason: CompactionCause
    tokens_before: int
    messages: int


@dataclass(frozen=True, slots=True)
class CompactionFinished:
    """A summary stands for them now. ``entry_id`` is that of the ``compaction``, ``usage`` what the summary cost."""

    reason: CompactionCause
    summary: str
    tokens_before: int
    tokens_after: int
    usage: Usage | None
    entry_id: str


@dataclass(frozen=True, slots=True)
class CompactionFailed:
    """There is no summary, and the history is as it was; a turn goes on with as much of it as fits.

    ``failure`` is ``details["reason"]`` of the ``CompactionError``, or another error's ``code``; ``message`` says more.
    ``usage`` is what a summary cost that was refused.
    """

    reason: CompactionCause
    failure: str
    message: str
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over, and how. After ``failed`` the iteration raises what went wrong; after ``cancelled`` it ends."""

    turn: int
    reason: TurnReason
    entry_id: str


AgentEvent = (
    TurnStarted
    | PromptRecorded
    | TextDelta
    | ThinkingDelta
    | ToolCallDelta
    | MessageFinished
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | ApprovalRequested
    | ApprovalResolved
    | TurnSuspended
    | MessageQueued
    | MessageDelivered
    | ModelChanged
    | ThinkingLevelChanged
    | ActiveToolsChanged
    | CompactionStarted
    | CompactionFinished
    | CompactionFailed
    | TurnEnded
)

__all__ = [
    "ActiveToolsChanged",
    "AgentEvent",
    "ApprovalRequested",
    "ApprovalResolved",
    "CompactionCause",
    "CompactionFailed",
    "CompactionFinished",
    "CompactionStarted",
    "MessageDelivered",
    "MessageFinished",
    "MessageQueued",
    "ModelChanged",
    "PromptRecorded",
    "QueueKind",
    "TextDelta",
    "ThinkingDelta",
    "ThinkingLevelChanged",
    "ToolCallDelta",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "TurnEnded",
    "TurnReason",
    "TurnStarted",
    "TurnSuspended",
]
