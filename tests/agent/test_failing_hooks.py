"""Hooks that raise, are cancelled, or return what cannot be: nothing they do breaks a history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from harness.agent import AgentHarness
from harness.events import AgentEvent, MessageFinished, ToolFinished
from harness.hooks import CallFacts, Hook, Refusal, TurnFacts, TurnOutcome
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from storage.errors import HookError, ModelError
from storage.messages import ToolResultMessage
from tests.agent.agents import check_well_formed, history, results
from tests.agent.cancelling import Cancel, run_cancelled
from tests.agent.hooking import Watching, model, say

pytestmark = pytest.mark.anyio

PLACES = ["before_turn", "before_request", "before_call", "after_call", "after_turn", "on_event"]


class Failing(Hook):
    """Raises in one place, once."""

    def __init__(self, place: str, error: Exception) -> None:
        self.place = place
        self.error: Exception | None = error

    def _fail(self, place: str) -> None:
        error = self.error
        if place == self.place and error is not None:
            self.error = None
            raise error

    async def before_turn(self, turn: TurnFacts) -> None:
        self._fail("before_turn")

    async def before_request(self, request: ModelRequest) -> None:
        self._fail("before_request")

    async def before_call(self, call: CallFacts) -> None:
        self._fail("before_call")

    async def after_call(self, call: CallFacts, result: ToolResultMessage) -> None:
        self._fail("after_call")

    async def after_turn(self, turn: TurnFacts, outcome: TurnOutcome) -> None:
        self._fail("after_turn")


class FailingAtEvents(Failing):
    """The same at an event."""

    async def on_event(self, event: AgentEvent) -> None:
        if isinstance(event, MessageFinished):
            self._fail("on_event")


@pytest.mark.parametrize("place", PLACES)
async def test_a_hook_that_raises(session: Session, place: str) -> None:
    """Wherever it does: one well-formed history, the cause in the error, and the next prompt works."""
    harness = AgentHarness(session, ScriptedModel([tool_call("say", "c1", text="x"), *["Done."] * 3]), tools=[say])
    harness.on((FailingAtEvents if place == "on_event" else Failing)(place, KeyError("broken")))
    if place in ("before_call", "after_call"):
        assert (await harness.prompt("Go")).text == "Done."
        text = (await results(session))["c1"].text
        assert text == ("said x" if place == "after_call" else "This call was not run: a check before it failed. "
                        "KeyError: 'broken'")  # fmt: skip
    else:
        with pytest.raises(KeyError if place == "before_turn" else HookError) as caught:
            await harness.prompt("Go")
        if place != "before_turn":
            assert isinstance(caught.value.__cause__, KeyError)
            assert f" failed in {place} with a KeyError" in str(caught.value)
    ended = {"before_turn": [], "before_request": ["turn_end 1 failed"], "on_event": ["turn_end 1 failed"]}
    assert (await history(session))[-1:] == ended.get(place, ["turn_end 1 completed"])
    check_well_formed(await session.entries())
    await harness.prompt("Again")
    check_well_formed(await session.entries())


async def test_an_error_of_ours_stays_what_it_is(session: Session) -> None:
    """A hook may end a turn with a typed error of its own choice."""
    harness = AgentHarness(session, model(), tools=[say])
    harness.on(Failing("before_request", ModelError("the budget of the month is used up")))
    with pytest.raises(ModelError, match="of the month"):
        await harness.prompt("Go")
    assert (await history(session))[-1] == "turn_end 1 failed"


async def test_after_turn_fails_behind_another_failure(session: Session) -> None:
    """The first error is the one to know; every hook is told how the turn ended."""
    harness = AgentHarness(session, ScriptedModel([ModelError("no network")]), tools=[say])
    watching = Watching()
    harness.on(Failing("after_turn", KeyError("broken")))
    harness.on(watching)
    with pytest.raises(ModelError, match="no network") as caught:
        await harness.prompt("Go")
    assert any("A hook failed after the turn" in note for note in caught.value.__notes__)
    assert watching.seen[-1] == "after turn 1: failed"


@pytest.mark.parametrize("way", ["scope", "native"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_hook_that_is_cancelled(session: Session, place: str, way: str, anyio_backend_name: str) -> None:
    """Wherever it waits: the cancellation goes on up, each call has one result, and the next prompt works."""
    if way == "native" and anyio_backend_name == "trio":
        pytest.skip("trio has no native cancellation")

    class Waiting(Hook):
        def __init__(self, cancel: Cancel) -> None:
            self.cancel = cancel

        async def _wait(self, here: str) -> None:
            if here == place:
                self.cancel()
                await anyio.sleep_forever()

        async def before_turn(self, turn: TurnFacts) -> None:
            await self._wait("before_turn")

        async def before_request(self, request: ModelRequest) -> None:
            await self._wait("before_request")

        async def before_call(self, call: CallFacts) -> None:
            await self._wait("before_call")

        async def after_call(self, call: CallFacts, result: ToolResultMessage) -> None:
            await self._wait("after_call")

        async def after_turn(self, turn: TurnFacts, outcome: TurnOutcome) -> None:
            await self._wait("after_turn")

    class WaitingAtEvents(Waiting):
        async def on_event(self, event: AgentEvent) -> None:
            if isinstance(event, ToolFinished):
                await self._wait("on_event")

    harness = AgentHarness(session, ScriptedModel([tool_call("say", "c1", text="x"), *["Done."] * 3]), tools=[say])

    async def work(cancel: Cancel) -> None:
        take_off = harness.on((WaitingAtEvents if place == "on_event" else Waiting)(cancel))
        try:
            await harness.prompt("Go")
        finally:
            take_off()

    assert await run_cancelled(way, work) == "cancelled"
    lines = await history(session)
    ended = {"before_turn": [], "after_turn": ["turn_end 1 completed"]}
    assert lines[-1:] == ended.get(place, ["turn_end 1 cancelled"])
    if place in ("after_call", "on_event", "after_turn"):
        assert (await results(session))["c1"].text == "said x"
    elif place == "before_call":
        assert (await results(session))["c1"].text.startswith("This call was not run")
    check_well_formed(await session.entries())
    await harness.prompt("Again")
    check_well_formed(await session.entries())


async def test_an_event_hook_that_fails_hears_nothing_more(session: Session) -> None:
    """The turn ends as failed before the next request, and the calls that ran keep their results."""
    told: list[AgentEvent] = []

    class Fragile(Hook):
        async def on_event(self, event: AgentEvent) -> None:
            told.append(event)
            if isinstance(event, ToolFinished):
                raise RuntimeError("full")  # noqa: TRY004 - it stands for any failure

    calls = [tool_call("say", "c1", text="a"), tool_call("say", "c2", text="b")]
    harness = AgentHarness(session, ScriptedModel([calls, "Never.", "Again."]), tools=[say])
    take_off = harness.on(Fragile())
    with pytest.raises(HookError):
        await harness.prompt("Go")
    assert isinstance(told[-1], ToolFinished)
    assert {result.text for result in (await results(session)).values()} == {"said a", "said b"}
    assert (await history(session))[-1] == "turn_end 1 failed"
    take_off()
    check_well_formed(await session.entries())


@pytest.mark.parametrize("what", ["nonsense", "a set", "no text", "no messages"])
async def test_a_request_that_cannot_be_recorded_is_not_sent(session: Session, what: str) -> None:
    """The turn fails before the model is asked, and nothing is broken."""

    class Odd(Hook):
        async def before_request(self, request: ModelRequest) -> Any:
            if what == "nonsense":
                return "nonsense"
            if what == "a set":
                return replace(request, options={"stop": {1, 2}})
            if what == "no text":
                return replace(request, system_prompt=3)  # type: ignore[arg-type]
            return replace(request, messages=["hello"])  # type: ignore[list-item]

    scripted = model()
    harness = AgentHarness(session, scripted, tools=[say])
    take_off = harness.on(Odd())
    with pytest.raises(HookError):
        await harness.prompt("Go")
    assert scripted.requests == []
    assert (await history(session))[-1] == "turn_end 1 failed"
    take_off()
    await harness.prompt("Again")
    check_well_formed(await session.entries())


async def test_a_misspelt_hook_is_refused(session: Session) -> None:
    """A guard that nothing calls guards nothing: said when it is put on. Methods of another name are the app's own."""

    class Guard(Hook):
        async def before_cal(self, call: CallFacts) -> Refusal:
            return Refusal("no")

    class Counted(Hook):
        count = 0

        def before_lunch(self) -> None:
            """The app's own."""

    harness = AgentHarness(session, model(), tools=[say])
    with pytest.raises(HookError, match="has 'before_cal', which nothing calls; did you mean 'before_call'"):
        harness.on(Guard())
    harness.on(Counted())
