"""Contexts: against decoding what is shown."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.measuring import Figure, message, ratio, seconds, seconds_of
from harness.session import Session
from storage.decode import decode_entry
from storage.jsonl import JsonlStorage

KEPT = 50


async def whole_and_trimmed(path: Path, rounds: int) -> list[Figure]:
    """The first context of a whole path, then one with a budget that keeps 50 messages, after one more append."""
    whole: list[float] = []
    whole_floor: list[float] = []
    trimmed: list[float] = []
    trimmed_floor: list[float] = []
    shown: list[str] = []
    async with Session.open(JsonlStorage.open(path, durability="os")) as session:
        count = len(session.log.index)
        lines = [session.log.index.line(seq) for seq in range(count)]
        for _ in range(rounds):
            whole.append(await seconds_of(session.build_context))
            whole_floor.append(seconds(lambda: [decode_entry(line) for line in lines]))
        budget = sum(len(line) for line in lines[-KEPT:]) - 150 * KEPT
        for number in range(rounds * 10):
            await session.append_message(message(number))
            context = await session.build_context(max_chars=budget)

            async def build() -> None:
                await session.build_context(max_chars=budget)

            shown = [entry_id for entry_id in context.entry_ids if entry_id is not None]
            shown_lines = [session.log.index.line(session.log.index.seq_of(entry_id)) for entry_id in shown]
            trimmed.append(await seconds_of(build))
            trimmed_floor.append(seconds(lambda lines=shown_lines: [decode_entry(line) for line in lines]))
    note = f"{statistics.median(whole) * 1e3:.0f} ms"
    kept = f"{len(shown)} messages, {statistics.median(trimmed) * 1e3:.2f} ms"
    return [
        Figure(f"context of {count:,} entries / decoding them", ratio(whole, whole_floor), "×", 1.5, note),
        Figure(f"context that keeps {KEPT} of {count:,} / decoding those", ratio(trimmed, trimmed_floor), "×", 2, kept),
    ]
