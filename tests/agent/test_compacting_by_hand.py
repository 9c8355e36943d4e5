"""``AgentHarness.compact``: at once, with the person's own words, and beside everything else that goes on."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from harness import (
    AgentHarness,
    BusyError,
    CompactionError,
    Decision,
    NotOnPathError,
    PendingCallError,
    Session,
    TurnAbortedError,
)
from harness.testing import Reply, ScriptedModel, ScriptedServer, tool_call
from storage.entries import CustomMessageEntry, LeafEntry, MessageEntry
from tests.agent.agents import check_well_formed, history
from tests.agent.approving import write
from tests.agent.compacting import (
    SUMMARY,
    WORDS,
    Summarizing,
    Telling,
    answering,
    check_rebuilt,
    compactions,
    is_summary,
    model_at,
)

pytestmark = pytest.mark.anyio


async def talk(harness: AgentHarness, turns: int = 6) -> None:
    for number in range(turns):
        await harness.prompt(f"{number}: {WORDS}")


async def test_by_hand(chat: Session) -> None:
    """All but the newest turn, also where nobody knows the window; the person's words reach the summariser."""
    with ScriptedServer(answering()) as server:
        model = model_at(server, None)
        harness = AgentHarness(chat, model)
        telling = Telling()
        harness.on(telling)
        await talk(harness)
        result = await harness.compact("Keep all the ports.")
        assert result.summary == SUMMARY
        asked = [request for request in server.requests if is_summary(request)]
        assert len(asked) == 1
        assert "Keep all the ports." in asked[0].messages[-1]["content"]
        assert "4: What about" in asked[0].messages[-1]["content"]
        context = await chat.build_context()
        assert [message.role for message in context.messages] == ["user", "user", "assistant"]
        assert context.messages[1].text.startswith("5: ")
        assert not harness.is_running
        await harness.prompt("And now?")
        await check_rebuilt(chat, server, model)
    assert telling.names == ["Started", "Finished"]
    assert telling.told[1].tokens_after < telling.told[1].tokens_before
    assert telling.told[1].entry_id == compactions(await chat.entries())[0].id
    check_well_formed(await chat.entries())


async def test_nothing_to_summarize(chat: Session) -> None:
    """An error that says so, in a new session and right after a compaction; nothing is asked."""
    with ScriptedServer(answering()) as server:
        harness = AgentHarness(chat, model_at(server))
        for turns in (0, 4):
            await talk(harness, turns)
            if turns:
                await harness.compact()
            asked = len(server.requests)
            with pytest.raises(CompactionError) as caught:
                await harness.compact()
            assert caught.value.details["reason"] == "nothing_to_summarize"
            assert len(server.requests) == asked


async def test_while_a_turn_runs(session: Session) -> None:
    """Refused, by the harness and by the session; the turn goes on, and nothing of it is lost."""
    refused: list[str] = []

    async def look() -> str:
        """Look."""
        for attempt in (lambda: harness.compact(), lambda: session.append_compaction("no", tokens_before=1)):
            try:
                await attempt()
            except BusyError as error:
                refused.append(error.code)
        return "seen"

    harness = AgentHarness(session, ScriptedModel([tool_call("look"), "Done."]), tools=[look])
    assert (await harness.prompt("Look.")).text == "Done."
    assert refused == ["busy", "busy"]
    check_well_formed(await session.entries())


async def test_what_happens_meanwhile_stays(chat: Session) -> None:
    """Appended and steered while the summary is made: shown after it. A prompt, a move, another compaction are refused."""
    asked, go_on = anyio.Event(), anyio.Event()

    async def slow() -> str:
        asked.set()
        await go_on.wait()
        return SUMMARY

    summarizer = Summarizing(lambda _: slow())
    with ScriptedServer(answering()) as server:
        harness = AgentHarness(chat, model_at(server), summarizer=summarizer)
        await talk(harness)
        leaf = chat.leaf_id
        async with anyio.create_task_group() as group:
            group.start_soon(harness.compact)
            await asked.wait()
            assert harness.is_running
            await chat.append_custom_message("note", "Somebody else says this.")
            await harness.steer("And I say that.")
            for refused in (lambda: harness.prompt("No."), harness.compact):
                with pytest.raises(BusyError):
                    await refused()
            with pytest.raises(BusyError):
                chat.move_to(leaf)
            go_on.set()
        context = await chat.build_context()
        assert context.messages[-1].text == "Somebody else says this."
        await harness.prompt("Go on.")
        said = [message["content"] for message in server.requests[-1].messages]
        assert SUMMARY in said[0]
        assert said[-3:] == ["Somebody else says this.", "Go on.", "And I say that."]
    assert len(compactions(await chat.entries())) == 1


