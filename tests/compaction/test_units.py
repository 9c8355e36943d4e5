"""The pure units: mini-agent's trimContext, with ids that interleave and repeat."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from compaction import Unit, estimate_chars, pair_results, trim_messages, units_of
from storage.errors import BudgetError, InvalidEntryError
from storage.messages import Message, ToolResultMessage, UserMessage
from tests.compaction.conversation import reply_message, result_message, user_message

ROUND_TRIP: list[Message] = [
    user_message("question"),
    reply_message("", "a", "b"),
    result_message("a", "one"),
    result_message("b", "two"),
]


def groups(messages: Sequence[Message]) -> list[tuple[int, ...]]:
    return [unit.indexes for unit in units_of(messages)]


def test_a_reply_with_two_calls_is_one_unit_with_both_results() -> None:
    """mini-agent: [user] [assistant{a, b}] [tool a] [tool b] gives [user], [assistant, tool a, tool b]."""
    assert groups(ROUND_TRIP) == [(0,), (1, 2, 3)]
    assert units_of(ROUND_TRIP)[1] == Unit(tuple(ROUND_TRIP[1:]), (1, 2, 3))


def test_a_lone_result_is_a_unit() -> None:
    """mini-agent: a result that finds no assistant stays on its own; nothing is made up for it."""
    assert groups([result_message("a"), user_message("x")]) == [(0,), (1,)]


def test_interleaved_results_go_to_the_reply_that_called() -> None:
    """R19: results arrive in any order and between other messages; each belongs to its own call's unit."""
    messages = [
        reply_message("", "a"),
        reply_message("", "b"),
        result_message("a"),
        user_message("s"),
        result_message("b"),
    ]
    assert groups(messages) == [(0, 2), (1, 4), (3,)]


def test_repeated_ids_pair_with_the_nearest_open_call() -> None:
    """R19: servers reuse an id in every turn; a result answers the nearest earlier reply whose call of it is open."""
    messages = [
        reply_message("", "call_0"),
        result_message("call_0", "1"),
        reply_message("", "call_0"),
        result_message("call_0", "2"),
        reply_message("", "call_0"),
        result_message("call_0", "3"),
    ]
    assert groups(messages) == [(0, 1), (2, 3), (4, 5)]
    late = [
        reply_message("", "x"),
        reply_message("", "x"),
        result_message("x"),
        result_message("x"),
        result_message("x"),
    ]
    assert groups(late) == [(0, 3), (1, 2), (4,)]


def test_pairs_name_the_call_by_its_number() -> None:
    """In one reply, of calls with one id, the first result answers the first call; a stranger answers none."""
    messages = [user_message("u"), reply_message("", "a", "b", "a"), *(result_message(one) for one in "abac")]
    assert pair_results(messages) == {2: (1, 0), 3: (1, 1), 4: (1, 2)}


def test_one_reply_may_use_an_id_twice_and_ids_may_be_empty() -> None:
    """R19: of two calls with one id in one reply both are answered; the empty id is an id like any other."""
    assert groups([reply_message("", "", ""), result_message(""), result_message(""), result_message("")]) == [
        (0, 1, 2),
        (3,),
    ]


def test_the_size_is_that_of_the_json_plus_one() -> None:
    """R21: code points of compact JSON with camelCase names, non-ASCII raw, absent fields left out, plus 1 a message."""
    message = result_message("c", "漢字 \u2028 é", is_error=True)
    raw = json.dumps(
        {
            "role": "toolResult",
            "toolCallId": "c",
            "toolName": "tool",
            "content": [{"type": "text", "text": "漢字 \u2028 é"}],
            "isError": True,
            "timestamp": 3,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )
    assert estimate_chars([message]) == len(raw) + 1
    assert estimate_chars([message, message]) == 2 * (len(raw) + 1)
    assert estimate_chars([]) == 0


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), (1, 2), b"x"], ids=["set", "nan", "tuple", "bytes"])
def test_what_is_no_json_is_named_by_its_index(value: object) -> None:
    """R21: a message that cannot be written is an error with its index, not a number."""
    messages = [*ROUND_TRIP, result_message("c", details={"score": value})]
    with pytest.raises(InvalidEntryError, match=r"message 4.*details\.score"):
        estimate_chars(messages)
    with pytest.raises(InvalidEntryError, match="message 4"):
        trim_messages(messages, 10_000)


def test_a_cycle_is_named_by_its_index() -> None:
    """mini-agent: a circular structure says in which message it is."""
    loop: dict[str, object] = {}
    loop["loop"] = loop
    with pytest.raises(InvalidEntryError, match="message 1"):
        estimate_chars([user_message("x"), result_message("c", details=loop)])


def test_trimming_keeps_the_newest_units_that_fit() -> None:
    """mini-agent: newest first, whole units, in their order; exactly the budget still fits."""
    unit = estimate_chars(ROUND_TRIP[1:])
    whole = estimate_chars(ROUND_TRIP)
    assert trim_messages(ROUND_TRIP, whole) == ROUND_TRIP
    assert trim_messages(ROUND_TRIP, whole - 1) == ROUND_TRIP[1:]
    assert trim_messages(ROUND_TRIP, unit) == ROUND_TRIP[1:]


def test_it_stops_at_the_first_unit_that_does_not_fit() -> None:
    """R19: an older unit that would fit again is not taken: there are no holes."""
    messages = [user_message("s"), user_message("long" * 100), user_message("t")]
    assert trim_messages(messages, 200) == messages[2:]


def test_interleaved_units_are_kept_in_the_order_of_the_messages() -> None:
    """The pure function reorders nothing, also where units interleave."""
    messages = [reply_message("", "a"), reply_message("", "b"), result_message("a"), result_message("b")]
    assert trim_messages(messages, 10_000) == messages
    one = estimate_chars([messages[1], messages[3]])
    assert trim_messages(messages, one) == [messages[1], messages[3]]


@pytest.mark.parametrize("budget", [1, 100])
def test_a_budget_below_the_newest_unit_is_an_error(budget: int) -> None:
    """mini-agent's first error: never an empty context, never half a unit; it tells size and budget."""
    with pytest.raises(
        BudgetError, match="context budget cannot contain the smallest consistent message unit"
    ) as caught:
        trim_messages(ROUND_TRIP, budget)
    assert caught.value.details == {"size": estimate_chars(ROUND_TRIP[1:]), "budget": budget}
    assert str(budget) in str(caught.value)


def test_no_messages_are_an_error() -> None:
    """mini-agent's second error: an empty context asks a model to answer nobody."""
    with pytest.raises(BudgetError, match="context budget cannot be empty"):
        trim_messages([], 1000)


def test_the_functions_change_nothing() -> None:
    """Pure: the list and its messages are what they were, and what is kept are the same objects."""
    messages: list[Message] = [
        UserMessage(content="x", timestamp=1),
        ToolResultMessage(tool_call_id="c", tool_name="t", content=""),
    ]
    before = [message.model_copy(deep=True) for message in messages]
    kept = trim_messages(messages, 10_000)
    units_of(messages)
    assert messages == before
    assert all(one is other for one, other in zip(kept, messages, strict=True))
