"""R21, second level: the provider's own count of the newest reply, and an estimate of what came after."""

from __future__ import annotations

from typing import Any

import pytest

from compaction import RoughEstimator, TiktokenEstimator, UsageAnchoredEstimator
from compaction.breathing import run_at_once
from compaction.tokens import CALL_TOKENS, IMAGE_TOKENS, MESSAGE_TOKENS, TextCounter, count_tokens, texts_of
from storage.entries import RequestHeaderEntry
from storage.errors import BudgetError
from storage.messages import ImageContent, Message, TextContent, ThinkingContent, Usage
from tests.compaction.conversation import (
    TIME,
    Conversation,
    call,
    reply_message,
    result_message,
    usage,
    user_message,
)

ANCHORED = UsageAnchoredEstimator()


def rough(*messages: Message) -> int:
    return sum(run_at_once(TextCounter(RoughEstimator()).messages(messages)))


def test_the_newest_count_and_what_came_after() -> None:
    """Replies before it are in its count; results and messages behind it are estimated."""
    conversation = Conversation().user("u1").reply("a1", usage=usage(100)).user("u2")
    conversation.reply("a2", "x", usage=usage(1_000)).result("r", "x").user("u3")
    projection = conversation.project(estimator=ANCHORED)
    assert projection.tokens == 1_000 + rough(*projection.messages[-2:])
    assert conversation.project().tokens == projection.tokens


def test_results_made_up_for_the_newest_reply_came_after_its_count() -> None:
    """It could not hold what was never said before."""
    projection = Conversation().user("u").reply("a", "x", usage=usage(1_000)).project(estimator=ANCHORED)
    assert projection.entry_ids == ["u", "a", "a"]
    assert projection.tokens == 1_000 + rough(projection.messages[-1])


def test_without_any_count_everything_is_estimated() -> None:
    """A server that sends no usage: zero is no count."""
    conversation = Conversation().user("u1").reply("a1", usage=Usage()).user("u2").reply("a2")
    projection = conversation.project(estimator=ANCHORED)
    assert projection.tokens == rough(*projection.messages)


@pytest.mark.parametrize("reason", ["error", "aborted"])
def test_the_count_of_a_failed_reply_is_not_used(reason: str) -> None:
    """The one before it is."""
    conversation = (
        Conversation()
        .user("u1")
        .reply("a1", usage=usage(500))
        .user("u2")
        .reply("a2", usage=usage(9), stop_reason=reason)
    )
    projection = conversation.project(estimator=ANCHORED)
    assert projection.tokens == 500 + rough(*projection.messages[2:])


def test_a_count_from_before_the_compaction_is_not_used() -> None:
    """It was of a context that is gone, also where its reply was kept."""
    conversation = (
        Conversation().user("u1").reply("a1", usage=usage(180_000)).compaction("c", first_kept_entry_id="a1").user("u2")
    )
    projection = conversation.project(estimator=ANCHORED)
    assert projection.entry_ids == ["c", "a1", "u2"]
    assert projection.tokens == rough(*projection.messages)


def test_a_count_from_before_an_edit_is_not_used() -> None:
    """An edit changes what was counted."""
    conversation = Conversation().user("u1").reply("a1", usage=usage(9_000)).hide("e", "u1")
    projection = conversation.project(estimator=ANCHORED)
    assert projection.tokens == rough(*projection.messages)


def test_the_parts_are_added_where_the_total_is_missing() -> None:
    """Some servers give no total."""
    parts = Usage(input=10, output=20, cache_read=300, cache_write=4_000)
    assert Conversation().user("u").reply("a", usage=parts).project(estimator=ANCHORED).tokens == 4_330


def header(conversation: Conversation, entry_id: str, prompt: str, **tool: Any) -> Conversation:
    return conversation.add(
        RequestHeaderEntry(
            id=entry_id, timestamp=TIME, model={"id": "m"}, system_prompt=prompt, tools=[tool] if tool else None
        )
    )


