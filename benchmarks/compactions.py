"""Deciding whether to compact, and preparing it: what came since the last compaction counts, not the length."""

from __future__ import annotations

import gc
import statistics
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks.measuring import TEXT, Figure, message, ratio, seconds_of
from compaction import CompactionSettings, ExtractiveSummarizer, compact, measure_context, prepare_compaction
from compaction.breathing import run_with_pauses
from harness.session import Session
from storage.memory import MemoryStorage
from storage.messages import AssistantMessage, TextContent, Usage, UserMessage

SINCE = 200
"""So many of the newest entries are replies and questions that no provider has counted."""

EVERY = 500
"""Entries between two compactions."""

SETTINGS = CompactionSettings(context_window=32_768)


async def deciding(counts: tuple[int, int], rounds: int) -> list[Figure]:
    """The same end of a session behind few and behind many entries, with compactions on the way, in turn."""
    few, many = counts
    figures: list[Figure] = []
    async with Session.open(MemoryStorage.create()) as small, Session.open(MemoryStorage.create()) as large:
        await _fill(small, few)
        await _fill(large, many)
        gc.collect()
        gc.freeze()  # a full collection would look at all entries of the large one
        for name, action in _ACTIONS.items():
            times: list[float] = []
            floor: list[float] = []
            for _ in range(rounds):
                floor.append(await seconds_of(partial(action, small)))
                times.append(await seconds_of(partial(action, large)))
            note = f"{statistics.median(floor) * 1e3:.1f} and {statistics.median(times) * 1e3:.1f} ms"
            figures.append(Figure(f"{name}: {many:,} entries / {few:,}", ratio(times, floor), "×", 1.5, note))
        peaks = [await _peak(partial(_prepare, session)) for session in (small, large)]
        for session in (small, large):
            await session.append_message(_counted())
        pairs = [
            [await seconds_of(partial(_decide, session)) for session in (small, large)] for _ in range(10 * rounds)
        ]
        floor, times = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        gc.unfreeze()
    note = f"{statistics.median(floor) * 1e3:.2f} and {statistics.median(times) * 1e3:.2f} ms"
    figures.append(Figure("deciding by the provider's count", ratio(times, floor), "×", 1.5, note))
    note = f"{peaks[0] / 1e6:.2f} and {peaks[1] / 1e6:.2f} MB"
    figures.append(Figure(f"peak memory of preparing: {many:,} entries / {few:,}", peaks[1] / peaks[0], "×", 1.5, note))
    return figures


async def extracting(rounds: int) -> list[Figure]:
    """A whole compaction without a model."""
    async with Session.open(MemoryStorage.create()) as session:
        await _fill(session, SINCE)
        path = await session.log.path()
        plan = await run_with_pauses(prepare_compaction(path, SETTINGS))
        assert plan is not None
        times = [await seconds_of(partial(compact, plan, ExtractiveSummarizer())) for _ in range(rounds)]
    note = f"{len(plan.messages)} messages, {plan.tokens_before:,} tokens"
    return [Figure("a summary without a model", statistics.median(times) * 1e3, "ms", None, note)]


def _counted() -> AssistantMessage:
    """A reply whose usage says how large the context was."""
    usage = Usage(input=125_000, output=200, total_tokens=125_200)
    return AssistantMessage(content=[TextContent(text=TEXT)], provider="p", model="m", usage=usage, stop_reason="stop")


async def _decide(session: Session) -> None:
    await run_with_pauses(measure_context(await session.log.path()))


async def _prepare(session: Session) -> None:
    assert await run_with_pauses(prepare_compaction(await session.log.path(), SETTINGS)) is not None


async def _context(session: Session) -> None:
    await session.build_context()


_ACTIONS: dict[str, Callable[[Session], Awaitable[None]]] = {
    "deciding whether to compact": _decide,
    "preparing a compaction": _prepare,
    "a context after a compaction": _context,
}


async def _fill(session: Session, count: int) -> None:
    """Messages of about 1 KB, with a compaction every 500, and 200 after the last one that no provider has counted."""
    for number in range(max(0, count - SINCE)):
        write = session.append_message(message(number))
        if number % EVERY == EVERY - 1:
            entry_id = await write
            await session.append_compaction(TEXT, first_kept_entry_id=entry_id, tokens_before=100_000)
        elif number % 100 == 99:
            await write
    for number in range(SINCE):
        if number % 2:
            session.append_message(AssistantMessage(content=[TextContent(text=TEXT)], provider="p", model="m"))
        else:
            session.append_message(UserMessage(content=TEXT))
    await session.flush()


async def _peak(action: Callable[[], Awaitable[object]]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        await action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
