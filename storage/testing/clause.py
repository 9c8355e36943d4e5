"""The list of clauses, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from storage.testing.subject import Subject

Check = Callable[[Subject], Awaitable[None]]


class Clause(NamedTuple):
    """Something that every backend has to do: the rule it belongs to, a sentence, and how to see whether it holds."""

    rule: str
    sentence: str
    check: Check


CLAUSES: list[Clause] = []


def clause(rule: str, sentence: str) -> Callable[[Check], Check]:
    """Add a check to the list."""

    def add(check: Check) -> Check:
        CLAUSES.append(Clause(rule, sentence, check))
        return check

    return add
