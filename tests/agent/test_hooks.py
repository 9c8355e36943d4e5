"""Hooks: what they see, refuse and change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest

from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.events import AgentEvent, PromptRecorded, ToolProgress, TurnEnded
from harness.hooks import CallFacts, Hook, Refusal, TurnFacts, TurnOutcome
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import ToolContext, tool
from storage.entries import ApprovalRequestedEntry, MessageEntry, ToolStartEntry
from storage.errors import ModelError, PendingCallError
from storage.messages import AssistantMessage, ToolResultMessage, UserMessage
from tests.agent.agents import check_well_formed, history, results
from tests.agent.hooking import Watching, model, say

pytestmark = pytest.mark.anyio


async def test_where_hooks_are_called(session: Session) -> None:
    """Around the turn, before each request, around each call, in this order; taken off, they see nothing more."""
    watching = Watching()
    harness = AgentHarness(session, model(), tools=[say])
    take_off = harness.on(watching)
    await harness.prompt("Go")
    assert watching.seen == [
        "before turn 1 Go",
        "before request of 1",
        "before say(x) in turn 1",
        "after c1: said x",
        "before request of 3",
        "after turn 1: completed",
    ]
    take_off()
    take_off()
    await harness.prompt("Again")
    assert watching.seen[-1] == "after turn 1: completed"
    check_well_formed(await session.entries())


async def test_hooks_see_what_the_record_says(session: Session) -> None:
    """Before a turn nothing of it is on record, before a call its reply, after it no result yet, after the turn its end."""
    last: list[str] = []

    class Looking(Hook):
        async def before_turn(self, turn: TurnFacts) -> None:
            last.append(str(await history(session)))

        async def before_call(self, call: CallFacts) -> None:
            last.append((await history(session))[-1])

        async def after_call(self, call: CallFacts, result: ToolResultMessage) -> None:
            last.append((await history(session))[-1])

        async def after_turn(self, turn: TurnFacts, outcome: TurnOutcome) -> None:
            last.append((await history(session))[-1])

    harness = AgentHarness(session, model(), tools=[say])
    harness.on(Looking())
    await harness.prompt("Go")
    assert last == ["[]", "assistant toolUse: say(c1)", "tool_start c1", "turn_end 1 completed"]


async def test_a_hook_may_refuse_the_prompt(session: Session) -> None:
    """What ``before_turn`` raises comes out as it is, for ``prompt`` and ``stream``, and nothing was recorded."""

    class Closed(Hook):
        async def before_turn(self, turn: TurnFacts) -> None:
            raise PermissionError("not today")

    watching = Watching()
    harness = AgentHarness(session, model(), tools=[say])
    take_off = harness.on(Closed())
    harness.on(watching)
    with pytest.raises(PermissionError, match="not today"):
        await harness.prompt("Go")
    with pytest.raises(PermissionError):
        async with harness.stream("Go") as events:
            async for _ in events:
                pass
    assert await history(session) == []
    assert watching.seen == []
    take_off()
    assert (await harness.prompt("Go")).text == "Done."


async def test_the_first_refusal_wins(session: Session) -> None:
    """The model is told the reason; later hooks, the person and the tool never see the call."""

    class Refusing(Hook):
        async def before_call(self, call: CallFacts) -> Refusal:
            return Refusal("Not on a Friday.")

    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> Decision:
        asked.append(request)
        return Decision.approve()

    careful = replace(say, needs_approval=True)
    watching = Watching()
    scripted = model()
    harness = AgentHarness(session, scripted, tools=[careful], approve=approve)
    harness.on(Refusing())
    harness.on(watching)
    await harness.prompt("Go")
    result = (await results(session))["c1"]
    assert (result.text, result.is_error) == ("Not on a Friday.", True)
    assert scripted.requests[1].messages[2].text == "Not on a Friday."
    assert asked == []
    assert not any(line.startswith(("before say", "after c1")) for line in watching.seen)
    assert not any(isinstance(entry, ToolStartEntry) for entry in await session.entries())
    check_well_formed(await session.entries())


class Louder(Hook):
    """Makes the text louder, before and after."""

    async def before_call(self, call: CallFacts) -> Mapping[str, Any]:
        return {"text": call.call.arguments["text"] + "!"}

    async def after_call(self, call: CallFacts, result: ToolResultMessage) -> ToolResultMessage:
        return result.model_copy(update={"content": f"<{result.text}>"})


async def test_hooks_change_arguments_one_after_the_other(session: Session) -> None:
    """The tool gets what the last one left, it is recorded and asked about; the model's own call stays as it was."""
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> Decision:
        asked.append(request)
        return Decision.approve()

    harness = AgentHarness(session, model(), tools=[replace(say, needs_approval=True)], approve=approve)
    harness.on(Louder())
    harness.on(Louder())
    await harness.prompt("Go")
    entries = await session.entries()
    check_well_formed(entries)
    start = next(entry for entry in entries if isinstance(entry, ToolStartEntry))
    question = next(entry for entry in entries if isinstance(entry, ApprovalRequestedEntry))
    assert start.arguments == question.arguments == asked[0].call.arguments == {"text": "x!!"}
    calls = [
        entry.message.tool_calls
        for entry in entries
        if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage)
    ]
    assert calls[0][0].arguments == {"text": "x"}
    assert (await results(session))["c1"].text == "<<said x!!>>"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"text": 3}, "Invalid arguments for say"),
        ({"text": float("nan")}, "arguments.text"),
        ({"other": "y"}, "text: Field required"),
        ("nonsense", "a Refusal, a mapping of arguments or None was expected"),
    ],
)
async def test_arguments_that_cannot_be(session: Session, answer: Any, said: str) -> None:
    """The tool checks them as it does the model's, and so does the record; the call gets an error result."""

    class Odd(Hook):
        async def before_call(self, call: CallFacts) -> Any:
            return answer

    harness = AgentHarness(session, model(), tools=[say])
    harness.on(Odd())
    assert (await harness.prompt("Go")).text == "Done."
    result = (await results(session))["c1"]
    assert result.is_error
    assert said in result.text
    check_well_formed(await session.entries())


