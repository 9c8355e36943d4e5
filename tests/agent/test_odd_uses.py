"""What a stranger might do with a harness: unusual, and answered with the truth and the way out."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from harness.agent import AgentHarness
from harness.events import AgentEvent, ToolFinished, ToolProgress, TurnEnded
from harness.hooks import Hook, TurnFacts, TurnOutcome
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import ToolContext
from storage.errors import (
    BusyError,
    HookError,
    InvalidEntryError,
    ModelError,
    SettingsError,
    ToolError,
    TurnAbortedError,
    WrongEventLoopError,
)
from storage.memory import MemoryStorage
from tests.agent.agents import check_well_formed, history, results

pytestmark = pytest.mark.anyio


class Outcome(BaseException):
    """As ``pytest.fail`` and ``pytest.skip`` raise it."""


class Watching(Hook):
    """Has ``prompt`` tell its events, and remembers how turns ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    async def after_turn(self, turn: TurnFacts, outcome: TurnOutcome) -> None:
        self.ends.append(f"turn_end {turn.turn} {outcome}")

    async def on_event(self, event: AgentEvent) -> None:
        await anyio.lowlevel.checkpoint()


async def failing() -> str:
    raise Outcome("no")


async def test_a_stream_that_was_not_entered(session: Session) -> None:
    """``async for`` without ``async with`` says what to write; afterwards the harness works."""
    harness = AgentHarness(session, ScriptedModel(["Hello."]))
    with pytest.raises(BusyError, match="async with"):
        async for _ in harness.stream("Hi"):
            pass
    assert (await harness.prompt("Hi")).text == "Hello."


async def test_a_stream_that_was_left(session: Session) -> None:
    """Iterating over it once more ends at once."""
    harness = AgentHarness(session, ScriptedModel(["Hello."]))
    async with harness.stream("Hi") as events:
        assert [event async for event in events]
    assert [event async for event in events] == []
    assert events.reply.text == "Hello."


@pytest.mark.parametrize("prompt", [None, 3, ["a", "b"], {"text": "a"}, b"text"])
async def test_a_prompt_of_another_kind(session: Session, prompt: Any) -> None:
    """Refused by type, for every way to say something, before anything is recorded."""
    harness = AgentHarness(session, ScriptedModel([]))
    for say in (harness.steer, harness.follow_up, harness.next_turn):
        with pytest.raises(InvalidEntryError, match="text"):
            say(prompt)
    with pytest.raises(InvalidEntryError, match="text"):
        await harness.prompt(prompt)
    with pytest.raises(InvalidEntryError, match="text"):
        async with harness.stream(prompt):
            pass
    assert await history(session) == []


async def test_what_cannot_be_changed_says_so(session: Session) -> None:
    """Setting what a turn would not look at is refused, not ignored."""
    harness = AgentHarness(session, ScriptedModel([]), system_prompt="Be brief.")
    for name in ("system_prompt", "settings"):
        with pytest.raises(AttributeError):
            setattr(harness, name, None)
    assert (harness.system_prompt, harness.settings.max_steps) == ("Be brief.", 50)


async def test_a_name_is_no_model(session: Session) -> None:
    """As other libraries take it: refused with what to write."""
    name: Any = "gpt-5-mini"
    with pytest.raises(ModelError, match="OpenAIChatModel"):
        AgentHarness(session, name)
    harness = AgentHarness(session, ScriptedModel(["Hello."]))
    with pytest.raises(ModelError, match="OpenAIChatModel"):
        await harness.set_model(name)
    assert (await harness.prompt("Hi")).text == "Hello."


@pytest.mark.parametrize("tools", [failing, "failing", [None], [failing, 3], ["failing"]])
async def test_what_is_no_tool(session: Session, tools: Any) -> None:
    """A tool without its list, or something else in it, is named."""
    with pytest.raises(ToolError, match=r"tools=\[…\]|is no tool"):
        AgentHarness(session, ScriptedModel([]), tools=tools)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session", MemoryStorage),
        ("session", None),
        ("system_prompt", 3),
        ("system_prompt", ["Be brief."]),
        ("settings", {}),
        ("settings", {"max_steps": 3}),
        ("approve", True),
        ("summarizer", "gpt-5-mini"),
        ("summarizer", ScriptedModel([])),
    ],
)
async def test_what_a_harness_cannot_be_made_of(session: Session, name: str, value: Any) -> None:
    """Refused when it is made, naming what to give: not ignored, and not found out in the middle of a turn."""
    given: dict[str, Any] = {"session": session, "model": ScriptedModel(["Hello."]), name: value}
    with pytest.raises(SettingsError, match="give ") as caught:
        AgentHarness(**given)
    assert (caught.value.details["setting"], caught.value.details["value"]) == (name, value)
    assert (await AgentHarness(session, ScriptedModel(["Hello."])).prompt("Hi")).text == "Hello."


async def test_a_session_that_was_not_opened(session: Session) -> None:
    """What ``Session.open`` gives before it is entered is told apart from a session."""
    opening: Any = Session.open(MemoryStorage.create())
    with pytest.raises(SettingsError, match="async with Session.open"):
        AgentHarness(opening, ScriptedModel([]))
    async with opening as other:
        assert (await AgentHarness(other, ScriptedModel(["Hello."])).prompt("Hi")).text == "Hello."


