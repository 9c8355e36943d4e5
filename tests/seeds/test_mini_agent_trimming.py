"""mini-agent's trimming, on plain messages: coherent units, newest first, and its two errors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compaction import estimate_chars, pair_results, trim_messages, units_of
from storage import (
    AssistantMessage,
    BudgetError,
    InvalidEntryError,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def calls(*ids: str) -> AssistantMessage:
    return AssistantMessage(content=[ToolCall(id=call, name="look", arguments={}) for call in ids], timestamp=2)


def answer(call: str, text: str = "found") -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call, tool_name="look", content=[TextContent(text=text)], timestamp=3)


def indexes(messages: Sequence[Message]) -> list[list[int]]:
    return [list(unit.indexes) for unit in units_of(messages)]


def test_a_reply_with_two_calls_and_both_results_is_one_unit() -> None:
    """The chapter's own example: user, assistant calling a and b, result a, result b are two units."""
    assert indexes([user("look"), calls("a", "b"), answer("a"), answer("b")]) == [[0], [1, 2, 3]]


def test_a_lone_result_is_a_unit_of_its_own() -> None:
    """Trimming is lenient with a dirty history, and makes up no assistant to fill the gap."""
    assert indexes([user("look"), answer("nowhere"), user("go on")]) == [[0], [1], [2]]


def test_interleaved_results_go_to_their_own_reply() -> None:
    """Amended (R19): results of two replies that arrive mixed belong each to its own unit."""
    messages = [calls("a"), calls("b"), answer("a"), answer("b")]
    assert indexes(messages) == [[0, 2], [1, 3]]
    assert pair_results(messages) == {2: (0, 0), 3: (1, 0)}


def test_a_word_in_between_is_not_swept_into_the_unit() -> None:
    """Amended (R19): a unit is a reply and its results, not the slice between them."""
    assert indexes([calls("a"), user("hurry"), answer("a")]) == [[0, 2], [1]]


def test_ids_that_repeat_across_rounds_pair_with_the_nearest_open_call() -> None:
    """Amended (R19): servers that call every call ``call_0`` lose no result, and none goes to an older round."""
    messages = [calls("call_0"), answer("call_0", "one"), calls("call_0"), answer("call_0", "two")]
    assert indexes(messages) == [[0, 1], [2, 3]]
    late = [calls("x"), calls("x"), answer("x"), answer("x"), answer("x")]
    assert pair_results(late) == {2: (1, 0), 3: (0, 0)}
    assert indexes(late) == [[0, 3], [1, 2], [4]]


def test_ids_that_repeat_in_one_reply_or_are_empty_pair_in_call_order() -> None:
    """Amended (R19): in one reply the first open call of the id is answered first; an empty id is an id."""
    messages = [calls("", "", "k"), answer(""), answer("k"), answer("")]
    assert pair_results(messages) == {1: (0, 0), 2: (0, 2), 3: (0, 1)}


def test_the_newest_units_that_fit_are_kept_whole_and_in_order() -> None:
    """From the newest backwards, a round trip whole or not at all, stopping at the first unit that does not fit."""
    messages = [user("tiny"), calls("a", "b"), answer("a", "x" * 400), answer("b"), user("and now?")]
    assert trim_messages(messages, estimate_chars(messages)) == messages
    assert trim_messages(messages, estimate_chars(messages[1:])) == messages[1:]
    assert trim_messages(messages, estimate_chars(messages[1:]) - 1) == messages[4:]
    assert trim_messages(messages, estimate_chars(messages[4:])) == messages[4:]


def test_a_budget_below_the_smallest_unit_is_an_error_and_not_an_empty_list() -> None:
    """mini-agent's first error: an empty context would ask a question with nothing before it."""
    messages = [user("look"), calls("a", "b"), answer("a"), answer("b")]
    for budget in (1, 100, estimate_chars(messages[1:]) - 1):
        with pytest.raises(BudgetError, match="context budget cannot contain the smallest consistent message unit"):
            trim_messages(messages, budget)


def test_trimming_nothing_is_an_error() -> None:
    """mini-agent's second error."""
    with pytest.raises(BudgetError, match="context budget cannot be empty"):
        trim_messages([], 100)


def test_a_message_that_cannot_be_written_is_named_by_its_index() -> None:
    """Two failure paths, a circular value and one JSON has no word for; both say which message it is."""
    circle: dict[str, object] = {}
    circle["self"] = circle
    for bad in (circle, {"score": float("nan")}, {"what": object()}):
        broken = answer("a")
        broken.details = bad
        with pytest.raises(InvalidEntryError, match=r"message 2\b"):
            estimate_chars([user("one"), calls("a"), broken])


def test_the_size_is_that_of_the_json_plus_one_for_each_message() -> None:
    """R21: code points of the compact JSON with non-ASCII raw, not bytes and not UTF-16 units."""
    assert estimate_chars([user("ä漢😀")]) == len('{"role":"user","content":"ä漢😀","timestamp":1}') + 1
    assert estimate_chars([user("a"), user("b")]) == 2 * estimate_chars([user("a")])
    assert estimate_chars([]) == 0
