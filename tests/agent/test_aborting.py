"""Stopping a running agent: ``abort`` from anywhere, at any moment; ``wait_for_idle``."""

from __future__ import annotations

import itertools
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.events import AgentEvent, MessageFinished, ToolStarted, TurnEnded, TurnStarted
from harness.message_queue import QueuedMessage
from harness.models.protocol import ModelRequest
from harness.recovery import NOT_STARTED, OUTCOME_UNKNOWN
from harness.session import Session
from harness.testing import Reply, ScriptedModel, tool_call
from harness.tools import tool
from storage.entries import DeliveredEntry
from storage.errors import PendingCallError, SessionClosedError, TurnAbortedError
from storage.memory import MemoryStorage
from storage.messages import UserMessage
from tests.agent.agents import check_well_formed, history
from tests.agent.cancelling import StoppedAtStep

pytestmark = pytest.mark.anyio


def texts(messages: list[QueuedMessage]) -> list[str]:
    return [queued.message.text for queued in messages]


async def quick() -> str:
    return "quick"


async def hanging() -> str:
    await anyio.sleep_forever()
    raise AssertionError


async def until(session: Session, line: str) -> None:
    """Wait until a line is on record."""
    with anyio.fail_after(60):
        while line not in await history(session):
            await anyio.sleep(0.002)


async def test_abort_from_another_task(session: Session) -> None:
    """The finished call keeps its result, the others say so, the turn is cancelled; ``prompt`` raises, the next works."""
    begun = anyio.Event()

    async def waiting() -> str:
        begun.set()
        return await hanging()

    model = ScriptedModel([[tool_call("quick", "a"), tool_call("waiting", "b")], "Fine."])
    harness = AgentHarness(session, model, tools=[quick, waiting])

    async def prompt() -> None:
        with pytest.raises(TurnAbortedError, match="next prompt goes on") as caught:
            await harness.prompt("Go")
        assert caught.value.code == "turn_aborted"

    async with anyio.create_task_group() as group:
        group.start_soon(prompt)
        await until(session, "result a: quick")
        await begun.wait()
        assert harness.is_running
        assert await harness.abort() == []
        assert not harness.is_running
        assert (await history(session))[-2:] == [f"error b: {OUTCOME_UNKNOWN}", "turn_end 1 cancelled"]
        assert (await harness.prompt("Again")).text == "Fine."
    check_well_formed(await session.entries())


async def test_abort_takes_back_what_waits_for_the_turn(session: Session) -> None:
    """Steers and follow-ups are returned, in order, and recorded as taken back; messages for the next turn stay."""

    async def prompt() -> None:
        with pytest.raises(TurnAbortedError):
            await harness.prompt("Go")

    model = ScriptedModel([tool_call("hanging", "a"), "Fine."])
    harness = AgentHarness(session, model, tools=[hanging])
    taken: list[QueuedMessage] = []
    async with anyio.create_task_group() as group:
        group.start_soon(prompt)
        await until(session, "tool_start a")
        harness.follow_up("F")
        harness.next_turn("N")
        harness.steer("S")
        taken += await harness.abort()
    assert [(queued.kind, queued.message.text) for queued in taken] == [("follow_up", "F"), ("steer", "S")]
    gone = [entry for entry in await session.entries() if isinstance(entry, DeliveredEntry)]
    assert [(entry.entry_id, entry.message_id) for entry in gone] == [(queued.entry_id, None) for queued in taken]
    assert texts(await harness.waiting_messages()) == ["N"]
    await harness.prompt("Again")
    shown = [message.text for message in model.requests[-1].messages if isinstance(message, UserMessage)]
    assert shown == ["Go", "N", "Again"]


async def test_abort_when_nothing_runs(session: Session) -> None:
    """It takes back what waits; with nothing there it does nothing. A closed harness aborts nothing."""
    harness = AgentHarness(session, ScriptedModel(["Fine."]))
    assert await harness.abort() == []
    harness.steer("S")
    assert texts(await harness.abort()) == ["S"]
    assert await harness.abort() == []
    assert await history(session) == ["queued", "delivered"]
    await harness.prompt("Go")
    await harness.aclose()
    with pytest.raises(SessionClosedError):
        await harness.abort()


