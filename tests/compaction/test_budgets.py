"""R19: units, pins, and the user message that opened the turn, under budgets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compaction import RoughEstimator, estimate_chars
from storage.errors import BudgetError
from tests.compaction.conversation import Conversation


def turns() -> Conversation:
    """Two turns; the second has two units besides its opening message."""
    conversation = Conversation().turn_start("t1").user("u1").reply("a1").turn_end("e1")
    conversation.turn_start("t2").user("u2").reply("a2", "x", "y").result("r1", "y").result("r2", "x")
    return conversation.user("steer").reply("a3").turn_end("e2")


def size(conversation: Conversation, *ids: str) -> int:
    projection = conversation.project()
    wanted = [
        message for message, entry_id in zip(projection.messages, projection.entry_ids, strict=True) if entry_id in ids
    ]
    return estimate_chars(wanted)


def test_a_unit_is_charged_with_the_message_that_opened_its_turn() -> None:
    """The newest unit brings its opener along; the budget must hold both; a steer opens nothing."""
    conversation = turns()
    both = size(conversation, "u2", "a3")
    assert conversation.ids(max_chars=both) == ["u2", "a3"]
    with pytest.raises(BudgetError):
        conversation.ids(max_chars=both - 1)


def test_an_opener_is_charged_once() -> None:
    """The next unit of the turn costs only itself, and the opener's own turn to be kept costs nothing more."""
    conversation = turns()
    steered = size(conversation, "u2", "a3", "steer")
    assert conversation.ids(max_chars=steered) == ["u2", "steer", "a3"]
    turn = size(conversation, "u2", "a2", "r1", "r2", "steer", "a3")
    assert conversation.ids(max_chars=turn) == ["u2", "a2", "r2", "r1", "steer", "a3"]
    assert conversation.ids(max_chars=turn - 1) == ["u2", "steer", "a3"]


def test_every_budget_shows_whole_units_in_order() -> None:
    """From too little to more than enough: what is shown grows by whole units, newest first, and fits."""
    conversation = turns()
    seen: list[list[str | None]] = []
    for budget in range(1, conversation.project().chars + 2):
        try:
            projection = conversation.project(max_chars=budget)
        except BudgetError:
            assert seen == []
            continue
        assert projection.chars == estimate_chars(projection.messages) <= budget
        if not seen or projection.entry_ids != seen[-1]:
            seen.append(projection.entry_ids)
    assert seen == [
        ["u2", "a3"],
        ["u2", "steer", "a3"],
        ["u2", "a2", "r2", "r1", "steer", "a3"],
        ["u1", "a1", "u2", "a2", "r2", "r1", "steer", "a3"],
    ]


def test_trimming_stops_at_the_first_that_does_not_fit() -> None:
    """No older unit is taken in its place."""
    conversation = Conversation().user("u1", "s").user("u2", "long" * 100).user("u3", "t")
    assert conversation.ids(max_chars=300) == ["u3"]


def test_summary_and_working_memory_are_pinned_and_charged_first() -> None:
    """They stay whatever the budget is, and what they take is not there for the rest."""
    conversation = (
        Conversation().user("u0").compaction("c", "sum " * 20).user("u1").user("u2").memory("m", "set", "k", "v" * 50)
    )
    pinned = size(conversation, "c", "m")
    newest = size(conversation, "u2")
    assert conversation.ids(max_chars=pinned + newest) == ["c", "u2", "m"]
    with pytest.raises(BudgetError, match=r"newest unit \(the user message of entry 'u2'.*what is always shown"):
        conversation.ids(max_chars=pinned + newest - 1)


def test_what_is_pinned_alone_must_fit_too() -> None:
    """Where there is no unit at all, the summary still has to fit."""
    conversation = Conversation().user("u0").compaction("c", "sum " * 20)
    chars = conversation.project().chars
    assert conversation.ids(max_chars=chars) == ["c"]
    with pytest.raises(BudgetError, match="what is always shown"):
        conversation.ids(max_chars=chars - 1)


def test_the_error_names_unit_size_and_budget() -> None:
    """mini-agent's text, then what does not fit, how large it is, which budget, and what to do."""
    conversation = turns()
    with pytest.raises(
        BudgetError, match="context budget cannot contain the smallest consistent message unit"
    ) as caught:
        conversation.ids(max_chars=10)
    error = caught.value
    assert error.entry_id == "a3"
    assert error.details == {"budget": "max_chars", "limit": 10, "size": size(conversation, "u2", "a3")}
    assert "the message that opened its turn" in str(error)
    assert "a compaction" in str(error)


@pytest.mark.parametrize("options", [{"max_chars": 0}, {"max_tokens": 0}, {"max_chars": 1, "max_tokens": 1}])
def test_nothing_to_show_is_an_empty_context_under_any_budget(options: dict[str, int]) -> None:
    """[] only where the path has nothing to show; that is no error here (a request with it is refused elsewhere)."""
    assert Conversation().turn_start("t").project(**options).messages == []
    assert Conversation().project(**options).messages == []