def test_prompt_and_tools_count_as_well() -> None:
    """They are in the provider's count; where there is none, they are estimated."""
    conversation = header(Conversation(), "h", "You are brief. " * 20, name="read", description="reads " * 50).user("u")
    projection = conversation.project(estimator=ANCHORED)
    fixed = projection.tokens - rough(*projection.messages)
    assert 100 < fixed < 300
    assert conversation.project(estimator=RoughEstimator()).tokens == projection.tokens
    assert conversation.reply("a", usage=usage(1_000)).project(estimator=ANCHORED).tokens == 1_000


def test_what_changed_after_the_count_is_counted_on_top() -> None:
    """A new prompt and a change of the working memory are not in it: on the high side."""
    conversation = Conversation().memory("m1", "set", "k", "v").user("u").reply("a", usage=usage(1_000))
    assert conversation.project(estimator=ANCHORED).tokens == 1_000
    conversation.memory("m2", "set", "k", "w")
    projection = conversation.project(estimator=ANCHORED)
    assert projection.tokens == 1_000 + rough(projection.messages[-1])
    header(conversation, "h", "prompt " * 30)
    assert conversation.project(estimator=ANCHORED).tokens > projection.tokens + 40


def chatter(turns: int, words: int = 100) -> Conversation:
    conversation = Conversation()
    for number in range(turns):
        conversation.user(f"u{number}", "word " * words).reply(f"a{number}", text="word " * words)
    return conversation


def test_what_the_provider_counted_low_is_kept_whole() -> None:
    """The estimate says that it does not fit, the provider's own count that it does: nothing is left out."""
    conversation = chatter(20)
    estimate = conversation.project(estimator=RoughEstimator()).tokens
    conversation.reply("last", text="x", usage=usage(int(estimate * 0.8)))
    budget = int(estimate * 0.9)
    assert conversation.project(max_tokens=budget).is_whole
    assert conversation.project(max_tokens=budget).tokens == int(estimate * 0.8)
    assert not conversation.project(max_tokens=budget, estimator=RoughEstimator()).is_whole


def test_the_count_of_a_context_that_was_cut_keeps_nothing_more() -> None:
    """The newest reply answered a request that showed a few messages: its count says nothing about the others."""
    conversation = chatter(100).reply("last", text="x", usage=usage(2_000))
    projection = conversation.project(max_tokens=2_500)
    assert not projection.is_whole
    assert projection.tokens <= 2_500
    assert rough(*projection.messages) <= 2_500
    whole = conversation.project()
    assert whole.is_whole
    assert whole.tokens == rough(*whole.messages)
    assert conversation.project(max_tokens=10**6).tokens == whole.tokens


def test_a_script_that_is_estimated_far_too_high_is_counted_by_the_provider() -> None:
    """Newer vocabularies need a quarter of the estimate for Hindi; the provider's count puts that right."""
    text = "कृत्रिम बुद्धिमत्ता हमारे जीवन को बदल रही है। आज मौसम अच्छा है। " * 10
    conversation = Conversation()
    for number in range(20):
        conversation.user(f"u{number}", text).reply(f"a{number}", text=text)
    real = 40 * TiktokenEstimator(encoding="o200k_base").count(text)
    conversation.reply("last", text="x", usage=usage(real))
    projection = conversation.project(max_tokens=real + 100)
    assert projection.is_whole
    assert projection.tokens == real
    assert conversation.project(estimator=RoughEstimator()).tokens > 3 * real


def test_what_the_provider_counted_high_is_trimmed_by_its_measure() -> None:
    """The estimate says that it fits, the provider that it does not: units go, oldest first, until it fits."""
    conversation = chatter(20)
    estimate = conversation.project(estimator=RoughEstimator()).tokens
    conversation.reply("last", text="x", usage=usage(2 * estimate))
    projection = conversation.project(max_tokens=estimate + 100)
    assert not projection.is_whole
    assert projection.entry_ids[-1] == "last"
    assert 15 < len(projection.messages) < 25
    assert projection.tokens <= estimate + 100
    with pytest.raises(BudgetError, match="max_tokens is 10"):
        conversation.project(max_tokens=10)


