"""A turn that is resumed shows the person what would happen now, not what would have happened when it was suspended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.hooks import CallFacts, Hook
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import tool, workspace_tools
from storage.entries import ApprovalRequestedEntry, ApprovalResolvedEntry, MessageEntry, ToolStartEntry, TurnStartEntry
from storage.errors import PendingCallError
from storage.messages import AssistantMessage, ToolCall, UserMessage
from tests.agent.agents import check_well_formed, history
from tests.agent.approving import Person, short_approvals

pytestmark = pytest.mark.anyio


@tool(needs_approval=True, preview=lambda arguments: f"To {arguments['to']}")
async def send(to: str) -> str:
    """Send a letter."""
    return f"Sent to {to}."


class Readdress(Hook):
    def __init__(self, to: str) -> None:
        self.to = to

    async def before_call(self, call: CallFacts) -> Mapping[str, Any]:
        return {"to": self.to}


async def suspended(session: Session, harness: AgentHarness) -> None:
    with pytest.raises(PendingCallError):
        await harness.prompt("Go")
    await harness.aclose()


async def test_the_diff_is_made_anew(session: Session, tmp_path: Path) -> None:
    """The file was changed meanwhile: what approving would destroy is shown, and what is shown is recorded."""
    file = tmp_path / "notes.txt"
    file.write_text("one\n")
    tools = workspace_tools(tmp_path, write=True)
    model = ScriptedModel([tool_call("write", "c1", path="notes.txt", content="two\n"), "Done."])
    await suspended(session, AgentHarness(session, model, tools=tools, approve=Person(Decision.later())))
    file.write_text("one\nprecious\n")
    person = Person(Decision.deny())
    await AgentHarness(session, model, tools=tools, approve=person).resume()
    preview = person.asked[0].preview
    assert preview is not None
    assert "-precious" in preview
    entries = await session.entries()
    check_well_formed(entries)
    assert short_approvals(entries) == ["requested c1", "cancelled c1", "requested c1", "denied c1"]
    questions = [entry for entry in entries if isinstance(entry, ApprovalRequestedEntry)]
    assert questions[-1].preview == preview
    taken_back = next(entry for entry in entries if isinstance(entry, ApprovalResolvedEntry))
    assert taken_back.reason is not None
    assert "asked anew" in taken_back.reason
    assert (await history(session))[-1] == "turn_end 1 completed"


async def test_other_arguments_are_asked_about_anew(session: Session) -> None:
    """Hooks gave the call other arguments this time: the question, its preview and the record are of those."""
    model = ScriptedModel([tool_call("send", "c1", to="you"), "Done."])
    first = AgentHarness(session, model, tools=[send], approve=Person(Decision.later()))
    first.on(Readdress("Ann"))
    await suspended(session, first)
    person = Person(Decision.later(), Decision.approve())
    second = AgentHarness(session, model, tools=[send], approve=person)
    second.on(Readdress("Bob"))
    with pytest.raises(PendingCallError):
        await second.resume()
    context = await session.build_context()
    assert context.messages[-1].text == "(This tool call is waiting for approval; it has no result yet.)"
    await second.resume()
    asked = [(request.call.arguments, request.preview) for request in person.asked]
    assert asked == [({"to": "Bob"}, "To Bob")] * 2
    entries = await session.entries()
    check_well_formed(entries)
    assert short_approvals(entries) == ["requested c1", "cancelled c1", "requested c1", "approved c1", "start c1"]
    questions = [entry.arguments for entry in entries if isinstance(entry, ApprovalRequestedEntry)]
    assert questions == [{"to": "Ann"}, {"to": "Bob"}]


async def test_an_answer_belongs_to_one_question(session: Session) -> None:
    """Who answers elsewhere, and later, finds what is asked, and is asked by its id: an answer to another call is none."""
    model = ScriptedModel([[tool_call("send", "c1", to="you"), tool_call("send", "c2", to="Eve")], "Done."])
    first = AgentHarness(session, model, tools=[send], approve=Person(Decision.later(), Decision.deny()))
    assert await first.waiting_questions() == []
    first.on(Readdress("Ann"))
    await suspended(session, first)

    second = AgentHarness(session, model, tools=[send])
    (question,) = await second.waiting_questions()
    assert (question.call_id, question.preview) == ("c1", "To Ann")
    answers = {question.id: Decision.approve()}

    async def answered(request: ApprovalRequest) -> Decision:
        return answers.get(request.entry_id, Decision.later())

    third = AgentHarness(session, model, tools=[send], approve=answered)
    third.on(Readdress("Bob"))
    with pytest.raises(PendingCallError):
        await third.resume()
    (question,) = await third.waiting_questions()
    assert question.preview == "To Bob"
    answers[question.id] = Decision.approve()
    await third.resume()
    assert await third.waiting_questions() == []
    assert short_approvals(await session.entries())[-3:] == ["requested c1", "approved c1", "start c1"]


async def test_what_an_app_said_before_the_question(session: Session) -> None:
    """A message that was appended while the turn still ran does not leave it behind: it can be resumed, and be closed."""

    @tool
    async def look() -> str:
        await session.append_message(UserMessage(content="By the way."))
        return "seen"

    calls = [tool_call("look", "c0")], [tool_call("send", "c1", to="Ann")], "Done."
    model = ScriptedModel([*calls, *calls])
    person = Person(Decision.later(), Decision.approve(), Decision.later())
    harness = AgentHarness(session, model, tools=[look, send], approve=person)
    with pytest.raises(PendingCallError):
        await harness.prompt("Go")
    with pytest.raises(PendingCallError):
        await harness.prompt("Something else")
    assert (await harness.resume()).text == "Done."
    with pytest.raises(PendingCallError):
        await harness.prompt("Go")
    await harness.abort()
    assert (await history(session))[-1] == "turn_end 2 cancelled"
    check_well_formed(await session.entries())


async def test_a_crash_after_an_app_said_something(session: Session) -> None:
    """The same for a turn that was killed: what it wrote after the message shows that it still ran then."""
    call = ToolCall(id="c1", name="send", arguments={})
    for entry in (
        TurnStartEntry(turn=1),
        MessageEntry(message=UserMessage(content="Go")),
        MessageEntry(message=UserMessage(content="By the way.")),
        MessageEntry(message=AssistantMessage(content=[call])),
        ToolStartEntry(call_id="c1", name="send", arguments={}, idempotency_key="k"),
    ):
        await session.append_entry(entry)
    await session.recover()
    assert (await history(session))[-1] == "turn_end 1 interrupted"
    await session.append_entry(TurnStartEntry(turn=2))
    await session.append_message(UserMessage(content="Go"))
    await session.append_entry(ToolStartEntry(call_id="c2", name="send", arguments={}, idempotency_key="k"))
    await session.append_message(UserMessage(content="I went on without it."))
    assert await session.recover() == []
