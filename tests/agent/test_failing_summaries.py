"""A summariser that fails: no entry, a typed error told, the history as it was, and the turn goes on with what fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from compaction import CompactionSettings, FallbackSummarizer, SummaryReply, SummaryRequest
from harness import (
    AgentHarness,
    AgentSettings,
    BudgetError,
    CompactionError,
    CompactionFacts,
    ExtractiveSummarizer,
    HookError,
    MemoryStorage,
    ModelSummarizer,
    Refusal,
    Session,
)
from harness.hooks import Hook
from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from tests.agent.agents import check_well_formed, history
from tests.agent.compacting import (
    SUMMARY,
    WORDS,
    Summarizing,
    Telling,
    answering,
    check_rebuilt,
    compactions,
    conversation,
    is_summary,
    model_at,
)

pytestmark = pytest.mark.anyio


async def never_ends() -> str:
    await anyio.sleep_forever()
    return ""


def hangs(_: SummaryRequest) -> Any:
    return never_ends()


FAILURES: dict[str, tuple[str, Callable[[SummaryRequest], Any]]] = {
    "raises": ("summarizer_failed", lambda _: RuntimeError("it burns")),
    "hangs": ("timed_out", hangs),
    "says nothing": ("empty", lambda _: " \n\t "),
    "says more than it got": ("too_long", lambda request: request.prompt * 3),
    "calls a tool": ("tool_call", lambda _: SummaryReply("Let me see.", has_tool_calls=True)),
    "is cut off": ("cut_off", lambda _: SummaryReply("## Goal\n- to", stop_reason="length")),
    "answers no reply": ("summarizer_failed", lambda _: 5),
    "answers no text": ("summarizer_failed", lambda _: SummaryReply(cast("str", None))),
    "says that it failed": ("summarizer_failed", lambda _: SummaryReply("", stop_reason="error", error_message="no")),
}


def settings_for(answer: Callable[[SummaryRequest], Any]) -> AgentSettings:
    """Little time for one that hangs; for one that fails in another way more than it takes on any machine."""
    return AgentSettings(compaction=CompactionSettings(summary_timeout=0.3 if answer is hangs else 60))


@pytest.mark.parametrize("name", FAILURES)
async def test_a_summariser_that_fails(name: str, chat: Session, place: Path) -> None:
    """Each prompt is answered, no request is too long, and the summariser is not asked at each of them."""
    reason, answer = FAILURES[name]
    summarizer = Summarizing(answer)
    with ScriptedServer(answering(), context_window=2_500) as server:
        model = model_at(server)
        harness = AgentHarness(chat, model, settings=settings_for(answer), summarizer=summarizer)
        hook = Telling()
        harness.on(hook)
        for number in range(30):
            await harness.prompt(f"{number}: {WORDS}")
        await check_rebuilt(chat, server, model)
        entries = await chat.entries()
        check_well_formed(entries)
        assert compactions(entries) == []
        assert len(server.requests) == 30
        assert {event.failure for event in hook.told if event.__class__.__name__ == "CompactionFailed"} == {reason}
        assert len(hook.told) == 2 * len(summarizer.requests)
        assert 2 <= len(summarizer.requests) <= 6
        before = place.read_bytes()
        with pytest.raises(CompactionError) as caught:
            await harness.compact()
        assert caught.value.details["reason"] == reason
        assert place.read_bytes() == before
        await harness.aclose()
        async with AgentHarness(chat, model, summarizer=Summarizing()) as harness:
            await harness.compact()
            assert len(compactions(await chat.entries())) == 1
            assert (await harness.prompt("And now?")).text


BAD_REPLIES: dict[str, Any] = {
    "nothing": Reply(""),
    "a refusal of the server": HttpAnswer(400, {"error": {"message": "no"}}),
    "a call": tool_call("look", "c1"),
    "cut off": Reply("## Goal\n- to", stop_reason="length"),
    "a torn connection": Reply("## Goal\n- to", cut=True),
    "too much": "word " * 9_000,
}


@pytest.mark.parametrize("name", BAD_REPLIES)
async def test_a_model_that_summarises_badly(name: str, chat: Session) -> None:
    """The same through the model's own adapter: what was asked is answered."""
    with ScriptedServer(answering(summary=lambda _: BAD_REPLIES[name]), context_window=2_500) as server:
        harness = AgentHarness(chat, model_at(server))
        for number in range(16):
            await harness.prompt(f"{number}: {WORDS}")
        assert len(conversation(server)) == 16
        assert [request for request in server.requests if is_summary(request)]
    entries = await chat.entries()
    check_well_formed(entries)
    assert compactions(entries) == []


async def test_a_fallback(chat: Session) -> None:
    """A model that fails or takes too long, and the extractive one behind it."""
    bad: list[Any] = [
        Reply("", stop_reason="stop"),
        Reply("late", delay=30),
        HttpAnswer(400, {"error": {"message": "no"}}),
    ]
    script = answering(summary=lambda _: bad.pop(0) if bad else SUMMARY)
    with ScriptedServer(script, context_window=2_048) as server:
        model = model_at(server)
        summarizer = FallbackSummarizer(ModelSummarizer(model), ExtractiveSummarizer(), seconds=0.3)
        harness = AgentHarness(chat, model, summarizer=summarizer)
        for number in range(50):
            await harness.prompt(f"{number}: {WORDS}")
    made = compactions(await chat.entries(limit=10_000))
    assert len(made) > 3
    assert [entry.summary == SUMMARY for entry in made[:4]] == [False, False, False, True]
    assert made[0].usage is not None  # of the answer that was refused


