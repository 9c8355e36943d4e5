"""Approval: a person decides before a call runs, now or later, in this process or in another one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.events import ApprovalRequested
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import tool
from storage.entries import ApprovalRequestedEntry, ApprovalResolvedEntry, ToolStartEntry
from storage.errors import HookError, TurnAbortedError
from storage.jsonl import JsonlStorage
from tests.agent.agents import check_well_formed, history, results
from tests.agent.approving import Person, look, short_approvals, write
from tests.agent.cancelling import run_cancelled

pytestmark = pytest.mark.anyio

WAYS = ["scope", "native"]


async def test_what_is_approved_runs(session: Session) -> None:
    """The question is on record before it is asked, the answer before the call begins."""
    recorded: list[list[str]] = []

    async def approve(request: ApprovalRequest) -> Decision:
        recorded.append(await history(session))
        assert request.call.name == "write"
        assert request.call.arguments == {"text": "x"}
        assert request.tool.name == "write"
        assert request.preview is None
        return Decision.approve()

    model = ScriptedModel([tool_call("write", "c1", text="x"), "Done."])
    await AgentHarness(session, model, tools=[write], approve=approve).prompt("Go")
    assert recorded[0][-1] == "approval_requested"
    assert (await history(session))[4:] == [
        "approval_requested",
        "approval_resolved",
        "tool_start c1",
        "result c1: wrote x",
        "assistant stop: Done.",
        "turn_end 1 completed",
    ]
    entries = await session.entries()
    check_well_formed(entries)
    question, answer = entries[4:6]
    assert isinstance(question, ApprovalRequestedEntry)
    assert isinstance(answer, ApprovalResolvedEntry)
    assert (question.name, question.arguments, question.ignorable) == ("write", {"text": "x"}, True)
    assert isinstance(entries[6], ToolStartEntry)
    assert question.idempotency_key == entries[6].idempotency_key
    assert (answer.call_id, answer.decision, answer.reason, answer.ignorable) == ("c1", "approved", None, True)


async def test_the_question_is_in_the_file_before_it_is_asked(tmp_path: Path) -> None:
    """A process that is killed while it asks leaves the question behind; the event names its entry."""
    place = tmp_path / "session.jsonl"
    found: list[bytes] = []

    async def approve(_: ApprovalRequest) -> Decision:
        found.extend(line for line in place.read_bytes().splitlines() if b'"approval_requested"' in line)
        return Decision.deny()

    calls = [tool_call("write", "c1", text="x"), tool_call("write", "c2", text="y")]
    async with Session.open(JsonlStorage.create(place)) as session:
        harness = AgentHarness(session, ScriptedModel([calls, "Done."]), tools=[write], approve=approve)
        async with harness.stream("Go") as events:
            told = [event.entry_id async for event in events if isinstance(event, ApprovalRequested)]
        questions = [entry.id for entry in await session.entries() if isinstance(entry, ApprovalRequestedEntry)]
    assert told == questions
    assert len(found) == 4


async def test_what_is_denied_does_not_run_and_the_model_is_told_why(session: Session) -> None:
    """An error result with the person's reason; no ``tool_start``; the turn goes on."""
    person = Person(Decision.deny("not on a Friday"), Decision.deny())
    model = ScriptedModel([[tool_call("write", "c1", text="x"), tool_call("write", "c2", text="y")], "A pity."])
    reply = await AgentHarness(session, model, tools=[write], approve=person).prompt("Go")
    assert reply.text == "A pity."
    shown = [message.text for message in model.requests[1].messages[2:]]
    assert shown == [
        "This call was not run: the person who was asked did not approve it. They said: not on a Friday",
        "This call was not run: the person who was asked did not approve it.",
    ]
    entries = await session.entries()
    check_well_formed(entries)
    assert short_approvals(entries) == ["requested c1", "requested c2", "denied c1", "denied c2"]
    reasons = [entry.reason for entry in entries if isinstance(entry, ApprovalResolvedEntry)]
    assert reasons == ["not on a Friday", None]


