"""What happens in a turn, as ``AgentHarness.stream`` tells it, in this order:

    TurnStarted, PromptRecorded,
    then for each request: TextDelta, ThinkingDelta and ToolCallDelta as they come, MessageFinished,
        and for each of its calls: ToolStarted (unless it was refused), ToolProgress, ToolFinished
    TurnEnded

Calls of one reply run side by side, so their events mix; each names its call. Whatever has an entry is committed before
its event is told: ``entry_id`` names it. A turn whose consumer has left tells nothing more.
"""  # noqa: D415

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.models.events import TextDelta, ThinkingDelta, ToolCallDelta
from storage.messages import AssistantMessage, ToolCall, ToolResultMessage, UserMessage

TurnReason = Literal["completed", "failed", "cancelled"]


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
class TurnEnded:
    """The turn is over, and how. After ``failed`` the iteration raises what went wrong."""

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
    | TurnEnded
)

__all__ = [
    "AgentEvent",
    "MessageFinished",
    "PromptRecorded",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallDelta",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "TurnEnded",
    "TurnReason",
    "TurnStarted",
]