async def test_several_abort_at_once(session: Session) -> None:
    """Each of them returns when the turn is over; what was taken back is given to one of them only."""
    harness = AgentHarness(session, ScriptedModel([tool_call("hanging", "a")]), tools=[hanging])
    taken: list[str] = []

    async def prompt() -> None:
        with pytest.raises(TurnAbortedError):
            await harness.prompt("Go")

    async def abort() -> None:
        taken.extend(texts(await harness.abort()))
        assert not harness.is_running

    async with anyio.create_task_group() as group:
        group.start_soon(prompt)
        await until(session, "tool_start a")
        harness.steer("S")
        harness.steer("T")
        for _ in range(3):
            group.start_soon(abort)
    assert taken == ["S", "T"]
    assert (await history(session)).count("delivered") == 2
    check_well_formed(await session.entries())


async def test_several_take_back_what_is_just_being_written(session: Session) -> None:
    """All of them wait for the same write; the message is given to one, and taken back once."""
    harness = AgentHarness(session, ScriptedModel([]))
    await harness.abort()
    taken: list[str] = []

    async def abort() -> None:
        taken.extend(texts(await harness.abort()))

    harness.steer("S")
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(abort)
    assert taken == ["S"]
    assert await history(session) == ["queued", "delivered"]


async def test_abort_and_the_reader_of_a_stream(session: Session) -> None:
    """Another task aborts: the reader gets ``TurnEnded`` and the iteration ends; only ``reply`` raises."""
    harness = AgentHarness(session, ScriptedModel([tool_call("hanging", "a"), "Fine."]), tools=[hanging])
    seen: list[AgentEvent] = []
    async with anyio.create_task_group() as group:
        async with harness.stream("Go") as events:
            async for event in events:
                seen.append(event)
                if isinstance(event, ToolStarted):
                    group.start_soon(harness.abort)
        with pytest.raises(TurnAbortedError):
            _ = events.reply
    assert isinstance(seen[-1], TurnEnded)
    assert seen[-1].reason == "cancelled"
    assert (await session.entries())[-1].id == seen[-1].entry_id
    assert (await harness.prompt("Again")).text == "Fine."


@pytest.mark.parametrize("at", [TurnStarted, MessageFinished, ToolStarted])
async def test_abort_from_who_reads(session: Session, at: type[AgentEvent]) -> None:
    """While iterating: it returns when the end is recorded, the next turn may begin at once, the last event is there."""
    harness = AgentHarness(session, ScriptedModel(lambda _: tool_call("hanging")), tools=[hanging])
    seen: list[AgentEvent] = []
    with anyio.fail_after(60):
        async with harness.stream("Go") as events:
            async for event in events:
                seen.append(event)
                if isinstance(event, at):
                    harness.steer("S")
                    assert texts(await harness.abort()) == ["S"]
                    assert not harness.is_running
                    assert "turn_end 1 cancelled" in await history(session)
                    await harness.aclose()
                    break
            rest = [event async for event in events]
    assert [type(event) for event in rest] == [TurnEnded]
    check_well_formed(await session.entries())


async def test_abort_a_stream_that_nobody_reads(session: Session) -> None:
    """The turn waits for its reader at its first event; abort does not."""
    harness = AgentHarness(session, ScriptedModel(["Never."]))
    with anyio.fail_after(60):
        async with harness.stream("Go"):
            await anyio.lowlevel.checkpoint()
            await harness.abort()
            assert not harness.is_running
    check_well_formed(await session.entries())


async def test_sequential_calls_that_were_not_begun(session: Session) -> None:
    """The call at work is of unknown outcome, the next one says that it was not run."""
    begun = anyio.Event()

    @tool(parallel=False)
    async def alone() -> str:
        begun.set()
        return await hanging()

    model = ScriptedModel([[tool_call("alone", "a"), tool_call("alone", "b")]])
    harness = AgentHarness(session, model, tools=[alone])

    async def prompt() -> None:
        with pytest.raises(TurnAbortedError):
            await harness.prompt("Go")

    async with anyio.create_task_group() as group:
        group.start_soon(prompt)
        await begun.wait()
        await harness.abort()
    assert (await history(session))[-3:] == [
        f"error a: {OUTCOME_UNKNOWN}",
        f"error b: {NOT_STARTED}",
        "turn_end 1 cancelled",
    ]


