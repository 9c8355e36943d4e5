"""Random trees, grown step by step as by a turn: what is kept from context to context changes nothing in any of them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.kept_units import KeptUnits
from harness import BudgetError, MemoryStorage, Session, Shortening, measure_context, run_at_once
from harness.context import build_context
from storage.entry_path import EntryPath
from tests.properties.growing import grow, plain_of
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.steps import Step, conversations

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)

BUDGETS = st.sampled_from([{}, {"max_chars": 400}, {"max_tokens": 90}, {"max_tokens": 100_000}])


async def shown(path: EntryPath, **options: Any) -> Any:
    try:
        context = await build_context(path, **options)
    except BudgetError as error:
        return error.message
    return plain_of(context), context.is_whole, context.tail, context.passing


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@examples(150)
@given(
    steps=conversations(max_steps=MAXIMUM_STEPS),
    asked=st.lists(st.tuples(BUDGETS, st.integers(-1, 60)), min_size=1, max_size=8),
)
def test_contexts_are_the_same(loop: str, steps: list[Step], asked: list[tuple[dict[str, int], int]]) -> None:
    """After each step, under budgets and shortenings that change now and then, and on branches too; R20 to R22."""

    async def run() -> None:
        kept = KeptUnits()
        async with Session.open(MemoryStorage.create()) as session:
            recorded = None
            for number, step in enumerate(steps):
                recorded = await grow(session, [step], recorded=recorded)
                path = await session.log.path()
                budget, pick = asked[number // 4 % len(asked)]
                shorten = None
                if pick >= 0 and len(path):
                    shorten = Shortening(before=path.entry_id(pick % len(path)), max_chars=500)
                alone = await shown(path, shorten=shorten, **budget)
                assert await shown(path, shorten=shorten, kept=kept, **budget) == alone
                facts = run_at_once(measure_context(path, shorten=shorten))
                assert run_at_once(measure_context(path, shorten=shorten, kept=kept)) == facts

    anyio.run(run, backend=loop)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_what_is_known_of_a_call_stays_with_its_reply(loop: str) -> None:
    """A start behind a reply that is kept says nothing about an older call of the same id, which was not run."""

    async def run() -> None:
        kept = KeptUnits()
        async with Session.open(MemoryStorage.create()) as session:
            steps = [Step("user", "Go"), Step("reply", calls=("k",)), Step("user", "On"), Step("reply", calls=("k",))]
            recorded = await grow(session, [*steps, Step("tool_start", pick=1), Step("answer", "done", pick=1)])
            await grow(session, [Step("user", "And?")], recorded=recorded)
            path = await session.log.path()
            alone = await shown(path)
            assert await shown(path, kept=kept) == alone
            assert await shown(path, kept=kept) == alone

    anyio.run(run, backend=loop)
