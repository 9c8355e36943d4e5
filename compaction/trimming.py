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


@dataclass(slots=True)
class _Step:
    """A unit that was kept, and the user message that opened its turn where that was not kept before."""

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
    """Takes units from a walk while every budget holds."""

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
        self._tentative_from: int | None = None
        """The first step that is kept only because the provider's own count says that everything fits."""

    def run(self) -> Steps[Trimmed]:
        """Walk back as far as the budgets allow.

        Raises ``BudgetError`` if what is pinned, with the newest unit if there is one, does not fit.
        """
        exceeded: BudgetName | None = None
        steps = self._steps
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
            exceeded = self._exceeded(step)
            if exceeded is not None:
                break
            self._ledger.add(cost)
            steps.append(step)
        if not steps and exceeded is None:
            self._check_pinned()
        if exceeded == "max_tokens" and self._tentative_from is not None:
            # The count did not hold all of it after all; of the newest unit it is the upper limit in any case.
            self._cut(max(1, self._tentative_from))
            self._tentative_from = None
        is_whole = exceeded is None
        tokens = self._tokens(is_whole=is_whole)
        if is_whole and self._max_tokens is not None and tokens is not None and tokens > self._max_tokens:
            tokens = self._trim_by_provider(self._max_tokens)
            is_whole = False
        units: list[ShownUnit] = []
        for step in reversed(steps):
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

    def _exceeded(self, step: _Step) -> BudgetName | None:
        """The budget that does not hold if ``step`` is kept too. Raises ``BudgetError`` if that is the first one."""
        if self._max_chars is not None:
            chars = self._ledger.total.chars + step.cost.chars
            if step.begins_badly:
                chars += self._placeholder.chars
            if chars > self._max_chars:
                if not self._steps:
                    self._refuse(step, "max_chars", chars, self._max_chars)
                return "max_chars"
        if self._max_tokens is None:
            return None
        total = self._with_placeholder(step, self._ledger.total, step.cost)
        if total.after + total.covered <= self._max_tokens:
            return None
        anchor = self._ledger.anchored(total.fewest)
        if anchor is not None and anchor.tokens + total.after <= self._max_tokens:
            if self._tentative_from is None:
                self._tentative_from = len(self._steps)
            return None
        if not self._steps:
            self._refuse(step, "max_tokens", total.after + total.covered, self._max_tokens)
        return "max_tokens"

    def _with_placeholder(self, step: _Step, total: Cost, more: Cost) -> Cost:
        """``total`` and ``more``, and the placeholder if one is needed in front of ``step``."""
        placeholder = self._placeholder if step.begins_badly else _NOTHING
        return Cost(
            total.chars + more.chars + placeholder.chars,
            total.after + more.after + placeholder.after,
            total.covered + more.covered,
            total.fewest + more.fewest,
        )

    def _tokens(self, *, is_whole: bool) -> int | None:
        if not self._ledger.counts_tokens:
            return None
        total = self._ledger.total
        if self._steps:
            total = self._with_placeholder(self._steps[-1], total, _NOTHING)
        anchor = self._ledger.anchored(total.fewest)
        if anchor is not None and (is_whole or self._tentative_from is not None):
            return anchor.tokens + total.after
        return total.after + total.covered

    def _trim_by_provider(self, max_tokens: int) -> int:
        """All was kept by the estimate, but the provider counted more than fits: trim by its measure."""
        ledger = self._ledger
        anchor = ledger.anchor
        scale = anchor.tokens / ledger.total.covered if anchor is not None and ledger.total.covered else 1.0
        steps = self._steps[:]
        self._cut(0)
        tokens = 0
        for step in steps:
            total = self._with_placeholder(step, ledger.total, step.cost)
            measured = total.after + math.ceil(total.covered * max(1.0, scale))
            if measured > max_tokens:
                if not self._steps:
                    self._refuse(step, "max_tokens", measured, max_tokens)
                break
            tokens = measured
            ledger.add(step.cost)
            self._steps.append(step)
        return tokens

    def _cut(self, length: int) -> None:
        for step in self._steps[length:]:
            self._ledger.take_back(step.cost)
        del self._steps[length:]

    def _check_pinned(self) -> None:
        total = self._ledger.total
        for name, size, limit in (
            ("max_chars", total.chars, self._max_chars),
            ("max_tokens", total.after + total.covered, self._max_tokens),
        ):
            if limit is not None and size > limit and self._ledger.has_pins:
                raise BudgetError(
                    f"{SMALLEST_UNIT}: what is always shown (summary, working memory, prompt and tools) has {size} "
                    f"{_MEASURES[name]}, {name} is {limit}; raise it",
                    budget=name,
                    limit=limit,
                    size=size,
                )

    def _refuse(self, step: _Step, name: BudgetName, size: int, limit: int) -> NoReturn:
        opener = ", the message that opened its turn" if step.opener is not None else ""
        pinned = (
            ", and what is always shown (summary, working memory, prompt and tools)" if self._ledger.has_pins else ""
        )
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
