"""A crash anywhere in a turn with queued messages: each of them reaches the model exactly once (R24)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from harness.agent import AgentHarness
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from storage.entries import DeliveredEntry, Entry, MessageEntry, QueuedEntry
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import UserMessage
from tests.agent.agents import check_well_formed
from tests.agent.cancelling import Cancel, StoppedAtStep, run_cancelled

pytestmark = pytest.mark.anyio

SAID = ["N1", "N2", "left over", "S1", "S2", "F1", "F2", "later"]


def said_in(request: ModelRequest) -> list[str]:
    """The queued messages that a request shows."""
    return [message.text for message in request.messages if message.text in SAID]


async def whole_session(place: Path) -> None:
    """One turn in which messages of every kind are queued and delivered, in both ways of going on."""

    def answer(request: ModelRequest) -> Any:
        number = len(model.requests)
        if number == 1:
            return tool_call("work", "a")
        if number == 2:
            harness.follow_up("F2")
            return tool_call("work", "b")
        return "Fine."

    async def work() -> str:
        if len(model.requests) == 1:
            harness.steer("S1")
            await harness.steer("S2")
            harness.follow_up("F1")
            harness.next_turn("later")
        return "done"

    model = ScriptedModel(answer)
    async with Session.open(JsonlStorage.create(place, durability="os")) as session:
        harness = AgentHarness(session, model, tools=[work])
        harness.next_turn("N1")
        harness.next_turn("N2")
        harness.steer("left over")
        await harness.prompt("Go")
        assert said_in(model.requests[-1]) == SAID[:-1]


def queued_in(entries: list[Entry]) -> list[str]:
    """The texts of what was queued, in order."""
    return [entry.message.text for entry in entries if isinstance(entry, QueuedEntry)]


async def test_cut_off_behind_every_line(tmp_path: Path) -> None:
    """After each line of the turn another process takes over, recovers and prompts: nothing is lost or said twice."""
    place = tmp_path / "whole.jsonl"
    await whole_session(place)
    lines = place.read_bytes().splitlines(keepends=True)
    kinds = [line.split(b'"type":"', 1)[1].split(b'"', 1)[0] for line in lines]
    assert kinds.count(b"queued") == kinds.count(b"delivered") + 1 == 8
    for count in range(1, len(lines) + 1):
        cut = tmp_path / f"{count}.jsonl"
        cut.write_bytes(b"".join(lines[:count]))
        async with Session.open(JsonlStorage.open(cut, durability="os")) as session:
            model = ScriptedModel(lambda _: "Fine.")
            harness = AgentHarness(session, model)
            async with harness:
                await harness.prompt("Again")
                await harness.prompt("And again")
                assert await harness.waiting_messages() == []
            entries = await session.entries()
            check_well_formed(entries)
            texts = [e.message.text for e in entries if isinstance(e, MessageEntry) and e.message.text in SAID]
            assert sorted(texts) == sorted(queued_in(entries))
            assert sorted(said_in(model.requests[-1])) == sorted(texts)
            for request in model.requests:
                assert len(set(said_in(request))) == len(said_in(request))


async def test_between_a_delivery_and_its_message(tmp_path: Path) -> None:
    """Killed just there, the turn is closed, and the message waits as before; the next delivery is another one."""
    place = tmp_path / "whole.jsonl"
    await whole_session(place)
    lines = place.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        if b'"type":"delivered"' not in line:
            continue
        cut = tmp_path / f"{number}.jsonl"
        cut.write_bytes(b"".join(lines[: number + 1]))
        async with Session.open(JsonlStorage.open(cut)) as session:
            announced = (await session.entries())[-1]
            assert isinstance(announced, DeliveredEntry)
            async with AgentHarness(session, ScriptedModel(lambda _: "Fine.")) as harness:
                assert announced.entry_id in [queued.entry_id for queued in await harness.waiting_messages()]
                entries = await session.entries()
                assert entries[-1].type == "turn_end"
                await harness.prompt("Again")
            again = [e for e in await session.entries() if isinstance(e, DeliveredEntry)]
            assert [e.entry_id for e in again].count(announced.entry_id) == 2
            assert announced.message_id not in session.log.index.ids


async def test_a_message_queued_behind_a_crashed_turn(tmp_path: Path) -> None:
    """Said by somebody before a harness took the session over, it keeps nobody from closing the turn."""
    place = tmp_path / "whole.jsonl"
    await whole_session(place)
    lines = place.read_bytes().splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if b'"type":"tool_start"' in line)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines[: start + 1]))
    async with Session.open(JsonlStorage.open(cut)) as session:
        model = ScriptedModel(["Fine."])
        harness = AgentHarness(session, model)
        harness.steer("S1")
        await session.append_entry(QueuedEntry(kind="next_turn", message=UserMessage(content="N2"), ignorable=True))
        await harness.prompt("Again")
        check_well_formed(await session.entries())
        assert said_in(model.requests[0])[-2:] == ["N2", "S1"]


@pytest.mark.parametrize("way", ["scope", "native"])
async def test_cancelled_at_every_step(way: str, anyio_backend_name: str) -> None:
    """A cancellation wherever the turn waits: each message is delivered in that turn or in the next ones, once."""
    if way == "native" and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but by scopes")
    outcomes: list[str] = []
    for step in itertools.count(1):
        async with Session.open(MemoryStorage.create()) as session:
            model = ScriptedModel(lambda _: "Fine.")
            harness = AgentHarness(session, model)
            harness.next_turn("N1")
            harness.steer("S1")
            harness.follow_up("F1")

            async def work(cancel: Cancel, harness: AgentHarness = harness, step: int = step) -> None:
                await StoppedAtStep(harness.prompt("Go"), step, cancel)

            outcomes.append(await run_cancelled(way, work))
            await harness.prompt("Again")
            assert await harness.waiting_messages() == []
            entries = await session.entries()
            check_well_formed(entries)
            texts = [e.message.text for e in entries if isinstance(e, MessageEntry) and e.message.text in SAID]
            assert sorted(texts) == ["F1", "N1", "S1"]
            assert sorted(said_in(model.requests[-1])) == sorted(texts)
        if outcomes[-1] == "finished":
            break
    assert len(outcomes) > 10
    assert set(outcomes[:-2]) == {"cancelled"}
