"""Judging every context of a session: every leaf, and every budget that could make a difference."""

from __future__ import annotations

import json
from collections.abc import Iterable

from harness import BudgetError, Session
from tests.properties.budgets import check_budgeted, with_newest, within
from tests.properties.checker import Plain, Shown, Violation, take_apart
from tests.properties.growing import plain_of
from tests.properties.wire import Json, characters

FULL = {"max_chars": None}


class Judge:
    """Builds contexts of one session, and collects what the checker says about them."""

    def __init__(self, session: Session, entries: list[Json], placeholder: Json) -> None:
        self.session = session
        self.entries = entries
        self.placeholder = placeholder
        self.violations: list[tuple[str | None, int | None, Violation]] = []

    async def every_leaf(self, leaves: Iterable[str | None], *, budgets_for: int) -> dict[str | None, Plain]:
        """Check the whole context at every leaf, and those under budgets at the last ``budgets_for`` of them."""
        all_leaves = list(leaves)
        contexts: dict[str | None, Plain] = {}
        for number, leaf in enumerate(all_leaves):
            context = plain_of(await self.session.build_context(leaf_id=leaf))
            contexts[leaf] = context
            shown, found = take_apart(self.entries, leaf, context)
            self._add(leaf, None, found)
            if not found and len(all_leaves) - number <= budgets_for:
                await self._budgets(leaf, shown, context)
        return contexts

    async def _budgets(self, leaf: str | None, shown: Shown, full: Plain) -> None:
        """Just enough and just too little for every number of units."""
        sizes = {1, full.chars + 1_000}
        for count in range(len(shown.groups) + 1):
            size = characters(with_newest(shown, count, self.placeholder).messages)
            sizes |= {size, size - 1}
        for max_chars in sorted(size for size in sizes if size > 0):
            try:
                built = await self.session.build_context(leaf_id=leaf, max_chars=max_chars)
            except BudgetError:
                context = None
            else:
                context = plain_of(built)
            found = check_budgeted(self.entries, leaf, shown, within(max_chars), context, self.placeholder)
            self._add(leaf, max_chars, found)

    def _add(self, leaf: str | None, budget: int | None, found: list[Violation]) -> None:
        self.violations.extend((leaf, budget, violation) for violation in found)

    def verdict(self) -> None:
        """Raise with everything that was found, and the record it was found in."""
        if self.violations:
            lines = [f"{leaf} under {budget}: {rule}: {what}" for leaf, budget, (rule, what) in self.violations[:5]]
            record = "\n".join(json.dumps(entry, ensure_ascii=False) for entry in self.entries)
            raise AssertionError("\n".join([f"{len(self.violations)} violations", *lines, "in", record]))
