"""The conformance suite: one call says which of the rules a backend keeps."""

from __future__ import annotations

import traceback
from typing import cast

import anyio

from storage.testing import record_clauses, sharing_clauses, writing_clauses
from storage.testing.clause import CLAUSES, Clause
from storage.testing.report import ClauseResult, ConformanceReport, Outcome
from storage.testing.subject import AbilityAbsent, StorageOpener, Subject

__all__ = ["check_storage", "record_clauses", "sharing_clauses", "writing_clauses"]


async def check_storage(opener: StorageOpener, *, seconds_per_clause: float = 60) -> ConformanceReport:
    """Check a backend, clause by clause, on the event loop that runs; never raises for what it finds.

    ``opener(name, mode)`` opens the session ``name``, and begins it if there is none; the same name gives the same
    session every time, also while it is open already (a second writer may be refused with ``SessionLockedError``). It
    returns the storage or an awaitable of it. A backend without readers raises ``NotImplementedError`` for ``"read"``.
    Each clause has sessions of its own, which are closed but not deleted.

    ::

        report = await check_storage(lambda name, mode: MyStorage(folder / name))
        print(report)
        report.raise_for_failures()
    """
    clauses = sorted(
        CLAUSES, key=lambda clause: (clause.rule[0] != "R", int(clause.rule[1:]) if clause.rule[0] == "R" else 0)
    )
    return ConformanceReport([await _check(clause, Subject(opener), seconds_per_clause) for clause in clauses])


async def _check(clause: Clause, subject: Subject, seconds: float) -> ClauseResult:
    outcome: Outcome = "passed"
    detail = ""
    place = ""
    try:
        with anyio.fail_after(seconds):
            await clause.check(subject)
    except AbilityAbsent as absent:
        outcome, detail = "absent", str(absent)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is what the report is for
        outcome, detail, place = "failed", _describe(error), _text(error)
    try:
        with anyio.fail_after(seconds):
            await subject.close()
    except Exception as error:  # noqa: BLE001
        if outcome == "passed":
            outcome, detail, place = "failed", f"closing: {_describe(error)}", _text(error)
    return ClauseResult(clause.rule, clause.sentence, outcome, detail, place)


def _describe(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, BaseExceptionGroup):
        inside = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return _describe(inside[0]) if len(inside) == 1 else text
    return str(error) if isinstance(error, AssertionError) else text


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
