"""A compaction cancelled at every step, and cut off after every line: the history stays whole, and the next prompt works."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from compaction import CompactionSettings
from harness import (
    AgentHarness,
    AgentSettings,
    CompactionFacts,
    JsonlStorage,
    MemoryStorage,
    ModelRequest,
    Session,
    rebuild_request,
)
from harness.hooks import Hook
from harness.testing import ScriptedModel, tool_call
from storage.entries import CompactionEntry, MessageEntry, TurnStartEntry
from storage.messages import AssistantMessage, TextContent, UserMessage
from tests.agent.agents import check_well_formed, history
from tests.agent.cancelling import Cancel, StoppedAtStep, run_cancelled
from tests.agent.compacting import SUMMARY, WORDS, Summarizing, compactions

pytestmark = pytest.mark.anyio

SETTINGS = AgentSettings(compaction=CompactionSettings(context_window=1_500))


class Slow(Hook):
    """Waits before a compaction, and at each event."""

    async def before_compact(self, compaction: CompactionFacts) -> None:
        await anyio.lowlevel.checkpoint()

    async def on_event(self, event: Any) -> None:
        if type(event).__name__.startswith("Compaction"):
            await anyio.lowlevel.checkpoint()


def answer(request: ModelRequest) -> Any:
    """A call to a prompt, a word to its result."""
    return tool_call("look") if request.messages[-1].text.startswith("Go") else "Answered."


def look() -> str:
    """Look at something."""
    return "a line of it\n" * 200


async def slow_summary() -> str:
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    return SUMMARY


async def fill(session: Session) -> None:
    """As much as starts a compaction with the next prompt."""
    for number in range(8):
        session.append_message(UserMessage(content=f"{number}: {WORDS * 2}"))
        await session.append_message(
            AssistantMessage(content=[TextContent(text="So it is. " * 12)], stop_reason="stop")
        )


def harness_on(session: Session, model: ScriptedModel) -> AgentHarness:
    summarizer = Summarizing(lambda _: slow_summary())
    return AgentHarness(session, model, tools=[look], settings=SETTINGS, summarizer=summarizer)


async def check(session: Session, model: ScriptedModel) -> None:
    """Whole; every answered request comes back; no more than one summary is shown."""
    entries = await session.entries()
    check_well_formed(entries)
    replies = [entry.id for entry in entries if isinstance(entry, MessageEntry) and entry.request is not None]
    made = [model.payload(await rebuild_request(session, reply)) for reply in replies]
    sent = [model.payload(request) for request in model.requests]
    assert [body for body in sent if body in made] == made
    shown = (await session.build_context()).messages
    assert sum(SUMMARY in message.text for message in shown) == min(1, len(compactions(entries)))


async def cancelled_at_every_step(way: str, begin: Callable[[AgentHarness], Coroutine[Any, Any, Any]]) -> list[str]:
    """Cancel what ``begin`` begins at each of its steps, until it comes to its end: what came of it, each time.

    Whenever that is: the session is free at once and whole, the next prompt goes on, and sometimes there is a summary.
    """
    outcomes: list[str] = []
    compacted: list[int] = []
    for step in itertools.count(1):
        async with Session.open(MemoryStorage.create()) as session:
            await fill(session)
            model = ScriptedModel(answer)
            harness = harness_on(session, model)
            harness.on(Slow())

            async def work(cancel: Cancel, harness: AgentHarness = harness, step: int = step) -> None:
                await StoppedAtStep(begin(harness), step, cancel)

            with anyio.fail_after(60):
                outcomes.append(await run_cancelled(way, work))
            assert not harness.is_running
            compacted.append(len(compactions(await session.entries())))
            assert compacted[-1] or outcomes[-1] == "cancelled"
            await check(session, model)
            assert (await harness.prompt("Again")).text == "Answered."
            await check(session, model)
            assert compactions(await session.entries())
        if outcomes[-1] == "finished":
            break
    assert {0, 1} <= set(compacted)
    return outcomes


async def test_cancelled_at_every_step_of_a_turn(way: str) -> None:
    """Wherever it is in a turn that compacts: the turn is cancelled, and the next prompt goes on."""
    outcomes = await cancelled_at_every_step(way, lambda harness: harness.prompt("Go"))
    assert len(outcomes) > 15
    assert set(outcomes[:-2]) == {"cancelled"}


async def test_cancelled_at_every_step_by_hand(way: str) -> None:
    """No entry, or a whole one; the session is free at once."""
    assert len(await cancelled_at_every_step(way, lambda harness: harness.compact())) > 5


async def test_cut_off_after_every_line(tmp_path: Path) -> None:
    """As a crash leaves it: taken over, the turn gets its end, and the conversation goes on with or without the summary."""
    whole = tmp_path / "whole.jsonl"
    async with Session.open(JsonlStorage.create(whole)) as session:
        await fill(session)
        harness = harness_on(session, ScriptedModel(answer))
        await harness.prompt("Go")
        await harness.prompt("Go on")
        kinds = [entry.type for entry in await session.entries()]
    lines = whole.read_bytes().splitlines(keepends=True)
    assert "compaction" in kinds
    ends: list[str] = []
    for count in range(2, len(lines) + 1):
        place = tmp_path / f"{count}.jsonl"
        place.write_bytes(b"".join(lines[:count]))
        async with Session.open(JsonlStorage.open(place)) as session:
            model = ScriptedModel(answer)
            async with harness_on(session, model) as harness:
                entries = await session.entries()
                check_well_formed(entries)
                ends.append((await history(session))[-1])
                assert (await harness.prompt("Again")).text == "Answered."
            check_well_formed(await session.entries())
        if kinds[count - 2] == "compaction":
            assert isinstance(entries[count - 2], CompactionEntry)
            assert ends[-1].endswith("interrupted")
        place.unlink()
    shutil.rmtree(tmp_path)


async def test_a_compaction_of_somebody_else_after_a_crash(chat: Session) -> None:
    """Who compacts a session by hand whose turn was cut off has gone on without that turn: it stays as it is."""
    start = await chat.append_entry(TurnStartEntry(turn=1))
    await chat.append_message(UserMessage(content="Go"))
    await chat.append_compaction("By hand.", first_kept_entry_id=start, tokens_before=1)
    assert await chat.recover() == []
