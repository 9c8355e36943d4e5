"""Turns that wait for a person: suspended, found again in this process or another one, resumed or closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.events import ApprovalRequested, ApprovalResolved, ToolFinished, ToolStarted, TurnEnded, TurnSuspended
from harness.recovery import OUTCOME_UNKNOWN
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import tool
from storage.entries import ApprovalRequestedEntry, ToolStartEntry
from storage.errors import NothingToResumeError, PendingCallError
from storage.jsonl import JsonlStorage
from tests.agent.agents import check_well_formed, history, results
from tests.agent.approving import Person, look, short_approvals, write
from tests.agent.cancelling import run_cancelled

pytestmark = pytest.mark.anyio

WAYS = ["scope", "native"]


async def suspended(session: Session, *, replies: Sequence[Any] = ("Done.",), **more: Any) -> AgentHarness:
    """A harness whose turn waits for a decision on c1, after c2 has run."""
    model = ScriptedModel([[tool_call("write", "c1", text="x"), tool_call("look", "c2")], *replies])
    harness = AgentHarness(session, model, tools=[write, look], approve=Person(Decision.later()), **more)
    with pytest.raises(PendingCallError) as caught:
        await harness.prompt("Go")
    assert caught.value.details == {"turn": 1, "call_ids": ["c1"]}
    assert "write (c1)" in caught.value.message
    return harness


async def test_later_suspends_the_turn(session: Session) -> None:
    """The others have their results, the turn has no end, the context says that the call waits, a prompt is refused."""
    harness = await suspended(session)
    lines = await history(session)
    assert lines[-1] == "result c2: seen"
    assert short_approvals(await session.entries()) == ["start c2", "requested c1"]
    context = await session.build_context()
    assert [message.text for message in context.messages[2:]] == [
        "(This tool call is waiting for approval; it has no result yet.)",
        "seen",
    ]
    with pytest.raises(PendingCallError, match="resume"):
        await harness.prompt("Something else")
    with pytest.raises(PendingCallError, match="abort"):
        async with harness.stream("Something else"):
            pass
    assert await session.recover() == []
    assert await history(session) == lines


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_resume_in_the_same_process(session: Session, decision: str) -> None:
    """It asks again about what is open, and goes on to the end of the same turn."""
    harness = await suspended(session)
    person = Person(Decision.approve() if decision == "approve" else Decision.deny("no"))
    await harness.aclose()
    model = ScriptedModel(["Done."])
    harness = AgentHarness(session, model, tools=[write, look], approve=person)
    reply = await harness.resume()
    assert reply.text == "Done."
    assert [request.call.id for request in person.asked] == ["c1"]
    entries = await session.entries()
    check_well_formed(entries)
    first = (await results(session))["c1"].text
    assert first == ("wrote x" if decision == "approve" else "This call was not run: the person who was asked did not "
                     "approve it. They said: no")  # fmt: skip
    assert [message.text for message in model.requests[0].messages] == ["Go", "", first, "seen"]
    assert (await history(session))[-1] == "turn_end 1 completed"
    with pytest.raises(NothingToResumeError, match="no turn"):
        await harness.resume()


async def test_resume_twice_later(session: Session) -> None:
    """Later once more: the turn stays suspended, and nothing is recorded again."""
    harness = await suspended(session)
    lines = await history(session)
    await harness.aclose()
    harness = AgentHarness(
        session,
        ScriptedModel(["Done."]),
        tools=[write, look],
        approve=Person(Decision.later(), Decision.approve()),
    )
    with pytest.raises(PendingCallError, match=r"write \(c1\)"):
        await harness.resume()
    assert await history(session) == lines
    assert (await harness.resume()).text == "Done."
    check_well_formed(await session.entries())


async def test_resume_in_another_process(tmp_path: Path) -> None:
    """The file says all: another session object, another harness, and the same idempotency key for the call."""
    place = tmp_path / "session.jsonl"
    async with Session.open(JsonlStorage.create(place)) as session:
        await suspended(session)
    async with Session.open(JsonlStorage.open(place)) as session:
        person = Person(Decision.approve())
        model = ScriptedModel(["Done."])
        async with AgentHarness(session, model, tools=[write, look], approve=person) as harness:
            with pytest.raises(PendingCallError):
                await harness.prompt("Hello?")
            async with harness.resume_stream() as events:
                told = [event async for event in events]
        assert events.reply.text == "Done."
        kinds = [type(event) for event in told]
        order = [ApprovalRequested, ApprovalResolved, ToolStarted, ToolFinished, TurnEnded]
        assert [kind for kind in kinds if kind in order] == order
        entries = await session.entries()
        check_well_formed(entries)
        questions = [entry for entry in entries if isinstance(entry, ApprovalRequestedEntry)]
        starts = [entry for entry in entries if isinstance(entry, ToolStartEntry) and entry.call_id == "c1"]
        assert len(questions) == 1
        assert questions[0].idempotency_key == starts[0].idempotency_key == person.asked[0].idempotency_key
        asked = told[kinds.index(ApprovalRequested)]
        assert isinstance(asked, ApprovalRequested)
        assert asked.entry_id == questions[0].id


async def test_the_stream_of_a_turn_that_is_suspended(session: Session) -> None:
    """``TurnSuspended`` names what waits and is the last event; then the iteration raises."""
    model = ScriptedModel([[tool_call("write", "c1", text="x"), tool_call("look", "c2")]])
    harness = AgentHarness(session, model, tools=[write, look], approve=Person(Decision.later()))
    told: list[Any] = []
    with pytest.raises(PendingCallError):
        async with harness.stream("Go") as events:
            async for event in events:
                told.append(event)
    assert isinstance(told[-1], TurnSuspended)
    assert [call.id for call in told[-1].calls] == ["c1"]
    assert told[-1].turn == 1


async def test_resume_needs_somebody_to_ask(session: Session) -> None:
    """Without ``approve`` nothing is decided behind anybody's back, and nothing is recorded."""
    await (await suspended(session)).aclose()
    lines = await history(session)
    harness = AgentHarness(session, ScriptedModel(["Done."]), tools=[write, look])
    with pytest.raises(PendingCallError, match="approve"):
        await harness.resume()
    assert await history(session) == lines


