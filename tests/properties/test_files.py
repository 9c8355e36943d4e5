"""Random files written by hand, by the format alone: odd compactions, nulls, other roles, entries of unknown types."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import EntryFileStorage, JsonlStorage, Session
from tests.properties.growing import plain_of, raw_entries
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.steps import STAMP, TIME, Recorded, Step, conversations, plan
from tests.properties.test_contexts import judged, placeholder
from tests.properties.wire import Json, compact

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)

HEADER = {"type": "session", "version": 3, "id": "by-hand", "timestamp": STAMP, "cwd": "/w"}

ODD: list[Json] = [
    {"type": "message", "message": {"role": "user", "content": None, "timestamp": TIME}},
    {"type": "message", "message": {"role": "user", "content": [], "timestamp": TIME}},
    {"type": "message", "message": {"role": "user", "content": [{"type": "text", "text": None}], "timestamp": TIME}},
    {"type": "message", "message": {"role": "assistant", "content": None, "provider": "p", "model": "m", "timestamp": TIME}},
    {"type": "message", "message": {"role": "assistant", "content": [], "stopReason": "aborted", "timestamp": TIME}},
    {"type": "message", "message": {"role": "toolResult", "toolCallId": "k", "toolName": "look", "content": None,
                                    "isError": False, "timestamp": TIME}},
    {"type": "message", "message": {"role": "toolResult", "toolCallId": "x", "toolName": "look", "content": "words",
                                    "isError": True, "timestamp": TIME}},
    {"type": "compaction", "summary": "odd sum", "tokensBefore": 1, "firstKeptEntryId": "nowhere"},
    {"type": "compaction", "summary": "odd sum", "tokensBefore": 1, "retainedTail": [], "firstKeptEntryId": "e0"},
    {"type": "compaction", "summary": "odd sum", "firstKeptEntryId": "OWN"},
    {"type": "branch_summary", "summary": "", "fromId": "root"},
    {"type": "branch_summary", "summary": None, "fromId": "root"},
    {"type": "custom_message", "customType": "n", "content": None, "display": False},
    {"type": "custom_message", "customType": "n", "display": True,
     "content": [{"type": "text", "text": " "}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}]},
    {"type": "usage", "kind": "title", "usage": {"input": 1, "output": 1}},
    {"type": "of_tomorrow", "shines": [1, 2], "ignorable": True},
]  # fmt: skip

ODD_STEPS = st.builds(Step, st.just("odd"), pick=st.integers(0, len(ODD) - 1))
ELSEWHERE = st.builds(Step, st.just("elsewhere"), pick=st.integers(0, 40))
STEPS = st.one_of(conversations(max_steps=8), st.lists(st.one_of(ODD_STEPS, ELSEWHERE), min_size=1, max_size=2))


def entries_of(steps: list[Step]) -> Recorded:
    """The entries of a file, with ids and places given by hand."""
    recorded = Recorded()
    for step in steps:
        if step.kind == "odd":
            planned = [dict(ODD[step.pick])]
        elif step.kind == "elsewhere":  # the first kept entry of a compaction is on any branch, or comes only later
            planned = [
                {"type": "compaction", "summary": "far sum", "tokensBefore": 1, "firstKeptEntryId": f"e{step.pick}"}
            ]
        else:
            planned = plan(step, recorded)
        for raw in planned:
            seq = len(recorded.entries)
            entry_id = f"e{seq}"
            if raw.get("firstKeptEntryId") == "OWN":
                raw["firstKeptEntryId"] = entry_id
            entry = {"seq": seq, "id": entry_id, "parentId": recorded.leaf, "timestamp": STAMP, **raw}
            recorded.accept(entry)
    return recorded


def write(path: Path, recorded: Recorded, *, ours: bool, ascii_only: bool) -> None:
    """One line an entry, in our form or in another program's: without ``seq``, with spaces and escapes."""
    header = {**HEADER, "branchline": 1} if ours else HEADER
    lines = [header, *recorded.entries]
    if not ours:
        lines = [{name: value for name, value in line.items() if name != "seq"} for line in lines]
    texts = [json.dumps(line) if ascii_only else compact(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


@LOOPS
@examples(100)
@given(steps=st.lists(STEPS, min_size=2, max_size=6), ours=st.booleans(), ascii_only=st.booleans())
def test_every_context_of_every_file_holds_the_rules(
    loop: str, steps: list[list[Step]], ours: bool, ascii_only: bool
) -> None:
    """R18-R22 at every leaf of files that no ``append`` would have made, and after another backend has them."""
    recorded = entries_of([step for part in steps for step in part][: MAXIMUM_STEPS * 2])

    async def run(folder: Path) -> None:
        path = folder / "hand.jsonl"
        write(path, recorded, ours=ours, ascii_only=ascii_only)
        before = path.read_bytes()
        async with Session.open(JsonlStorage.open(path, mode="read")) as session:
            assert session.leaf_id == recorded.leaf
            _, contexts = await judged(session, budgets_for=2)
            records = session.storage.read()
        assert path.read_bytes() == before
        if not ours:
            return
        async with Session.open(EntryFileStorage.create(folder / "files", records=records, durability="os")) as other:
            assert [entry["id"] for entry in raw_entries(other.storage)] == [entry["id"] for entry in recorded.entries]
            for leaf_id, context in contexts.items():
                assert plain_of(await other.build_context(leaf_id=leaf_id)) == context

    placeholder()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)
