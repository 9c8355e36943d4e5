"""Random turns that a crash cut off: ``recover`` closes them as R24 says, changes nothing, and has nothing to do twice."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import JsonlStorage, Session
from tests.properties.growing import grow, raw_entries
from tests.properties.items import pair
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.record import path_to
from tests.properties.steps import ANSWERS, REPLIES, Step, conversations
from tests.properties.test_contexts import judged, placeholder
from tests.properties.wire import Json, calls_of, text_of

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
APPROVALS = ("approval_requested", "approval_resolved")

BEFORE = conversations(max_steps=MAXIMUM_STEPS // 2).map(lambda steps: [s for s in steps if s.kind not in APPROVALS])
CALLING = REPLIES.filter(lambda step: bool(step.calls)).map(lambda step: replace(step, option=""))
STARTS = st.builds(Step, st.just("tool_start"), pick=st.integers(0, 40))
SAID = st.sampled_from([Step("queued", "wait", option="steer"), Step("delivered"), Step("delivered", option="cut off")])
ROUND = st.tuples(CALLING, st.lists(st.one_of(ANSWERS, STARTS, SAID), max_size=6)).map(
    lambda drawn: [drawn[0], *drawn[1]]
)
TURN = st.lists(ROUND, max_size=2).map(lambda rounds: [step for part in rounds for step in part])
TRAILING = st.lists(
    st.sampled_from(
        [
            Step("queued", "x", option="next_turn"),
            *(Step(kind, "x") for kind in ("label", "name", "metadata", "custom")),
        ]
    ),
    max_size=2,
)


def open_calls(turn: list[Json]) -> list[Json]:
    """The calls of a turn that no result in it answers."""
    messages = [entry["message"] for entry in turn if entry["type"] == "message"]
    answered = {place for place in pair(messages) if place is not None}
    return [
        call
        for at, message in enumerate(messages)
        for number, call in enumerate(calls_of(message))
        if (at, number) not in answered
    ]


@LOOPS
@examples(40)
@given(earlier=BEFORE, turn=TURN, trailing=TRAILING)
def test_a_turn_that_was_cut_off_is_closed_once(
    loop: str, earlier: list[Step], turn: list[Step], trailing: list[Step]
) -> None:
    """One error result for each open call of the last turn, saying how far it came, then ``turn_end: interrupted``."""
    steps = [*earlier, Step("turn_end"), Step("turn_start", "go"), *turn, *trailing]

    async def run(folder: Path) -> None:
        path = folder / "one.jsonl"
        async with Session.open(JsonlStorage.create(path, durability="os")) as session:
            await grow(session, steps)
            entries = raw_entries(session.storage)
            leaf = session.leaf_id
        bytes_before = path.read_bytes()
        active = path_to(entries, leaf)
        last = max(at for at, entry in enumerate(active) if entry["type"] == "turn_start")
        expected = open_calls(active[last:])
        async with Session.open(JsonlStorage.open(path)) as session:
            added = await session.recover()
            after, _ = await judged(session, budgets_for=1)
            assert [entry["id"] for entry in after[len(entries) :]] == added
            assert await session.recover() == []
        assert path.read_bytes().startswith(bytes_before)
        *results, end = after[len(entries) :]
        assert (end["type"], end["reason"], end["turn"]) == ("turn_end", "interrupted", active[last]["turn"])
        assert end["id"] == path_to(after, end["id"])[-1]["id"]
        check_results([entry["message"] for entry in results], expected, active[last:])
        assert open_calls(path_to(after, end["id"])[last:]) == []

    placeholder()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)


def check_results(results: list[Json], calls: list[Json], turn: list[Json]) -> None:
    """As many results of each id as calls were open, all errors; where an id is used once, what they must say."""
    assert Counter(result["toolCallId"] for result in results) == Counter(call["id"] for call in calls)
    assert all(result["isError"] for result in results)
    every: Any = [call["id"] for entry in turn if entry["type"] == "message" for call in calls_of(entry["message"])]
    begun = {entry["callId"] for entry in turn if entry["type"] == "tool_start"}
    for result in results:
        if every.count(result["toolCallId"]) == 1:
            assert ("unknown" in text_of(result)) == (result["toolCallId"] in begun)
