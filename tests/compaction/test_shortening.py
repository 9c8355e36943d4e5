"""The cheap step: old, large tool results are shown shortened, the same from request to request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction import (
    CompactionSettings,
    measure_context,
    plan_shortening,
    prepare_compaction,
    run_at_once,
    shortening_in_force,
    should_compact,
)
from compaction.shortened_text import shorten_text
from harness import MemoryStorage, Session
from storage.entries import MessageEntry, RequestFacts, Shortening
from storage.errors import NotOnPathError
from storage.messages import ImageContent, Message, TextContent
from tests.compaction.conversation import TIME, Conversation, reply_message, usage, user_message
from tests.properties.profiles import examples

LONG = "\n".join(f"line {number}" for number in range(1_000))


def reply_asked_with(shortening: Shortening | None, entry_id: str, **more: Any) -> MessageEntry:
    """A reply whose entry says what its request showed shortened."""
    facts = RequestFacts(header_id="h", projection=1, shortened=shortening)
    message = reply_message(f"text of {entry_id}", **more)
    return MessageEntry(id=entry_id, timestamp=TIME, message=message, request=facts)


def conversation() -> Conversation:
    made = Conversation().user("u1").reply("a1", "x").result("r1", "x", LONG)
    return made.user("u2").reply("a2", "y").result("r2", "y", LONG).user("u3")


def test_what_lies_before_the_entry_is_shortened_and_nothing_else() -> None:
    """The head, the tail, and where the whole is; what is newer, and what is short, stays."""
    made = conversation()
    shown = made.project(shorten=Shortening(before="u2")).messages
    text = shown[2].text
    assert len(text) <= 2_000
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 998\nline 999")
    assert f"of {len(LONG)} characters are left out here; the whole is in entry r1 of the session" in text
    assert shown[5].text == LONG
    assert [message.text for message in made.project().messages][2] == LONG
    short = Conversation().user("u").reply("a", "x").result("r", "x", "fine").user("v")
    assert short.project(shorten=Shortening(before="v")) == short.project()


def test_sizes_are_those_of_what_is_shown() -> None:
    """R21: characters and tokens count the shortened text."""
    whole, short = conversation().project(), conversation().project(shorten=Shortening(before="u3"))
    assert short.chars < whole.chars - 13_000
    assert short.tokens < whole.tokens - 3_000
    assert short.entry_ids == whole.entry_ids


def test_errors_are_kept_before_other_lines() -> None:
    """A compiler's errors stand in the middle of its output."""
    lines = [f"line {number}" for number in range(2_000)]
    lines[1_200] = "src/a.rs:7: error[E0308]: mismatched types"
    lines[1_300] = "FAILED tests/test_a.py::test_one"
    text = shorten_text("\n".join(lines), 1_000)
    assert "error[E0308]" in text
    assert "FAILED tests/test_a.py::test_one" in text
    assert text.index("line 0") < text.index("left out") < text.index("error[E0308]") < text.index("line 1999")


def test_a_blob_is_named_before_the_entry() -> None:
    """There a tool can read it."""
    made = Conversation().user("u").reply("a", "x").result("r", "x", LONG, blobs=["b1"]).user("v")
    assert "the whole is in blob:b1 " in made.project(shorten=Shortening(before="v")).messages[2].text


def test_an_old_image_is_named_instead() -> None:
    """It costs as much as a long text."""
    parts = [TextContent(text="the screen"), ImageContent(data="aGk=", mime_type="image/png")]
    made = Conversation().user("u").reply("a", "x").result("r", "x", content=parts).user("v")
    shown = made.project(shorten=Shortening(before="v")).messages[2]
    assert shown.text == "the screen\n[an image (image/png) is left out here; it is in entry r of the session]"
    assert shown.content == [TextContent(text=shown.text)]


@examples(200)
@given(
    text=st.text(max_size=50).flatmap(lambda piece: st.integers(0, 200).map(lambda times: piece * times)),
    max_chars=st.integers(200, 3_000),
)
def test_a_text_never_gets_longer_than_the_limit(text: str, max_chars: int) -> None:
    """And what has no more is left alone; shortening what was shortened changes nothing."""
    once = shorten_text(text, max_chars, "the whole is in entry x")
    assert len(once) <= max_chars
    assert shorten_text(once, max_chars) == once
    if len(text) <= max_chars:
        assert once == text


def test_an_entry_that_is_not_on_the_path_is_an_error() -> None:
    """Nothing is guessed."""
    with pytest.raises(NotOnPathError, match="elsewhere"):
        conversation().project(shorten=Shortening(before="elsewhere"))


def test_an_edited_result_is_shown_as_it_was_edited() -> None:
    """What stands in the entry is not what was shown, so it cannot be named as the whole."""
    made = conversation().replace("e", "r1", "edited " * 1_000)
    assert made.project(shorten=Shortening(before="u3")).messages[2].text == "edited " * 1_000


def test_a_retained_tail_is_as_old_as_its_compaction() -> None:
    """Its results are named by the compaction's entry."""
    from tests.compaction.conversation import result_message

    tail: list[Message] = [user_message("u"), reply_message("", "x"), result_message("x", LONG)]
    made = Conversation().compaction("c", retained_tail=tail).user("u1").user("u2")
    assert made.project(shorten=Shortening(before="c")).messages[3].text == LONG
    assert "entry c of" in made.project(shorten=Shortening(before="u1")).messages[3].text


def test_the_record_says_what_was_shortened() -> None:
    """From the entry of the reply the same messages are made again (R26), also after a round trip through its line."""
    made = conversation()
    shortening = Shortening(before="u3", max_chars=700)
    before = made.project(shorten=shortening)
    made.add(reply_asked_with(shortening, "a3"))
    line = made.path.line(len(made.entries) - 1)
    assert json.loads(line)["request"]["shortened"] == {"before": "u3", "maxChars": 700}
    recorded = shortening_in_force(made.path)
    assert recorded == shortening
    again = made.project(shorten=recorded)
    assert again.messages[: len(before.messages)] == before.messages


