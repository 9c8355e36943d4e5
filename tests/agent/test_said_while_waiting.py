"""What an app appends while a call waits for a person: the turn goes on waiting, or it is said what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.agent import AgentHarness
from harness.approvals import Decision
from harness.rebuilding import rebuild_request
from harness.recovery import NOT_STARTED
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from storage.entries import MessageEntry
from storage.errors import NothingToResumeError, PendingCallError
from storage.jsonl import JsonlStorage
from storage.messages import AssistantMessage, TextContent, UserMessage
from tests.agent.agents import check_well_formed, history, results
from tests.agent.approving import Person, look, short_approvals, write

pytestmark = pytest.mark.anyio

CALLS = [tool_call("write", "c1", text="x"), tool_call("look", "c2")]
WAITING = "(This tool call is waiting for approval; it has no result yet.)"


async def suspended(session: Session) -> None:
    """A turn that waits for a decision on c1, after c2 has run; its harness is closed."""
    harness = AgentHarness(session, ScriptedModel([CALLS]), tools=[write, look], approve=Person(Decision.later()))
    with pytest.raises(PendingCallError):
        await harness.prompt("Go")
    await harness.aclose()


def again(session: Session, model: ScriptedModel, *decisions: Decision) -> AgentHarness:
    """Another harness on it, with a person who decides so."""
    return AgentHarness(session, model, tools=[write, look], approve=Person(*decisions))


async def test_a_users_message_does_not_leave_the_turn_behind(place: Path) -> None:
    """It is refused to begin another turn, as before; the answer goes on with the turn, and the model is shown both."""
    async with Session.open(JsonlStorage.create(place)) as session:
        await suspended(session)
        await session.append_message(UserMessage(content="Make it short."))
        shown = [message.text for message in (await session.build_context()).messages]
        assert shown == ["Go", "", WAITING, "seen", "Make it short."]
    async with Session.open(JsonlStorage.open(place)) as session:
        assert await session.recover() == []
        await session.append_message(UserMessage(content="And loud."))
        model = ScriptedModel(["Done.", "Yes."])
        async with again(session, model, Decision.approve()) as harness:
            lines = await history(session)
            with pytest.raises(PendingCallError, match=r"write \(c1\)"):
                await harness.prompt("Something else")
            with pytest.raises(PendingCallError):
                await harness.compact()
            assert await history(session) == lines
            assert (await harness.resume()).text == "Done."
            assert (await harness.prompt("Really?")).text == "Yes."
        assert [message.text for message in model.requests[0].messages] == [
            "Go", "", "wrote x", "seen", "Make it short.", "And loud.",
        ]  # fmt: skip
        check_well_formed(await session.entries())
        assert short_approvals(await session.entries())[-3:] == ["requested c1", "approved c1", "start c1"]
        reply = [entry for entry in await session.branch() if isinstance(entry, MessageEntry) and entry.request][1]
        rebuilt = await rebuild_request(session, reply.id)
        assert [message.text for message in rebuilt.messages] == [
            message.text for message in model.requests[0].messages
        ]


async def test_a_turn_that_was_spoken_into_can_be_closed(session: Session) -> None:
    """``abort`` gives each call its result and the turn its end; what was said stays, and the next prompt goes on."""
    await suspended(session)
    await session.append_message(UserMessage(content="Never mind."))
    model = ScriptedModel(["Fine."])
    async with again(session, model) as harness:
        await harness.abort()
        assert (await history(session))[-4:] == [
            "user: Never mind.",
            "approval_resolved",
            f"error c1: {NOT_STARTED}",
            "turn_end 1 cancelled",
        ]
        assert (await harness.prompt("Go on")).text == "Fine."
    check_well_formed(await session.entries())


async def test_a_kill_after_the_answer_is_recovered(place: Path) -> None:
    """Wherever the resumed turn is cut off, each call has one result and the turn one end afterwards."""
    async with Session.open(JsonlStorage.create(place)) as session:
        await suspended(session)
        await session.append_message(UserMessage(content="Make it short."))
        before = place.read_bytes().count(b"\n")
        await again(session, ScriptedModel(["Done."]), Decision.approve()).resume()
    lines = place.read_bytes().splitlines(keepends=True)
    for kept in range(before, len(lines)):
        place.write_bytes(b"".join(lines[:kept]))
        async with Session.open(JsonlStorage.open(place)) as session:
            recovered = await session.recover()
            if kept == before:
                assert recovered == []  # it still waits
                continue
            check_well_formed(await session.entries())
            assert (await history(session))[-1] == "turn_end 1 interrupted"
            assert set(await results(session)) == {"c1", "c2"}


async def another_reply(session: Session) -> Any:
    reply = AssistantMessage(content=[TextContent(text="By hand.")], provider="p", model="m")
    return await session.append_message(reply)


async def a_compaction(session: Session) -> Any:
    return await session.append_compaction("All of it.", tokens_before=10)


@pytest.mark.parametrize("way", [another_reply, a_compaction])
async def test_what_leaves_it_behind_is_said(session: Session, way: Any) -> None:
    """Somebody went on by hand: ``resume`` names the turn, the call and what came, and where the turn still waits."""
    await suspended(session)
    await session.append_message(UserMessage(content="Make it short."))
    waits = session.leaf_id
    await way(session)
    await session.append_label(session.leaf_id or "", "here")
    async with again(session, ScriptedModel(["Done."]), Decision.approve()) as harness:
        with pytest.raises(
            NothingToResumeError, match=r"turn 1 waits .* write \(c1\), but somebody went on without it"
        ) as caught:
            await harness.resume()
        assert caught.value.entry_id == waits
        assert caught.value.details == {"turn": 1, "call_ids": ["c1"]}
        await session.move_to(caught.value.entry_id)
        assert (await harness.resume()).text == "Done."


async def test_a_reply_that_a_tool_appends_is_none_of_the_turns(session: Session) -> None:
    """What was said while the turn ran leaves nothing behind, and its calls are those of the turn's own reply."""

    async def note() -> str:
        """Append a reply by hand."""
        await another_reply(session)
        return "noted"

    calls = [tool_call("write", "c1", text="x"), tool_call("note", "c2")]
    harness = AgentHarness(session, ScriptedModel([calls]), tools=[write, note], approve=Person(Decision.later()))
    with pytest.raises(PendingCallError):
        await harness.prompt("Go")
    await harness.aclose()
    model = ScriptedModel(["Done."])
    harness = AgentHarness(session, model, tools=[write, note], approve=Person(Decision.approve()))
    assert (await harness.resume()).text == "Done."
    assert (await results(session))["c1"].text == "wrote x"
