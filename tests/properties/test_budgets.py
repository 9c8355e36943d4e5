"""Random trees under token budgets, alone and together with character budgets: R19's "only if every budget holds"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction import RoughEstimator
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
    """The context in plain data, but for what depends on how far was looked; None where the budget was refused."""
    try:
        return replace(plain_of(await session.build_context(estimator=Counting(), **budgets)), warnings=0, dropped=[])
    except BudgetError:
        return None


async def by_units(session: Session, entries: list[Json]) -> list[Plain]:
    """The contexts of one unit, two units, …, all units, each asked for by the characters it takes, or by the tokens.

    Those that no budget can ask for are left out: where the next unit makes a placeholder needless, more can be less.
    """
    full = plain_of(await session.build_context())
    shown, found = take_apart(entries, session.leaf_id, full)
    assert found == []
    contexts: list[Plain] = []
    for count in range(len(shown.groups), 0 if shown.groups else -1, -1):
        wanted = with_newest(shown, count, placeholder()).messages
        size = characters(wanted)
        context = await build(session, max_chars=size or 1)
        assert context is not None, "a budget of exactly what is shown is refused"
        if context.messages != wanted:
            assert min(context.chars for context in contexts) <= size, "an exact budget shows something else"
            tokens = min(context.tokens or 0 for context in contexts) - 1
            context = await build(session, max_tokens=tokens)
        if context is not None and context.messages == wanted:
            contexts.append(context)
    return contexts[::-1]


def expected(contexts: list[Plain], max_chars: int, max_tokens: int) -> Plain | None:
    """The longest context that holds both budgets."""
    held = [context for context in contexts if context.chars <= max_chars and (context.tokens or 0) <= max_tokens]
    return held[-1] if held else None


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


def without_placeholder(context: Plain) -> int:
    """How many messages are shown that stand for something."""
    return len(context.messages) - (placeholder() in context.messages[:1])


@LOOPS
@examples(40)
@given(steps=conversations(max_steps=MAXIMUM_STEPS))
def test_a_larger_budget_refuses_nothing_and_shows_no_less(loop: str, steps: list[Step]) -> None:
    """Characters, or tokens by one estimator; and a budget of exactly what is shown shows the very same."""

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, steps)
            full = await build(session)
            assert full is not None
            for name, size in (("max_chars", full.chars), ("max_tokens", full.tokens or 0)):
                shown: int | None = None
                budgets = {*range(1, size + 60, max(1, size // 25)), size - 1, size, size + 1} - {0, -1}
                for budget in sorted(budgets):
                    context = await build(session, **{name: budget})
                    if context is None:
                        assert shown is None, f"{name} {budget} is refused, but not a smaller one"
                        assert budget < size
                        continue
                    exact = context.chars if name == "max_chars" else context.tokens
                    if exact:
                        assert await build(session, **{name: exact}) == context
                    assert budget < size or context == full
                    assert shown is None or shown <= without_placeholder(context)
                    shown = without_placeholder(context)

    placeholder()
    anyio.run(run, backend=loop)


@LOOPS
@examples(40)
@given(steps=conversations(max_steps=MAXIMUM_STEPS))
def test_a_budget_measured_by_the_providers_counts_holds_and_shows_the_newest_units(
    loop: str, steps: list[Step]
) -> None:
    """Whatever replies say of their usage: the count is within the budget, and what is shown are the newest units.

    A larger budget refuses nothing that a smaller one shows, and shows no less; but where the estimate begins to hold
    everything, and only then, it is seen that the provider counted more, and from there on its measure trims.
    """

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, steps)
            full = plain_of(await session.build_context())
            shown, _ = take_apart(raw_entries(session.storage), session.leaf_id, full)
            counts = range(1 if shown.groups else 0, len(shown.groups) + 1)
            wanted = [with_newest(shown, count, placeholder()).messages for count in counts]
            wanted += [with_newest(shown, count, placeholder(), tail_opener=True).messages for count in counts]
            assert full.tokens is not None
            estimate = (await session.build_context(estimator=RoughEstimator())).tokens
            budgets = {*range(1, max(full.tokens, estimate) + 30, max(1, full.tokens // 12))}
            least: int | None = None
            for max_tokens in sorted((budgets | {estimate - 1, estimate, full.tokens - 1, full.tokens}) - {0, -1}):
                try:
                    context = plain_of(await session.build_context(max_tokens=max_tokens))
                except BudgetError:
                    assert least is None, f"max_tokens {max_tokens} is refused, but not a smaller one"
                    assert max_tokens < min(full.tokens, estimate)
                    continue
                if max_tokens == estimate and estimate < full.tokens:
                    least = None
                assert least is None or least <= without_placeholder(context)
                least = without_placeholder(context)
                assert max_tokens < full.tokens or context == full
                assert context.tokens is not None
                assert context.tokens <= max_tokens
                assert context.messages in wanted
            assert plain_of(await session.build_context(max_tokens=10**9)) == full

    placeholder()
    anyio.run(run, backend=loop)
