"""A turn as a stream of events: the same history as ``prompt``, told as it happens."""

from __future__ import annotations

import anyio
import pytest

from harness.agent import AgentHarness
from harness.events import (
    AgentEvent,
    MessageFinished,
    PromptRecorded,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from harness.models.protocol import ModelRequest
from harness.recovery import NOT_STARTED
from harness.session import Session
from harness.testing import Reply, ScriptedModel, tool_call
from harness.tools import ToolContext
from storage.entries import EntryBase
from storage.errors import BusyError, InvalidEntryError, ModelError
from storage.messages import TextContent, UserMessage
from tests.agent.agents import check_well_formed, history

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    return a + b


async def collect(harness: AgentHarness, prompt: str) -> list[AgentEvent]:
    async with harness.stream(prompt) as events:
        return [event async for event in events]


async def test_events_come_in_order_with_their_entries(session: Session) -> None:
    """Each event that has an entry names it, and that entry is committed when the event is told."""
    model = ScriptedModel(
        [Reply("Let me", [tool_call("add", "c1", a=1, b=2), tool_call("none", "c2")], thinking="hm"), "Three."]
    )
    harness = AgentHarness(session, model, tools=[add])
    seen: list[AgentEvent] = []
    async with harness.stream("Add") as events:
        async for event in events:
            seen.append(event)
            entry_id = getattr(event, "entry_id", None)
            if entry_id is not None:
                assert isinstance(await session.entry(entry_id), EntryBase)
    kinds = [type(event) for event in seen]
    assert [kind for kind in kinds if kind is not ToolCallDelta] == [
        TurnStarted,
        PromptRecorded,
        ThinkingDelta,
        TextDelta,
        MessageFinished,
        ToolFinished,
        ToolStarted,
        ToolFinished,
        TextDelta,
        MessageFinished,
        TurnEnded,
    ]
    assert "".join(event.text for event in seen if isinstance(event, TextDelta)) == "Let meThree."
    finished = [event for event in seen if isinstance(event, ToolFinished)]
    assert [(event.call.id, event.result.is_error) for event in finished] == [("c2", True), ("c1", False)]
    assert events.reply.text == "Three."
    last = seen[-1]
    assert isinstance(last, TurnEnded)
    assert (last.turn, last.reason) == (1, "completed")


async def test_streamed_and_plain_turns_leave_the_same_history(session: Session) -> None:
    """``prompt`` and ``stream`` write the same entries."""

    def script() -> ScriptedModel:
        return ScriptedModel([["See", tool_call("add", "c1", a=1, b=2)], "Three."])

    plain = AgentHarness(session, script(), tools=[add])
    await plain.prompt("Add")
    await plain.aclose()
    first = await history(session)
    await collect(AgentHarness(session, script(), tools=[add]), "Add")
    second = (await history(session))[len(first) :]
    first.remove("request_header")  # the second turn has the same one
    assert [line.replace(" 1", " 2") if line.startswith("turn_") else line for line in first] == second


async def test_leaving_early_cancels_the_turn(session: Session) -> None:
    """After the ``async with`` is left, the turn has ended, and that is on disk."""
    model = ScriptedModel([["x", tool_call("add", "c1", a=1, b=2)], "Fine."])
    harness = AgentHarness(session, model, tools=[add])
    async with harness.stream("Add") as events:
        async for event in events:
            if isinstance(event, MessageFinished):
                break
    assert (await history(session))[-2:] == [f"error c1: {NOT_STARTED}", "turn_end 1 cancelled"]
    check_well_formed(await session.entries())
    with pytest.raises(BusyError, match="did not come to its end"):
        _ = events.reply
    assert (await harness.prompt("Again")).text == "Fine."


async def test_leaving_without_taking_any_event(session: Session) -> None:
    """A stream that nobody reads is cancelled on leaving and hangs nowhere."""
    harness = AgentHarness(session, ScriptedModel(["Fine."]))
    with anyio.fail_after(60):
        async with harness.stream("Hi"):
            await anyio.sleep(0.01)
    entries = await session.entries()
    check_well_formed(entries)
    assert (await harness.prompt("Again")).text == "Fine."


async def test_an_error_of_the_reader_goes_up_as_it_is(session: Session) -> None:
    """What the body raises is not wrapped in a group; the turn is cancelled first."""
    harness = AgentHarness(session, ScriptedModel(["Hello there"]))
    with pytest.raises(LookupError, match="mine"):
        async with harness.stream("Hi") as events:
            async for _ in events:
                raise LookupError("mine")
    assert (await history(session))[-1] == "turn_end 1 cancelled"


async def test_a_failing_model_is_raised_from_the_iteration(session: Session) -> None:
    """After ``TurnEnded`` with reason failed, the iteration raises the model's error, and so does ``reply``."""
    harness = AgentHarness(session, ScriptedModel([Reply("Half", error=ModelError("overloaded"))]))
    seen: list[AgentEvent] = []
    events = harness.stream("Hi")
    with pytest.raises(ModelError, match="overloaded"):
        async with events:
            async for event in events:
                seen.append(event)
    last = seen[-1]
    assert isinstance(last, TurnEnded)
    assert last.reason == "failed"
    with pytest.raises(ModelError, match="overloaded"):
        _ = events.reply


async def test_an_error_that_nobody_took_is_raised_on_leaving(session: Session) -> None:
    """A body that stops at ``TurnEnded`` still learns of the failure."""
    harness = AgentHarness(session, ScriptedModel([ModelError("overloaded")]))
    with pytest.raises(ModelError, match="overloaded"):
        async with harness.stream("Hi") as events:
            async for event in events:
                if isinstance(event, TurnEnded):
                    await anyio.sleep(0.02)
                    break


async def test_progress_reaches_the_reader_from_the_loop_and_from_threads(session: Session) -> None:
    """``context.progress`` shows as events between start and end of the call; in ``prompt`` it goes nowhere."""

    async def looped(context: ToolContext) -> None:
        context.progress("on the loop")
        await anyio.sleep(0.02)

    def threaded(context: ToolContext) -> None:
        context.progress("in a thread")

    def script() -> ScriptedModel:
        return ScriptedModel([tool_call("looped", "a"), tool_call("threaded", "b"), "Done."])

    harness = AgentHarness(session, script(), tools=[looped, threaded])
    seen = await collect(harness, "Go")
    lines = [(event.call.id, event.message) for event in seen if isinstance(event, ToolProgress)]
    assert lines[0] == ("a", "on the loop")
    await harness.aclose()
    harness = AgentHarness(session, script(), tools=[looped, threaded])
    assert (await harness.prompt("Go")).text == "Done."


async def test_a_slow_reader_holds_the_turn_back(session: Session) -> None:
    """Events are taken one at a time: the turn does not run ahead of whoever reads."""
    harness = AgentHarness(session, ScriptedModel(["Hello"]))
    async with harness.stream("Hi") as events:
        async for event in events:
            if isinstance(event, TurnStarted):
                await anyio.sleep(0.05)
                assert "assistant stop: Hello" not in await history(session)
    assert (await history(session))[-1] == "turn_end 1 completed"


async def test_a_stream_is_for_one_turn(session: Session) -> None:
    """Entering it again is refused, during its turn and after it."""
    events = AgentHarness(session, ScriptedModel(["Hello"])).stream("Hi")
    async with events:
        with pytest.raises(BusyError, match="entered before"):
            await events.__aenter__()
        assert [event async for event in events]
    with pytest.raises(BusyError, match="entered before"):
        await events.__aenter__()
    assert events.reply.text == "Hello"


async def test_entering_a_stream_holds_the_turn(session: Session) -> None:
    """From entering on, before any event is taken, nobody else begins a turn, moves the leaf or closes the harness."""
    harness = AgentHarness(session, ScriptedModel(["Hello", "Fine."]))
    other = AgentHarness(session, ScriptedModel(["Never."]))
    async with harness.stream("Hi") as events:
        for attempt in (harness.prompt("No"), harness.aclose(), other.prompt("No"), session.recover()):
            with pytest.raises(BusyError):
                await attempt
        with pytest.raises(BusyError):
            session.move_to(None)
        with pytest.raises(BusyError, match="a turn is running"):
            async with harness.stream("No"):
                raise AssertionError("entered")
        assert [event async for event in events]
        # The turn is over with its last event, though the stream was not left.
        assert (await harness.prompt("Again")).text == "Fine."
        with pytest.raises(BusyError):
            await other.prompt("No")
    assert [line for line in await history(session) if line.startswith("user")] == ["user: Hi", "user: Again"]
    check_well_formed(await session.entries())


async def test_leaving_a_stream_does_not_end_the_next_turn(session: Session) -> None:
    """A stream whose turn is over holds nothing: leaving it takes nothing from the turn that runs then."""
    asked, left = anyio.Event(), anyio.Event()

    async def answer_slowly(_: ModelRequest) -> str:
        asked.set()
        await left.wait()
        return "Two"

    harness = AgentHarness(session, ScriptedModel(["One", answer_slowly]))
    async with anyio.create_task_group() as group:
        async with harness.stream("1") as events:
            assert [event async for event in events]
            group.start_soon(harness.prompt, "2")
            await asked.wait()
        for attempt in (harness.aclose(), harness.prompt("No")):
            with pytest.raises(BusyError, match="a turn is running"):
                await attempt
        with pytest.raises(BusyError):
            session.move_to(None)
        left.set()
    assert (await history(session))[-2:] == ["assistant stop: Two", "turn_end 2 completed"]


async def test_leaving_at_once_gives_the_turn_back(session: Session) -> None:
    """A stream that is left before its turn did anything writes no open turn, and the next prompt works."""
    harness = AgentHarness(session, ScriptedModel(["Fine.", "Fine."]))
    async with harness.stream("Hi"):
        pass
    check_well_formed(await session.entries())
    assert (await harness.prompt("Again")).text == "Fine."


@pytest.mark.parametrize("prompt", ["", []])
async def test_a_stream_that_is_refused_holds_nothing(session: Session, prompt: str | list[TextContent]) -> None:
    """Entering raises what comes before anything is recorded: an empty prompt, a session that another one holds."""
    harness = AgentHarness(session, ScriptedModel(["Fine.", "Fine."]))
    with pytest.raises(InvalidEntryError, match="empty prompt"):
        async with harness.stream(prompt):
            raise AssertionError("entered")
    assert (await harness.prompt("Hi")).text == "Fine."
    with pytest.raises(BusyError, match="another harness"):
        async with AgentHarness(session, ScriptedModel([])).stream("Hi"):
            raise AssertionError("entered")
    assert (await harness.prompt("Hi")).text == "Fine."


async def test_entering_a_stream_may_be_cancelled(session: Session) -> None:
    """A cancellation while the session is taken over leaves nothing held."""
    harness = AgentHarness(session, ScriptedModel(["Fine."]))
    session.append_message(UserMessage(content="queued"))  # so that taking over has something to wait for
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with harness.stream("Hi"):
            raise AssertionError("entered")
    assert scope.cancelled_caught
    assert await history(session) == ["user: queued"]
    assert (await harness.prompt("Hi")).text == "Fine."
