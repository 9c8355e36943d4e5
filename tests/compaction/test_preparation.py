"""What a compaction would summarise and keep: whole units, newest first, turn by turn, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from compaction import CompactionPlan, CompactionSettings, ListPath, measure_context, prepare_compaction, run_at_once
from storage.errors import CompactionError, PendingCallError
from storage.messages import UserMessage
from tests.compaction.conversation import Conversation, call, reply_message, result_message, usage, user_message
from tests.compaction.test_deciding import CountingPath

SETTINGS = CompactionSettings(context_window=1_000, reserve_tokens=0)
"""Compacts over 800 tokens, aims for 300, of which a summary may have 120."""

WORDS = "word " * 40
"""About 50 tokens."""


def prepare(conversation: Conversation, settings: CompactionSettings = SETTINGS, **options: Any) -> CompactionPlan:
    plan = maybe(conversation, settings, **options)
    assert plan is not None
    return plan


def maybe(conversation: Conversation, settings: CompactionSettings = SETTINGS, **options: Any) -> CompactionPlan | None:
    return run_at_once(prepare_compaction(conversation.path, settings, **options))


def texts(plan: CompactionPlan) -> list[str]:
    return [message.text for message in plan.messages]


def turns(count: int, words: str = WORDS) -> Conversation:
    conversation = Conversation()
    for number in range(count):
        conversation.turn_start(f"s{number}", number + 1).user(f"u{number}", f"u{number} {words}")
        conversation.reply(f"a{number}", text=f"a{number} {words}").turn_end(f"e{number}", number + 1)
    return conversation


def after(conversation: Conversation, plan: CompactionPlan) -> list[str | None]:
    """What is shown once the plan's summary is there."""
    entries = list(conversation.entries)
    try:
        conversation.compaction("new", first_kept_entry_id=plan.first_kept_entry_id)
        return conversation.ids()
    finally:
        conversation.entries[:] = entries


def test_the_newest_turns_are_kept_whole_up_to_the_aim() -> None:
    """180 tokens are left for messages beside the summary: one turn of about 110."""
    plan = prepare(turns(10))
    assert plan.first_kept_entry_id == "u9"
    assert plan.kept_turns == 1
    assert plan.turn_prefix == 0
    assert [text.split()[0] for text in texts(plan)] == [f"{who}{number}" for number in range(9) for who in "ua"]
    assert plan.previous_summary is None
    assert plan.tokens_before == plan.facts.tokens > 800
    assert plan.tokens_after <= 300
    assert after(turns(10), plan) == ["new", "u9", "a9"]


def test_no_more_turns_are_kept_than_wanted() -> None:
    """The number counts where the aim would keep more."""
    settings = CompactionSettings(context_window=100_000)
    assert maybe(turns(10), settings) is None
    assert prepare(turns(11), settings).first_kept_entry_id == "u1"
    few = CompactionSettings(context_window=100_000, keep_recent_turns=2)
    assert prepare(turns(10), few).first_kept_entry_id == "u8"
    assert prepare(turns(10), few).kept_turns == 2


@pytest.mark.parametrize("conversation", [Conversation(), Conversation().turn_start("s"), turns(1), turns(2, "few")])
def test_where_all_fits_there_is_nothing_to_do(conversation: Conversation) -> None:
    """No model is asked about an empty or a short conversation."""
    assert maybe(conversation) is None


def test_a_turn_too_large_is_split_at_a_calls_boundary() -> None:
    """Its beginning is summarised too, the question included; its newest units stay, each with its results."""
    conversation = turns(1).turn_start("s", 2).user("u", "do it all")
    for number in range(10):
        conversation.reply(f"a{number}x", f"c{number}", text=WORDS).result(f"r{number}x", f"c{number}", f"{number}")
    plan = prepare(conversation)
    assert plan.first_kept_entry_id == "a8x"
    assert plan.turn_prefix == 1 + 2 * 8
    assert len(plan.messages) == 2 + plan.turn_prefix
    assert plan.messages[2].text == "do it all"
    assert after(conversation, plan) == ["new", "a8x", "r8x", "a9x", "r9x"]