async def test_with_nobody_to_ask_it_is_denied(session: Session) -> None:
    """The safe default: such a call is refused in words that say so, the others run, and nothing was asked."""
    model = ScriptedModel([[tool_call("write", "c1", text="x"), tool_call("look", "c2")], "Well."])
    await AgentHarness(session, model, tools=[write, look]).prompt("Go")
    answers = await results(session)
    assert answers["c1"].is_error
    assert "write runs only after a person has approved it, and there is nobody to ask" in answers["c1"].text
    assert answers["c2"].text == "seen"
    entries = await session.entries()
    check_well_formed(entries)
    assert short_approvals(entries) == ["start c2"]


async def test_a_tool_may_say_which_calls_need_it(session: Session) -> None:
    """``needs_approval`` as a function of the arguments; where it fails, the person is asked."""

    def is_risky(arguments: Mapping[str, Any]) -> bool:
        if arguments["text"] == "odd":
            raise ValueError("cannot say")
        return arguments["text"] != "harmless"

    careful = tool(name="careful", needs_approval=is_risky)(lambda_text)
    calls = [tool_call("careful", name, text=name) for name in ("harmless", "risky", "odd")]
    person = Person(Decision.approve(), Decision.approve())
    await AgentHarness(session, ScriptedModel([calls, "Done."]), tools=[careful], approve=person).prompt("Go")
    assert [request.call.id for request in person.asked] == ["risky", "odd"]
    assert {call_id: result.text for call_id, result in (await results(session)).items()} == {
        "harmless": "harmless",
        "risky": "risky",
        "odd": "odd",
    }
    check_well_formed(await session.entries())


async def lambda_text(text: str) -> str:
    """Say it."""
    return text


async def test_asked_one_after_another_in_call_order_while_others_run(session: Session) -> None:
    """What needs no approval runs meanwhile, what was approved as well; never two questions at once."""
    ran: list[str] = []
    seen = anyio.Event()
    written = anyio.Event()
    asking = 0

    @tool
    async def peek() -> str:
        """Peek."""
        ran.append("peek")
        seen.set()
        return "seen"

    @tool(needs_approval=True)
    async def note(text: str) -> str:
        """Note."""
        ran.append(text)
        written.set()
        return text

    async def approve(request: ApprovalRequest) -> Decision:
        nonlocal asking
        asking += 1
        assert asking == 1
        if request.call.id == "a":
            assert short_approvals(await session.entries())[:3] == ["start b", "requested a", "requested c"]
            await seen.wait()  # the call that needs none runs while this one is asked about
        else:
            await written.wait()  # and so does the one that was approved
        ran.append(f"asked {request.call.id}")
        asking -= 1
        return Decision.approve()

    calls = [tool_call("note", "a", text="A"), tool_call("peek", "b"), tool_call("note", "c", text="C")]
    model = ScriptedModel([calls, "Done."])
    with anyio.fail_after(60):
        await AgentHarness(session, model, tools=[note, peek], approve=approve).prompt("Go")
    assert ran == ["peek", "asked a", "A", "asked c", "C"]
    assert [message.text for message in model.requests[1].messages[2:]] == ["A", "seen", "C"]
    check_well_formed(await session.entries())


async def test_a_preview_is_shown_and_recorded(session: Session) -> None:
    """Made in a worker thread, of a copy of the arguments; one that fails says so, and the person decides all the same."""
    threads: list[int] = []

    def preview(arguments: Mapping[str, Any]) -> str:
        threads.append(threading.get_ident())
        arguments["text"] += "!"  # type: ignore[index]
        if arguments["text"] == "bad!":
            raise ValueError("no such file")
        return f"- old\n+ {arguments['text']}"

    put = tool(name="put", needs_approval=True, preview=preview)(lambda_text)
    person = Person(Decision.approve(), Decision.approve())
    calls = [tool_call("put", "a", text="new"), tool_call("put", "b", text="bad")]
    await AgentHarness(session, ScriptedModel([calls, "Done."]), tools=[put], approve=person).prompt("Go")
    assert [request.preview for request in person.asked] == ["- old\n+ new!", "(no preview: ValueError: no such file)"]
    assert threading.get_ident() not in threads
    questions = [entry for entry in await session.entries() if isinstance(entry, ApprovalRequestedEntry)]
    assert [question.preview for question in questions] == [request.preview for request in person.asked]
    assert {call_id: result.text for call_id, result in (await results(session)).items()} == {"a": "new", "b": "bad"}


