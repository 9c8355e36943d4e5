"""What a conformance run found: for each clause of the rules whether it passed, failed, or does not apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["passed", "failed", "absent"]


@dataclass(frozen=True, slots=True)
class ClauseResult:
    """One clause: the rule it belongs to (``"R7"``), what it asks for, and what came of it.

    ``detail`` says what was found instead, or which ability is absent. ``traceback`` is the text of what was raised: the
    exception itself would keep the backend's cursors and files alive.
    """

    rule: str
    clause: str
    outcome: Outcome
    detail: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:7} {self.rule:4} {self.clause}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of all clauses, in the order of the rules. ``print`` it for a table."""

    results: Sequence[ClauseResult]

    @property
    def passed(self) -> list[ClauseResult]:
        """The clauses that hold."""
        return [result for result in self.results if result.outcome == "passed"]

    @property
    def failed(self) -> list[ClauseResult]:
        """The clauses that do not."""
        return [result for result in self.results if result.outcome == "failed"]

    @property
    def absent(self) -> list[ClauseResult]:
        """The clauses about abilities that this backend does not have."""
        return [result for result in self.results if result.outcome == "absent"]

    def raise_for_failures(self) -> None:
        """Raise ``AssertionError`` with the failed clauses and where each failed, if there are any."""
        failed = self.failed
        if failed:
            places = [result.traceback for result in failed if result.traceback]
            raise AssertionError("\n".join(["the backend breaks its rules:", *map(str, failed), *places]))

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {
            "passed": len(self.passed),
            "failed": len(self.failed),
            "absent": len(self.absent),
            "clauses": [
                {"rule": result.rule, "clause": result.clause, "outcome": result.outcome, "detail": result.detail}
                for result in self.results
            ],
        }

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.absent)} absent"
        return "\n".join([*map(str, self.results), counts])
