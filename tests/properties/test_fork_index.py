"""Random sessions, forked: what the fork's index takes over from its parent's is what reading its file gives."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import JsonlStorage, Session, UserMessage
from storage.entries import DeliveredEntry, MessageEntry, QueuedEntry
from storage.index import EntryIndex
from tests.properties.growing import grow
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.steps import Recorded, Step, conversations

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)

BRANCHING = ("move", "aside")


def known(index: EntryIndex) -> dict[str, Any]:
    """All that an index tells."""
    places = range(len(index))
    states = [index.state(seq) for seq in places]
    return {
        "entries": [(index.names[seq], index.lines[seq], index.parents[seq], index.depths[seq]) for seq in places],
        "kinds": [(index.kind(seq), index.openers[seq], index.model_at(seq)) for seq in places],
        "states": states,
        "chains": [(index.chain(state.working_memory), index.chain(state.edit)) for state in states],
        "waiting": [index.waiting(seq) for seq in places],
        "whole": (index.ids, index.labels, index.name_seq, index.leaf_id, index.ended_turns, index.broken),
    }


def raw_lines(index: EntryIndex) -> list[Any]:
    return [json.loads(line) for line in index.lines if line is not None]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@examples(150)
@given(
    steps=conversations(max_steps=MAXIMUM_STEPS),
    straight=st.booleans(),
    pick=st.integers(0, 60),
    more=conversations(max_steps=8),
)
def test_a_fork_knows_what_its_file_says(
    loop: str, steps: list[Step], straight: bool, pick: int, more: list[Step]
) -> None:
    """From the leaf and from anywhere before it, of one path and of trees; and what is appended afterwards is known too."""
    if straight:
        steps = [step for step in steps if step.kind not in BRANCHING and step.option != "summary"]

    async def run(folder: Path) -> None:
        async with Session.open(JsonlStorage.create(folder / "one.jsonl", durability="os")) as session:
            recorded = await grow(session, steps)
            if not recorded.entries:
                return
            target = recorded.entries[pick % len(recorded.entries)]["id"]
            for number, target_id in enumerate((None, target)):
                place = folder / f"fork-{number}.jsonl"
                async with await session.fork(
                    target_id, into=partial(JsonlStorage.create, place, durability="os")
                ) as fork:
                    async with Session.open(JsonlStorage.open(place, mode="read")) as read:
                        assert known(fork.log.index) == known(read.log.index)
                    await grow(fork, more, recorded=Recorded(raw_lines(fork.log.index), fork.leaf_id))
                    async with Session.open(JsonlStorage.open(place, mode="read")) as read:
                        assert known(fork.log.index) == known(read.log.index)
            assert len(session.log.index) == len(recorded.entries)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_message_that_was_announced_may_come_in_the_fork(loop: str, tmp_path: Path) -> None:
    """It was delivered into the turn, and opens none, there as here."""

    async def run() -> None:
        async with Session.open(JsonlStorage.create(tmp_path / "one.jsonl")) as session:
            await session.append_message(UserMessage(content="Hi"))
            queued = await session.append_entry(QueuedEntry(kind="steer", message=UserMessage(content="And?")))
            await session.append_entry(DeliveredEntry(entry_id=queued, message_id="later"))
            place = tmp_path / "fork.jsonl"
            async with await session.fork(into=partial(JsonlStorage.create, place)) as fork:
                await fork.append_entry(MessageEntry(id="later", message=UserMessage(content="And?")))
                async with Session.open(JsonlStorage.open(place, mode="read")) as read:
                    assert known(fork.log.index) == known(read.log.index)

    anyio.run(run, backend=loop)
