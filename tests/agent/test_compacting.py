"""A long conversation in a small window, through a real server that holds to it: it compacts on its own, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction import CompactionSettings
from harness import (
    AgentHarness,
    AgentSettings,
    CompactionError,
    ContextOverflowError,
    ExtractiveSummarizer,
    JsonlStorage,
    MemoryStorage,
    ModelSummarizer,
    Session,
    TurnLimitError,
)
from harness.testing import HttpAnswer, ReceivedRequest, Reply, ScriptedServer, tool_call
from storage.entries import MessageEntry
from storage.messages import Usage, UserMessage
from tests.agent.agents import check_well_formed, history
from tests.agent.compacting import (
    OVERFLOWS,
    SUMMARY,
    WORDS,
    Summarizing,
    Telling,
    answering,
    broken_prefixes,
    check_rebuilt,
    compactions,
    conversation,
    is_summary,
    model_at,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("usage", ["asked", "never"])
async def test_it_compacts_on_its_own(chat: Session, place: Path, usage: str) -> None:
    """No request is refused, each can be rebuilt, and only a compaction changes how a request begins."""
    with ScriptedServer(answering(), context_window=2_048, usage=usage) as server:  # pyright: ignore[reportArgumentType]
        model = model_at(server)
        harness = AgentHarness(chat, model, system_prompt="Be brief.")
        hook = Telling()
        harness.on(hook)
        for number in range(40):
            await harness.prompt(f"{number}: {WORDS}")
        made = compactions(await chat.entries())
        assert len(made) > 2
        assert len(conversation(server)) == 40
        assert broken_prefixes(conversation(server)) <= len(made)
        await check_rebuilt(chat, server, model)
    check_well_formed(await chat.entries())
    assert hook.names == ["Started", "Finished"] * len(made)
    assert [event.entry_id for event in hook.told[1::2]] == [entry.id for entry in made]
    assert all(event.tokens_after < event.tokens_before for event in hook.told[1::2])
    assert made[0].usage is not None or usage == "never"
    await chat.aclose()
    async with Session.open(JsonlStorage.open(place, mode="read")) as again:
        messages = (await again.build_context()).messages
        assert SUMMARY in messages[0].text
        assert sum(SUMMARY in message.text for message in messages) == 1


@pytest.mark.parametrize(
    ("window", "settings", "compacts"),
    [
        (32_768, AgentSettings(max_tokens=1_500), True),
        (None, AgentSettings(max_tokens=1_500, compaction=CompactionSettings()), True),
        (None, AgentSettings(max_tokens=1_500), False),
        (32_768, AgentSettings(max_chars=6_000), False),
    ],
    ids=["a window", "settings", "no window", "characters"],
)
async def test_a_budget_of_tokens_counts_where_a_window_is_known(
    chat: Session, window: int | None, settings: AgentSettings, compacts: bool
) -> None:
    """Then a summary is made before the budget cuts anything off; elsewhere the budget cuts, oldest first."""
    with ScriptedServer(answering()) as server:
        harness = AgentHarness(chat, model_at(server, window), settings=settings)
        for number in range(30):
            await harness.prompt(f"{number}: {WORDS}")
        assert bool(compactions(await chat.entries())) is compacts
        assert len(conversation(server)[-1].messages) < 45
        is_cut = len(conversation(server)[-1].messages) < len((await chat.build_context()).messages) - 2
        assert is_cut is not compacts


async def test_between_the_steps_of_a_turn(chat: Session) -> None:
    """One prompt with many large results: its own beginning is summarised, and the turn comes to its end."""
    steps = 12

    def answer(request: ReceivedRequest) -> object:
        done = len(conversation(server))
        return tool_call("look", f"c{done}", number=done) if done <= steps else "All seen."

    def look(number: int) -> str:
        """Look at something."""
        return f"{number}: " + "a line of it, and another one\n" * 25

    with ScriptedServer(answering(answer), context_window=2_048) as server:  # pyright: ignore[reportArgumentType]
        model = model_at(server)
        harness = AgentHarness(chat, model, tools=[look])
        assert (await harness.prompt("Look at everything.")).text == "All seen."
        await check_rebuilt(chat, server, model)
        summaries = [request for request in server.requests if is_summary(request)]
    entries = await chat.entries()
    check_well_formed(entries)
    made = compactions(entries)
    assert len(made) > 1
    assert len(summaries) == len(made)
    assert all("tools" not in request.body for request in summaries)
    assert made[0].details["splitTurn"] is True
    assert "Look at everything." in summaries[0].messages[-1]["content"]


async def test_large_results_are_shortened_first(chat: Session) -> None:
    """The cheap step: no summary, the same bytes between two of them, and each request can be rebuilt."""

    def answer(request: ReceivedRequest) -> object:
        return tool_call("look", "c1") if request.messages[-1]["role"] == "user" else "Seen."

    def look() -> str:
        """Look at something."""
        return "a line of what is there\n" * 250

    with ScriptedServer(answering(answer), context_window=8_192) as server:  # pyright: ignore[reportArgumentType]
        model = model_at(server, 8_192)
        harness = AgentHarness(chat, model, tools=[look])
        for number in range(5):
            await harness.prompt(f"Look, {number}.")
        await check_rebuilt(chat, server, model)
        broken = broken_prefixes(conversation(server))
    entries = await chat.entries()
    requests = [entry.request for entry in entries if isinstance(entry, MessageEntry) and entry.request]
    chosen = [request.shortened.before for request in requests if request.shortened]
    assert requests[0].shortened is None
    assert 1 < len(set(chosen)) < len(chosen) / 2
    assert broken == len(set(chosen))
    assert compactions(entries) == []


@pytest.mark.parametrize("overflow", OVERFLOWS)
async def test_a_provider_that_says_it_is_too_long(chat: Session, overflow: str) -> None:
    """A model whose window nobody knows: compacted once it refuses, asked again once; from then on the window is known."""
    refused: list[int] = []

    def answer(request: ReceivedRequest) -> object:
        if len(request.raw) // 4 > 2_048:
            refused.append(len(request.raw))
            return OVERFLOWS[overflow]
        return "Answered. " + "So it is. " * 12

    with ScriptedServer(answering(answer), usage="never") as server:  # pyright: ignore[reportArgumentType]
        model = model_at(server, None)
        harness = AgentHarness(chat, model)
        hook = Telling()
        harness.on(hook)
        for number in range(40):
            await harness.prompt(f"{number}: {WORDS}")
        await check_rebuilt(chat, server, model)
    entries = await chat.entries()
    check_well_formed(entries)
    made = compactions(entries)
    assert len(refused) == 1
    assert len(made) > 2
    assert hook.told[0].reason == "overflow"
    assert hook.told[2].reason == "size"


@pytest.mark.parametrize("compaction", [True, False])
async def test_one_that_is_always_too_long(chat: Session, compaction: bool) -> None:
    """Asked again once at most, then the turn fails with what the provider said; the next one is tried as before."""
    with ScriptedServer(lambda _: OVERFLOWS["openai"]) as server:
        harness = AgentHarness(chat, model_at(server, None), settings=AgentSettings(compaction=compaction))
        for number in range(6):
            await chat.append_message(UserMessage(content=f"{number} {WORDS}"))
        for _ in range(2):
            before = len(conversation(server))
            with pytest.raises(ContextOverflowError):
                await harness.prompt("And now?")
            assert len(conversation(server)) - before <= (2 if compaction else 1)
    assert compactions(await chat.entries()) == []
    assert (await history(chat))[-1] == "turn_end 2 failed"


async def test_switched_off() -> None:
    """Then nothing is summarised: what does not fit is left out, oldest first."""
    async with Session.open(MemoryStorage.create()) as session:
        with ScriptedServer(answering(), context_window=2_500) as server:
            harness = AgentHarness(session, model_at(server), settings=AgentSettings(compaction=False))
            for number in range(20):
                await harness.prompt(f"{number}: {WORDS}")
            assert len(server.requests) == 20
        assert compactions(await session.entries()) == []


async def test_settings_of_ones_own() -> None:
    """Where nobody knows the window the settings say it, and what is left for the reply."""
    settings = CompactionSettings(context_window=1_200, reserve_tokens=100)
    async with Session.open(MemoryStorage.create()) as session:
        with ScriptedServer(answering(), context_window=1_200) as server:
            harness = AgentHarness(session, model_at(server, None), settings=AgentSettings(compaction=settings))
            for number in range(12):
                await harness.prompt(f"{number}: {WORDS}")
            assert len(conversation(server)) == 12
        assert compactions(await session.entries())


async def test_a_window_without_room_is_refused_at_start() -> None:
    """Before anything is recorded, with the four numbers."""

    def look() -> str:
        """Look at something, and then at something else."""
        return ""

    async with Session.open(MemoryStorage.create()) as session:
        with ScriptedServer([]) as server:
            harness = AgentHarness(session, model_at(server, 200), tools=[look], system_prompt="Be brief. " * 50)
            with pytest.raises(
                CompactionError, match=r"window is 200, .* prompt takes 1\d\d, the tools \d\d .* reply 50"
            ):
                await harness.prompt("Hello")
            assert server.requests == []
        assert await session.entries() == []


async def test_another_summarizer(chat: Session) -> None:
    """The app's own: another model, with its own window, or none at all."""
    with ScriptedServer(lambda _: "## Goal\n- of the other") as other:
        small = model_at(other, 700)
        with ScriptedServer(lambda _: "Answered. " + "So it is. " * 12) as server:
            harness = AgentHarness(chat, model_at(server), summarizer=ModelSummarizer(small))
            for number in range(12):
                await harness.prompt(f"{number}: {WORDS}")
            assert len(server.requests) == 12
        assert other.requests
        assert all(len(request.raw) // 4 < 900 for request in other.requests)
    assert compactions(await chat.entries())[-1].summary == "## Goal\n- of the other"


async def test_without_a_model(chat: Session) -> None:
    """Nothing is asked; what a person wanted remembered is still shown."""
    with ScriptedServer(lambda _: "Answered. " + "So it is. " * 12) as server:
        harness = AgentHarness(chat, model_at(server), summarizer=ExtractiveSummarizer())
        await harness.prompt("Remember: the service listens on port 4711.")
        for number in range(20):
            await harness.prompt(f"{number}: {WORDS}")
        assert len(server.requests) == 21
        assert "4711" in server.requests[-1].raw.decode()
    assert len(compactions(await chat.entries())) > 1


async def test_what_summaries_cost_counts_for_the_turn(chat: Session) -> None:
    """It is on the entry, and in the account of ``max_turn_tokens``."""
    dear = Reply(SUMMARY, usage=Usage(input=50_000, output=10, total_tokens=50_010))

    def answer(request: ReceivedRequest) -> object:
        roles = [message["role"] for message in request.messages[-3:]]
        return "Seen." if roles.count("tool") == 2 else tool_call("look", "c1")

    def look() -> str:
        """Look."""
        return "nothing"

    script = answering(answer, lambda _: dear)  # pyright: ignore[reportArgumentType]
    with ScriptedServer(script, context_window=2_048) as server:
        settings = AgentSettings(max_turn_tokens=50_000)
        harness = AgentHarness(chat, model_at(server), tools=[look], settings=settings)
        with pytest.raises(TurnLimitError):
            for number in range(20):
                await harness.prompt(f"{number}: {WORDS}")
    made = compactions(await chat.entries())
    assert len(made) == 1
    assert made[0].usage is not None
    assert made[0].usage.total_tokens == 50_010


async def test_the_summary_request_itself_is_too_long(chat: Session) -> None:
    """The summariser counts more than we do: asked once more, with half of it."""
    sizes: list[int] = []

    def summary(request: ReceivedRequest) -> object:
        sizes.append(len(request.raw))
        return HttpAnswer(400, {"error": {"message": "prompt is too long"}}) if len(sizes) == 1 else SUMMARY

    script = answering(summary=summary)  # pyright: ignore[reportArgumentType]
    with ScriptedServer(script) as server:
        harness = AgentHarness(chat, model_at(server))
        for number in range(12):
            await harness.prompt(f"{number}: {WORDS}")
    assert sizes[1] < sizes[0] * 0.8
    assert compactions(await chat.entries())


async def test_results_that_nearly_fill_the_window(chat: Session) -> None:
    """Each is over the trigger by itself: the turn goes on as long as they fit, and nothing is tried for ever."""
    summarizer = Summarizing()

    def answer(request: ReceivedRequest) -> object:
        done = len(server.requests)
        return tool_call("look", f"c{done}") if done < 8 else "All seen."

    def look() -> str:
        """Look."""
        return "a line of what is there\n" * 190

    with ScriptedServer(answer) as server:  # pyright: ignore[reportArgumentType]
        harness = AgentHarness(chat, model_at(server), tools=[look], summarizer=summarizer)
        assert (await harness.prompt("Look.")).text == "All seen."
        assert len(summarizer.requests) <= 8
    check_well_formed(await chat.entries())