async def test_arguments_are_copies(session: Session) -> None:
    """A hook that writes into what it is shown changes nothing."""

    class Scribbling(Hook):
        async def before_call(self, call: CallFacts) -> None:
            call.call.arguments["text"] = "scribbled"

        async def after_call(self, call: CallFacts, result: ToolResultMessage) -> None:
            call.call.arguments.clear()
            result.content = "scribbled"

    harness = AgentHarness(session, model(), tools=[say])
    harness.on(Scribbling())
    await harness.prompt("Go")
    assert (await results(session))["c1"].text == "said x"


@pytest.mark.parametrize("what", ["raises", "other call", "nonsense", "unrecordable"])
async def test_a_result_that_cannot_be_is_kept_as_it_was(session: Session, what: str) -> None:
    """The error is noted in the result; the hooks behind still have their turn."""

    class Odd(Hook):
        async def after_call(self, call: CallFacts, result: ToolResultMessage) -> Any:
            if what == "raises":
                raise RuntimeError("broken")
            if what == "other call":
                return result.model_copy(update={"tool_call_id": "c2"})
            return "nonsense" if what == "nonsense" else result.model_copy(update={"details": {1, 2}})

    harness = AgentHarness(session, model(), tools=[say])
    harness.on(Odd())
    harness.on(Louder())
    await harness.prompt("Go")
    result = (await results(session))["c1"]
    assert result.text == "<said x!>"
    assert (result.model_extra or {})["hookError"].startswith("Odd.after_call: ")
    check_well_formed(await session.entries())