async def test_nothing_to_resume(session: Session) -> None:
    """A new session, and one whose turn has ended."""
    harness = AgentHarness(session, ScriptedModel(["Hi."]), approve=Person())
    with pytest.raises(NothingToResumeError, match="no turn"):
        await harness.resume()
    await harness.prompt("Hello")
    with pytest.raises(NothingToResumeError, match=r"no turn .* prompt\(\) begins a new one") as caught:
        async with harness.resume_stream():
            pass
    assert caught.value.code == "nothing_to_resume" and caught.value.entry_id is None


async def test_abort_closes_a_suspended_turn(session: Session) -> None:
    """The question is taken back, the call gets its result, the turn its end; then the next prompt."""
    harness = await suspended(session, replies=["Fine."])
    await harness.abort()
    assert (await history(session))[-3:] == [
        "approval_resolved",
        "error c1: This call was not run: the turn was interrupted before it was started.",
        "turn_end 1 cancelled",
    ]
    check_well_formed(await session.entries())
    assert (await harness.prompt("Go on")).text == "Fine."
    check_well_formed(await session.entries())


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_while_resuming(session: Session, way: str, anyio_backend_name: str) -> None:
    """A turn that was resumed ends as any other that is cancelled."""
    if way == "native" and anyio_backend_name == "trio":
        pytest.skip("trio has no native cancellation")
    await (await suspended(session)).aclose()

    async def work(cancel: Any) -> None:
        async def approve(_: ApprovalRequest) -> Decision:
            cancel()
            await anyio.sleep_forever()
            raise AssertionError

        await AgentHarness(session, ScriptedModel(["x"]), tools=[write, look], approve=approve).resume()

    assert await run_cancelled(way, work) == "cancelled"
    assert (await history(session))[-1] == "turn_end 1 cancelled"
    check_well_formed(await session.entries())


async def test_calls_that_must_not_run_side_by_side_wait_behind_the_one_that_waits(session: Session) -> None:
    """In a reply whose calls run one after the other, nothing overtakes a call that is decided later."""
    ran: list[str] = []

    @tool(parallel=False, needs_approval=True)
    async def run(text: str) -> str:
        """Run."""
        ran.append(text)
        return text

    @tool
    async def quick() -> str:
        """Run at once."""
        ran.append("quick")
        return "quick"

    calls = [
        tool_call("quick", "a"),
        tool_call("run", "b", text="B"),
        tool_call("quick", "c"),
        tool_call("run", "d", text="D"),
    ]
    person = Person(Decision.later())
    model = ScriptedModel([calls, "Done."])
    harness = AgentHarness(session, model, tools=[run, quick], approve=person)
    with pytest.raises(PendingCallError, match=r"run \(b\)"):
        await harness.prompt("Go")
    assert ran == ["quick"]
    person.decisions = [Decision.approve(), Decision.approve()]
    assert (await harness.resume()).text == "Done."
    assert ran == ["quick", "B", "quick", "D"]
    check_well_formed(await session.entries())


async def test_what_was_asked_and_is_no_tool_any_more(session: Session) -> None:
    """A new harness without that tool: the question is taken back and the model told; the turn goes on."""
    await (await suspended(session)).aclose()
    person = Person()
    harness = AgentHarness(session, ScriptedModel(["Done."]), tools=[look], approve=person)
    assert (await harness.resume()).text == "Done."
    assert person.asked == []
    assert "There is no tool 'write'" in (await results(session))["c1"].text
    check_well_formed(await session.entries())
    assert short_approvals(await session.entries())[-1] == "cancelled c1"


