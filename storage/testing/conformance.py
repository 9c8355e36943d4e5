"""The conformance suite: one call says which of the rules a backend keeps."""

from __future__ import annotations

import traceback
from typing import Final, cast

import anyio

from storage.testing import blob_clauses, crash_clauses, disk_clauses, record_clauses, sharing_clauses, writing_clauses
from storage.testing.backend_frames import place_of_error
from storage.testing.clause import CLAUSES, Clause
from storage.testing.report import ClauseResult, ConformanceReport, Outcome
from storage.testing.subject import AbilityAbsent, ClauseError, FolderOpener, StorageOpener, Subject

__all__ = [
    "blob_clauses",
    "check_storage",
    "crash_clauses",
    "disk_clauses",
    "record_clauses",
    "sharing_clauses",
    "writing_clauses",
]

_CLOSING_SECONDS: Final = 1.0
"""For closing what hung already."""

_IMPATIENT_SECONDS: Final = 5.0
"""For each clause after the first that ran out of time: who waits for one that hangs is not to wait fifty times."""


async def check_storage(
    opener: StorageOpener, *, in_folder: FolderOpener | None = None, seconds_per_clause: float = 60
) -> ConformanceReport:
    """Check a backend, clause by clause, on the event loop that runs; never raises for what it finds.

    ``opener(name, mode)`` opens the session ``name``, and begins it if there is none; the same name gives the same
    session every time, also while it is open already (a second writer may be refused with ``SessionLockedError``). It
    returns the storage or an awaitable of it, is called in a worker thread, and repairs what a crash left. A backend
    without readers raises ``NotImplementedError`` for ``"read"``. Each clause has sessions of its own, which are closed but
    not deleted.

    ``in_folder(folder)`` gives such an opener for sessions whose files all lie in ``folder``, as durable as the backend
    can be. Without it the clauses about crashes, disks and files are absent.

    ``seconds_per_clause``: a clause that takes longer fails, and so does a call that does not come back; its thread is left
    behind then. The clauses after it get 5 seconds each.

    A cancellation is let through when the clause that was under way is closed. Each call of the backend is made in a thread
    of its own, one at a time but for blobs.

    ::

        report = await check_storage(lambda name, mode: MyStorage(folder / name, mode))
        print(report)
        report.raise_for_failures()
    """
    clauses = sorted(
        CLAUSES, key=lambda clause: (clause.rule[0] != "R", int(clause.rule[1:]) if clause.rule[0] == "R" else 0)
    )
    seconds = seconds_per_clause
    results: list[ClauseResult] = []
    for clause in clauses:
        subject = Subject(opener, in_folder)
        results.append(await check_clause(clause, subject, seconds))
        if subject.ran_out_of_time:
            seconds = min(seconds, _IMPATIENT_SECONDS)
    return ConformanceReport(results)


async def check_clause(clause: Clause, subject: Subject, seconds: float) -> ClauseResult:
    """Check one clause, and close what it left open."""
    outcome: Outcome = "passed"
    detail = ""
    text = ""
    limit = anyio.CancelScope(deadline=anyio.current_time() + seconds)
    subject.watch.give(seconds)
    try:
        with limit:
            await clause.check(subject)
        if limit.cancelled_caught:
            raise TimeoutError
    except AbilityAbsent as absent:
        outcome, detail = "absent", str(absent)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is what the report is for
        subject.ran_out_of_time = limit.cancelled_caught or bool(subject.watch.overdue)
        outcome, detail, text = "failed", _describe(error), _text(error)
        if subject.ran_out_of_time:
            detail = subject.watch.overdue or "it has not ended"
            detail = f"after {seconds:g} seconds {detail}"
    finally:
        with anyio.CancelScope(shield=True):
            subject.watch.give(_CLOSING_SECONDS if subject.ran_out_of_time else seconds)
            try:
                await subject.close()
            except Exception as error:  # noqa: BLE001
                if outcome == "passed":
                    outcome, detail, text = "failed", f"closing: {_describe(error)}", _text(error)
            subject.watch.end()
    return ClauseResult(clause.rule, clause.sentence, outcome, detail, text)


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        inside = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return _describe(inside[0])  # what several tasks met is mostly one and the same
    if isinstance(error, ClauseError):
        return str(error)
    place = place_of_error(error)
    return f"{type(error).__name__}: {error}" + (f" (raised in {place})" if place else "")


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
