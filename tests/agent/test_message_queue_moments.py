"""The queue of messages at its narrowest places: at the last moment, looked at by several, interrupted in a delivery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from harness.agent import AgentHarness
from harness.message_queue import MessageQueue
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.testing import ScriptedModel
from storage.entries import Entry, MessageEntry
from storage.memory import MemoryStorage
from storage.messages import UserMessage
from storage.pending_write import PendingWrite
from tests.agent.agents import check_well_formed, history
from tests.agent.cancelling import StoppedAtStep

pytestmark = pytest.mark.anyio


def shown(request: ModelRequest) -> list[str]:
    """The user messages of a request."""
    return [message.text for message in request.messages if isinstance(message, UserMessage)]


async def test_a_steer_at_the_last_moment(session: Session) -> None:
    """At whatever step of the turn it is said: it reaches the model exactly once, in this turn or in the next one."""
    turns: list[int] = []
    number = 0
    while not turns or turns[-1] == 1 or number < 10:
        number += 1
        async with Session.open(MemoryStorage.create()) as own:
            model = ScriptedModel(lambda _: "Fine.")
            harness = AgentHarness(own, model)
            stopped = StoppedAtStep(harness.prompt("Go"), number, lambda h=harness: h.steer("S"))

            async def run(stopped: StoppedAtStep = stopped) -> None:
                await stopped

            await run()
            if stopped.steps < number:
                break
            steered = [shown(request) for request in model.requests]
            await harness.prompt("Again")
            texts = [entry.message.text for entry in await own.branch() if isinstance(entry, MessageEntry)]
            assert texts.count("S") == 1
            assert shown(model.requests[-1]).count("S") == 1
            turns.append(1 if ["Go", "S"] in steered else 2)
            check_well_formed(await own.entries())
    assert turns == sorted(turns)
    assert set(turns) <= {1, 2}
    assert 1 in turns


async def test_a_steer_while_the_queue_is_looked_at(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said while the turn waits for other writes before it would end: it is still of this turn."""
    settled = session.log.settled

    async def settle_and_say() -> None:
        await settled()
        index = session.log.index
        if len(index) and index.kind(len(index) - 1) == ("message", "assistant"):
            monkeypatch.setattr(session.log, "settled", settled)
            harness.steer("S")

    model = ScriptedModel(lambda _: "Fine.")
    harness = AgentHarness(session, model)
    monkeypatch.setattr(session.log, "settled", settle_and_say)
    await harness.prompt("Go")
    assert [shown(request) for request in model.requests] == [["Go"], ["Go", "S"]]


async def test_what_is_leaving_waits_for_nobody_else(session: Session) -> None:
    """Several look at the queue at the same moment: the message is taken out by one of them."""
    queue = MessageQueue(session)
    queue.put("steer", "S")
    taken: list[str] = []

    async def take() -> None:
        taken.extend(queued.message.text for queued in await queue.take_back(("steer",)))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(take)
    assert taken == ["S"]
    assert await history(session) == ["queued", "delivered"]


async def test_what_could_not_be_handed_over_goes_on_waiting(session: Session) -> None:
    """Stopped between a delivery and its message, the message waits as before, in this process too."""
    queue = MessageQueue(session)
    queue.put("steer", "S")
    queue.put("steer", "T")
    entries: list[Entry] = []

    async def put(entry: Entry) -> PendingWrite:
        entries.append(entry)
        if len(entries) == 4:
            raise LookupError
        return session.append_entry(entry)

    waiting = await queue.waiting()
    with pytest.raises(LookupError):
        await queue.deliver(waiting, put)
    assert await history(session) == ["queued", "queued", "delivered", "user: S", "delivered"]
    assert await queue.waiting() == waiting[1:]
    await queue.deliver(waiting[1:], append_now(session))
    assert await queue.waiting() == []


def append_now(session: Session) -> Callable[[Entry], Awaitable[PendingWrite]]:
    async def put(entry: Entry) -> PendingWrite:
        return session.append_entry(entry)

    return put
