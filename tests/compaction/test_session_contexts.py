"""R18-R22 through the public session, on asyncio and on trio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from harness import (
    AssistantMessage,
    BudgetError,
    JsonlStorage,
    MemoryStorage,
    NotOnPathError,
    RoughEstimator,
    Session,
    SettingsError,
    TextContent,
    TiktokenEstimator,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    estimate_chars,
)
from tests.compaction.estimators import CountsForEver

pytestmark = pytest.mark.anyio


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def reply(text: str = "", *calls: str, **more: Any) -> AssistantMessage:
    content: list[Any] = [TextContent(text=text)] if text else []
    return AssistantMessage(content=[*content, *(ToolCall(id=one, name="t", arguments={}) for one in calls)], **more)


async def texts(session: Session, **options: Any) -> list[str]:
    return [message.text for message in (await session.build_context(**options)).messages]


@pytest.mark.parametrize("estimator", ["gpt-5-mini", ["gpt-5-mini"], 3, len])
async def test_a_name_is_no_estimator(estimator: Any) -> None:
    """A text has a ``count`` too, and would count next to nothing: refused with what to give."""
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_message(user("hello " * 1_000))
        with pytest.raises(SettingsError, match="TiktokenEstimator") as caught:
            await session.build_context(max_tokens=100, estimator=estimator)
        assert caught.value.details["setting"] == "estimator"


async def test_a_context_of_a_file_is_that_of_memory(tmp_path: Path) -> None:
    """Written by the log, reopened from disk: messages, sizes and ids are the same, and sizes are those of the JSON."""
    async with Session.open(JsonlStorage.create(tmp_path / "one.jsonl")) as session:
        session.append_message(user('quo"ted é 漢 \u2028 \x07'))
        session.append_message(reply("calling", "x", usage=Usage(input=5, output=3, total_tokens=8)))
        session.append_message(ToolResultMessage(tool_call_id="x", tool_name="t", content="out\n", details={"n": 1.5}))
        await session.append_working_memory("set", "k", {"v": "é"})
        first = await session.build_context()
    async with Session.open(JsonlStorage.open(tmp_path / "one.jsonl")) as again:
        second = await again.build_context()
    assert second.messages == first.messages
    assert second.entry_ids == first.entry_ids
    assert second.chars == first.chars == estimate_chars(first.messages)
    assert len(first.messages) == 4
    assert first.tokens == second.tokens > 8


async def test_going_back_gives_the_state_and_the_context_of_that_branch() -> None:
    """R22 and R20: what was said on the other branch is neither shown nor in force here."""
    async with Session.open(MemoryStorage.create()) as session:
        at = await session.append_message(user("one"))
        session.append_model_change("p", "here")
        mark = await session.append_message(reply("", "x"))
        session.append_thinking_level_change("high")
        session.append_message(ToolResultMessage(tool_call_id="x", tool_name="t", content="out"))
        session.append_working_memory("set", "k", 1)
        await session.append_model_change("q", "there")
        assert (await texts(session))[-2:] == ["out", "Working memory, as it stands now:\nk: 1"]
        await session.move_to(mark)
        context = await session.build_context()
        assert [message.text for message in context.messages][-1] == "(This tool call was not run on this branch.)"
        assert context.entry_ids == [at, mark, mark]
        assert (context.model, context.thinking_level, context.working_memory) == (("p", "here"), "off", {})
        assert await texts(session, leaf_id=None) == []


async def test_compactions_through_the_session() -> None:
    """R18: the newest counts; a first kept entry that is not on the path is refused when it is written."""
    async with Session.open(MemoryStorage.create()) as session:
        first = await session.append_message(user("one"))
        kept = await session.append_message(user("two"))
        await session.append_compaction("sum", first_kept_entry_id=kept, tokens_before=10)
        session.append_message(user("three"))
        shown = await texts(session)
        assert shown[1:] == ["two", "three"]
        assert "sum" in shown[0]
        await session.move_to(first)
        with pytest.raises(NotOnPathError):
            await session.append_compaction("sum", first_kept_entry_id=kept, tokens_before=10)
        assert await texts(session) == ["one"]


async def test_budgets_through_the_session() -> None:
    """R19, R21: characters and tokens, exact ones from real encodings included; too small is an error that says so."""
    async with Session.open(MemoryStorage.create()) as session:
        for number in range(30):
            session.append_message(user(f"question {number}"))
            session.append_message(reply(f"answer {number}"))
        whole = await session.build_context()
        assert len(whole.messages) == 60
        half = await session.build_context(max_chars=whole.chars // 2)
        assert 28 <= len(half.messages) <= 30
        assert half.messages == whole.messages[-len(half.messages) :]
        exact = TiktokenEstimator("gpt-4o")
        counted = await session.build_context(max_tokens=100, estimator=exact)
        assert counted.tokens <= 100
        assert (
            len(counted.messages)
            > len((await session.build_context(max_tokens=100, estimator=RoughEstimator())).messages)
            > 0
        )
        assert counted.warnings == []
        with pytest.raises(BudgetError, match="max_tokens is 3"):
            await session.build_context(max_tokens=3, estimator=exact)


async def test_what_is_appended_while_a_context_is_built_is_not_in_it() -> None:
    """A context is of one moment: the path it began with."""
    async with Session.open(MemoryStorage.create()) as session:
        for number in range(3_000):
            session.append_message(user(f"{number} " * 100))
        await session.flush()

        async def append() -> None:
            await session.append_message(user("late"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            context = await session.build_context()
            assert len(context.messages) in (3_000, 3_001)
            assert [message.text for message in context.messages[:2]] == ["0 " * 100, "1 " * 100]
        assert (await texts(session))[-1] == "late"


async def test_a_long_count_can_be_cancelled() -> None:
    """Nothing is left behind, and the session goes on."""
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_message(user("The quick brown fox. " * 100_000))
        estimator = CountsForEver("gpt-4o")
        with anyio.move_on_after(0.005) as scope:
            await session.build_context(estimator=estimator)
        assert scope.cancelled_caught
        assert not estimator.let_go.is_set()
        estimator.let_go.set()
        await session.append_message(user("go on"))
        assert (await session.build_context()).messages[-1].text == "go on"
