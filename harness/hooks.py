"""Hooks: an app's own code at the turns of a turn. It sees, refuses and changes; the record says what it changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from compaction.branches import AbandonedBranch, BranchSummary
from compaction.preparation import CompactionPlan
from compaction.summary_request import SummaryReply
from harness.events import AgentEvent, CompactionCause
from harness.models.protocol import ModelRequest
from harness.tools.definition import Tool
from storage.messages import ToolCall, ToolResultMessage, UserMessage

TurnOutcome = Literal["completed", "failed", "cancelled", "suspended"]


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """A turn, as a hook sees it."""

    turn: int
    """Counts the turns on the path, from 1."""
    prompt: UserMessage | None
    """What it was begun with; ``None`` where it is resumed."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """A call, as a hook sees it."""

    call: ToolCall
    """A copy, with the arguments as the hooks before this one left them."""
    tool: Tool
    idempotency_key: str
    turn: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call is not run; the model is told why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NavigationFacts:
    """Where somebody wants to go (``AgentHarness.navigate``), as a hook sees it. Ids are of entries."""

    target_id: str | None
    """What was asked for."""
    to_id: str | None
    """Where the session would go on: before the target, where that is a user message."""
    left_id: str | None
    """The leaf that is left."""
    branch: AbandonedBranch | None
    """What is left behind, from the common ancestor, as far as it fits the model's window; ``None``: nothing is shown."""
    wants_summary: bool
    instructions: str | None
    label: str | None
    summary: BranchSummary | None = None
    """What a hook before this one supplied."""


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """A compaction that is about to be made, as a hook sees it."""

    reason: CompactionCause
    plan: CompactionPlan
    """What would be summarised, and from where on all is kept."""
    instructions: str | None
    """The person's own, where there is one who asked for it."""


class Hook:
    """What an app does at the turns of a turn. Override what you need; ``AgentHarness.on`` takes it.

    Hooks are chained in the order in which they were given, and each sees what the one before it returned. All are
    awaited in the turn's own task (calls that run side by side in theirs), may take their time, and may be cancelled at
    any await; a cancellation always goes on up.
    """

    async def before_turn(self, turn: TurnFacts) -> None:
        """Before anything of the turn is recorded. What it raises comes out of ``prompt``, and there is no turn."""

    async def before_request(self, request: ModelRequest) -> ModelRequest | None:
        """Before each request; returns another one, or ``None`` to leave it as it is.

        What it changes is sent, and recorded so that the request can be rebuilt: system prompt, tools, options and
        thinking level in the header, changed messages with the reply. What it raises ends the turn as failed.
        """

    async def before_call(self, call: CallFacts) -> Refusal | Mapping[str, Any] | None:
        """Before a call is begun, and before anybody is asked to approve it; in call order.

        Returns a ``Refusal`` (the first one wins), other arguments, or ``None``. The tool checks other arguments as it
        does the model's. ``tool_start`` records what it runs with; the model's own call stays as it was. What it raises
        refuses the call: the model is shown it as the call's error.
        """

    async def after_call(self, call: CallFacts, result: ToolResultMessage) -> ToolResultMessage | None:
        """After a tool has run, before its result is recorded; returns another one, or ``None`` to leave it.

        Call id and tool name stay as they are. What it raises is noted in the result (``hookError``), which is kept.
        Cancelled here, the result is recorded as the hooks before have left it.
        """

    async def before_compact(self, compaction: CompactionFacts) -> Refusal | SummaryReply | str | None:
        """Before a summary is asked for. Returns the summary itself, a ``Refusal`` (there is none then), or ``None``.

        The first answer wins. A summary is checked as a summariser's is. After a refusal the turn goes on with what fits,
        and this is asked again once the context has grown by a good part. What it raises ends the turn as failed, or
        comes out of ``compact``.
        """

    async def after_turn(self, turn: TurnFacts, outcome: TurnOutcome) -> None:
        """After the turn's end is recorded (or, ``suspended``, after it came to wait for a person).

        What it raises comes out of ``prompt``, unless that raises already: then it is added to that as a note. After a
        cancellation by a scope its first await is cancelled too.
        """

    async def before_navigate(self, navigation: NavigationFacts) -> Refusal | BranchSummary | str | None:
        """Before the session goes to another place, and before a summary is made of what it leaves behind.

        Returns a ``Refusal`` (then ``navigate`` raises ``NavigationRefusedError``), a summary to record in place of one
        that a model makes, also where none was asked for, or ``None``. What it raises comes out of ``navigate``. In both
        cases the session is where it was.
        """

    async def on_event(self, event: AgentEvent) -> None:
        """Each event of a turn, before whoever iterates over ``stream`` has it; with ``prompt`` as well.

        The turn waits for it. Events of calls that run side by side may come while another one is still being handled.
        What it raises ends the turn as failed, once the calls that run are done.
        """