def test_budgets_given_together_must_all_hold() -> None:
    """A unit is kept only if every budget holds, whichever is the smaller one."""
    conversation = Conversation()
    for number in range(10):
        conversation.user(f"u{number}")
    rough = RoughEstimator()
    five = conversation.project(max_chars=size(conversation, *[f"u{n}" for n in range(5, 10)]), estimator=rough)
    eight = conversation.project(max_chars=size(conversation, *[f"u{n}" for n in range(2, 10)]), estimator=rough)
    assert len(five.messages) == 5
    for chars, tokens in ((five.chars, eight.tokens), (eight.chars, five.tokens)):
        assert len(conversation.ids(max_chars=chars, max_tokens=tokens, estimator=rough)) == 5


def test_a_placeholder_is_part_of_the_budget() -> None:
    """Where what is kept begins with a reply, the placeholder before it is charged with it."""
    conversation = Conversation().reply("a1").reply("a2")
    projection = conversation.project()
    assert projection.entry_ids == [None, "a1", "a2"]
    newest = conversation.project(max_chars=projection.chars - 1)
    assert newest.entry_ids == [None, "a2"]
    assert newest.chars == estimate_chars(newest.messages)
    with pytest.raises(BudgetError):
        conversation.project(max_chars=newest.chars - 1)


def openerless() -> Conversation:
    """A short message of the app's, which opens no turn, before a reply with an open call; two more units before them."""
    return Conversation().user("u0").reply("a0").custom_message("m", "cm").reply("a", "x")


def test_a_placeholder_that_the_next_older_unit_makes_needless_is_not_charged() -> None:
    """The reply alone needs one and does not fit with it; with the message before it, which is shorter, it fits."""
    conversation = Conversation().custom_message("m", "cm").reply("a", "x")
    full = conversation.project()
    assert full.entry_ids == ["m", "a", "a"]
    for options in ({"max_chars": full.chars}, {"max_tokens": full.tokens}):
        exact = conversation.project(**options)
        assert exact.entry_ids == full.entry_ids
        assert exact.is_whole
    for name, size in (("max_chars", full.chars), ("max_tokens", full.tokens)):
        with pytest.raises(BudgetError) as caught:
            conversation.ids(**{name: size - 1})
        assert caught.value.entry_id == "a"
        assert caught.value.details["budget"] == name
        assert caught.value.details["limit"] == size - 1
        assert caught.value.details["size"] > size, "it names what the newest unit takes with its placeholder"


@pytest.mark.parametrize("estimator", [None, RoughEstimator()])
@pytest.mark.parametrize("make", [turns, openerless])
def test_a_budget_of_exactly_what_is_shown_shows_the_same(
    make: Callable[[], Conversation], estimator: RoughEstimator | None
) -> None:
    """Under every budget; and a larger one shows no less, and refuses nothing."""
    conversation = make()
    full = conversation.project(estimator=estimator)
    for name, size in (("max_chars", full.chars), ("max_tokens", full.tokens)):
        shown: list[str | None] = []
        for budget in range(1, size + 1):
            try:
                projection = conversation.project(**{name: budget}, estimator=estimator)
            except BudgetError:
                assert not shown
                continue
            exact = projection.chars if name == "max_chars" else projection.tokens
            assert exact <= budget
            assert conversation.ids(**{name: exact}, estimator=estimator) == projection.entry_ids
            assert {*shown} - {None} <= {*projection.entry_ids}
            shown = projection.entry_ids
        assert shown == full.entry_ids


def test_a_placeholder_is_not_the_reason_to_keep_what_does_not_fit() -> None:
    """What was taken in the hope that it would become needless is left out again, and charged to nothing."""
    conversation = Conversation().custom_message("m", "cm " * 100).reply("a").reply("b")
    newest = conversation.project(max_chars=size(conversation, "a", "b"))
    assert newest.entry_ids == [None, "b"]
    assert newest.chars == estimate_chars(newest.messages)
    assert not newest.is_whole


def test_an_opener_that_an_edit_hides_is_not_brought_along() -> None:
    """The unit stands without it, behind the placeholder."""
    conversation = Conversation().user("u1").reply("a1").reply("a2").hide("e", "u1")
    assert conversation.ids() == [None, "a1", "a2"]
    assert conversation.ids(max_chars=conversation.project().chars - 1) == [None, "a2"]


def test_an_opener_that_was_summarised_is_not_brought_back() -> None:
    """A turn that a compaction cuts in two is charged with nothing of what the summary stands for."""
    conversation = Conversation().user("u1").reply("a1").compaction("c").reply("a2").reply("a3")
    assert conversation.ids() == ["c", "a2", "a3"]
    assert conversation.ids(max_chars=conversation.project().chars - 1) == ["c", "a3"]


def test_interleaved_units_are_kept_or_left_whole_under_every_budget() -> None:
    """A result that arrives behind newer messages goes with its call, or not at all."""
    conversation = (
        Conversation().user("u1").reply("a1", "x").user("u2").reply("a2", "y").result("r1", "x").result("r2", "y")
    )
    seen: list[list[str | None]] = []
    for budget in range(1, conversation.project().chars + 1):
        try:
            ids = conversation.ids(max_chars=budget)
        except BudgetError:
            continue
        if not seen or ids != seen[-1]:
            seen.append(ids)
    assert seen == [["u2", "a2", "r2"], ["u1", "a1", "r1", "u2", "a2", "r2"]]
