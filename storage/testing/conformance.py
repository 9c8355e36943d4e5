"""The conformance suite: one call says which of the rules a backend keeps."""

from __future__ import annotations

import traceback
from typing import cast

import anyio

from storage.testing import blob_clauses, crash_clauses, record_clauses, sharing_clauses, writing_clauses
from storage.testing.clause import CLAUSES, Clause
from storage.testing.report import ClauseResult, ConformanceReport, Outcome
from storage.testing.subject import AbilityAbsent, FolderOpener, StorageOpener, Subject

__all__ = ["blob_clauses", "check_storage", "crash_clauses", "record_clauses", "sharing_clauses", "writing_clauses"]


async def check_storage(
    opener: StorageOpener, *, in_folder: FolderOpener | None = None, seconds_per_clause: float = 60
) -> ConformanceReport:
    """Check a backend, clause by clause, on the event loop that runs; never raises for what it finds.

    ``opener(name, mode)`` opens the session ``name``, and begins it if there is none; the same name gives the same
    session every time, also while it is open already (a second writer may be refused with ``SessionLockedError``). It
    returns the storage or an awaitable of it. A backend without readers raises ``NotImplementedError`` for ``"read"``.
    Each clause has sessions of its own, which are closed but not deleted.

    ``in_folder(folder)`` gives such an opener for sessions whose files all lie in ``folder``, as durable as the backend
    can be. Without it the clauses about crashes and files are absent.

    ::

        report = await check_storage(lambda name, mode: MyStorage(folder / name))
        print(report)
        report.raise_for_failures()
    """
    clauses = sorted(
        CLAUSES, key=lambda clause: (clause.rule[0] != "R", int(clause.rule[1:]) if clause.rule[0] == "R" else 0)
    )
    results = [await check_clause(clause, Subject(opener, in_folder), seconds_per_clause) for clause in clauses]
    return ConformanceReport(results)


async def check_clause(clause: Clause, subject: Subject, seconds: float) -> ClauseResult:
    """Check one clause, and close what it left open."""
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
        return _describe(inside[0])  # what several tasks met is mostly one and the same
    return str(error) if isinstance(error, AssertionError) else text


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
