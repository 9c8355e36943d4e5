"""What comes out of a model while it speaks."""

from __future__ import annotations

from dataclasses import dataclass

from storage.messages import AssistantMessage


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """The next piece of the model's reasoning, where a server shows it; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call: the ``index``-th of this reply, counted from 0.

    ``name`` is all of the name that is known so far. ``arguments_piece`` is a piece of JSON text, to be joined; it may
    be empty. For display only: what is to be run stands in the finished message.
    """

    index: int
    name: str
    arguments_piece: str


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    """The whole reply; the last event of a stream, exactly once.

    ``message.stop_reason`` is ``stop``, ``length`` (cut off at a limit: its last call may be half) or ``toolUse``. Call
    ids are what the vendor sent: they may be empty, and they may repeat.
    """

    message: AssistantMessage


ModelEvent = TextDelta | ThinkingDelta | ToolCallDelta | ReplyFinished
