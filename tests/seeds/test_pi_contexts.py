"""pi's session architecture: its example tree, context building, branching and fork, as amended by the rules."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from harness import JsonlStorage, MemoryStorage, Session, SessionContext
from storage import (
    AssistantMessage,
    BranchSummaryEntry,
    CustomMessageEntry,
    LeafEntry,
    MessageEntry,
    NotOnPathError,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

pytestmark = pytest.mark.anyio


def reply(text: str, *calls: str, model: str = "m1") -> AssistantMessage:
    made = (ToolCall(id=call, name="look", arguments={}) for call in calls)
    return AssistantMessage(content=[TextContent(text=text), *made], provider="p", model=model)


def result(call: str, text: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call, tool_name="look", content=[TextContent(text=text)])


def texts(context: SessionContext) -> list[str]:
    return [message.text for message in context.messages]


async def example(session: Session) -> dict[str, str]:
    """The tree of the chapter: messages 1 to 4, a compaction, two more; and a branch summary with two of its own."""
    made: dict[str, str] = {}
    made["1"] = await session.append_message(UserMessage(content="user #1"))
    made["2"] = await session.append_message(reply("assistant #1", "c1"))
    made["3"] = await session.append_message(result("c1", "tool result"))
    made["4"] = await session.append_message(UserMessage(content="user #2"))
    made["5"] = await session.append_compaction("what happened", first_kept_entry_id=made["4"], tokens_before=1000)
    made["6"] = await session.append_message(reply("assistant #2"))
    made["7"] = await session.append_message(UserMessage(content="user #3"))
    made["9"] = await session.move_to(None, summary="the other road")
    made["10"] = await session.append_message(UserMessage(content="user #4"))
    made["11"] = await session.append_message(reply("assistant #4"))
    made["8"] = await session.move_to(made["7"])
    return made


async def test_the_example_tree_gives_both_contexts() -> None:
    """The compacted branch: summary, what was kept, what came after. The other root: its summary and its own messages."""
    async with Session.open(MemoryStorage.create()) as session:
        made = await example(session)
        assert session.leaf_id == made["7"]
        context = await session.build_context()
        assert context.entry_ids == [made[name] for name in ("5", "4", "6", "7")]
        assert texts(context)[1:] == ["user #2", "assistant #2", "user #3"]
        assert "what happened" in texts(context)[0]
        assert context.compaction_id == made["5"]
        other = await session.build_context(leaf_id=made["11"])
        assert other.entry_ids == [made[name] for name in ("9", "10", "11")]
        assert "the other road" in texts(other)[0]
        assert texts(other)[1:] == ["user #4", "assistant #4"]
        assert other.compaction_id is None
        summary, leaf = await session.entry(made["9"]), await session.entry(made["8"])
        assert isinstance(summary, BranchSummaryEntry)
        assert (summary.parent_id, summary.from_id) == (None, made["7"])
        assert isinstance(leaf, LeafEntry)
        assert (leaf.parent_id, leaf.target_id) == (made["7"], made["7"])


async def test_the_entries_the_summary_stands_for_stay_in_the_record() -> None:
    """Compaction shortens what is shown, never what is stored: the leaf before it gives the whole conversation."""
    async with Session.open(MemoryStorage.create()) as session:
        made = await example(session)
        before = await session.build_context(leaf_id=made["4"])
        assert before.entry_ids == [made[name] for name in ("1", "2", "3", "4")]
        assert len(await session.entries()) == len(made)


async def test_everything_from_the_first_kept_entry_is_kept() -> None:
    """Ten messages, the first kept is the eighth: summary, 8, 9, 10; then what comes after, in order."""
    async with Session.open(MemoryStorage.create()) as session:
        made = [await session.append_message(UserMessage(content=f"{number}")) for number in range(1, 11)]
        await session.append_compaction("one to seven", first_kept_entry_id=made[7], tokens_before=1)
        await session.append_message(UserMessage(content="11"))
        assert texts(await session.build_context())[1:] == ["8", "9", "10", "11"]


async def test_the_retained_tail_is_shown_and_wins() -> None:
    """Amended (R18): the tail is in the context (the chapter's own excerpt forgets it), the first kept entry is not."""
    async with Session.open(MemoryStorage.create()) as session:
        first = await session.append_message(UserMessage(content="old"))
        tail = [UserMessage(content="tail"), reply("tail reply")]
        compaction = await session.append_compaction(
            "sum", first_kept_entry_id=first, retained_tail=tail, tokens_before=1
        )
        after = await session.append_message(UserMessage(content="after"))
        context = await session.build_context()
        assert texts(context)[1:] == ["tail", "tail reply", "after"]
        assert context.entry_ids == [compaction, compaction, compaction, after]


async def test_only_the_latest_compaction_speaks() -> None:
    """Amended (R18): an earlier summary inside the kept range is not shown (pi-agent-core showed it)."""
    async with Session.open(MemoryStorage.create()) as session:
        first = await session.append_message(UserMessage(content="kept"))
        await session.append_compaction("older words", first_kept_entry_id=first, tokens_before=1)
        await session.append_compaction("newer words", first_kept_entry_id=first, tokens_before=1)
        context = await session.build_context()
        assert len(context.messages) == 2
        assert "newer words" in texts(context)[0]
        assert texts(context)[1] == "kept"


async def test_a_compaction_whose_kept_entries_lie_on_another_branch_is_refused() -> None:
    """Amended (R18): someone navigated away while the summary was made; nothing is written."""
    async with Session.open(MemoryStorage.create()) as session:
        first = await session.append_message(UserMessage(content="u1"))
        left = await session.append_message(UserMessage(content="u2"))
        await session.move_to(first)
        count = len(await session.entries())
        with pytest.raises(NotOnPathError):
            await session.append_compaction("sum", first_kept_entry_id=left, tokens_before=1)
        assert len(await session.entries()) == count
        assert texts(await session.build_context()) == ["u1"]


async def test_state_is_that_of_the_path_across_compactions_and_of_no_other_branch() -> None:
    """Amended (R22): model, thinking level and tools set before a compaction stay; going back gives what was then."""
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_model_change("p", "m0")
        await session.append_thinking_level_change("high")
        await session.append_active_tools_change(["look"])
        fork = await session.append_message(UserMessage(content="go"))
        await session.append_compaction("sum", tokens_before=1)
        context = await session.build_context()
        assert context.model is not None
        assert (context.model.model_id, context.thinking_level, context.active_tools) == ("m0", "high", ["look"])
        await session.append_message(reply("hello", model="m9"))
        await session.append_thinking_level_change("low")
        later = await session.build_context()
        assert later.model is not None
        assert (later.model.model_id, later.thinking_level) == ("m9", "low")
        back = await session.build_context(leaf_id=fork)
        assert back.model is not None
        assert (back.model.model_id, back.thinking_level) == ("m0", "high")


async def test_custom_messages_are_shown_and_custom_entries_only_through_a_projector() -> None:
    """A custom message is a user message; a custom entry, a label, a name and metadata are none, unless an app projects."""
    async with Session.open(MemoryStorage.create()) as session:
        first = await session.append_message(UserMessage(content="hi"))
        shown = await session.append_custom_message("progress", "three of five", details={"n": 3})
        custom = await session.append_custom_entry("steps", {"done": 3})
        await session.append_label(first, "IMPORTANT_DECISION")
        await session.append_session_name("web app")
        await session.append_metadata("cwd", "/w")
        context = await session.build_context()
        assert context.entry_ids == [first, shown]
        assert texts(context) == ["hi", "three of five"]
        assert {message.role for message in context.messages} == {"user"}
        assert isinstance(await session.entry(shown), CustomMessageEntry)
        projected = await session.build_context(projectors={"steps": lambda entry: [UserMessage(content="3 done")]})
        assert projected.entry_ids == [first, shown, custom]
        assert texts(projected)[2] == "3 done"
        assert await session.label(first) == "IMPORTANT_DECISION"
        assert await session.name() == "web app"


async def test_branching_in_place_keeps_both_roads() -> None:
    """root, A, B, C, D; back to B, then B': each leaf has its own conversation."""
    async with Session.open(MemoryStorage.create()) as session:
        a, b, c, d = [await session.append_message(UserMessage(content=name)) for name in "ABCD"]
        await session.move_to(b)
        other = await session.append_message(UserMessage(content="B'"))
        assert [entry.id for entry in await session.branch()][:2] == [a, b]
        assert texts(await session.build_context()) == ["A", "B", "B'"]
        assert texts(await session.build_context(leaf_id=d)) == ["A", "B", "C", "D"]
        assert other not in (await session.build_context(leaf_id=c)).entry_ids


async def test_a_fork_is_a_session_of_its_own_with_the_same_path(tmp_path: Path) -> None:
    """Ids kept, places counted anew, the whole path (amended: also what lies before a compaction), its parent recorded."""
    async with Session.open(JsonlStorage.create(tmp_path / "one.jsonl")) as session:
        made = await example(session)
        await session.append_label(made["1"], "start")
        expected = await session.build_context(leaf_id=made["7"])
        before = (tmp_path / "one.jsonl").read_bytes()
        async with await session.fork(made["7"], into=partial(JsonlStorage.create, tmp_path / "two.jsonl")) as fork:
            assert fork.id != session.id
            assert fork.header.parent_session == session.id
            assert fork.leaf_id == made["7"]
            branch = await fork.branch()
            assert [entry.id for entry in branch] == [made[name] for name in "1234567"]
            assert [entry.seq for entry in branch] == list(range(7))
            assert await fork.label(made["1"]) == "start"
            context = await fork.build_context()
            assert (context.messages, context.entry_ids) == (expected.messages, expected.entry_ids)
            assert (context.model, context.chars) == (expected.model, expected.chars)
            await fork.append_message(UserMessage(content="only here"))
        assert (tmp_path / "one.jsonl").read_bytes() == before
    async with Session.open(JsonlStorage.open(tmp_path / "two.jsonl")) as again:
        assert texts(await again.build_context())[-1] == "only here"
        last = (await again.branch())[-2]
        assert isinstance(last, MessageEntry)
        assert last.id == made["7"]
