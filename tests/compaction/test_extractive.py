"""A summary without a model: bounded, the same each time, and what was said early is still there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction import ExtractiveSummarizer, FileOperations, RoughEstimator, SummaryRequest, compact, run_at_once
from compaction.extractive import _summary
from compaction.summary_request import summary_request
from storage.messages import Message
from tests.compaction.conversation import Conversation, reply_message, result_message, user_message
from tests.compaction.summaries import WORDS, long_conversation, plan_of
from tests.properties.profiles import examples


def request(messages: list[Message], previous: str | None = None, max_tokens: int = 400) -> SummaryRequest:
    steps = summary_request(
        "compaction", messages, window=32_000, max_tokens=max_tokens, previous_summary=previous, files=FileOperations()
    )
    return run_at_once(steps)


def summary(messages: list[Message], previous: str | None = None, max_tokens: int = 400) -> str:
    return run_at_once(_summary(request(messages, previous, max_tokens)))


def section(text: str, heading: str) -> list[str]:
    """The points under a heading."""
    _, found, rest = text.partition(f"## {heading}\n")
    assert found, text
    return [line.removeprefix("- ") for line in rest.partition("\n\n")[0].splitlines()]


TALK: list[Message] = [
    user_message("Port the parser to Rust. Remember: the release is on May 4."),
    reply_message("I decided to use nom because it is small. It begins well."),
    result_message("1", "compiling\nerror[E0308]: mismatched types\ndone", is_error=True),
    user_message("The server is at build-7.internal."),
    reply_message("Noted."),
    reply_message(WORDS * 10),
    user_message("Now write the tests."),
]


def test_what_matters_is_taken() -> None:
    """The first request and the newest, facts, decisions, errors, what was answered."""
    text = summary(TALK)
    assert section(text, "Goal") == ["Port the parser to Rust. Remember: the release is on May 4."]
    assert section(text, "In progress")[-1] == "Now write the tests."
    assert "Remember: the release is on May 4." in section(text, "Constraints and preferences")
    assert section(text, "Key decisions") == ["I decided to use nom because it is small."]
    assert section(text, "Blocked") == ["tool: error[E0308]: mismatched types"]
    assert "build-7.internal" in text


def test_the_previous_summary_is_carried_on_not_nested() -> None:
    """First things stay first; the newest requests take the place of the older ones; nothing is said twice."""
    first = summary(TALK)
    second = summary([user_message("Thanks."), user_message("Always run clippy."), reply_message(WORDS * 10)], first)
    assert section(second, "Goal") == section(first, "Goal")
    assert section(second, "Constraints and preferences")[:1] == ["Remember: the release is on May 4."]
    assert "Always run clippy." in second
    assert "Now write the tests." not in section(second, "In progress")
    assert second.count("## Goal") == 1
    for heading in ("Goal", "Constraints and preferences", "In progress", "Done"):
        points = section(second, heading)
        assert len(points) == len(set(points))


def test_a_fact_that_is_the_newest_request_is_not_forgotten_with_it() -> None:
    """It stands under both headings: what is in progress gives way next time."""
    first = summary([*TALK, user_message("Remember: tabs, not spaces.")])
    assert "Remember: tabs, not spaces." in section(first, "In progress")
    second = summary([user_message("Go on."), reply_message(WORDS * 10)], first)
    assert "Remember: tabs, not spaces." in section(second, "Constraints and preferences")


def test_a_turn_that_goes_on_for_long_keeps_its_request() -> None:
    """A stretch without a word of the person's: what they wanted last is still in progress."""
    steps: list[Message] = [reply_message("Step done."), result_message("1", WORDS * 20)]
    assert section(summary(steps, summary(TALK)), "In progress") == section(summary(TALK), "In progress")


def test_a_models_summary_is_carried_on_too() -> None:
    """Also one that keeps to no outline."""
    text = summary(TALK, "We ported half of it.\n1. The lexer is done.\n\n# Next steps\n* [ ] the parser")
    assert "We ported half of it." in text
    assert "The lexer is done." in text


def test_nothing_to_take_is_said() -> None:
    """Never an empty summary: that would be refused."""
    assert summary([reply_message("", "x"), result_message("x", "...")]) == "Nothing of note was said."


TEXTS = st.text(max_size=200) | st.sampled_from(
    ["Remember 7.", "## Goal\n- x", "- ", "汉字 " * 50, "error " * 99, "a.b " * 99]
)
TALKS = st.lists(
    st.builds(user_message, TEXTS)
    | st.builds(reply_message, TEXTS)
    | st.builds(lambda text: result_message("1", text, is_error=True), TEXTS),
    max_size=12,
)


@examples(150)
@given(messages=TALKS, previous=st.none() | TEXTS, max_tokens=st.integers(30, 600))
def test_it_is_bounded_and_the_same_each_time(messages: list[Message], previous: str | None, max_tokens: int) -> None:
    """Whatever was said: no more tokens than allowed, never blank, deterministic."""
    text = summary(messages, previous, max_tokens)
    assert text.strip()
    assert RoughEstimator().count(text) <= max(max_tokens, 30) * 1.3
    assert summary(messages, previous, max_tokens) == text


@pytest.mark.anyio
async def test_facts_from_the_beginning_are_there_after_many_compactions() -> None:
    """Twenty facts, then twelve compactions full of other talk: each is still in the summary."""
    conversation = Conversation().user("goal", "Help me run the bakery.")
    facts = [f"Remember: locker {number} opens with code {1_000 + 37 * number}." for number in range(20)]
    for number, fact in enumerate(facts):
        conversation.user(f"f{number}", fact).reply(f"ok{number}", text="Noted.")
    text = ""
    for number in range(12):
        for step in range(20):
            conversation.user(f"u{number}-{step}", f"What about tray {step} of day {number}? {WORDS}")
            conversation.reply(f"a{number}-{step}", text=f"Tray {step} is fine. {WORDS * 4}")
        plan = plan_of(conversation, window=8_000)
        result = await compact(plan, ExtractiveSummarizer())
        text = result.summary
        conversation.compaction(f"c{number}", text, first_kept_entry_id=result.first_kept_entry_id)
    assert [fact for fact in facts if fact not in text] == []
    assert "Help me run the bakery." in text


@pytest.mark.anyio
async def test_it_passes_the_checks() -> None:
    """A window of 2,048 tokens and less: always smaller than what it replaces."""
    for window in (400, 1_000, 2_048):
        result = await compact(plan_of(long_conversation(), window=window), ExtractiveSummarizer())
        assert "Port the parser to Rust." in result.summary