def test_a_large_turn_before_a_short_one_is_split_too() -> None:
    """The newest prompt alone would leave the aim empty: the steps before it are worth keeping."""
    conversation = Conversation().user("u", "do it all")
    for number in range(10):
        conversation.reply(f"a{number}", f"c{number}", text=WORDS).result(f"r{number}", f"c{number}", f"{number}")
    plan = prepare(conversation.user("go", "go on"))
    assert plan.first_kept_entry_id == "a8"
    assert plan.kept_turns == 2
    assert plan.turn_prefix == 17


def test_a_unit_is_never_cut() -> None:
    """Parallel calls with results that came in any order are on one side."""
    conversation = turns(8).user("u").reply("a", "x", "y", "z", text=WORDS)
    conversation.result("r1", "z", WORDS).result("r2", "x", WORDS).result("r3", "y", WORDS).reply("b", text="so")
    plan = prepare(conversation)
    assert plan.first_kept_entry_id == "b"
    assert texts(plan)[-5:] == ["text of u", WORDS, WORDS, WORDS, WORDS]
    assert [message.role for message in plan.messages[-4:]] == ["assistant", "toolResult", "toolResult", "toolResult"]


def test_the_cut_leaves_no_result_behind_without_its_call() -> None:
    """A result that came late, after the next question, draws the cut behind it."""
    conversation = turns(8).user("q1").reply("b1", "x", text=2 * WORDS).user("q2", WORDS).result("r", "x", "late")
    plan = prepare(conversation.user("q3", WORDS))
    assert plan.first_kept_entry_id == "q3"
    assert conversation.compaction("new", first_kept_entry_id=plan.first_kept_entry_id).project().dropped == []


def test_the_newest_unit_is_kept_though_it_is_larger_than_the_aim() -> None:
    """Everything else is summarised: the trailing result of 400 tokens is what the model waits for."""
    conversation = turns(6).user("u", "read it").reply("a", "x").result("r", "x", "word " * 320)
    plan = prepare(conversation)
    assert plan.first_kept_entry_id == "a"
    assert plan.turn_prefix == 1
    assert 300 < plan.tokens_after < 800


def test_a_result_larger_than_the_window_is_summarised_itself() -> None:
    """Nothing of it could be sent: the summary takes its place, and what comes later is kept."""
    conversation = turns(3).user("u", "read it").reply("a", "x").result("r", "x", "word " * 2_000)
    plan = prepare(conversation)
    assert plan.messages[-1].text == "word " * 2_000
    assert plan.turn_prefix == 3
    assert after(conversation, plan) == ["new"]
    late = conversation.user("late").compaction("new", first_kept_entry_id=plan.first_kept_entry_id)
    assert late.ids() == ["new", "late"]


def test_a_question_larger_than_the_window_is_an_error_with_the_numbers() -> None:
    """What a person said last is never summarised away."""
    for conversation in (turns(3).user("big", "word " * 2_000), turns(3).user("big", "word " * 2_000).turn_end("e")):
        with pytest.raises(CompactionError) as caught:
            maybe(conversation)
        assert caught.value.details["reason"] == "does_not_fit"
        assert "'big'" in str(caught.value)
        assert {"window": 1_000, "usable": 1_000, "reserve": 0}.items() <= caught.value.details.items()
    assert prepare(conversation.user("smaller", "never mind")).first_kept_entry_id == "smaller"


def test_a_reply_larger_than_the_window_is_an_error_while_it_is_the_last_entry() -> None:
    """There is no entry from which on it would not be shown again; once something follows, it is summarised."""
    conversation = turns(3).reply("big", text="word " * 2_000)
    with pytest.raises(CompactionError, match="'big'"):
        maybe(conversation)
    plan = prepare(conversation.turn_end("e"))
    assert after(conversation, plan) == ["new"]


def test_a_second_compaction_goes_on_from_the_first() -> None:
    """The previous summary is handed on, what it stands for is not looked at again, the kept are summarised in turn."""
    conversation = turns(4).compaction("c1", "the first part", first_kept_entry_id="u3")
    for number in range(4, 12):
        conversation.user(f"u{number}", f"u{number} {WORDS}").reply(f"a{number}", text=f"a{number} {WORDS}")
    plan = prepare(conversation)
    assert plan.previous_summary == "the first part"
    assert [text.split()[0] for text in texts(plan)][:4] == ["u3", "a3", "u4", "a4"]
    assert plan.first_kept_entry_id == "u11"


