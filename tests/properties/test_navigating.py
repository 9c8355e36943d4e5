"""Random trees, and a harness that goes from place to place in them: each arrival, summary and context holds the rules."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import AgentHarness, CompactionError, JsonlStorage, Session, SummaryReply, SummaryRequest
from harness.testing import ScriptedModel
from tests.properties.growing import grow, plain_message, raw_entries
from tests.properties.navigating import Gone, check_navigation
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.record import role_of
from tests.properties.steps import Recorded, Step, conversations
from tests.properties.test_contexts import judged, placeholder
from tests.properties.wire import Json

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


@dataclass(frozen=True)
class Hop:
    """One navigation: where to, by remainder, and what is wanted; then some more is said there."""

    pick: int
    to: str
    summary: str
    label: bool
    steps: list[Step]


HOPS = st.lists(
    st.builds(
        Hop,
        st.integers(0, 60),
        st.sampled_from(["any", "any", "said", "delivered", "root"]),
        st.sampled_from(["", "made", "made", "fails"]),
        st.booleans(),
        conversations(max_steps=5),
    ),
    min_size=1,
    max_size=4,
)


class Scribe:
    """Summarises as it is told to, and remembers what it was told."""

    def __init__(self) -> None:
        self.prompt: str | None = None
        self.fails = False

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        """What it was asked for."""
        self.prompt = request.prompt
        if self.fails:
            raise ValueError("no summary today")
        return SummaryReply("what was tried")


class Marks:
    """Marks every text that can be shown, each with another number."""

    def __init__(self) -> None:
        self.count = 0

    def on(self, steps: list[Step]) -> list[Step]:
        return [self._marked(step) for step in steps]

    def _marked(self, step: Step) -> Step:
        self.count += 1
        is_text = step.kind not in ("label", "name", "memory", "header", "branch_summary", "compaction", "move")
        text = f"{step.text} #{self.count}#" if is_text and step.text.strip() else step.text
        return replace(step, text=text)


@LOOPS
@examples(60)
@given(steps=conversations(max_steps=MAXIMUM_STEPS), hops=HOPS)
def test_going_from_place_to_place(loop: str, steps: list[Step], hops: list[Hop]) -> None:
    """Where one arrives, what is summarised, what waits there; and R18-R22 at every leaf of the tree that it leaves."""

    async def run(folder: Path) -> None:
        marks = Marks()
        path = folder / "one.jsonl"
        async with Session.open(JsonlStorage.create(path, durability="os")) as session:
            await grow(session, marks.on(steps))
            scribe = Scribe()
            async with AgentHarness(session, ScriptedModel([]), summarizer=scribe) as harness:
                for hop in hops:
                    await go(session, harness, scribe, path, hop)
                    recorded = Recorded(raw_entries(session.storage), session.leaf_id)
                    await grow(session, marks.on(hop.steps), recorded=recorded)
            await judged(session, budgets_for=1)

    placeholder()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)


def target_of(hop: Hop, entries: list[Json]) -> str | None:
    """Any entry, or one that a person said, or that was delivered, if there is one; ``None``: before the first."""
    announced = {entry.get("messageId") for entry in entries if entry["type"] == "delivered"}
    chosen = {
        "root": [],
        "said": [entry for entry in entries if role_of(entry) == "user"],
        "delivered": [entry for entry in entries if entry["id"] in announced],
    }.get(hop.to, entries)
    return chosen[hop.pick % len(chosen)]["id"] if chosen else None


async def go(session: Session, harness: AgentHarness, scribe: Scribe, path: Path, hop: Hop) -> None:
    """Navigate, and judge that."""
    entries = raw_entries(session.storage)
    target = target_of(hop, entries)
    label = "here" if hop.label and target is not None else None
    scribe.prompt, scribe.fails = None, hop.summary == "fails"
    before, left = path.read_bytes(), session.leaf_id
    try:
        gone = await harness.navigate(target, summarize=bool(hop.summary), label=label)
    except CompactionError:
        assert hop.summary == "fails"
        assert scribe.prompt is not None
        assert (path.read_bytes(), session.leaf_id) == (before, left)
        return
    assert path.read_bytes().startswith(before)
    assert gone.leaf_id == session.leaf_id
    assert gone.left_id == left
    added = raw_entries(session.storage)[len(entries) :]
    arrived = next((entry["parentId"] for entry in added if entry["type"] in ("leaf", "branch_summary")), left)
    told = Gone(
        target=target,
        left=left,
        arrived=arrived,
        handed_back=None if gone.message is None else plain_message(gone.message),
        prompt=scribe.prompt,
        wants_summary=bool(hop.summary),
        summary=gone.summary,
        label=label,
    )
    found = check_navigation(entries, added, told)
    assert not found, "\n".join([*map(str, found), str(told), *map(json.dumps, [*entries, {}, *added])])
