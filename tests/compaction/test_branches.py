"""What is left behind when one goes elsewhere: from the common ancestor, newest first, within a budget."""

from __future__ import annotations

from typing import Any

import pytest

from compaction import (
    AbandonedBranch,
    CompactionSettings,
    ExtractiveSummarizer,
    SummaryReply,
    collect_branch,
    run_at_once,
    run_with_pauses,
    summarize_branch,
)
from compaction.branches import common_depth
from harness import MemoryStorage, Session
from storage.entries import UnknownEntry
from storage.entry_path import EntryPath, IndexedPath
from storage.errors import CompactionError, UnsupportedEntryError
from storage.index import EntryIndex
from tests.compaction.conversation import TIME, Conversation, call, reply_message, user_message
from tests.compaction.summaries import WORDS, ScriptedSummarizer
from tests.compaction.test_deciding import CountingPath

SETTINGS = CompactionSettings(context_window=8_000)


def collect(left: EntryPath, target: EntryPath, max_tokens: int = 10_000, **options: Any) -> AbandonedBranch | None:
    return run_at_once(collect_branch(left, target, max_tokens=max_tokens, **options))


def trunk() -> Conversation:
    return Conversation().user("u1").reply("a1").user("u2").reply("a2")


def grown(from_there: Conversation, *entries: str) -> Conversation:
    branch = Conversation()
    branch.entries = list(from_there.entries)
    for entry_id in entries:
        branch.user(entry_id)
    return branch


def texts(branch: AbandonedBranch | None) -> list[str]:
    assert branch is not None
    return [message.text for message in branch.messages]


def test_from_the_common_ancestor_to_the_leaf() -> None:
    """What both paths share is not part of it."""
    branch = collect(grown(trunk(), "x1", "x2").path, grown(trunk(), "y").path)
    assert texts(branch) == ["text of x1", "text of x2"]
    assert branch is not None
    assert (branch.ancestor_id, branch.from_id, branch.is_whole) == ("a2", "x2", True)


def test_going_back_leaves_what_came_after() -> None:
    """The target is itself the ancestor."""
    branch = collect(trunk().path, grown(Conversation(), "u1").path)
    assert texts(branch) == ["text of a1", "text of u2", "text of a2"]
    assert branch is not None
    assert branch.ancestor_id == "u1"


def test_before_the_first_entry_nothing_is_shared() -> None:
    """Everything is left behind."""
    branch = collect(trunk().path, IndexedPath(EntryIndex(), -1))
    assert branch is not None
    assert branch.ancestor_id is None
    assert len(branch.messages) == 4


def test_nothing_left_behind_is_none() -> None:
    """To the same place, on to a descendant, from before the first entry, or from a stretch that shows nothing."""
    assert collect(trunk().path, trunk().path) is None
    assert collect(trunk().path, grown(trunk(), "x").path) is None
    assert collect(IndexedPath(EntryIndex(), -1), trunk().path) is None
    assert collect(trunk().turn_end("e").path, trunk().path) is None


def test_the_newest_are_taken_within_the_budget() -> None:
    """Whole units; one that is larger than the budget is taken alone, and cut when the summary is asked for."""
    left = trunk()
    for number in range(20):
        left.reply(f"b{number}", "x", text=f"b{number} {WORDS}").result(f"r{number}", "x", WORDS)
    branch = collect(left.path, trunk().path, 500)
    assert branch is not None
    assert not branch.is_whole
    assert branch.tokens <= 500
    assert [message.role for message in branch.messages] == ["assistant", "toolResult"] * 3
    assert branch.messages[0].text.startswith("b17 ")
    alone = collect(left.path, trunk().path, 50)
    assert alone is not None
    assert len(alone.messages) == 2


def test_files_are_collected_from_calls_and_from_earlier_summaries() -> None:
    """Those of a branch that was summarised on this one too."""
    left = trunk().reply("x", call("1", "read", path="a.py")).result("r", "1")
    left.branch_summary("s", "went elsewhere")
    left.entries[-1] = left.entries[-1].model_copy(update={"details": {"modifiedFiles": ["b.py"]}})
    branch = collect(left.path, trunk().path)
    assert branch is not None
    assert branch.files.details() == {"readFiles": ["a.py"], "modifiedFiles": ["b.py"]}


