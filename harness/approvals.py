"""A person decides before a call runs: what is asked, and what may be answered.

A tool made with ``needs_approval`` runs only after ``AgentHarness(approve=…)`` said so. Each question is recorded before
it is asked (``approval_requested``) and each answer before it has an effect (``approval_resolved``), so that a turn that
waits for an answer survives the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from harness.tools.definition import Tool
from storage.messages import ToolCall


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One call that waits for a decision. All of it is a copy: changing it changes nothing."""

    call: ToolCall
    """What would run: the call with its arguments as hooks left them."""
    tool: Tool
    idempotency_key: str
    preview: str | None = None
    """What the tool's ``preview`` made of the arguments, such as a diff."""
    entry_id: str = ""
    """The question's own entry. A call that would do something else by now is asked about in another one: match an answer
    that was given elsewhere by this id, not by the call's."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided on a call. Made by ``approve``, ``deny`` and ``later``."""

    kind: Literal["approved", "denied", "later"]
    reason: str = ""

    @classmethod
    def approve(cls) -> Decision:
        """Run it."""
        return cls("approved")

    @classmethod
    def deny(cls, reason: str = "") -> Decision:
        """Do not run it. The model is told so, with the reason."""
        return cls("denied", reason)

    @classmethod
    def later(cls) -> Decision:
        """Nobody can say now. The turn is suspended, and ``AgentHarness.resume`` asks again, in any process."""
        return cls("later")


Approve = Callable[[ApprovalRequest], Awaitable[Decision]]
"""Asks a person. Called for one call after the other; cancelled where the turn is."""
