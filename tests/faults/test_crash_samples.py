"""Long scripts, of which no run could try every state; and disks whose fsync lies (R9, R13, R14)."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import StorageError, UserMessage
from storage.testing import FaultyDisk
from storage.testing.crash_disk import CrashState
from tests.faults.crash_scripts import (
    BACKENDS,
    Recorded,
    Script,
    check,
    check_lied_to,
    record,
    unsynced,
)
from tests.properties.profiles import LARGE, examples

SAMPLES = 60 if LARGE else 12
"""States that are tried of each script."""

STEPS = st.one_of(
    st.tuples(st.just("say"), st.lists(st.sampled_from([1, 40, 400, 5000]), min_size=1, max_size=5)),
    st.tuples(st.just("keep"), st.sampled_from([0, 10, 10_000])),
    st.tuples(st.just("full"), st.integers(0, 1500)),
    st.tuples(st.just("label"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
)


def long_script(steps: list[tuple[str, Any]]) -> Any:
    """A script of these steps."""

    async def run(script: Script) -> None:
        session = await script.create()
        for what, how in steps:
            if what == "say":
                await script.say(session, *("ä" * length for length in how))
            elif what == "keep":
                await script.keep(session, b"\n" * how)
            elif what == "label" and session.leaf_id is not None:
                await session.append_label(session.leaf_id, "here")
                script.mark("acknowledged", "chat", len(session.log.index))
            elif what == "reopen":
                await session.aclose()
                session = await script.open()
            elif what == "full":
                with FaultyDisk(script.folder) as disk:
                    disk.room = how
                    for write in [session.append_message(UserMessage(content="x" * 200)) for _ in range(4)]:
                        try:
                            await write
                        except StorageError:
                            continue
                        script.mark("acknowledged", "chat", len(session.log.index))
        await script.close(session)

    return run


def in_folders(check_one: Any, states: list[CrashState], recorded: Recorded, backend: str) -> Counter[str]:
    """Check each state in a folder of its own; what they came to."""
    found: Counter[str] = Counter()

    async def check_all() -> None:
        for state in states:
            folder = Path(tempfile.mkdtemp())
            try:
                found[await check_one(state, recorded, folder) or "held"] += 1
            except BaseException as error:
                error.add_note(
                    f"after {state.marks}: { {path: (data or b'')[:80] for path, data in state.tree.items()} }"
                )
                raise
            finally:
                shutil.rmtree(folder)

    with unsynced():
        anyio.run(check_all, backend=backend)
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "backend"), [("jsonl", "asyncio"), ("entry files", "trio")])
@examples(12)
@given(steps=st.lists(STEPS, min_size=3, max_size=12), seed=st.integers(0, 2**32))
def test_long_scripts(kind: str, backend: str, steps: list[tuple[str, Any]], seed: int) -> None:
    """R9, R13: of random sessions, states at random moments: what was acknowledged is there, and nothing half."""
    folder = Path(tempfile.mkdtemp())
    try:
        recorded = anyio.run(lambda: record(kind, folder, long_script(steps)), backend=backend)
        choose = random.Random(seed).randrange
        in_folders(check, [recorded.disk.sample(choose) for _ in range(SAMPLES)], recorded, backend)
    finally:
        shutil.rmtree(folder)


LIED_TO = [("say", [1]), ("say", [40, 1]), ("label", None), ("say", [1, 1, 1]), ("reopen", None), ("say", [400])]


@pytest.mark.parametrize(("kind", "backend"), [("jsonl", "asyncio"), ("entry files", "trio")])
def test_a_sync_that_lies(tmp_path: Path, kind: str, backend: str) -> None:
    """R14: where syncs did nothing, it opens, or is refused as damaged, and salvage shows every whole entry.

    Whatever was lost: the header, a name, the middle of a file, and within a write its beginning.
    """
    recorded = anyio.run(lambda: record(kind, tmp_path, long_script(LIED_TO)), backend=backend)
    choose = random.Random(7).randrange
    states = [recorded.disk.sample(choose, lying=True) for _ in range(600 if LARGE else 120)]
    spread = recorded.disk.states(lying=True, cuts=2)
    found = in_folders(check_lied_to, [*states, *spread[:: -(-len(spread) // 160)]], recorded, backend)
    assert min(found[outcome] for outcome in ("open", "damaged", "none")) >= 10, found


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", BACKENDS)
def test_many_lies(tmp_path: Path, kind: str) -> None:
    """R14: the same with all states that are told apart, and thousands at random."""
    recorded = anyio.run(lambda: record(kind, tmp_path, long_script(LIED_TO)))
    choose = random.Random(11).randrange
    states = [recorded.disk.sample(choose, lying=True) for _ in range(2000)]
    in_folders(check_lied_to, [*states, *recorded.disk.states(lying=True, cuts=3)], recorded, "asyncio")
