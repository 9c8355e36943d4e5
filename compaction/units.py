"""Coherent units: an assistant message with all its tool calls and their results goes, or stays, as one.

Pure functions over a list of messages, as mini-agent's ``trimContext`` has them, with ids that repeat across turns,
arrive interleaved or are empty (R19). What a session shows is made in ``compaction.projection``, which adds R20.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compaction.characters import message_characters
from storage.errors import BudgetError, InvalidEntryError
from storage.messages import AssistantMessage, Message, ToolResultMessage

SMALLEST_UNIT = "context budget cannot contain the smallest consistent message unit"
EMPTY_BUDGET = "context budget cannot be empty"


@dataclass(frozen=True, slots=True)
class Unit:
    """Messages that make sense only together, in the order they came; ``indexes`` are their places in the list."""

    messages: tuple[Message, ...]
    indexes: tuple[int, ...]


def pair_results(messages: Sequence[Message]) -> dict[int, tuple[int, int]]:
    """Which call each tool result answers: index of the result → (index of the assistant message, number of the call).

    A result pairs with the nearest earlier assistant message that has an unanswered call of its id, and in it with the
    first in call order. A result that answers nothing is not in the answer.
    """
    pairs: dict[int, tuple[int, int]] = {}
    open_calls: dict[str, list[tuple[int, list[int]]]] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            numbers: dict[str, list[int]] = {}
            for number, call in enumerate(message.tool_calls):
                numbers.setdefault(call.id, []).append(number)
            for call_id, of_id in numbers.items():
                open_calls.setdefault(call_id, []).append((index, of_id))
        elif isinstance(message, ToolResultMessage) and (candidates := open_calls.get(message.tool_call_id)):
            assistant, of_id = candidates[-1]
            pairs[index] = (assistant, of_id.pop(0))
            if not of_id:
                candidates.pop()
    return pairs


def units_of(messages: Sequence[Message]) -> list[Unit]:
    """All messages as units, oldest first, each at the place of its first message. A lone result is a unit."""
    pairs = pair_results(messages)
    members: dict[int, list[int]] = {}
    for index in range(len(messages)):
        first = pairs[index][0] if index in pairs else index
        members.setdefault(first, []).append(index)
    return [Unit(tuple(messages[index] for index in group), tuple(group)) for group in members.values()]


def estimate_chars(messages: Sequence[Message]) -> int:
    """The size of ``messages`` in characters: for each the code points of its JSON, plus 1.

    Raises ``InvalidEntryError``, which names the message by its index, for one that cannot be written as JSON.
    """
    return sum(_characters(index, message) for index, message in enumerate(messages))


def trim_messages(messages: Sequence[Message], max_chars: int) -> list[Message]:
    """The newest units of ``messages`` that fit ``max_chars`` characters, in their order, up to the first that does not.

    Raises ``BudgetError`` if the newest unit alone does not fit, or if there are no messages (a model asked with an
    empty context would answer nobody).
    """
    sizes = [_characters(index, message) for index, message in enumerate(messages)]
    kept: list[int] = []
    size = 0
    for unit in reversed(units_of(messages)):
        of_unit = sum(sizes[index] for index in unit.indexes)
        if size + of_unit > max_chars:
            if not kept:
                raise BudgetError(
                    f"{SMALLEST_UNIT}: the newest unit ({_named(unit)}) has {of_unit} characters, the budget is "
                    f"{max_chars}; raise the budget",
                    size=of_unit,
                    budget=max_chars,
                )
            break
        size += of_unit
        kept.extend(unit.indexes)
    if not kept:
        raise BudgetError(f"{EMPTY_BUDGET}: there are no messages to keep", size=0, budget=max_chars)
    return [messages[index] for index in sorted(kept)]


def _characters(index: int, message: Message) -> int:
    try:
        return message_characters(message)
    except InvalidEntryError as error:
        raise InvalidEntryError(f"message {index}: {error.message}", index=index, **error.details) from error


def _named(unit: Unit) -> str:
    first, last = unit.indexes[0], unit.indexes[-1]
    return f"message {first}" if first == last else f"messages {', '.join(map(str, unit.indexes))}"
