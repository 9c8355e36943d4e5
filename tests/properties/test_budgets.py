"""Random trees under token budgets, alone and together with character budgets: R19's "only if every budget holds"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness import BudgetError, MemoryStorage, Session
from tests.properties.budgets import with_newest
from tests.properties.checker import Plain, take_apart
from tests.properties.growing import grow, plain_of, raw_entries
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.steps import Step, conversations
from tests.properties.test_contexts import placeholder
from tests.properties.wire import Json, characters, text_of

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


class Counting:
    """A token estimator that can be checked by eye: a token for each character, and one more for each text."""

    def count(self, text: str) -> int:
        return len(text) + 1


async def build(session: Session, **budgets: Any) -> Plain | None:
    """The context in plain data, without its warnings; None where the budget was refused."""
    try:
        return replace(plain_of(await session.build_context(estimator=Counting(), **budgets)), warnings=0)
    except BudgetError:
        return None


async def by_units(session: Session, entries: list[Json]) -> list[Plain]:
    """The contexts of one unit, two units, …, all units, each asked for by the characters it takes.

    Not every one can be asked for like that: where the next unit makes a placeholder needless, more is shorter.
    """
    full = plain_of(await session.build_context())
    shown, found = take_apart(entries, session.leaf_id, full)
    assert found == []
    contexts: list[Plain] = []
    for count in range(1 if shown.groups else 0, len(shown.groups) + 1):
        wanted = with_newest(shown, count, placeholder())
        context = await build(session, max_chars=characters(wanted.messages) or 1)
        assume(context is not None and context.messages == wanted.messages)
        if context is not None:
            contexts.append(context)
    return contexts


def expected(contexts: list[Plain], max_chars: int, max_tokens: int) -> Plain | None:
    """Newest first, up to the first context that breaks one of the budgets."""
    best: Plain | None = None
    for context in contexts:
        if context.chars > max_chars or (context.tokens or 0) > max_tokens:
            break
        best = context
    return best


@LOOPS
@examples(80)
@given(steps=conversations(max_steps=MAXIMUM_STEPS), data=st.data())
def test_a_unit_is_kept_only_if_every_budget_holds(loop: str, steps: list[Step], data: st.DataObject) -> None:
    """Each budget alone, and both together: as many of the newest units as hold both, or an error if not even one."""

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, steps)
            contexts = await by_units(session, raw_entries(session.storage))
            top = contexts[-1] if contexts else None
            for context in contexts:
                texts = sum(len(text_of(message)) for message in context.messages) + len(context.system_prompt or "")
                assert context.tokens is not None
                assert context.tokens >= texts, "max_tokens covers the messages and the system prompt"
            interesting = sorted({context.tokens or 0 for context in contexts})
            for max_tokens in {*interesting, *(tokens - 1 for tokens in interesting)} - {0, -1}:
                assert await build(session, max_tokens=max_tokens) == expected(contexts, 10**9, max_tokens)
            if top is not None:
                max_tokens = data.draw(st.integers(1, (top.tokens or 0) + 5), label="max_tokens")
                max_chars = data.draw(st.integers(1, top.chars + 5), label="max_chars")
                both = await build(session, max_chars=max_chars, max_tokens=max_tokens)
                assert both == expected(contexts, max_chars, max_tokens)

    placeholder()
    anyio.run(run, backend=loop)


@LOOPS
@examples(40)
@given(steps=conversations(max_steps=MAXIMUM_STEPS))
def test_a_budget_measured_by_the_providers_counts_holds_and_shows_the_newest_units(
    loop: str, steps: list[Step]
) -> None:
    """Whatever replies say of their usage: the count is within the budget, and what is shown are the newest units."""

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, steps)
            full = plain_of(await session.build_context())
            shown, _ = take_apart(raw_entries(session.storage), session.leaf_id, full)
            counts = range(1 if shown.groups else 0, len(shown.groups) + 1)
            wanted = [with_newest(shown, count, placeholder()).messages for count in counts]
            wanted += [with_newest(shown, count, placeholder(), tail_opener=True).messages for count in counts]
            assert full.tokens is not None
            for max_tokens in range(1, full.tokens + 30, max(1, full.tokens // 12)):
                try:
                    context = plain_of(await session.build_context(max_tokens=max_tokens))
                except BudgetError:
                    continue
                assert context.tokens is not None
                assert context.tokens <= max_tokens
                assert context.messages in wanted
            assert plain_of(await session.build_context(max_tokens=10**9)) == full

    placeholder()
    anyio.run(run, backend=loop)
