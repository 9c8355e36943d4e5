"""What the tests of approvals share: two tools, a person who decides as told, and the questions on record."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from harness.approvals import ApprovalRequest, Decision
from harness.tools import tool
from storage.entries import ApprovalRequestedEntry, ApprovalResolvedEntry, Entry, ToolStartEntry


@tool(needs_approval=True)
async def write(text: str) -> str:
    """Write a text."""
    return f"wrote {text}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


class Person:
    """Decides as told, and remembers what was asked."""

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)
        self.asked: list[ApprovalRequest] = []

    async def __call__(self, request: ApprovalRequest) -> Decision:
        self.asked.append(request)
        await anyio.sleep(0)
        return self.decisions.pop(0)


def short_approvals(entries: Sequence[Entry]) -> list[str]:
    """The questions, answers and beginnings, in the order they were committed."""
    said: list[str] = []
    for entry in entries:
        if isinstance(entry, ApprovalRequestedEntry):
            said.append(f"requested {entry.call_id}")
        elif isinstance(entry, ApprovalResolvedEntry):
            said.append(f"{entry.decision} {entry.call_id}")
        elif isinstance(entry, ToolStartEntry):
            said.append(f"start {entry.call_id}")
    return said
