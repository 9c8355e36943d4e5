"""Random trees with some results shortened: only old, large results change, and what is shown still holds the rules."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import MemoryStorage, Session, Shortening, UserMessage, measure_context, run_at_once
from harness.context import build_context
from tests.properties.checker import check_form
from tests.properties.growing import grow, plain_of, raw_entries
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.record import fold, path_to
from tests.properties.steps import Step, conversations
from tests.properties.wire import Json, parts_of, text_of

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


def with_long_results(steps: list[Step]) -> list[Step]:
    return [replace(step, text=step.text * 60) if step.kind in ("answer", "result") else step for step in steps]


def is_large(message: Json, limit: int) -> bool:
    parts = parts_of(message.get("content"))
    return len(text_of(message)) > limit or any(part.get("type") == "image" for part in parts)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@examples(60)
@given(
    steps=conversations(max_steps=MAXIMUM_STEPS),
    picks=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=3),
    limit=st.integers(500, 900),
)
def test_only_old_large_results_change(loop: str, steps: list[Step], picks: list[tuple[int, int]], limit: int) -> None:
    """At any leaf and before any entry on its path: the same entries, everything else unchanged, R20 to R22 hold."""

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, with_long_results(steps))
            entries = raw_entries(session.storage)
            for leaf_pick, before_pick in picks if entries else []:
                leaf = entries[leaf_pick % len(entries)]["id"]
                path = path_to(entries, leaf)
                position_of = {entry["id"]: position for position, entry in enumerate(path)}
                before = before_pick % len(path)
                shortening = Shortening(before=path[before]["id"], max_chars=limit)
                whole = plain_of(await build_context(await session.log.path(leaf)))
                context = await build_context(await session.log.path(leaf), shorten=shortening)
                short = plain_of(context)
                assert check_form(short, fold(path), path) == []
                assert short.entry_ids == whole.entry_ids
                edited = {entry["targetId"] for entry in path if entry["type"] == "context_edit"}
                for one, other, entry_id in zip(whole.messages, short.messages, whole.entry_ids, strict=True):
                    is_old = entry_id is not None and position_of[entry_id] < before and entry_id not in edited
                    if one["role"] == "toolResult" and is_old and is_large(one, limit):
                        assert len(text_of(other)) <= limit
                        assert {**other, "content": None} == {**one, "content": None}
                    else:
                        assert other == one
                found = run_at_once(measure_context(await session.log.path(leaf), shorten=shortening))
                assert 0 <= (short.tokens or 0) - found.tokens <= 25
                again = await build_context(await session.log.path(leaf), shorten=shortening)
                assert plain_of(again) == short
                assert all(isinstance(message, UserMessage) for message in context.messages[:1])

    anyio.run(run, backend=loop)
