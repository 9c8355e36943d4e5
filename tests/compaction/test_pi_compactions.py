"""pi's own sessions are compacted further, and its known faults with compactions are not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction import (
    CompactionSettings,
    ExtractiveSummarizer,
    collect_branch,
    compact,
    fold_state,
    prepare_compaction,
    run_at_once,
)
from harness import JsonlStorage, Session
from storage.entries import ActiveToolsChangeEntry, ModelChangeEntry, ThinkingLevelChangeEntry
from tests.compaction.conversation import TIME, Conversation, reply_message, user_message
from tests.compaction.summaries import WORDS, ScriptedSummarizer
from tests.compaction.test_preparation import SETTINGS, maybe, prepare

FILES = Path(__file__).parent.parent / "data" / "pi-files"
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["coding-agent-1.6.0-branched", "harness-0.83.0-tree"])
async def test_pis_session_is_compacted_further(name: str, tmp_path: Path) -> None:
    """Its summary is updated, its lists of files are carried on, what it kept is summarised, in its own entry's form."""
    file = tmp_path / "pi.jsonl"
    file.write_bytes((FILES / f"{name}.jsonl").read_bytes())
    async with Session.open(JsonlStorage.open(file)) as session:
        before = await session.build_context()
        assert before.compaction_id is not None
        old = await session.entry(before.compaction_id)
        for number in range(30):
            await session.append_message(user_message(f"{number} {WORDS}"))
        path = await session.log.path()
        # pi's replies name a count of their own: the window is that of the model that is asked now.
        plan = run_at_once(prepare_compaction(path, SETTINGS, state=fold_state(path)))
        assert plan is not None
        assert plan.previous_summary == getattr(old, "summary", None)
        if details := getattr(old, "details", None):
            assert set(details["readFiles"]) <= set(plan.files.read_files)
            assert set(details["modifiedFiles"]) <= set(plan.files.modified_files)
        result = await compact(plan, ExtractiveSummarizer())
        await session.append_compaction(
            result.summary,
            first_kept_entry_id=result.first_kept_entry_id,
            tokens_before=result.tokens_before,
            details=result.details,
        )
        after = await session.build_context()
        assert after.messages[-1].text.startswith("29 ")
        assert after.tokens < before.tokens + 300


def test_what_is_in_force_outlives_a_compaction() -> None:
    """Model, thinking level and tools set before it are those after it, with a first kept entry and with a tail."""
    made = Conversation().add(ModelChangeEntry(id="m", timestamp=TIME, provider="p", model_id="x"))
    made.add(ThinkingLevelChangeEntry(id="t", timestamp=TIME, thinking_level="high"))
    made.add(ActiveToolsChangeEntry(id="s", timestamp=TIME, active_tool_names=["read"])).user("u")
    members: list[dict[str, Any]] = [{"first_kept_entry_id": "u"}, {"retained_tail": []}]
    for more in members:
        entries = list(made.entries)
        state = fold_state(made.compaction("c", **more).path)
        assert (state.model, state.thinking_level, state.active_tools) == (("p", "x"), "high", ["read"])
        made.entries[:] = entries


def test_a_retained_tail_is_in_the_next_summary_or_still_shown() -> None:
    """Nothing of it is in neither."""
    tail = [user_message(f"tail {number} {WORDS}") for number in range(20)]
    made = Conversation().compaction("c", retained_tail=tail).user("u")
    plan = prepare(made)
    made.compaction("c2", first_kept_entry_id=plan.first_kept_entry_id)
    shown = [message.text for message in made.project().messages]
    summarised = [message.text for message in plan.messages]
    assert [one.text for one in tail] == [text for text in summarised + shown if text.startswith("tail")]


def test_compacting_again_after_a_label_summarises_nothing() -> None:
    """The context is not emptied, and no model is asked about nothing."""
    made = Conversation()
    for number in range(12):
        made.user(f"u{number}", WORDS).reply(f"a{number}", text=WORDS)
    made.compaction("c", first_kept_entry_id=prepare(made).first_kept_entry_id)
    before = made.ids()
    assert maybe(made.turn_end("label")) is None
    assert made.ids() == before


def test_a_branch_across_a_retained_tail_has_its_common_ancestor() -> None:
    """Only what was left is summarised, not the history that both share."""
    shared = Conversation().user("old").compaction("c", retained_tail=[user_message("tail")]).user("here")
    left = Conversation()
    left.entries = list(shared.entries)
    branch = run_at_once(collect_branch(left.reply("there").path, shared.path, max_tokens=9_999))
    assert branch is not None
    assert [message.text for message in branch.messages] == ["text of there"]


def test_a_trailing_result_larger_than_what_is_kept_is_no_dead_end() -> None:
    """A hundred thousand tokens at the end: what lies before is summarised, or all of it is."""
    made = Conversation().user("u").reply("a", text=WORDS).user("v").reply("b", "x").result("r", "x", "word " * 80_000)
    assert len(prepare(made, CompactionSettings(context_window=150_000)).messages) == 3
    assert len(prepare(made, CompactionSettings(context_window=50_000)).messages) == 5


def test_custom_messages_count_for_the_cut() -> None:
    """Forty of five thousand tokens each."""
    made = Conversation()
    for number in range(40):
        made.custom_message(f"c{number}", "word " * 4_000)
    assert len(prepare(made, CompactionSettings(context_window=128_000)).messages) > 30


async def test_a_small_session_costs_no_request() -> None:
    """There is no plan, so nobody can be asked."""
    assert maybe(Conversation().user("u").message("a", reply_message("hi"))) is None
    assert ScriptedSummarizer().requests == []
