"""The account of a context under its budgets: what is pinned, what was kept, in characters and tokens (R19, R21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from compaction.breathing import Steps
from compaction.shown_unit import Counted, ShownUnit
from compaction.tokens import TextCounter, TokenEstimator, UsageAnchoredEstimator, fewest_tokens
from compaction.usage_anchor import Anchor, AnchorRule
from storage.messages import Message

SLACK_TOKENS = 500
"""How far a provider's count may lie below the fewest tokens that what it should hold can have."""


@dataclass(slots=True)
class Cost:
    """Characters, and tokens: those after the anchor, and those that the anchor's count covers.

    ``fewest``: as few tokens as the covered messages can have, whatever the model's vocabulary is.
    """

    chars: int = 0
    after: int = 0
    covered: int = 0
    fewest: int = 0


class Ledger:
    """Adds up. Counts tokens only where ``estimator`` is given.

    ``total`` is what is pinned and was kept so far. ``anchor`` is the provider's newest usable count, once it was met.
    """

    def __init__(self, estimator: TokenEstimator | None, rule: AnchorRule | None) -> None:
        self._counter = None if estimator is None else TextCounter(estimator)
        self.anchor: Anchor | None = None
        self.total: Cost = Cost()
        self._rule = rule if isinstance(estimator, UsageAnchoredEstimator) else None
        self._pins: list[tuple[int, int, int]] = []

    def add(self, cost: Cost) -> None:
        """Charge what was kept."""
        total = self.total
        total.chars += cost.chars
        total.after += cost.after
        total.covered += cost.covered
        total.fewest += cost.fewest

    def take_back(self, cost: Cost) -> None:
        """What was charged with ``add`` is not kept after all."""
        total = self.total
        total.chars -= cost.chars
        total.after -= cost.after
        total.covered -= cost.covered
        total.fewest -= cost.fewest

    @property
    def counts_tokens(self) -> bool:
        """Whether it was given an estimator."""
        return self._counter is not None

    def pin(
        self, place: int | None, chars: int, *, texts: Sequence[str] = (), message: Message | None = None
    ) -> Steps[None]:
        """Charge what is shown whatever happens; ``place``: where on the path it was said last."""
        tokens = 0
        if self._counter is not None:
            tokens = yield from self._counter.texts(texts)
            if message is not None:
                tokens += (yield from self._counter.messages([message]))[0]
        self._pins.append((-1 if place is None else place, chars, tokens))
        self.add(Cost(chars, tokens))

    def has_pins(self, budget: Literal["max_chars", "max_tokens"]) -> bool:
        """Whether a budget is charged with anything besides the units: that of characters is not with prompt and tools."""
        return any(chars if budget == "max_chars" else tokens for _, chars, tokens in self._pins)

    def cost_of(self, unit: ShownUnit) -> Steps[Cost]:
        """What a unit costs. Units come newest first, so that the first usable count met is the newest."""
        cost = Cost(unit.chars)
        if self._counter is None:
            return cost
        if self._rule is not None and self.anchor is None:
            self._set_anchor(self._rule.anchor_of(unit))
        counted = unit.counted
        if counted is None or counted.by is not self._counter.by:
            tokens = yield from self._counter.messages(_messages_of(unit))
            counted = unit.counted = Counted(self._counter.by, tokens)
        anchor = self.anchor
        if anchor is None or unit.position > anchor.position:
            cost.after = sum(counted.tokens)
            return cost
        if counted.fewest is None:
            counted.fewest = [fewest_tokens(message) for message in _messages_of(unit)]
        cost.covered, cost.fewest = counted.tokens[0], counted.fewest[0]
        for number, result in enumerate(unit.results, 1):
            if result.place > anchor.position or unit.position == anchor.position:
                cost.after += counted.tokens[number]
            else:
                cost.covered += counted.tokens[number]
                cost.fewest += counted.fewest[number]
        return cost

    def _set_anchor(self, anchor: Anchor | None) -> None:
        self.anchor = anchor
        if anchor is not None:
            for place, _, tokens in self._pins:
                if place < anchor.place:
                    self.total.after -= tokens
                    self.total.covered += tokens

    def cost_of_own(self, message: Message, chars: int) -> Steps[Cost]:
        """What a message of ours costs, which no provider has counted."""
        cost = Cost(chars)
        if self._counter is not None:
            cost.after = (yield from self._counter.messages([message]))[0]
        return cost

    def anchored(self, fewest: int) -> Anchor | None:
        """The anchor, if its count can hold messages of so many tokens. That of a request with a cut context cannot."""
        anchor = self.anchor
        return anchor if anchor is not None and fewest <= anchor.tokens + SLACK_TOKENS else None


def _messages_of(unit: ShownUnit) -> list[Message]:
    return [unit.message, *[result.message for result in unit.results]]