def test_what_is_in_force_is_what_the_newest_reply_says() -> None:
    """Along the path alone: going back gives what was in force there."""
    made = conversation()
    assert shortening_in_force(made.path) is None
    made.add(reply_asked_with(Shortening(before="u2"), "a3")).user("u4")
    assert shortening_in_force(made.path) == Shortening(before="u2")
    made.add(reply_asked_with(None, "a4"))
    assert shortening_in_force(made.path) is None


def test_the_count_of_a_request_with_other_results_shortened_is_not_used() -> None:
    """It was of another context; one with the same is."""
    made = conversation().add(reply_asked_with(None, "a3", usage=usage(9_000))).user("u4")
    shortening = Shortening(before="u3")
    assert made.project().tokens > 9_000
    estimate = run_at_once(measure_context(made.path, shorten=shortening))
    assert not estimate.is_counted
    assert estimate.tokens < 6_000
    made.add(reply_asked_with(shortening, "a4", usage=usage(4_000)))
    assert made.project(shorten=shortening).tokens == 4_000
    assert run_at_once(measure_context(made.path, shorten=shortening)).is_counted
    assert made.project().tokens != 4_000


@pytest.mark.parametrize("max_chars", [499, -1])
def test_a_limit_without_room_for_the_words_counts_as_the_least(max_chars: int) -> None:
    """Five hundred characters: a file that says less can be read all the same."""
    shown = conversation().project(shorten=Shortening(before="u2", max_chars=max_chars)).messages
    assert 400 < len(shown[2].text) <= 500


SETTINGS = CompactionSettings(context_window=20_000, reserve_tokens=0)


def steps(count: int) -> Conversation:
    """A turn of so many steps, with a result of about 3,000 tokens each."""
    made = Conversation().user("u")
    for number in range(count):
        made.reply(f"a{number}", f"c{number}").result(f"r{number}", f"c{number}", LONG)
    return made


def test_the_cheap_step_is_taken_where_it_helps_for_a_while() -> None:
    """Over the trigger, old results are shortened and that is enough; what a compaction would keep is left whole."""
    made = steps(6)
    assert should_compact(run_at_once(measure_context(made.path)), SETTINGS)
    plan = run_at_once(plan_shortening(made.path, SETTINGS))
    assert plan is not None
    assert plan.shortening == Shortening(before="a5", max_chars=2_000)
    found = run_at_once(measure_context(made.path, shorten=plan.shortening))
    assert abs(found.tokens - plan.tokens_after) < 20
    assert plan.tokens_after <= 0.6 * 20_000 < plan.tokens_before
    assert not should_compact(found, SETTINGS)


def test_the_cheap_step_is_not_taken_where_it_does_not_help() -> None:
    """Nothing large among what is old, or too much of it, or it is turned off: a summary is due."""
    talk = Conversation()
    for number in range(200):
        talk.user(f"u{number}", "word " * 100)
    assert run_at_once(plan_shortening(talk.path, SETTINGS)) is None
    assert (
        run_at_once(plan_shortening(steps(60), SETTINGS) if False else plan_shortening(steps(60).path, SETTINGS))
        is None
    )
    off = CompactionSettings(context_window=20_000, reserve_tokens=0, shorten_ratio=None)
    assert run_at_once(plan_shortening(steps(6).path, off)) is None
    assert run_at_once(plan_shortening(Conversation().path, SETTINGS)) is None


def test_between_two_cheap_steps_each_request_begins_with_the_one_before() -> None:
    """A provider's cache holds: what is shown of a result changes only where something is chosen anew."""
    made = Conversation().user("u")
    last: list[Message] = []
    chosen: list[Shortening] = []
    broken = compactions = 0
    for number in range(40):
        shorten = shortening_in_force(made.path)
        if should_compact(run_at_once(measure_context(made.path, shorten=shorten)), SETTINGS):
            plan = run_at_once(plan_shortening(made.path, SETTINGS, shorten=shorten))
            if plan is None:
                summary = run_at_once(prepare_compaction(made.path, SETTINGS, shorten=shorten))
                assert summary is not None
                made.compaction(f"c{number}", "sum", first_kept_entry_id=summary.first_kept_entry_id)
                compactions += 1
            else:
                shorten = plan.shortening
                chosen.append(shorten)
        shown: list[Message] = list(made.project(shorten=shorten).messages)
        broken += shown[: len(last)] != last
        last = shown
        asked = reply_asked_with(shorten, f"a{number}")
        asked.message = reply_message("", f"c{number}")
        made.add(asked).result(f"r{number}", f"c{number}", LONG)
    assert broken == len(chosen) + compactions
    assert 2 <= len(chosen) <= 20
    assert compactions >= 1


@pytest.mark.anyio
async def test_through_a_session_and_a_reopened_one() -> None:
    """What the reply's entry says is there after reopening, and gives the same context."""
    storage = await MemoryStorage.create()
    async with Session.open(storage) as session:
        last = ""
        for entry in conversation().entries:
            assert isinstance(entry, MessageEntry)
            last = await session.append_message(entry.message)
        facts = RequestFacts(shortened=Shortening(before=last))
        await session.append_entry(MessageEntry(message=reply_message("so"), request=facts))
    async with Session.open(MemoryStorage.open(storage)) as again:
        path = await again.log.path()
        assert shortening_in_force(path) == Shortening(before=last)
        from harness.context import build_context

        context = await build_context(path, shorten=shortening_in_force(path))
        assert len(context.messages[2].text) <= 2_000
