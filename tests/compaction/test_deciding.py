"""Whether to compact: by the newest count after the last compaction, and an estimate of what came since."""

from __future__ import annotations

from typing import Any

import pytest

from compaction import (
    CompactionSettings,
    ContextFacts,
    ListPath,
    RoughEstimator,
    measure_context,
    project,
    require_progress,
    run_at_once,
    should_compact,
)
from storage.entries import Entry, RequestHeaderEntry, UnknownEntry
from storage.errors import CompactionError, UnsupportedEntryError
from storage.messages import ImageContent, TextContent, Usage
from tests.compaction.conversation import TIME, Conversation, usage, user_message

SETTINGS = CompactionSettings(context_window=1_000, reserve_tokens=0)


def facts(conversation: Conversation, **options: Any) -> ContextFacts:
    return run_at_once(measure_context(conversation.path, **options))


def test_the_trigger_is_a_part_of_what_is_usable() -> None:
    """Strictly over 80 % of the window less prompt, tools and reserve."""
    assert not should_compact(ContextFacts(800, 0, 0), SETTINGS)
    assert should_compact(ContextFacts(801, 0, 0), SETTINGS)
    assert not should_compact(ContextFacts(900, 300, 200), SETTINGS)  # 400 of 500
    assert should_compact(ContextFacts(901, 300, 200), SETTINGS)
    with pytest.raises(CompactionError, match="1000"):
        should_compact(ContextFacts(1_100, 600, 400), SETTINGS)


def test_the_size_is_that_of_the_context() -> None:
    """Whatever the path holds: the same number as the projection's, with prompt and tools told apart."""
    conversation = Conversation().add(
        RequestHeaderEntry(
            id="h", timestamp=TIME, model={"id": "m"}, system_prompt="brief " * 40, tools=[{"name": "t"}]
        )
    )
    conversation.user("u1", "word " * 300).reply("a1", "x").result("r1", "x", "line\n" * 50)
    conversation.memory("m", "set", "k", "v").custom_message("c", "note").user("u2", "汉字" * 100)
    found = facts(conversation)
    assert found.tokens == conversation.project().tokens
    assert not found.is_counted
    assert found.system_tokens > 40
    assert found.tool_tokens > 2
    assert found.message_tokens == found.tokens - found.system_tokens - found.tool_tokens
    conversation.reply("a2", usage=usage(5_000)).user("u3", "and " * 100)
    found = facts(conversation)
    assert found.tokens == conversation.project().tokens > 5_100
    assert found.is_counted


def test_a_server_without_usage_is_estimated() -> None:
    """Zero is no count: the trigger comes all the same."""
    conversation = Conversation()
    for number in range(20):
        conversation.user(f"u{number}", "word " * 50).reply(f"a{number}", text="word " * 50, usage=Usage())
    assert should_compact(facts(conversation), SETTINGS)


def test_a_count_from_before_the_compaction_starts_no_second_one() -> None:
    """The number on a reply that was kept tells of a context that is gone."""
    conversation = Conversation().user("u1", "word " * 5_000).reply("a1", usage=usage(180_000))
    assert should_compact(facts(conversation), SETTINGS)
    conversation.compaction("c", first_kept_entry_id="a1").user("u2")
    assert not should_compact(facts(conversation), SETTINGS)


def test_the_count_of_a_context_that_was_cut_does_not_hide_what_was_left_out() -> None:
    """There is more text than so few tokens can be: all of it is estimated."""
    conversation = Conversation()
    for number in range(50):
        conversation.user(f"u{number}", "word " * 400)
    conversation.reply("last", usage=usage(900))
    found = facts(conversation)
    assert found.tokens > 10_000
    assert not found.is_counted


def test_images_cost_a_fixed_amount_and_their_data_is_no_text() -> None:
    """A megabyte of base64 counts like a small one."""
    small, large = (
        Conversation().message("u", user_message("").model_copy(update={"content": [TextContent(text="see"), image]}))
        for image in (
            ImageContent(data="aGk=", mime_type="image/png"),
            ImageContent(data="A" * 10**6, mime_type="image/png"),
        )
    )
    assert facts(small).tokens == facts(large).tokens < 2_000


class CountingPath(ListPath):
    """Counts the lines that were looked into."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__(entries)
        self.looks = 0

    def glance(self, position: int) -> tuple[str, str, bytes]:
        self.looks += 1
        return super().glance(position)


@pytest.mark.parametrize("before", [10, 2_000])
def test_only_what_came_since_the_compaction_is_looked_at(before: int) -> None:
    """As many looks at entries however long the path is, and with a count only those behind it."""
    conversation = Conversation()
    for number in range(before):
        conversation.user(f"u{number}", "old").reply(f"a{number}")
    conversation.compaction("c", first_kept_entry_id=f"u{before - 1}")
    for number in range(30):
        conversation.user(f"v{number}", "new " * 20).reply(f"b{number}", text="new " * 20)
    path = CountingPath(conversation.entries)
    run_at_once(measure_context(path))
    assert path.looks == 62
    conversation.reply("counted", usage=usage(3_000)).user("last")
    path = CountingPath(conversation.entries)
    found = run_at_once(measure_context(path))
    assert found.is_counted
    assert path.looks == 2


def test_what_is_unknown_is_refused_as_in_a_context() -> None:
    """A size that leaves something out would be a guess."""
    path = Conversation().user("u").add(UnknownEntry(id="x", timestamp=TIME, type="hologram")).path
    with pytest.raises(UnsupportedEntryError):
        run_at_once(measure_context(path))
    assert run_at_once(measure_context(path, unknown_entries="skip")).tokens > 0


def test_another_estimator_counts() -> None:
    """As in ``project``: one that is not anchored ignores the provider."""
    conversation = Conversation().user("u").reply("a", usage=usage(9_000))
    rough = facts(conversation, estimator=RoughEstimator())
    assert rough.tokens < 100
    assert rough.tokens == run_at_once(project(conversation.path, estimator=RoughEstimator())).tokens


def test_two_compactions_in_vain_are_an_error_that_names_the_sizes() -> None:
    """The fixed part is over the trigger by itself: after the second attempt it is said, never a loop."""
    before, after = ContextFacts(950, 50, 40), ContextFacts(940, 50, 40)
    in_vain = require_progress(before, after, SETTINGS)
    assert in_vain == 1
    with pytest.raises(CompactionError) as caught:
        require_progress(after, ContextFacts(930, 50, 40), SETTINGS, in_vain)
    assert caught.value.details["reason"] == "no_progress"
    assert all(number in str(caught.value) for number in ("850", "840", "1000", "50", "40"))


def test_progress_forgets_what_was_in_vain() -> None:
    """In a row means in a row; under the trigger but larger than before is no progress."""
    high, low = ContextFacts(950, 0, 0), ContextFacts(300, 0, 0)
    assert require_progress(high, low, SETTINGS, 1) == 0
    assert require_progress(high, ContextFacts(900, 0, 0), SETTINGS) == 1
    assert require_progress(low, ContextFacts(310, 0, 0), SETTINGS) == 1
