"""Replies with the results of their calls, met newest first (R19, R20).

Results are held until the reply comes that made the call. A result pairs with the *nearest* earlier open call, so what
lies further back cannot change the pairs of what was met, and stopping anywhere is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.call_facts import CallFacts
from compaction.characters import decoded_characters
from compaction.sendable import clean_reply, clean_result, is_text, is_worth_showing
from compaction.shown_unit import ShownResult, ShownUnit
from compaction.wording import TAKEN_OUT
from storage.messages import AssistantMessage, ToolCall, ToolResultMessage


@dataclass(slots=True)
class _Held:
    position: int
    entry_id: str
    message: ToolResultMessage
    chars: int
    hidden: bool


class Replies:
    """Holds results until their reply is met."""

    def __init__(self, facts: CallFacts) -> None:
        self._facts = facts
        self._held: dict[str, list[_Held]] = {}

    def left(self) -> list[tuple[int, str]]:
        """Place and entry id of the results whose call was not met; those that an edit hides are not among them."""
        return [(held.position, held.entry_id) for of_id in self._held.values() for held in of_id if not held.hidden]

    def hold(
        self, position: int, entry_id: str, message: ToolResultMessage, chars: int | None, *, hidden: bool = False
    ) -> None:
        """A result was met. ``chars``: its size as it was recorded, where that is known. ``hidden``: by an edit."""
        if clean_result(message) or chars is None:
            chars = decoded_characters(message)
        held = _Held(position, entry_id, message, chars, hidden)
        self._held.setdefault(message.tool_call_id, []).append(held)

    def unit(
        self,
        position: int,
        entry_id: str,
        message: AssistantMessage,
        chars: int | None,
        recorded: list[ToolCall] | None = None,
    ) -> ShownUnit | None:
        """A reply was met: it with a result for each of its calls, or ``None`` if it is not shown.

        ``recorded``: the calls as they were recorded, if an edit changed the reply. Results pair with those.
        """
        content = message.content
        if chars is not None and content is not None and len(content) == 1 and is_text(content[0]):
            return ShownUnit(position, entry_id, message, chars)  # by far the most
        if clean_reply(message) or chars is None:
            chars = decoded_characters(message)
        calls = message.tool_calls
        if not calls and not recorded:
            if not is_worth_showing(message, answered=False):
                return None
            return ShownUnit(position, entry_id, message, chars)
        results = self._take(calls) if recorded is None else self._take_edited(recorded, calls)
        unit = None
        if is_worth_showing(message, answered=any(result is not None for result in results)):
            unit = ShownUnit(position, entry_id, message, chars)
            self._add_results(unit, message, calls, results)
        self._facts.reply(position, {call.id for call in recorded or calls})
        return unit

    def hide(self, position: int, calls: list[ToolCall]) -> None:
        """A reply that an edit hides was met: its results go with it."""
        self._take(calls)
        self._facts.reply(position, {call.id for call in calls})

    def _take(self, calls: list[ToolCall]) -> list[_Held | None]:
        """The results of these calls, in call order; of one id, the first result answers the first call."""
        taken: list[_Held | None] = []
        for call in calls:
            held = self._held.get(call.id)
            taken.append(held.pop() if held else None)
        return taken

    def _take_edited(self, recorded: list[ToolCall], calls: list[ToolCall]) -> list[_Held | None]:
        """The results for the calls that are left of ``recorded``; those of calls that were edited away go with them."""
        by_id: dict[str, list[_Held | None]] = {}
        for call, held in zip(recorded, self._take(recorded), strict=True):
            by_id.setdefault(call.id, []).append(held)
        return [of_id.pop(0) if (of_id := by_id.get(call.id)) else None for call in calls]

    def _add_results(
        self, unit: ShownUnit, message: AssistantMessage, calls: list[ToolCall], results: list[_Held | None]
    ) -> None:
        missing: list[str] = []
        answered: list[str] = []
        for call, held in zip(calls, results, strict=True):
            (missing if held is None else answered).append(call.id)
        said = iter(self._facts.unanswered(missing, answered) if missing else ())
        shown: list[ShownResult] = []
        for call, held in zip(calls, results, strict=True):
            if held is not None and not held.hidden:
                shown.append(ShownResult(held.message, held.entry_id, held.position))
                unit.chars += held.chars
                continue
            text, is_error = next(said) if held is None else (TAKEN_OUT, held.message.is_error)
            made_up = ToolResultMessage(
                tool_call_id=call.id, tool_name=call.name, content=text, is_error=is_error, timestamp=message.timestamp
            )
            shown.append(ShownResult(made_up, unit.entry_id, unit.position))
            unit.chars += decoded_characters(made_up)
        unit.results = shown
