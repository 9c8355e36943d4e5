"""What is shown or left out as one: a message, or a reply with the results of all its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage.messages import AssistantMessage, ToolResultMessage, UserMessage

Shown = UserMessage | AssistantMessage | ToolResultMessage
"""The messages that providers know."""


class ShownResult(NamedTuple):
    """A result as it is shown, and where it lies; one that was made up has the entry and the place of its reply."""

    message: ToolResultMessage
    entry_id: str
    place: int


@dataclass(slots=True)
class Counted:
    """The tokens of a unit's messages, in their order, as ``by`` counts them; and as few as they can have, once asked."""

    by: object
    tokens: list[int]
    fewest: list[int] | None = None


@dataclass(slots=True)
class ShownUnit:
    """A message, or a reply with the results of all its calls, in call order, as they are sent.

    ``position`` is where the message lies on the path; those of a retained tail have negative ones. ``chars`` is the
    size of all by R21.
    """

    position: int
    entry_id: str
    message: Shown
    chars: int
    results: Sequence[ShownResult] = ()
    counted: Counted | None = None

    def name(self) -> str:
        """What an error calls it."""
        role = "assistant" if isinstance(self.message, AssistantMessage) else "user"
        count = len(self.results)
        behind = f" with {count} tool result{'s' if count > 1 else ''}" if count else ""
        return f"the {role} message of entry {self.entry_id!r:.140}{behind}"
