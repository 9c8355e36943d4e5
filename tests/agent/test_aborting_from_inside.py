"""``abort`` from inside the turn, by its own tools; and waiting for its end from inside and outside."""

from __future__ import annotations

import anyio
import anyio.from_thread
import pytest

from harness.agent import AgentHarness
from harness.message_queue import QueuedMessage
from harness.models.protocol import ModelRequest
from harness.recovery import OUTCOME_UNKNOWN
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from storage.errors import BusyError, TurnAbortedError
from tests.agent.agents import check_well_formed, history, results

pytestmark = pytest.mark.anyio


def texts(messages: list[QueuedMessage]) -> list[str]:
    return [queued.message.text for queued in messages]


async def hanging() -> str:
    await anyio.sleep_forever()
    raise AssertionError


async def until(session: Session, line: str) -> None:
    """Wait until a line is on record."""
    with anyio.fail_after(60):
        while line not in await history(session):
            await anyio.sleep(0.002)


@pytest.mark.parametrize("plain", [True, False], ids=["prompt", "stream"])
async def test_abort_from_a_tool(session: Session, plain: bool) -> None:
    """It does not return: the tool is cancelled with its turn. Nothing is taken back, since nobody is there to have it."""
    after: list[str] = []

    begun = anyio.Event()

    async def stopping() -> str:
        await begun.wait()
        harness.steer("S")
        await harness.abort()
        after.append("returned")
        return "never"

    async def beside() -> str:
        begun.set()
        return await hanging()

    model = ScriptedModel([[tool_call("stopping", "a"), tool_call("beside", "b")], "Fine."])
    harness = AgentHarness(session, model, tools=[stopping, beside])
    with anyio.fail_after(60):
        if plain:
            with pytest.raises(TurnAbortedError):
                await harness.prompt("Go")
        else:
            async with harness.stream("Go") as events:
                assert [event async for event in events]
    assert after == []
    assert {call: result.text for call, result in (await results(session)).items()} == {
        "a": OUTCOME_UNKNOWN,
        "b": OUTCOME_UNKNOWN,
    }
    assert texts(await harness.waiting_messages()) == ["S"]
    assert (await harness.prompt("Again")).text == "Fine."
    check_well_formed(await session.entries())


async def test_abort_from_a_tool_in_a_thread(session: Session) -> None:
    """The same, through ``anyio.from_thread``."""

    def stopping() -> str:
        anyio.from_thread.run(harness.abort)
        return "never"

    harness = AgentHarness(session, ScriptedModel([tool_call("stopping", "a"), "Fine."]), tools=[stopping])
    with anyio.fail_after(60):
        with pytest.raises(TurnAbortedError):
            await harness.prompt("Go")
    check_well_formed(await session.entries())
    assert (await harness.prompt("Again")).text == "Fine."


async def test_abort_from_a_tool_that_is_shielded(session: Session) -> None:
    """It cannot wait for itself: the tool is told so, may clean up, and keeps its result."""
    codes: list[str] = []

    async def stopping() -> str:
        with anyio.CancelScope(shield=True):
            try:
                await harness.abort()
            except BusyError as error:
                codes.append(error.code)
            await anyio.sleep(0.01)
        return "cleaned up"

    harness = AgentHarness(session, ScriptedModel([tool_call("stopping", "a"), "Fine."]), tools=[stopping])
    with anyio.fail_after(60):
        with pytest.raises(TurnAbortedError):
            await harness.prompt("Go")
    assert codes == ["busy"]
    assert (await history(session))[-2:] == ["result a: cleaned up", "turn_end 1 cancelled"]


async def test_wait_for_idle(session: Session) -> None:
    """Several tasks wait for the end of the turn, however it ends; without one it returns at once."""
    go = anyio.Event()
    ended: list[str] = []

    async def answer(_: ModelRequest) -> str:
        await go.wait()
        return "Fine."

    async def wait() -> None:
        await harness.wait_for_idle()
        ended.append((await history(session))[-1])

    harness = AgentHarness(session, ScriptedModel([answer]))
    await harness.wait_for_idle()
    async with anyio.create_task_group() as group:
        group.start_soon(harness.prompt, "Go")
        await until(session, "request_header")
        for _ in range(3):
            group.start_soon(wait)
        await anyio.sleep(0.01)
        assert ended == []
        go.set()
    assert ended == ["turn_end 1 completed"] * 3


async def test_a_tool_cannot_wait_for_its_own_turn(session: Session) -> None:
    """It would wait for ever, so it is told."""

    async def waiting() -> str:
        await harness.wait_for_idle()
        return "never"

    harness = AgentHarness(session, ScriptedModel([tool_call("waiting", "a"), "Done."]), tools=[waiting])
    with anyio.fail_after(60):
        await harness.prompt("Go")
    assert "cannot wait for its own end" in (await results(session))["a"].text
