"""R18: the latest compaction on the path wins, with its summary and what it keeps."""

from __future__ import annotations

import pytest

from compaction.wording import compaction_summary
from storage.messages import BranchSummaryMessage, CompactionSummaryMessage, SystemMessage
from tests.compaction.conversation import Conversation, reply_message, result_message, user_message


def before() -> Conversation:
    return Conversation().user("u1").reply("a1").user("u2").reply("a2")


def test_without_a_compaction_everything_is_shown() -> None:
    """Every message of the path, in order, each with its entry."""
    projection = before().project()
    assert projection.entry_ids == ["u1", "a1", "u2", "a2"]
    assert projection.compaction_id is None
    assert projection.is_whole


def test_the_summary_comes_first_then_what_was_kept_then_what_came_after() -> None:
    """The summary is a user message that says what it is."""
    conversation = before().compaction("c", "the goal", first_kept_entry_id="u2").user("u3")
    projection = conversation.project()
    assert projection.entry_ids == ["c", "u2", "a2", "u3"]
    assert projection.compaction_id == "c"
    first = projection.messages[0]
    assert (first.role, first.text) == ("user", compaction_summary("the goal"))
    assert "the goal" in first.text
    assert first.text != "the goal"


def test_a_second_compaction_replaces_the_first() -> None:
    """An earlier summary never shows up among the kept, even where its entry lies in the kept stretch."""
    conversation = (
        before()
        .compaction("c1", "old", first_kept_entry_id="a1")
        .user("u3")
        .compaction("c2", "new", first_kept_entry_id="u2")
    )
    assert conversation.ids() == ["c2", "u2", "a2", "u3"]
    assert "old" not in " ".join(text for _, text in conversation.shown())


@pytest.mark.parametrize("first", [None, "c"], ids=["none", "its own id"])
def test_no_first_kept_entry_keeps_nothing(first: str | None) -> None:
    """Neither a first kept entry nor a tail, or its own id: only the summary, without a warning."""
    projection = before().compaction("c", first_kept_entry_id=first).user("u3").project()
    assert projection.entry_ids == ["c", "u3"]
    assert projection.warnings == []


@pytest.mark.parametrize("first", ["elsewhere", "u3"], ids=["not on the path", "only later on it"])
def test_a_first_kept_entry_that_is_not_before_it_keeps_nothing_and_warns(first: str) -> None:
    """Found so in a file: nothing is kept, and one warning names the compaction."""
    projection = before().compaction("c", first_kept_entry_id=first).user("u3").project()
    assert projection.entry_ids == ["c", "u3"]
    assert [(warning.code, warning.entry_id) for warning in projection.warnings] == [("first_kept_not_on_path", "c")]


def test_a_retained_tail_wins_over_the_first_kept_entry() -> None:
    """Its messages are shown with the compaction's id; results that came after pair with its calls."""
    tail = [user_message("kept"), reply_message("", "x")]
    conversation = before().compaction("c", first_kept_entry_id="u1", retained_tail=tail).result("r", "x").user("u3")
    assert conversation.ids() == ["c", "c", "c", "r", "u3"]
    assert [role for role, _ in conversation.shown()] == ["user", "user", "assistant", "toolResult", "user"]


def test_an_empty_retained_tail_is_one() -> None:
    """It keeps nothing, although a first kept entry is named too (as pi reads it)."""
    assert before().compaction("c", first_kept_entry_id="u1", retained_tail=[]).ids() == ["c"]


def test_a_retained_tail_holds_what_pi_puts_in_it() -> None:
    """Branch summaries are shown, compaction summaries and system messages are not."""
    tail = [
        CompactionSummaryMessage(summary="nested", timestamp=1),
        SystemMessage(content="prompt", timestamp=1),
        BranchSummaryMessage(summary="the other road", timestamp=1),
        user_message("go on"),
    ]
    shown = Conversation().compaction("c", retained_tail=tail).shown()
    assert [role for role, _ in shown] == ["user"] * 3
    assert "the other road" in shown[1][1]
    assert "nested" not in str(shown)


def test_a_first_kept_result_without_its_call_is_dropped() -> None:
    """A kept stretch that begins inside a unit shows no half of it."""
    conversation = Conversation().user("u1").reply("a1", "x").result("r1", "x").user("u2")
    projection = conversation.compaction("c", first_kept_entry_id="r1").project()
    assert projection.entry_ids == ["c", "u2"]
    assert projection.dropped == ["r1"]


@pytest.mark.parametrize("summary", [None, "", " \n"])
def test_an_empty_summary_says_that_there_is_none(summary: str | None) -> None:
    """No empty text is shown, and what is missing is not passed over in silence."""
    text = before().compaction("c", summary).project().messages[0].text
    assert text == "The earlier part of this conversation is no longer shown, and there is no summary of it."


def test_a_tail_is_trimmed_like_everything_else() -> None:
    """Its messages are units; the summary is pinned before them."""
    tail = [user_message("one " * 50), reply_message("two", "x"), result_message("x", "three")]
    conversation = Conversation().compaction("c", retained_tail=tail).user("u")
    whole = conversation.project()
    assert conversation.ids(max_chars=whole.chars) == ["c", "c", "c", "c", "u"]
    # The reply is charged with the message that opened its turn, in the tail as on the path.
    assert conversation.ids(max_chars=whole.chars - 1) == ["c", "u"]