class Deciding(Hook):
    """Answers what it is told to, once."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[CompactionFacts] = []

    async def before_compact(self, compaction: CompactionFacts) -> Any:
        self.seen.append(compaction)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", ["## Goal\n- of the hook", SummaryReply("## Goal\n- of the hook")])
async def test_a_hook_that_has_the_summary(chat: Session, answer: Any) -> None:
    """The summariser is not asked; the first answer counts."""
    summarizer = Summarizing()
    with ScriptedServer(answering(), context_window=2_048) as server:
        harness = AgentHarness(chat, model_at(server), summarizer=summarizer)
        harness.on(Deciding(None))
        hook = Deciding(answer)
        harness.on(hook)
        harness.on(Deciding(Refusal("too late")))
        for number in range(14):
            await harness.prompt(f"{number}: {WORDS}")
    assert summarizer.requests == []
    assert {entry.summary for entry in compactions(await chat.entries())} == {"## Goal\n- of the hook"}
    assert hook.seen[0].reason == "size"
    assert "0: What about" in hook.seen[0].plan.messages[0].text


async def test_a_hook_that_cancels(chat: Session) -> None:
    """The turn goes on; by hand, it is an error that says so; a summary that is none is refused from a hook, too."""
    hook, telling = Deciding(Refusal("not today")), Telling()
    with ScriptedServer(answering(), context_window=2_500) as server:
        harness = AgentHarness(chat, model_at(server), summarizer=Summarizing())
        harness.on(hook)
        harness.on(telling)
        for number in range(20):
            await harness.prompt(f"{number}: {WORDS}")
        assert telling.told[1].failure == "cancelled"
        assert len(hook.seen) < 6
        with pytest.raises(CompactionError, match="not today"):
            await harness.compact("Keep the names.")
        assert hook.seen[-1].reason == "by_hand"
        assert hook.seen[-1].instructions == "Keep the names."
        hook.answer = "  "
        with pytest.raises(CompactionError) as caught:
            await harness.compact()
        assert caught.value.details["reason"] == "empty"
    assert compactions(await chat.entries()) == []


@pytest.mark.parametrize("answer", [ValueError("a slip"), 3])
async def test_a_hook_that_fails(chat: Session, answer: Any) -> None:
    """The turn ends as failed, as with any hook of a request; nothing is summarised."""
    with ScriptedServer(answering(), context_window=2_500) as server:
        harness = AgentHarness(chat, model_at(server), summarizer=Summarizing())
        for number in range(5):
            await harness.prompt(f"{number}: {WORDS}")
        take_off = harness.on(Deciding(answer))
        with pytest.raises(HookError, match="before_compact"):
            for number in range(9):
                await harness.prompt(f"{number}: {WORDS}")
        assert (await history(chat))[-1].endswith("failed")
        check_well_formed(await chat.entries())
        assert compactions(await chat.entries()) == []
        take_off()
        await harness.prompt("Again.")
        assert compactions(await chat.entries())


async def test_what_cannot_fit_is_named() -> None:
    """A prompt that alone is more than the window: an error with the unit, its size and the budget; no summary asked."""
    summarizer = Summarizing()
    async with Session.open(MemoryStorage.create()) as session:
        with ScriptedServer(answering()) as server:
            harness = AgentHarness(session, model_at(server), summarizer=summarizer)
            for number in range(4):
                await harness.prompt(f"{number}: {WORDS}")
            asked = len(server.requests)
            with pytest.raises(BudgetError, match=r"\d,?\d\d\d"):
                await harness.prompt("word " * 4_000)
            assert len(server.requests) == asked
        assert summarizer.requests == []
        check_well_formed(await session.entries())


async def test_the_deadline_ends_the_request() -> None:
    """A model that is silent while it should summarise: the connection is closed when its time is over."""
    script = answering(summary=lambda _: Reply("late", delay=600))
    asked = False
    for seconds in (0.05, 0.5, 5):  # until it is time enough for the request to reach the server
        settings = AgentSettings(compaction=CompactionSettings(summary_timeout=seconds))
        async with Session.open(MemoryStorage.create()) as session:
            with ScriptedServer(script, context_window=2_500) as server:
                harness = AgentHarness(session, model_at(server), settings=settings)
                for number in range(14):
                    await harness.prompt(f"{number}: {WORDS}")
                asked = any(is_summary(request) for request in server.requests)
                assert not asked or await anyio.to_thread.run_sync(server.wait_for_hang_up, 1, 60)
            assert compactions(await session.entries()) == []
        if asked:
            break
    assert asked


@pytest.mark.parametrize("side_by_side", [1, 3])
async def test_the_newest_results_are_shortened_where_nothing_else_helps(side_by_side: int, chat: Session) -> None:
    """A failing summariser and a result larger than the window: the turn goes on with its head and tail (R26 holds)."""

    def big() -> str:
        return "\n".join(f"line {number}" for number in range(1_500))

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        big_is_asked = last["role"] == "user" and "BIG" in str(last["content"])
        return [tool_call("big", str(number)) for number in range(side_by_side)] if big_is_asked else "Fine."

    with ScriptedServer(answer, context_window=2_500) as server:
        model = model_at(server)
        summarizer = Summarizing(lambda _: RuntimeError("it burns"))
        harness = AgentHarness(chat, model, tools=[big], summarizer=summarizer)
        assert (await harness.prompt("BIG, please.")).text == "Fine."
        assert (await harness.prompt("And now?")).text == "Fine."
        shown = str(server.requests[1].messages)
        assert "line 0" in shown
        assert "line 1499" in shown
        assert "are left out here" in shown
        recorded = [line for line in await history(chat) if line.startswith("result") and "line 700" in line]
        assert len(recorded) == side_by_side
        await check_rebuilt(chat, server, model)
    check_well_formed(await chat.entries())