@pytest.mark.parametrize("plain", [True, False], ids=["prompt", "stream"])
async def test_aborted_at_every_step(plain: bool) -> None:
    """At whatever step of the turn, or of its reader: whole history, every waiting message returned or waiting still."""

    async def slow() -> str:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        return "slow"

    def answer(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return [tool_call("quick"), tool_call("slow")] if getattr(last, "text", "") == "Go" else "Fine."

    outcomes: list[str] = []
    steps: list[int] = []
    for step in itertools.count(1):
        async with Session.open(MemoryStorage.create()) as session:
            model = ScriptedModel(answer)
            harness = AgentHarness(session, model, tools=[quick, slow])
            taken: list[str] = []
            harness.follow_up("F")

            async def work(harness: AgentHarness = harness) -> None:
                if plain:
                    await harness.prompt("Go")
                    return
                async with harness.stream("Go") as events:
                    async for _ in events:
                        await anyio.lowlevel.checkpoint()
                _ = events.reply

            now = anyio.Event()

            async def abort(harness: AgentHarness = harness, taken: list[str] = taken, now: anyio.Event = now) -> None:
                await now.wait()
                taken.extend(texts(await harness.abort()))
                assert not harness.is_running

            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    group.start_soon(abort)
                    stopped = StoppedAtStep(work(), step, now.set)
                    try:
                        await stopped
                        outcomes.append("finished")
                    except TurnAbortedError:
                        outcomes.append("aborted")
                    steps.append(stopped.steps)
                    now.set()
            check_well_formed(await session.entries())
            delivered = "user: F" in await history(session)
            assert (taken == ["F"]) + delivered == 1
            assert (await harness.prompt("Again")).text == "Fine."
            check_well_formed(await session.entries())
            if steps[-1] < step:
                break
    assert len(outcomes) > 15
    assert outcomes.count("aborted") > 10


async def test_who_waits_for_abort_is_cancelled(session: Session) -> None:
    """The turn is aborted all the same, and what waited waits still."""
    harness = AgentHarness(session, ScriptedModel([Reply("Never.", delay=100), "Fine."]))

    async def prompt() -> None:
        with pytest.raises(TurnAbortedError):
            await harness.prompt("Go")

    async with anyio.create_task_group() as group:
        group.start_soon(prompt)
        await until(session, "request_header")
        harness.steer("S")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await harness.abort()
        await harness.wait_for_idle()
    assert texts(await harness.waiting_messages()) == ["S"]


async def test_a_native_cancellation_during_an_abort(anyio_backend_name: str, session: Session) -> None:
    """Cancelled natively while it is being aborted, the turn is closed once, and the cancellation goes on up."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but by scopes")
    import asyncio

    harness = AgentHarness(session, ScriptedModel([tool_call("hanging", "a"), "Fine."]), tools=[hanging])
    task = asyncio.ensure_future(harness.prompt("Go"))
    await until(session, "tool_start a")
    abort = asyncio.ensure_future(harness.abort())
    await asyncio.sleep(0)
    task.cancel()
    await abort
    with pytest.raises((asyncio.CancelledError, TurnAbortedError)):
        await task
    check_well_formed(await session.entries())
    assert (await harness.prompt("Again")).text == "Fine."


async def test_abort_after_the_turn_had_completed(session: Session) -> None:
    """Where only the reader is behind, it is no aborted turn: the end is told as it was, and the reply is there."""
    harness = AgentHarness(session, ScriptedModel(["Fine."]))
    async with harness.stream("Go") as events:
        async for event in events:
            if isinstance(event, MessageFinished):
                await until(session, "turn_end 1 completed")
                await harness.abort()
                assert not harness.is_running
                break
        rest = [event async for event in events]
    assert [(type(event), getattr(event, "reason", "")) for event in rest] == [(TurnEnded, "completed")]
    assert events.reply.text == "Fine."


async def test_abort_closes_a_turn_that_waits_for_a_person(session: Session) -> None:
    """Its question is answered as cancelled, its call gets its result, the turn ends; and the next prompt works."""

    @tool(needs_approval=True)
    def delete() -> str:
        raise AssertionError

    async def later(_: ApprovalRequest) -> Decision:
        return Decision.later()

    model = ScriptedModel([tool_call("delete", "a"), "Fine."])
    harness = AgentHarness(session, model, tools=[delete], approve=later)
    with pytest.raises(PendingCallError):
        await harness.prompt("Go")
    harness.steer("S")
    assert texts(await harness.abort()) == ["S"]
    assert (await history(session))[-5:] == [
        "queued",
        "approval_resolved",
        f"error a: {NOT_STARTED}",
        "turn_end 1 cancelled",
        "delivered",
    ]
    assert (await harness.prompt("Again")).text == "Fine."
    check_well_formed(await session.entries())
