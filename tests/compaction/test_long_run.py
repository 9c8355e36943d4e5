"""A long session in a small window: never too large, never a loop, and the beginning is not forgotten."""

from __future__ import annotations

import random

import pytest

from compaction import (
    CompactionSettings,
    ContextFacts,
    ExtractiveSummarizer,
    RoughEstimator,
    compact,
    measure_context,
    plan_shortening,
    prepare_compaction,
    project,
    require_progress,
    run_at_once,
    shortening_in_force,
    should_compact,
)
from storage.decode import facts_of
from storage.entries import CompactionEntry, Entry, MessageEntry, RequestFacts, Shortening, TurnEndEntry, TurnStartEntry
from storage.entry_path import IndexedPath
from storage.index import EntryIndex
from storage.messages import Message, Usage
from storage.protocols import Record
from storage.strict_json import encode_model
from tests.compaction.conversation import call, reply_message, result_message, user_message

SETTINGS = CompactionSettings(context_window=6_000)
FACTS = [f"Remember: service {number} listens on port {4_000 + number}." for number in range(10)]


class LongSession:
    """Entries in a row that grow as an agent's do; each request is made as a harness would make it."""

    def __init__(self, *, counted: bool) -> None:
        self.counted = counted
        self.index = EntryIndex()
        self.random = random.Random(7)
        self.last: list[Message] = []
        self.compactions = self.shortenings = self.broken = self.in_vain = 0

    @property
    def path(self) -> IndexedPath:
        return IndexedPath(self.index, len(self.index) - 1)

    def add(self, entry: Entry) -> None:
        place = len(self.index)
        parent = self.index.names[-1] if place else None
        self.index.add(Record(place, entry.id, parent, entry.type, encode_model(entry), facts_of(entry)))

    def measured(self, shorten: Shortening | None) -> ContextFacts:
        return run_at_once(measure_context(self.path, shorten=shorten))

    async def small_enough(self) -> Shortening | None:
        """The cheap step, then a summary, until the context is under the trigger or cannot be made smaller."""
        shorten = shortening_in_force(self.path)
        while should_compact(before := self.measured(shorten), SETTINGS):
            cheap = run_at_once(plan_shortening(self.path, SETTINGS, shorten=shorten))
            if cheap is not None:
                shorten = cheap.shortening
                self.shortenings += 1
                continue
            plan = run_at_once(prepare_compaction(self.path, SETTINGS, shorten=shorten))
            if plan is None:
                break
            made = await compact(plan, ExtractiveSummarizer())
            self.add(
                CompactionEntry(
                    summary=made.summary,
                    first_kept_entry_id=made.first_kept_entry_id,
                    tokens_before=made.tokens_before,
                    details=made.details,
                )
            )
            self.compactions += 1
            self.in_vain = require_progress(before, self.measured(shorten), SETTINGS, self.in_vain)
        return shorten

    async def turn(self, number: int, text: str) -> None:
        self.add(TurnStartEntry(turn=number))
        self.add(MessageEntry(message=user_message(text)))
        steps = self.random.randrange(1, 4)
        for step in range(steps + 1):
            shorten = await self.small_enough()
            shown: list[Message] = list(run_at_once(project(self.path, shorten=shorten)).messages)
            size = run_at_once(project(self.path, shorten=shorten, estimator=RoughEstimator())).tokens
            assert size <= SETTINGS.window - SETTINGS.reserve
            self.broken += shown[: len(self.last)] != self.last
            self.last = shown
            usage = Usage(input=size, output=9, total_tokens=size + 9) if self.counted else None
            calls = [call(f"c{step}", "read", path=f"src/{number}.py")] if step < steps else []
            reply = reply_message(f"Module {number}, step {step}.", *calls, usage=usage)
            self.add(MessageEntry(message=reply, request=RequestFacts(shortened=shorten)))
            if calls:
                lines = int(min(400, self.random.paretovariate(0.9) * 12))
                output = "\n".join(f"{line}: return {self.random.random()}" for line in range(lines))
                self.add(MessageEntry(message=result_message(f"c{step}", output)))
        self.add(TurnEndEntry(turn=number, reason="completed"))


@pytest.mark.anyio
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "estimated"])
async def test_a_long_session_in_a_small_window(counted: bool) -> None:
    """Every request fits, and only a compaction or a cheap step changes how it begins."""
    session = LongSession(counted=counted)
    for number in range(60):
        text = FACTS[number] if number < len(FACTS) else f"Look at module {number}, and tell me what is odd about it."
        await session.turn(number + 1, text)
    assert session.compactions > 5
    assert session.broken <= session.compactions + session.shortenings
    shown = "\n".join(message.text for message in session.last)
    assert [fact for fact in FACTS if fact not in shown] == []