@pytest.mark.parametrize("hook", [Watching, object(), None])
async def test_what_is_no_hook(session: Session, hook: Any) -> None:
    """A class in place of an object, or anything else: refused at once, not in the middle of a turn."""
    harness = AgentHarness(session, ScriptedModel(["Hello."]))
    with pytest.raises(HookError, match="an object of a class"):
        harness.on(hook)
    assert (await harness.prompt("Hi")).text == "Hello."


@pytest.mark.parametrize("way", ["prompt", "hooked prompt", "stream"])
async def test_what_is_no_error_comes_out_as_it_is(session: Session, way: str) -> None:
    """What a test framework raises in a tool is not wrapped into groups, however the turn is run."""
    harness = AgentHarness(session, ScriptedModel([tool_call("failing", "a"), "Fine."]), tools=[failing])
    if way == "hooked prompt":
        harness.on(Watching())
    with pytest.raises(Outcome, match="no"):
        if way != "stream":
            await harness.prompt("Go")
        else:
            async with harness.stream("Go") as events:
                async for _ in events:
                    pass
    assert (await history(session))[-1] == "turn_end 1 cancelled"
    assert (await harness.prompt("Again")).text == "Fine."
    check_well_formed(await session.entries())


async def test_lines_of_progress_come_before_their_tool_has_finished(session: Session) -> None:
    """Also where a tool says many at once and is done: those that are told are told before its end."""

    async def busy(context: ToolContext) -> str:
        for number in range(20):
            context.progress(f"line {number}")
        return "Done."

    calls = [tool_call("busy", "a"), tool_call("busy", "b")]
    harness = AgentHarness(session, ScriptedModel([calls, "Fine."]), tools=[busy])
    told: dict[str, list[str]] = {"a": [], "b": []}
    async with harness.stream("Go") as events:
        async for event in events:
            if isinstance(event, ToolProgress | ToolFinished):
                told[event.call.id].append(event.message if isinstance(event, ToolProgress) else "end")
    assert told["a"] == told["b"] == [*(f"line {number}" for number in range(20)), "end"]


async def test_an_agent_in_a_tool_of_an_agent(session: Session) -> None:
    """A tool of the inner one is part of the outer turn too, and cannot wait for that."""

    async def waiting() -> str:
        await outer.wait_for_idle()
        return "never"

    async def delegate() -> str:
        async with Session.open(MemoryStorage.create()) as inside:
            inner = AgentHarness(inside, ScriptedModel([tool_call("waiting", "b"), "Done."]), tools=[waiting])
            await inner.prompt("Go")
            return (await results(inside))["b"].text

    outer = AgentHarness(session, ScriptedModel([tool_call("delegate", "a"), "Done."]), tools=[delegate])
    with anyio.fail_after(60):
        await outer.prompt("Go")
    assert "cannot wait for its own end" in (await results(session))["a"].text


@pytest.mark.parametrize("plain", [True, False], ids=["prompt", "stream"])
async def test_what_is_recorded_as_completed_is_told_so(plain: bool) -> None:
    """Aborted at any moment, the caller is told what the record says: a reply, and its end, or no reply."""
    outcomes: set[tuple[str, str]] = set()
    for step in range(200):
        async with Session.open(MemoryStorage.create()) as session:
            harness = AgentHarness(session, ScriptedModel(["Hello."]))
            watching = Watching()
            harness.on(watching)
            reasons: list[str] = []
            outcome = ""

            async def abort(step: int = step, harness: AgentHarness = harness) -> None:
                for _ in range(step):
                    await anyio.lowlevel.checkpoint()
                await harness.abort()

            async with anyio.create_task_group() as group:
                group.start_soon(abort)
                try:
                    if plain:
                        outcome = (await harness.prompt("Hi")).text
                    else:
                        async with harness.stream("Hi") as events:
                            reasons = [event.reason async for event in events if isinstance(event, TurnEnded)]
                        outcome = events.reply.text
                except TurnAbortedError:
                    outcome = "aborted"
            end = next(iter((await history(session))[-1:]), "")
            assert not end or watching.ends == [end]
            expected = "Hello." if end == "turn_end 1 completed" else "aborted"
            assert outcome == expected
            if not plain and end:
                assert reasons == [end.split()[-1]]
            outcomes.add((outcome, end))
            if step > 20 and (outcome, end) == ("Hello.", "turn_end 1 completed"):
                break
    assert len(outcomes) > 1


async def test_a_harness_of_another_event_loop(session: Session) -> None:
    """From a thread with a loop of its own, of either kind, every call is refused by type, and the running turn goes on."""
    go = anyio.Event()

    async def waiting() -> str:
        await go.wait()
        return "Done."

    model = ScriptedModel([tool_call("waiting", "a"), "Fine."])
    harness = AgentHarness(session, model, tools=[waiting])
    refused: list[str] = []

    async def elsewhere() -> None:
        calls = harness.prompt, harness.abort, harness.wait_for_idle, harness.set_thinking_level, harness.resume
        for call in calls:
            try:
                await call(*(["low"] if call in (harness.prompt, harness.set_thinking_level) else []))
            except WrongEventLoopError:
                refused.append(call.__name__)

    async with anyio.create_task_group() as group:
        group.start_soon(harness.prompt, "Go")
        while "tool_start a" not in await history(session):
            await anyio.sleep(0.002)
        for backend in ("asyncio", "trio"):
            await anyio.to_thread.run_sync(lambda name=backend: anyio.run(elsewhere, backend=name))
        assert harness.is_running
        go.set()
    assert refused == ["prompt", "abort", "wait_for_idle", "set_thinking_level", "resume"] * 2
    assert (await history(session))[-1] == "turn_end 1 completed"