def test_a_larger_budget_refuses_nothing_that_a_smaller_one_shows() -> None:
    """Also where the provider counted far more than the estimate, so that its measure holds not even the newest unit."""
    conversation = header(Conversation(), "h", "You help.").user("u1", "hello")
    conversation.reply("a1", text="hi", usage=usage(281)).user("u2", "more").reply("a2", text="yes")
    shown: list[list[str | None]] = []
    for budget in range(1, 320):
        try:
            projection = conversation.project(max_tokens=budget)
        except BudgetError:
            assert not shown, f"{budget} is refused"
            continue
        assert projection.tokens <= budget
        if not shown or projection.entry_ids != shown[-1]:
            shown.append(projection.entry_ids)
    assert shown == [["u2", "a2"], ["u1", "a1", "u2", "a2"]]


def test_the_newest_unit_is_refused_by_no_guess() -> None:
    """The reply with the count is the newest unit: scaled it is too large, by the estimate it fits, and so it is kept."""
    conversation = Conversation().user("u", "word " * 50).reply("a", text="word " * 50, usage=usage(5_000))
    estimate = conversation.project(estimator=RoughEstimator()).tokens
    projection = conversation.project(max_tokens=estimate)
    assert projection.entry_ids == ["u", "a"]
    assert projection.tokens == estimate
    assert not projection.is_whole
    with pytest.raises(BudgetError):
        conversation.project(max_tokens=estimate - 1)


def test_the_newest_unit_kept_by_the_count_alone_is_reported_with_it() -> None:
    """The estimate says that not even it fits, the count holds it and nothing older: the count is what it has at most."""
    conversation = chatter(100).user("u", "!?" * 400).reply("last", text="!?" * 400, usage=usage(700))
    newest = rough(*conversation.project().messages[-2:])
    assert newest > 800
    projection = conversation.project(max_tokens=800)
    assert projection.entry_ids == ["u", "last"]
    assert projection.tokens == 700


def test_a_token_budget_shows_whole_units_for_every_size() -> None:
    """R19 with tokens: grows unit by unit and always holds; the error names tokens."""
    conversation = Conversation().user("u1").reply("a1", "x").result("r1", "x").user("u2").reply("a2")
    seen: list[list[str | None]] = []
    for budget in range(1, conversation.project(estimator=RoughEstimator()).tokens + 1):
        try:
            projection = conversation.project(max_tokens=budget, estimator=RoughEstimator())
        except BudgetError:
            continue
        assert projection.tokens == rough(*projection.messages) <= budget
        if not seen or projection.entry_ids != seen[-1]:
            seen.append(projection.entry_ids)
    assert seen == [["u2", "a2"], ["u1", "a1", "r1", "u2", "a2"]]
    with pytest.raises(BudgetError, match="tokens, max_tokens is 1;"):
        conversation.project(max_tokens=1, estimator=RoughEstimator())


def test_what_goes_to_the_model_is_counted_and_nothing_else() -> None:
    """Texts, thinking, names and arguments of calls, results; a fixed amount for an image and for each message's form."""
    image = ImageContent(data="aGk=" * 1_000, mime_type="image/png")
    user = user_message("see")
    user.content = [TextContent(text="see"), image]
    assert texts_of(user) == (["see"], MESSAGE_TOKENS + IMAGE_TOKENS)
    reply = reply_message("text", call("x", "read", path="é"), provider="p", usage=usage(5))
    reply.content = [ThinkingContent(thinking="hm", thinking_signature="sig"), *(reply.content or [])]
    assert texts_of(reply) == (["hm", "text", "read", '{"path":"é"}'], MESSAGE_TOKENS + CALL_TOKENS)
    result = result_message("x", "out", details={"not": "sent"}, is_error=True)
    assert texts_of(result) == (["out"], MESSAGE_TOKENS + CALL_TOKENS)
    assert texts_of(user_message("plain")) == (["plain"], MESSAGE_TOKENS)


@pytest.mark.anyio
async def test_a_request_can_be_counted_by_itself() -> None:
    """For whoever has messages, a prompt and tools, but no path."""
    messages = Conversation().user("u", "word " * 100).project().messages
    assert await count_tokens(messages) == 125 + MESSAGE_TOKENS
    assert (
        await count_tokens(messages, system_prompt="word " * 40, tools=[{"name": "read"}]) > 125 + MESSAGE_TOKENS + 50
    )