def test_a_retained_tail_is_summarised_or_kept_but_never_lost() -> None:
    """pi's own kind of compaction: its tail goes into the next summary."""
    tail = [user_message("kept question"), reply_message("kept answer")]
    conversation = turns(2).compaction("c", "sum", retained_tail=tail)
    for number in range(5, 15):
        conversation.user(f"u{number}", WORDS).reply(f"a{number}", text=WORDS)
    plan = prepare(conversation)
    assert texts(plan)[:2] == ["kept question", "kept answer"]


def test_a_retained_tail_that_is_larger_than_the_window_is_summarised() -> None:
    """Decided by size, not by the type of the last entry; also with nothing but a label behind it."""
    tail = [user_message("word " * 500), reply_message("word " * 500), user_message(WORDS)]
    conversation = turns(2).compaction("c", "sum", retained_tail=tail).turn_end("label")
    plan = prepare(conversation)
    assert len(plan.messages) == 3
    assert after(conversation, plan) == ["new"]


def test_compacting_twice_with_nothing_between_loses_nothing() -> None:
    """Only a label came since: there is nothing to summarise, and the context stays as it is."""
    conversation = turns(10)
    plan = prepare(conversation)
    conversation.compaction("c", first_kept_entry_id=plan.first_kept_entry_id).turn_end("label")
    assert maybe(conversation) is None
    assert conversation.ids() == ["c", "u9", "a9"]


def test_custom_messages_and_summaries_of_branches_count() -> None:
    """Forty of them are summarised like everything else."""
    conversation = Conversation().branch_summary("b", "the other road")
    for number in range(40):
        conversation.custom_message(f"c{number}", f"{number} {WORDS}")
    plan = prepare(conversation.user("u"))
    assert len(plan.messages) > 35
    assert "the other road" in plan.messages[0].text


def test_a_call_that_waits_for_its_approval_is_kept() -> None:
    """The cut moves back to it while that fits; else the error names the call."""
    kept = turns(8).user("u").reply("a", call("x", "deploy")).approval("p", "x")
    assert prepare(kept).first_kept_entry_id == "u7"
    small = turns(8).user("u").reply("a", call("x", "deploy")).approval("p", "x")
    for number in range(3):
        small.user(f"v{number}", WORDS)
    plan = prepare(small)
    assert plan.first_kept_entry_id == "a"
    large = turns(8).user("u").reply("a", call("x", "deploy")).approval("p", "x")
    for number in range(30):
        large.user(f"v{number}", WORDS)
    with pytest.raises(PendingCallError, match="deploy") as caught:
        maybe(large)
    assert caught.value.entry_id == "a"
    assert prepare(large.decision("d", "x").turn_end("e")).first_kept_entry_id != "a"


@pytest.mark.parametrize("end", ["turn_start", "turn_end"])
def test_a_call_that_can_never_be_answered_blocks_nothing(end: str) -> None:
    """Its turn is over: nobody can approve it any more. So it is with calls that were never run."""
    conversation = turns(2).user("u").reply("a", call("x", "deploy"), "never").approval("p", "x")
    getattr(conversation, end)("over", 2)
    for number in range(30):
        conversation.user(f"v{number}", WORDS)
    assert len(prepare(conversation).messages) > 20


def test_files_are_collected_and_carried_on() -> None:
    """From calls of read, write and edit in what is summarised, and from the lists of the compaction before."""
    conversation = turns(2).compaction(
        "c", "sum", first_kept_entry_id="u1", details={"readFiles": ["old.py", "both.py"], "modifiedFiles": ["made.py"]}
    )
    conversation.reply(
        "a", call("1", "read", path="new.py"), call("2", "edit", path="both.py"), call("3", "ls", path="x")
    )
    conversation.result("r1", "1").result("r2", "2").result("r3", "3")
    conversation.reply("b", call("4", "write", path="failed.py"), call("5", "read", path=7), call("6", "read"))
    conversation.result("r4", "4", is_error=True).result("r5", "5").result("r6", "6")
    for number in range(30):
        conversation.user(f"v{number}", WORDS)
    plan = prepare(conversation)
    assert plan.files.read_files == ["new.py", "old.py"]
    assert plan.files.modified_files == ["both.py", "made.py"]


def test_files_of_a_hooks_compaction_are_not_carried_on() -> None:
    """Its details are the app's own."""
    conversation = turns(2).compaction("c", "sum", details={"readFiles": ["other"]}, from_hook=True)
    for number in range(30):
        conversation.user(f"v{number}", WORDS)
    assert prepare(conversation).files.read_files == []


