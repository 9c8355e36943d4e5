"""Random trees with messages that wait: at every leaf a harness finds those that the rules say; forks and reopening too."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import AgentHarness, Session
from harness.testing import ScriptedModel
from tests.properties.growing import grow, raw_entries
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.record import path_to, waiting
from tests.properties.steps import KINDS, Step, conversations
from tests.properties.test_contexts import Backend, create, reopen

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)

QUEUES = st.lists(
    st.sampled_from(["queued", "queued", "delivered", "delivered", "move", "user", "label"]).flatmap(
        lambda kind: KINDS[kind][1]
    ),
    min_size=4,
    max_size=MAXIMUM_STEPS // 2,
)


async def found_by_a_harness(session: Session) -> list[str]:
    """The ids of what waits at the leaf. ``recover`` may close a turn first, which changes nothing of it."""
    async with AgentHarness(session, ScriptedModel([])) as harness:
        return [queued.entry_id for queued in await harness.waiting_messages()]


@LOOPS
@pytest.mark.parametrize("backend", ["memory", "jsonl"])
@examples(40)
@given(
    earlier=conversations(max_steps=6),
    steps=QUEUES,
    picks=st.lists(st.integers(0, 60), max_size=4),
    at=st.integers(0, 60),
)
def test_what_waits_is_what_the_rules_say(
    loop: str, backend: Backend, earlier: list[Step], steps: list[Step], picks: list[int], at: int
) -> None:
    """What was queued on the path and neither taken back nor delivered there, oldest first; going back gives what it had."""

    async def run(folder: Path) -> None:
        storage = await create(backend, folder, "one")
        async with Session.open(storage) as session:
            await grow(session, [*earlier, *steps])
            entries = raw_entries(session.storage)
            expected = waiting(path_to(entries, session.leaf_id))
            assert await found_by_a_harness(session) == expected
            for pick in picks if entries else []:
                target = entries[pick % len(entries)]["id"]
                await session.move_to(target)
                assert await found_by_a_harness(session) == waiting(path_to(entries, target))
            entries = raw_entries(session.storage)
            leaf = session.leaf_id
            target = entries[at % len(entries)]["id"] if entries else None
            into = functools.partial(create, backend, folder, "fork")
            async with await session.fork(target, into=into) as fork:
                assert await found_by_a_harness(fork) == waiting(
                    path_to(entries, fork.leaf_id if target is None else target)
                )
        async with Session.open(reopen(backend, folder, "one", storage)) as again:
            assert await found_by_a_harness(again) == waiting(path_to(entries, leaf))

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)