async def test_after_turn_is_told_how_it_ended(session: Session) -> None:
    """Completed, failed, cancelled, suspended."""
    watching = Watching()
    scope = anyio.CancelScope()

    async def later(_: ApprovalRequest) -> Decision:
        return Decision.later()

    def hang(_: ModelRequest) -> Any:
        scope.cancel()
        return anyio.sleep_forever()

    replies: list[Any] = ["Done.", ModelError("no network"), hang, tool_call("say", "c1", text="x"), "Resumed."]
    harness = AgentHarness(session, ScriptedModel(replies), tools=[replace(say, needs_approval=True)], approve=later)
    harness.on(watching)
    await harness.prompt("1")
    with pytest.raises(ModelError):
        await harness.prompt("2")
    with scope:
        await harness.prompt("3")
    with pytest.raises(PendingCallError):
        await harness.prompt("4")
    outcomes = [line for line in watching.seen if line.startswith("after turn")]
    assert outcomes == [
        "after turn 1: completed",
        "after turn 2: failed",
        "after turn 3: cancelled",
        "after turn 4: suspended",
    ]
    await harness.abort()
    check_well_formed(await session.entries())


async def test_events_with_prompt_and_with_stream(session: Session) -> None:
    """Each event, awaited, in the same order for both; ``prompt`` tells progress as well."""

    @tool
    async def slow(context: ToolContext) -> str:
        """Say how far it is."""
        context.progress("half")
        await anyio.sleep(0.01)
        return "whole"

    told: list[AgentEvent] = []

    class Recording(Hook):
        async def on_event(self, event: AgentEvent) -> None:
            await anyio.sleep(0)
            told.append(event)

    harness = AgentHarness(session, ScriptedModel([tool_call("slow"), "Done."] * 2), tools=[slow])
    harness.on(Recording())
    assert (await harness.prompt("Go")).text == "Done."
    kinds = [type(event) for event in told]
    assert [kinds[1], kinds[-1]] == [PromptRecorded, TurnEnded]
    assert ToolProgress in kinds
    told.clear()
    async with harness.stream("Go") as events:
        seen = [event async for event in events]
    assert told == seen
    assert [type(event) for event in seen] == kinds


async def test_hooks_change_the_request(session: Session) -> None:
    """What is sent is what the last one left; the header records it; the record's own messages stay as they are."""

    class Polite(Hook):
        async def before_request(self, request: ModelRequest) -> ModelRequest:
            messages = [*request.messages, UserMessage(content="(Be polite.)", timestamp=1)]
            return replace(request, system_prompt="Be polite.", options={"temperature": 0.1}, messages=messages)

    class Loud(Hook):
        async def before_request(self, request: ModelRequest) -> ModelRequest:
            assert request.messages[-1].text == "(Be polite.)"
            return replace(request, system_prompt=(request.system_prompt or "").upper(), tools=[])

    scripted = ScriptedModel(["Yes.", "Yes again."])
    harness = AgentHarness(session, scripted, tools=[say], system_prompt="Be.")
    harness.on(Polite())
    harness.on(Loud())
    await harness.prompt("Go")
    await harness.prompt("Again")
    for request in scripted.requests:
        assert request.system_prompt == "BE POLITE."
        assert request.options == {"temperature": 0.1}
        assert list(request.tools) == []
        assert request.messages[-1].text == "(Be polite.)"
    assert (await history(session)).count("request_header") == 1
    replies = [entry for entry in await session.entries() if isinstance(entry, MessageEntry) and entry.request]
    edits = [reply.request.edits for reply in replies if reply.request]
    assert [[(edit.at, edit.removed, len(edit.inserted or ())) for edit in of_one or ()] for of_one in edits] == [
        [(1, 0, 1)],
        [(3, 0, 1)],
    ]
    assert [message.text for message in (await session.build_context()).messages] == [
        "Go",
        "Yes.",
        "Again",
        "Yes again.",
    ]