async def test_somebody_goes_elsewhere_meanwhile(chat: Session) -> None:
    """Past the harness, to another branch: the summary is not written there, and the session is where they went."""
    harness = AgentHarness(chat, ScriptedModel(lambda _: "Answered."))
    await talk(harness, 8)
    first = next(entry for entry in await chat.entries() if isinstance(entry, MessageEntry))

    async def leave() -> str:
        await chat.log.append(LeafEntry(target_id=first.id))
        return SUMMARY

    other = Summarizing(lambda _: leave())
    await harness.aclose()
    harness = AgentHarness(chat, ScriptedModel(lambda _: "Answered."), summarizer=other)
    with pytest.raises(NotOnPathError):
        await harness.compact()
    assert compactions(await chat.entries()) == []
    assert chat.leaf_id == first.id
    assert (await harness.prompt("Go on.")).text == "Answered."


async def test_aborted(chat: Session) -> None:
    """``abort`` ends it, closes the connection, and nothing is changed; then it can be done again."""
    replies = [Reply("late", delay=60), SUMMARY]
    with ScriptedServer(answering(summary=lambda _: replies.pop(0))) as server:
        harness = AgentHarness(chat, model_at(server))
        await talk(harness)
        before = await history(chat)
        outcomes: list[str] = []

        async def compact() -> None:
            try:
                await harness.compact()
            except TurnAbortedError as error:
                outcomes.append(error.code)

        async with anyio.create_task_group() as group:
            group.start_soon(compact)
            while not any(is_summary(request) for request in server.requests):
                await anyio.sleep(0.005)
            assert await harness.abort() == []
        assert outcomes == ["turn_aborted"]
        assert await anyio.to_thread.run_sync(server.wait_for_hang_up, 1, 60)
        assert await history(chat) == before
        assert not harness.is_running
        await harness.compact()
    assert len(compactions(await chat.entries())) == 1


async def test_a_turn_that_waits_for_a_person(session: Session) -> None:
    """Its call is never summarised away: first it is decided."""

    async def later(_: Any) -> Decision:
        return Decision.later()

    script = ["Answered. " * 40, "Answered. " * 40, tool_call("write", "a", text="A"), "Written."]
    harness = AgentHarness(session, ScriptedModel(script), tools=[write], approve=later, summarizer=Summarizing())
    await talk(harness, 2)
    with pytest.raises(PendingCallError):
        await harness.prompt("Write.")
    before = await history(session)
    with pytest.raises(PendingCallError, match="write"):
        await harness.compact()
    assert await history(session) == before
    await harness.abort()
    await harness.compact()
    assert len(compactions(await session.entries())) == 1


async def test_another_harness_has_the_session(session: Session) -> None:
    """Refused, before anything is asked."""
    summarizer = Summarizing()
    first = AgentHarness(session, ScriptedModel(lambda _: "Answered."))
    await talk(first)
    second = AgentHarness(session, ScriptedModel([]), summarizer=summarizer)
    with pytest.raises(BusyError):
        await second.compact()
    assert summarizer.requests == []


async def test_appended_by_an_app_between(session: Session) -> None:
    """An app's own entries are summarised as what they are, and a branch of before the compaction shows all of it."""
    harness = AgentHarness(session, ScriptedModel(lambda _: "Answered."), summarizer=Summarizing())
    await talk(harness, 3)
    await session.append_custom_message("note", "An app said this. " * 30)
    before = (await session.build_context()).messages
    leaf = session.leaf_id
    await harness.prompt("Go on.")
    await harness.compact()
    assert len((await session.build_context()).messages) == 3
    await session.move_to(leaf)
    assert (await session.build_context()).messages == before
    assert any(isinstance(entry, CustomMessageEntry) for entry in await session.branch())