def test_a_compaction_on_the_branch_stands_for_what_it_summarised() -> None:
    """Its summary is handed on to be updated; what it kept of the shared part is not taken along."""
    left = trunk().user("x1").user("x2").compaction("c", "what was", first_kept_entry_id="u2").user("x3")
    branch = collect(left.path, trunk().path)
    assert texts(branch) == ["text of x1", "text of x2", "text of x3"]
    assert branch is not None
    assert branch.previous_summary == "what was"


def test_a_compaction_that_both_share_is_not_part_of_it() -> None:
    """Also one with a retained tail: the common ancestor is found behind it."""
    shared = trunk().compaction("c", "old", retained_tail=[user_message("tail")]).user("u3")
    branch = collect(grown(shared, "x").path, grown(shared, "y").path)
    assert texts(branch) == ["text of x"]
    assert branch is not None
    assert (branch.previous_summary, branch.ancestor_id) == (None, "u3")


def test_only_what_is_left_is_looked_at() -> None:
    """However long the shared part is, and whatever it holds."""
    shared = Conversation().add(UnknownEntry(id="strange", timestamp=TIME, type="hologram"))
    for number in range(2_000):
        shared.user(f"u{number}")
    path = CountingPath(grown(shared, "x1", "x2").entries)
    assert run_at_once(collect_branch(path, grown(shared, "y").path, max_tokens=1_000)) is not None
    assert path.looks == 2
    left = grown(shared, "x1").add(UnknownEntry(id="other", timestamp=TIME, type="hologram"))
    with pytest.raises(UnsupportedEntryError):
        collect(left.path, shared.path)
    assert texts(collect(left.path, shared.path, unknown_entries="skip")) == ["text of x1"]


def test_the_depth_that_is_shared() -> None:
    """Counted from the root; equal ids elsewhere are no matter."""
    assert common_depth(trunk().path, trunk().path) == 4
    assert common_depth(trunk().path, Conversation().user("z").path) == 0


@pytest.mark.anyio
async def test_a_branch_is_summarised() -> None:
    """What ``branch_summary`` records; the request says that the branch was left."""
    left = trunk().reply("x", call("1", "edit", path="a.py")).result("r", "1").user("last", "It is no use.")
    branch = collect(left.path, trunk().path)
    assert branch is not None
    summarizer = ScriptedSummarizer("## Done\n- tried a.py")
    found = await summarize_branch(branch, summarizer, SETTINGS, instructions="Be brief.")
    assert found.summary == "## Done\n- tried a.py\n\n<modified-files>\na.py\n</modified-files>"
    assert (found.from_id, found.details["modifiedFiles"]) == ("last", ["a.py"])
    [request] = summarizer.requests
    assert request.kind == "branch"
    assert "| It is no use." in request.prompt
    assert request.prompt.endswith("Be brief.")
    # A short branch may have a longer summary: it takes the place of nothing.
    assert (await summarize_branch(branch, ScriptedSummarizer("word " * 100), SETTINGS)).summary
    assert (await summarize_branch(branch, ExtractiveSummarizer(), SETTINGS)).summary


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer, reason",
    [("", "empty"), (SummaryReply("cut", stop_reason="length"), "cut_off"), ("x " * 9_999, "too_long")],
)
async def test_a_bad_summary_of_a_branch_is_refused(answer: Any, reason: str) -> None:
    """As for a compaction: typed, and nothing was changed."""
    branch = collect(grown(trunk(), "x").path, trunk().path)
    assert branch is not None
    with pytest.raises(CompactionError) as caught:
        await summarize_branch(branch, ScriptedSummarizer(answer), SETTINGS)
    assert caught.value.details["reason"] == reason


@pytest.mark.anyio
async def test_through_a_session() -> None:
    """One goes back, and the summary of what was left is shown where one arrives."""
    async with Session.open(MemoryStorage.create()) as session:
        at = await session.append_message(user_message("Which way?"))
        session.append_message(reply_message("To the left."))
        left = await session.append_message(user_message("It is a dead end."))
        paths = await session.log.path(left), await session.log.path(at)
        branch = await run_with_pauses(collect_branch(*paths, max_tokens=1_000))
        assert branch is not None
        found = await summarize_branch(branch, ExtractiveSummarizer(), SETTINGS)
        await session.move_to(at, summary=found.summary)
        context = await session.build_context()
        assert len(context.messages) == 2
        assert "It is a dead end." in context.messages[1].text
