"""A turn with hooks and approvals, and one that is resumed, cancelled at every step: the history stays whole."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.events import AgentEvent
from harness.hooks import CallFacts, Hook, TurnFacts, TurnOutcome
from harness.models.protocol import ModelRequest
from harness.rebuilding import rebuild_request
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from storage.entries import ApprovalRequestedEntry, ApprovalResolvedEntry, MessageEntry, ToolStartEntry
from storage.errors import PendingCallError
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import ToolResultMessage, UserMessage
from tests.agent.agents import check_well_formed, history
from tests.agent.approving import look, write
from tests.agent.cancelling import Cancel, StoppedAtStep, run_cancelled

pytestmark = pytest.mark.anyio

CALLS = [
    tool_call("write", "a", text="A"),
    tool_call("look", "b"),
    tool_call("write", "c", text="C"),
    tool_call("write", "d", text="D"),
]
SAID = {"a": "wrote A", "b": "seen", "c": "wrote C", "d": "wrote D"}


class Slow(Hook):
    """Waits everywhere, and changes a little."""

    async def before_turn(self, turn: TurnFacts) -> None:
        await anyio.lowlevel.checkpoint()

    async def before_request(self, request: ModelRequest) -> ModelRequest:
        await anyio.lowlevel.checkpoint()
        reminder = UserMessage(content="(A reminder.)", timestamp=1)
        return ModelRequest("Be slow.", [*request.messages, reminder], request.tools)

    async def before_call(self, call: CallFacts) -> None:
        await anyio.lowlevel.checkpoint()

    async def after_call(self, call: CallFacts, result: ToolResultMessage) -> ToolResultMessage:
        await anyio.lowlevel.checkpoint()
        return result.model_copy(update={"details": "seen by a hook"})

    async def after_turn(self, turn: TurnFacts, outcome: TurnOutcome) -> None:
        await anyio.lowlevel.checkpoint()


class SlowAtEvents(Slow):
    """Waits at events as well: then the turn runs beside whoever prompts."""

    async def on_event(self, event: AgentEvent) -> None:
        await anyio.lowlevel.checkpoint()


def answer(request: ModelRequest) -> Any:
    """Calls for "Go", a word for everything else."""
    last = [message for message in request.messages if message.text != "(A reminder.)"][-1]
    return "Done." if last.role == "toolResult" else CALLS if last.text == "Go" else "Fine."


async def approve(request: ApprovalRequest) -> Decision:
    """Ask for a while; approve what comes first, deny the last."""
    await anyio.lowlevel.checkpoint()
    return Decision.deny("no") if request.call.id == "d" else Decision.approve()


async def later(request: ApprovalRequest) -> Decision:
    """Decide on the first, leave the rest for later."""
    return Decision.approve() if request.call.id == "a" else Decision.later()


async def check(session: Session, model: ScriptedModel) -> None:
    """Whole, true, and every answered request comes back."""
    entries = await session.entries()
    check_well_formed(entries)
    questions = [entry.call_id for entry in entries if isinstance(entry, ApprovalRequestedEntry)]
    answers = [entry.call_id for entry in entries if isinstance(entry, ApprovalResolvedEntry)]
    assert sorted(questions) == sorted(answers)
    replies: list[bytes] = []
    for entry in entries:
        if isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage):
            result = entry.message
            assert result.is_error or result.text == SAID[result.tool_call_id]
        elif isinstance(entry, MessageEntry) and entry.request is not None:
            replies.append(model.payload(await rebuild_request(session, entry.id)))
    sent = [model.payload(request) for request in model.requests]
    assert [body for body in sent if body in replies] == replies  # a request that was cancelled has no reply


@pytest.mark.parametrize("hook", [Slow, SlowAtEvents])
async def test_cancelled_at_every_step(way: str, hook: type[Slow]) -> None:
    """Wherever it waits: hooks, questions, calls. Then the next prompt works."""
    outcomes: list[str] = []
    for step in itertools.count(1):
        async with Session.open(MemoryStorage.create()) as session:
            model = ScriptedModel(answer)
            harness = AgentHarness(session, model, tools=[write, look], approve=approve)
            take_off = harness.on(hook())

            async def work(cancel: Cancel, harness: AgentHarness = harness, step: int = step) -> None:
                await StoppedAtStep(harness.prompt("Go"), step, cancel)

            with anyio.fail_after(60):
                outcomes.append(await run_cancelled(way, work))
            await check(session, model)
            take_off()
            assert (await harness.prompt("Again")).text == "Fine."
            await check(session, model)
        if outcomes[-1] == "finished":
            break
    assert len(outcomes) > 20
    assert set(outcomes[:-2]) == {"cancelled"}


async def test_cancelled_at_every_step_of_resuming(way: str) -> None:
    """The turn is closed as cancelled, or (before it went on) it still waits."""
    outcomes: list[str] = []
    for step in itertools.count(1):
        async with Session.open(MemoryStorage.create()) as session:
            model = ScriptedModel(answer)
            async with AgentHarness(session, model, tools=[write, look], approve=later) as harness:
                with pytest.raises(PendingCallError):
                    await harness.prompt("Go")
            harness = AgentHarness(session, model, tools=[write, look], approve=approve)

            async def work(cancel: Cancel, harness: AgentHarness = harness, step: int = step) -> None:
                await StoppedAtStep(harness.resume(), step, cancel)

            with anyio.fail_after(60):
                outcomes.append(await run_cancelled(way, work))
            if not (await history(session))[-1].startswith("turn_end"):
                assert outcomes[-1] == "cancelled"
                await harness.abort()
            await check(session, model)
            assert (await harness.prompt("Again")).text == "Fine."
            await check(session, model)
        if outcomes[-1] == "finished":
            break
    assert len(outcomes) > 7


async def test_a_crash_after_every_entry(tmp_path: Path) -> None:
    """Wherever the record ends: what is open is asked again, else the turn is closed; and nothing runs twice."""
    whole = tmp_path / "whole.jsonl"
    async with Session.open(JsonlStorage.create(whole)) as session:
        harness = AgentHarness(session, ScriptedModel(answer), tools=[write, look], approve=approve)
        await harness.prompt("Go")
    lines = whole.read_bytes().splitlines(keepends=True)
    endings: list[str] = []
    for count in range(1, len(lines) + 1):
        place = tmp_path / f"{count}.jsonl"
        place.write_bytes(b"".join(lines[:count]))
        async with Session.open(JsonlStorage.open(place)) as session:
            model = ScriptedModel(answer)
            harness = AgentHarness(session, model, tools=[write, look], approve=approve)
            try:
                await harness.prompt("Again")
                endings.append("closed")
            except PendingCallError:
                assert (await harness.resume()).text == "Done."
                endings.append("resumed")
            entries = await session.entries()
            check_well_formed(entries)
            starts = [entry.call_id for entry in entries if isinstance(entry, ToolStartEntry)]
            assert len(starts) == len(set(starts))
            assert (await harness.prompt("Again")).text == "Fine."
    assert "resumed" in endings
    first, last = endings.index("resumed"), len(endings) - endings[::-1].index("resumed")
    assert set(endings[first:last]) == {"resumed"}
