"""Which units fit: newest first, until the first that does not (R19)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NoReturn

from compaction.breathing import Steps
from compaction.ledger import Cost, Ledger
from compaction.shown_unit import ShownUnit
from compaction.units import SMALLEST_UNIT
from compaction.walk import Walk
from storage.errors import BudgetError
from storage.messages import UserMessage

BudgetName = Literal["max_chars", "max_tokens"]
_MEASURES = {"max_chars": "characters", "max_tokens": "tokens"}
_PINNED = {"max_chars": "summary, working memory", "max_tokens": "summary, working memory, prompt and tools"}


@dataclass(slots=True)
class _Step:
    """A unit that was taken, and the user message that opened its turn where that was not taken before."""

    unit: ShownUnit
    opener: ShownUnit | None
    cost: Cost
    begins_badly: bool
    """Whether a placeholder is needed where nothing older is kept."""


@dataclass(slots=True)
class Trimmed:
    """The units to show, oldest first. ``is_whole``: no budget left anything out. ``tokens``: ``None`` if not counted."""

    units: list[ShownUnit]
    is_whole: bool
    tokens: int | None


class Trimmer:
    """Takes units from a walk as long as they could be kept, then keeps as many as hold every budget.

    A placeholder is charged only to what would be sent with it: a unit that holds the budgets but for the placeholder
    is taken too, since the next older one may make that needless. What this takes in vain is shorter than it.
    """

    def __init__(
        self,
        walk: Walk,
        ledger: Ledger,
        *,
        max_chars: int | None,
        max_tokens: int | None,
        placeholder: Cost | None,
    ) -> None:
        """``placeholder``: what it costs, or ``None`` where a summary comes first, so that none is needed."""
        self._walk = walk
        self._ledger = ledger
        self._max_chars = max_chars
        self._max_tokens = max_tokens
        self._placeholder = placeholder or Cost()
        self._steps: list[_Step] = []
        self._openers: set[int] = set()
        self._opened_at = 1 << 62
        self._held = 0
        """How many steps hold every budget, with the placeholder if they need it, tokens by the estimate."""
        self._held_by_count = 0
        """How many do only because the provider's own count says that everything fits."""
        self._newest_by_count = False
        """Whether the newest does: of it, the provider's count is the upper limit in any case."""

    def run(self) -> Steps[Trimmed]:
        """Walk back as far as the budgets allow.

        Raises ``BudgetError`` if what is pinned, with the newest unit if there is one, does not fit.
        """
        exceeded: BudgetName | None = None
        step: _Step | None = None
        counts = self._ledger.counts_tokens
        walk, openers = self._walk, self._openers
        for unit in walk.units():
            if unit is None:
                yield
                continue
            position = unit.position
            opened_at = walk.opener(position)
            if opened_at is None or opened_at == position or opened_at in openers:
                opener = None
            else:
                opener = self._take_opener(opened_at)
            if counts:
                cost = yield from self._counted(unit, opener)
            else:
                cost = Cost(unit.chars if opener is None else unit.chars + opener.chars)
            is_bad_beginning = self._opened_at >= position and not isinstance(unit.message, UserMessage)
            step = _Step(unit, opener, cost, is_bad_beginning)
            exceeded = self._take(step)
            if exceeded is not None:
                break
        if step is None:
            self._check_pinned()
            return Trimmed([], is_whole=True, tokens=self._tokens())
        return self._chosen(self._steps[0] if self._steps else step, exceeded)

    def _chosen(self, newest: _Step, exceeded: BudgetName | None) -> Trimmed:
        """Of the steps that were taken, those to keep. ``exceeded``: what the next one broke, if not all were taken."""
        count = len(self._steps)
        by_count = None if exceeded is not None else self._by_count()
        is_whole = exceeded is None and self._holds_chars(self._placeholder_cost().chars)
        tokens: int | None
        if exceeded == "max_chars" or (exceeded is None and not is_whole):
            tokens = self._keep(newest, max(self._held, self._held_by_count))
            is_whole = False
        elif is_whole and self._max_tokens is None:
            tokens = self._tokens() if by_count is None else by_count
        elif is_whole and by_count is not None and self._max_tokens is not None and by_count <= self._max_tokens:
            tokens = by_count
        elif is_whole and by_count is not None and self._max_tokens is not None and self._held == count:
            tokens = self._trim_by_provider(self._max_tokens)
            is_whole = False
        else:
            # Where the count does not hold all of it after all, it keeps no more than the newest.
            tokens = self._keep(newest, self._held or int(self._newest_by_count))
            is_whole = exceeded is None and len(self._steps) == count
        units: list[ShownUnit] = []
        for step in reversed(self._steps):
            if step.opener is not None:
                units.append(step.opener)
            units.append(step.unit)
        units.sort(key=_position)
        return Trimmed(units, is_whole, tokens)

    def _take_opener(self, position: int) -> ShownUnit | None:
        self._openers.add(position)
        opener = self._walk.opener_unit(position)
        if opener is not None and position < self._opened_at:
            self._opened_at = position
        return opener

    def _counted(self, unit: ShownUnit, opener: ShownUnit | None) -> Steps[Cost]:
        cost = yield from self._ledger.cost_of(unit)
        if opener is not None:
            of_opener = yield from self._ledger.cost_of(opener)
            cost.chars += of_opener.chars
            cost.after += of_opener.after
            cost.covered += of_opener.covered
        return cost

    def _take(self, step: _Step) -> BudgetName | None:
        """Take ``step``, or tell which budget would not hold even if no placeholder were needed."""
        total, cost = self._ledger.total, step.cost
        max_chars, max_tokens = self._max_chars, self._max_tokens
        if max_chars is not None and total.chars + cost.chars > max_chars:
            return "max_chars"
        if max_tokens is not None:
            after = total.after + cost.after
            if after + total.covered + cost.covered > max_tokens:
                anchor = self._ledger.anchored(total.fewest + cost.fewest)
                if anchor is None or anchor.tokens + after > max_tokens:
                    return "max_tokens"
        self._ledger.add(cost)
        self._steps.append(step)
        placeholder = self._placeholder if step.begins_badly else _NOTHING
        if step.begins_badly and not self._holds_chars(placeholder.chars):
            return None
        if max_tokens is None or total.after + total.covered + placeholder.after <= max_tokens:
            self._held = len(self._steps)
        elif (by_count := self._by_count()) is not None and by_count <= max_tokens:
            self._held_by_count = len(self._steps)
            self._newest_by_count = self._newest_by_count or len(self._steps) == 1
        return None

    def _holds_chars(self, more: int) -> bool:
        return self._max_chars is None or self._ledger.total.chars + more <= self._max_chars

    def _placeholder_cost(self) -> Cost:
        """What the placeholder costs if one is needed in front of the steps that are kept."""
        return self._placeholder if self._steps and self._steps[-1].begins_badly else _NOTHING

    def _by_count(self) -> int | None:
        """Tokens at the most of what was taken, by the provider's count, or ``None`` if there is none that can hold it."""
        total = self._ledger.total
        anchor = self._ledger.anchored(total.fewest)
        return None if anchor is None else anchor.tokens + total.after + self._placeholder_cost().after

    def _tokens(self) -> int | None:
        """Tokens of what is kept, by the estimate."""
        if not self._ledger.counts_tokens:
            return None
        total = self._ledger.total
        return total.after + total.covered + self._placeholder_cost().after

    def _keep(self, newest: _Step, length: int) -> int | None:
        """Keep the ``length`` newest steps. Returns their tokens. Raises ``BudgetError`` if there is none to keep."""
        self._cut(length)
        if not length:
            self._refuse(newest)
        return self._tokens() if length <= self._held else self._by_count()

    def _trim_by_provider(self, max_tokens: int) -> int | None:
        """All holds by the estimate, but the provider counted more than fits: trim by its measure.

        Its measure of a few is a guess: it refuses nothing that holds by the estimate, so that a larger budget never
        refuses what a smaller one shows.
        """
        ledger = self._ledger
        anchor = ledger.anchor
        scale = anchor.tokens / ledger.total.covered if anchor is not None and ledger.total.covered else 1.0
        steps = self._steps[:]
        self._cut(0)
        length = shortest = measured = 0
        fewest: int | None = None
        for step in steps:
            ledger.add(step.cost)
            self._steps.append(step)
            total, placeholder = ledger.total, self._placeholder_cost()
            bare = total.after + math.ceil(total.covered * max(1.0, scale))
            if bare > max_tokens and fewest is not None and total.after + total.covered > fewest:
                break
            if not self._holds_chars(placeholder.chars):
                continue
            tokens = total.after + total.covered + placeholder.after
            if fewest is None or tokens <= fewest:
                fewest, shortest = tokens, len(self._steps)
            if bare + placeholder.after <= max_tokens:
                length, measured = len(self._steps), bare + placeholder.after
        self._cut(max(length, shortest))
        return measured if length >= shortest else fewest

    def _cut(self, length: int) -> None:
        for step in self._steps[length:]:
            self._ledger.take_back(step.cost)
        del self._steps[length:]

    def _check_pinned(self) -> None:
        total = self._ledger.total
        budgets: list[tuple[BudgetName, int, int | None]] = [
            ("max_chars", total.chars, self._max_chars),
            ("max_tokens", total.after + total.covered, self._max_tokens),
        ]
        for name, size, limit in budgets:
            if limit is not None and size > limit and self._ledger.has_pins(name):
                raise BudgetError(
                    f"{SMALLEST_UNIT}: what is always shown ({_PINNED[name]}) has {size} {_MEASURES[name]}, "
                    f"{name} is {limit}; raise it",
                    budget=name,
                    limit=limit,
                    size=size,
                )

    def _refuse(self, newest: _Step) -> NoReturn:
        """Raise the error for the newest unit, once nothing is kept."""
        total, step = self._ledger.total, newest
        placeholder = self._placeholder if step.begins_badly else _NOTHING
        name: BudgetName = "max_tokens"
        size = total.after + total.covered + step.cost.after + step.cost.covered + placeholder.after
        limit = self._max_tokens
        chars = total.chars + step.cost.chars + placeholder.chars
        if self._max_chars is not None and (limit is None or chars > self._max_chars):
            name, size, limit = "max_chars", chars, self._max_chars
        opener = ", the message that opened its turn" if step.opener is not None else ""
        pinned = f", and what is always shown ({_PINNED[name]})" if self._ledger.has_pins(name) else ""
        raise BudgetError(
            f"{SMALLEST_UNIT}: the newest unit ({step.unit.name()}{opener}{pinned}) has {size} {_MEASURES[name]}, "
            f"{name} is {limit}; raise it, or make the context shorter with a compaction or a context edit",
            entry_id=step.unit.entry_id,
            budget=name,
            limit=limit,
            size=size,
        )


_NOTHING = Cost()


def _position(unit: ShownUnit) -> int:
    return unit.position
