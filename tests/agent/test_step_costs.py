"""What a step of a turn costs: only what is new is decoded, and the disk is at work while a connection is put away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import compaction.walk
from harness.agent import AgentHarness
from harness.hooks import Hook
from harness.models.events import ModelEvent
from harness.models.protocol import ModelRequest
from harness.recovery import NOT_STARTED
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import ScriptedModel, tool_call
from storage.errors import ModelError
from storage.jsonl import JsonlStorage
from storage.messages import UserMessage
from tests.agent.agents import check_well_formed, history
from tests.agent.cancelling import Cancel, run_cancelled

pytestmark = pytest.mark.anyio

STEPS = 12


async def note(text: str) -> str:
    return text


def calls() -> list[Any]:
    return [*(tool_call("note", f"c{number}", text="short") for number in range(STEPS)), "Done."]


@pytest.mark.parametrize("window", [None, 100_000])
async def test_a_message_is_decoded_once_in_a_turn(
    session: Session, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """However many requests show it, and also where each is measured first; another turn begins anew."""
    decoded = 0
    read = compaction.walk.recorded_message

    def counted(line: bytes) -> Any:
        nonlocal decoded
        decoded += 1
        return read(line)

    monkeypatch.setattr(compaction.walk, "recorded_message", counted)
    model = ScriptedModel([*calls(), "Again."], context_window=window)
    harness = AgentHarness(session, model, tools=[note])
    await harness.prompt("Go")
    assert len(model.requests[STEPS].messages) == 1 + 2 * STEPS
    assert decoded == 1 + 2 * STEPS
    await harness.prompt("Once more")
    assert decoded == 2 * (1 + 2 * STEPS) + 2


class Shouting(Hook):
    """Changes a message of the request in place."""

    async def before_request(self, request: ModelRequest) -> None:
        message = request.messages[0]
        assert isinstance(message, UserMessage)
        message.content = f"{message.text}!"


async def test_what_a_hook_changes_in_place_is_changed_once(session: Session) -> None:
    """Each request shows the hook what is recorded, not what it made of the one before."""
    model = ScriptedModel(calls())
    harness = AgentHarness(session, model, tools=[note])
    harness.on(Shouting())
    await harness.prompt("Go")
    assert {request.messages[0].text for request in model.requests} == {"Go!"}


class SlowToLeave(ScriptedModel):
    """Puts its connection away only once the reply is on disk; nobody else waits for that meanwhile."""

    place: Path

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        before = self.place.read_bytes().count(b'"role":"assistant"')
        async with super().stream(request) as events:
            yield events
        with anyio.fail_after(60):
            while self.place.read_bytes().count(b'"role":"assistant"') == before:
                await anyio.sleep(0.001)


async def test_a_reply_is_written_while_the_connection_is_put_away(tmp_path: Path) -> None:
    """It does not wait for a server that is slow to end its answer, with its calls' starts behind it."""
    model = SlowToLeave(calls())
    model.place = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(model.place)) as session:
        harness = AgentHarness(session, model, tools=[note], settings=AgentSettings(max_steps=STEPS + 1))
        assert (await harness.prompt("Go")).text == "Done."


class NeverLeaves(ScriptedModel):
    """Its connection cannot be put away."""

    leaving: anyio.Event

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        async with super().stream(request) as events:
            yield events
        self.leaving.set()
        await anyio.sleep_forever()


async def test_cancelled_while_the_connection_is_put_away(session: Session, way: str) -> None:
    """R24: the reply stands, its call was not begun, and the turn ends as cancelled."""
    model = NeverLeaves(calls())
    model.leaving = anyio.Event()

    async def work(cancel: Cancel) -> None:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await model.leaving.wait()
                cancel()

            group.start_soon(watch)
            await AgentHarness(session, model, tools=[note]).prompt("Go")

    assert await run_cancelled(way, work) == "cancelled"
    lines = await history(session)
    assert lines[3:5] == ["assistant toolUse: note(c0)", "tool_start c0"]
    assert lines[5:] == [f"error c0: {NOT_STARTED}", "turn_end 1 cancelled"]
    check_well_formed(await session.entries())


class FailsToLeave(ScriptedModel):
    """Fails once all was said."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        async with super().stream(request) as events:
            yield events
        raise OSError("the line is dead")


async def test_a_model_that_fails_behind_its_reply(session: Session) -> None:
    """The reply is on record, its call has a result that says it was not begun, and the turn has failed."""
    harness = AgentHarness(session, FailsToLeave(calls()), tools=[note])
    with pytest.raises(ModelError, match="OSError"):
        await harness.prompt("Go")
    lines = await history(session)
    assert lines[3:5] == ["assistant toolUse: note(c0)", "tool_start c0"]
    assert lines[-1] == "turn_end 1 failed"
    check_well_formed(await session.entries())