async def test_a_fork_of_a_suspended_turn_can_be_resumed(session: Session, tmp_path: Path) -> None:
    """The fork waits as the original does, and is decided by itself."""
    await suspended(session)
    async with await session.fork(into=partial(JsonlStorage.create, tmp_path / "fork.jsonl")) as fork:
        harness = AgentHarness(fork, ScriptedModel(["Done."]), tools=[write, look], approve=Person(Decision.approve()))
        assert (await harness.resume()).text == "Done."
        check_well_formed(await fork.branch())
    assert (await history(session))[-1] == "result c2: seen"


async def test_what_an_app_says_meanwhile(session: Session) -> None:
    """A note, a label, the working memory: the turn still waits, and goes on with them."""
    await (await suspended(session)).aclose()
    await session.append_working_memory("set", "who", "asked Ann")
    await session.append_label(session.leaf_id or "", "waiting")
    await session.append_custom_message("app", "Ann is on holiday.")
    model = ScriptedModel(["Done."])
    harness = AgentHarness(session, model, tools=[write, look], approve=Person(Decision.approve()))
    assert (await harness.resume()).text == "Done."
    shown = [message.text for message in model.requests[0].messages]
    assert shown[2:5] == ["wrote x", "seen", "Ann is on holiday."]
    assert "asked Ann" in shown[5]
    check_well_formed(await session.entries())


async def test_who_goes_back_leaves_the_question_behind(session: Session) -> None:
    """On another branch there is nothing to resume; back at the leaf there is."""
    harness = await suspended(session, replies=["Elsewhere.", "Done."])
    leaf = session.leaf_id
    await session.move_to(None)
    assert (await harness.prompt("Hello")).text == "Elsewhere."
    await session.move_to(leaf)
    with pytest.raises(PendingCallError):
        await harness.prompt("Hello")
    await harness.aclose()
    harness = AgentHarness(session, ScriptedModel(["Done."]), tools=[write, look], approve=Person(Decision.approve()))
    assert (await harness.resume()).text == "Done."


CHILD = """
    import sys
    import anyio
    from harness.agent import AgentHarness
    from harness.approvals import Decision
    from harness.session import Session
    from harness.testing import ScriptedModel, tool_call
    from harness.tools import tool
    from storage.jsonl import JsonlStorage

    @tool(needs_approval=True)
    async def write(text: str) -> str:
        return text

    @tool
    async def look() -> str:
        return "seen"

    @tool
    async def hang() -> None:
        print("hanging", flush=True)
        await anyio.sleep_forever()

    async def approve(request):
        if request.call.id == "first":
            return Decision.approve()
        print("asking", flush=True)
        await anyio.sleep_forever()

    async def main():
        calls = [tool_call("write", "first", text="1"), tool_call("look", "seen"), tool_call("hang", "hung"),
                 tool_call("write", "second", text="2"), tool_call("write", "third", text="3")]
        async with Session.open(JsonlStorage.create(sys.argv[1])) as session:
            tools = [write, look, hang]
            await AgentHarness(session, ScriptedModel([calls]), tools=tools, approve=approve).prompt("Go")

    anyio.run(main)
"""


async def test_a_process_that_is_killed_while_it_asks(tmp_path: Path) -> None:
    """SIGKILL while a person is asked: the next process finds the questions, and the truth about each call.

    The one that was approved has run, the one that needed nothing too; one was begun, and nobody knows what came of it;
    one is being asked about and one is still to be asked about, and both are asked about again.
    """
    place = tmp_path / "session.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(place)]

    def run_and_kill() -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            assert child.stdout is not None
            assert {child.stdout.readline().strip() for _ in range(2)} == {"hanging", "asking"}
            while place.read_text().count('"role":"toolResult"') < 2:
                assert child.poll() is None
                time.sleep(0.001)
            child.send_signal(signal.SIGKILL)

    await anyio.to_thread.run_sync(run_and_kill)
    async with Session.open(JsonlStorage.open_or_create(place)) as session:
        assert await session.recover() == []
        shown = [message.text for message in (await session.build_context()).messages[2:]]
        assert shown[:2] == ["1", "seen"]
        assert "begun, outcome unknown" in shown[2]
        assert ["waiting for approval" in text for text in shown[3:]] == [True, True]
        person = Person(Decision.approve(), Decision.deny("enough"))
        model = ScriptedModel(["Done."])
        async with AgentHarness(session, model, tools=[write, look], approve=person) as harness:
            with pytest.raises(PendingCallError, match=r"write \(second\), write \(third\)"):
                await harness.prompt("Hello?")
            assert (await harness.resume()).text == "Done."
        assert [request.call.id for request in person.asked] == ["second", "third"]
        answers = await results(session)
        assert answers["hung"].text == OUTCOME_UNKNOWN
        assert answers["second"].text == "wrote 2"
        assert answers["third"].text.endswith("They said: enough")
        assert (await history(session))[-1] == "turn_end 1 completed"
        check_well_formed(await session.entries())
        starts = [entry.call_id for entry in await session.entries() if isinstance(entry, ToolStartEntry)]
        assert sorted(starts) == ["first", "hung", "second", "seen"]