async def test_what_is_asked_is_a_copy(session: Session) -> None:
    """Who is asked may write into the request: the call stays what it was."""

    async def approve(request: ApprovalRequest) -> Decision:
        request.call.arguments["text"] = "something else"
        return Decision.approve()

    model = ScriptedModel([tool_call("write", "c1", text="x"), "Done."])
    await AgentHarness(session, model, tools=[write], approve=approve).prompt("Go")
    assert (await results(session))["c1"].text == "wrote x"


@pytest.mark.parametrize("way", [*WAYS, "abort"])
async def test_cancelled_while_asking(session: Session, way: str, anyio_backend_name: str) -> None:
    """The question is taken back, the call says it was not run, the sibling keeps its result; then the next prompt."""
    if way == "native" and anyio_backend_name == "trio":
        pytest.skip("trio has no native cancellation")
    looked = anyio.Event()

    async def approve(_: ApprovalRequest) -> Decision:
        while not any("seen" in line for line in await history(session)):
            await anyio.sleep(0.001)
        looked.set()
        await anyio.sleep_forever()
        raise AssertionError

    model = ScriptedModel([[tool_call("write", "c1", text="x"), tool_call("look", "c2")], "Again."])
    harness = AgentHarness(session, model, tools=[write, look], approve=approve)

    async def work(cancel: Any) -> None:
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await looked.wait()
                if way == "abort":
                    await harness.abort()
                else:
                    cancel()

            group.start_soon(stop)
            if way == "abort":
                with pytest.raises(TurnAbortedError):
                    await harness.prompt("Go")
            else:
                await harness.prompt("Go")

    ended = await run_cancelled("scope" if way == "abort" else way, work)
    assert ended == ("finished" if way == "abort" else "cancelled")
    lines = await history(session)
    assert lines[-3:] == [
        "approval_resolved",
        "error c1: This call was not run: the turn was interrupted before it was started.",
        "turn_end 1 cancelled",
    ]
    entries = await session.entries()
    check_well_formed(entries)
    assert short_approvals(entries) == ["start c2", "requested c1", "cancelled c1"]
    assert (await results(session))["c2"].text == "seen"
    assert (await harness.prompt("And now?")).text == "Again."
    check_well_formed(await session.entries())


@pytest.mark.parametrize("failure", ["raises", "nonsense"])
async def test_who_asks_fails(session: Session, failure: str) -> None:
    """The turn fails with the cause, once the calls beside it are done; nothing is left open."""

    async def approve(_: ApprovalRequest) -> Decision:
        if failure == "raises":
            raise EOFError("no terminal")
        return "yes"  # type: ignore[return-value]

    calls = [tool_call("write", "c1", text="x"), tool_call("write", "c2", text="y"), tool_call("look", "c3")]
    harness = AgentHarness(session, ScriptedModel([calls, "Again."]), tools=[write, look], approve=approve)
    with pytest.raises(HookError) as caught:
        await harness.prompt("Go")
    assert isinstance(caught.value.__cause__, EOFError) == (failure == "raises")
    assert caught.value.code == "hook"
    entries = await session.entries()
    check_well_formed(entries)
    assert short_approvals(entries) == ["start c3", "requested c1", "requested c2", "cancelled c1", "cancelled c2"]
    assert (await history(session))[-1] == "turn_end 1 failed"
    assert (await results(session))["c3"].text == "seen"
    assert (await harness.prompt("Again")).text == "Again."


async def test_who_asks_must_be_able_to_wait(session: Session) -> None:
    """A plain function is told to become an async one; nothing has run, and its turn has an end."""

    def approve(_: ApprovalRequest) -> Any:
        return Decision.approve()

    model = ScriptedModel([tool_call("write", "c1", text="x"), "Never mind."])
    harness = AgentHarness(session, model, tools=[write], approve=approve)
    with pytest.raises(HookError, match="write async def"):
        await harness.prompt("Go")
    check_well_formed(await session.entries())
    assert (await results(session))["c1"].is_error
    assert (await harness.prompt("Leave it")).text == "Never mind."