def test_a_summary_too_large_for_a_smaller_model_is_made_anew() -> None:
    """What was kept fits, the summary of the larger model does not: it is summarised with the oldest unit."""
    conversation = (
        Conversation().user("u0").compaction("c", "word " * 650).user("u1", "short").reply("a1", text="short")
    )
    plan = prepare(conversation)
    assert plan.previous_summary == "word " * 650
    assert plan.first_kept_entry_id == "a1"


def test_a_result_that_fits_only_beside_a_shorter_summary_is_summarised_too() -> None:
    """The summary may have got a little longer than it should; together with the newest result it is too much."""
    conversation = Conversation().user("old", "hello").compaction("c", "sum " * 150)
    conversation.reply("look", call("1", "read", path="a.py")).result("r", "1", "word " * 650)
    plan = prepare(conversation)
    assert plan.facts.message_tokens > 1_000
    assert "word word" in texts(plan)[-1]
    assert len(after(conversation, plan)) == 1


def test_the_provider_counts_more_than_the_estimate() -> None:
    """What is kept is measured by its count, or the aim would be missed by far."""
    conversation = turns(10)
    estimated = run_at_once(measure_context(conversation.path)).tokens
    settings = CompactionSettings(context_window=4_000, reserve_tokens=0)
    assert prepare(turns(20), settings).kept_turns == 6
    counted = turns(20).reply("last", text="so", usage=usage(4 * 2 * estimated))
    plan = prepare(counted, settings)
    assert 1 <= plan.kept_turns < 4
    assert plan.tokens_before == 8 * estimated
    assert plan.tokens_after <= 1_200


@pytest.mark.parametrize("before", [10, 1_000])
def test_only_what_came_since_is_looked_at(before: int) -> None:
    """However long the path is."""
    conversation = turns(before).compaction("c", first_kept_entry_id=f"u{before - 1}")
    for number in range(30):
        conversation.user(f"v{number}", WORDS)
    path = CountingPath(conversation.entries)
    assert run_at_once(prepare_compaction(path, SETTINGS)) is not None
    assert path.looks < 60


def test_what_comes_while_the_summary_is_made_is_kept() -> None:
    """The plan names an entry: from there on all is shown, whatever was appended before the summary."""
    conversation = turns(10)
    plan = prepare(conversation)
    conversation.user("meanwhile").compaction("new", first_kept_entry_id=plan.first_kept_entry_id).user("later")
    assert conversation.ids() == ["new", "u9", "a9", "meanwhile", "later"]


def test_others_run_while_a_long_session_is_prepared() -> None:
    """It is made in pieces, however much came since the last compaction."""
    conversation = turns(3_000, "few words")
    pauses = sum(job is None for job in prepare_compaction(conversation.path, SETTINGS))
    assert pauses > 20


def test_a_working_memory_that_leaves_no_room_is_named() -> None:
    """It is shown whatever happens."""
    conversation = turns(3)
    for number in range(4):
        conversation.memory(f"m{number}", "set", f"k{number}", "word " * 190)
    conversation.user("small", "hello")
    with pytest.raises(CompactionError, match="working memory") as caught:
        maybe(conversation)
    assert caught.value.entry_id == "small"
    assert caught.value.details["pinned"] > 900


def test_a_plan_shares_nothing_with_the_record() -> None:
    """Changing its messages changes no context."""
    conversation = turns(10)
    plan = prepare(conversation)
    first = plan.messages[0]
    assert isinstance(first, UserMessage)
    first.content = "spoiled"
    assert conversation.project().messages[0].text != "spoiled"
    assert isinstance(conversation.path, ListPath)


def test_results_in_the_tail_of_a_turn_pair_as_they_did() -> None:
    """Ids repeat from turn to turn: what is kept shows the same pairs as before."""
    conversation = Conversation()
    for number in range(12):
        conversation.user(f"u{number}", WORDS).reply(f"a{number}", "k", text=WORDS).result(
            f"r{number}", "k", str(number)
        )
    before = conversation.project()
    plan = prepare(conversation)
    shown = after(conversation, plan)
    assert shown[1:] == before.entry_ids[-len(shown) + 1 :]
    assert result_message("k").tool_call_id == "k"
