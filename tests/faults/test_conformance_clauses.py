"""No clause of the conformance suite that cannot fail: for each there is a backend that breaks it, and it alone is run."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from storage import JsonlStorage, Record, SessionLockedError, SessionStorage
from storage.protocols import Mode
from storage.testing import ClauseResult, FolderOpener, check_storage
from storage.testing.clause import CLAUSES, Clause
from storage.testing.conformance import check_clause
from storage.testing.native_cancelling import cancelled_natively
from storage.testing.subject import Subject
from storage.testing.watched_storage import Watch
from tests.faults import mutants
from tests.faults.mutants import Memories, Mutant, jsonl_in, reading, replacing

pytestmark = pytest.mark.anyio

ON_DISK: dict[str, Any] = {
    "copies_hold_what_was_acknowledged": jsonl_in(kind=mutants.BuffersOnDisk),
    "power_loss_is_survived": jsonl_in("os"),
    "blobs_survive_power_loss": jsonl_in("os"),
    "files_are_private": jsonl_in(kind=mutants.Readable),
    "full_disks_tear_nothing": jsonl_in(kind=mutants.TearsWhatItKept),
    "failed_syncs_are_told": jsonl_in(kind=mutants.ForgetsFailedSyncs),
    "inline_commits_do_not_sync": jsonl_in(kind=mutants.SyncsInline),
    "readers_leave_no_trace": jsonl_in(kind=mutants.LeavesTraces),
    "closed_storages_let_go": jsonl_in(kind=mutants.KeepsFilesOpen),
}
"""For each clause about files, by the name of its function, a backend that breaks it."""

IN_MEMORY: dict[str, type[Mutant]] = {
    "committed_bytes_come_back": replacing(b'"parentId":', b'"parentId": '),
    "odd_texts_come_back": replacing("\u2028".encode(), b" "),
    "the_header_stays": mutants.NewHeaders,
    "nothing_is_changed_later": mutants.ChangesTheFirst,
    "places_are_counted": mutants.LosesTheLastOnClosing,
    "pages_are_exact": mutants.IgnoresTheLimit,
    "pages_make_the_whole": mutants.SkipsInPages,
    "the_tree_comes_back": reading(
        lambda data: re.sub(rb'"parentId":"[^"]*"(?=.*another way)', b'"parentId":null', data)
    ),
    "unknown_entries_stay": replacing(b',"nothing":null', b""),
    "foreign_lines_stay": replacing(b"1.50", b"1.5"),
    "unknown_members_stay": replacing(b'"newInside":[null,', b'"newInside":['),
    "lone_surrogates_are_replaced": replacing("\ufffd".encode(), b"?"),
    "lossy_values_are_refused": mutants.NeverEmpty,
    "snapshots_are_taken_at_the_call": replacing(b'"before"', b'"after"'),
    "parallel_appends_make_a_chain": mutants.WritesBackwards,
    "failures_are_single": mutants.ForgetsTheLast,
    "long_queues_are_written": mutants.ForgetsTheLast,
    "cancellation_tears_nothing": mutants.ForgetsTheLast,
    "native_cancellation_tears_nothing": mutants.ForgetsTheLast,
    "acknowledged_is_committed": mutants.Buffers,
    "known_failures_are_survived": mutants.ForgetsTheLast,
    "wrong_places_are_refused": mutants.WritesAnywhere,
    "empty_commits_do_nothing": mutants.ChokesOnNothing,
    "closed_is_closed": mutants.WritesWhenClosed,
    "reads_are_isolated": mutants.GivesItsOwnList,
    "one_writer": mutants.LetsTwoWrite,
    "the_owner_is_named": mutants.NamesNobody,
    "writers_fight": mutants.LastOneWins,
    "writers_follow_each_other": mutants.KeepsTheLock,
    "readers_see_what_is_added": mutants.ReadersStandStill,
    "readers_follow": mutants.ReadersSeeTwice,
    "readers_do_not_write": mutants.ReadersWrite,
    "sessions_are_apart": mutants.SharesAll,
    "unsafe_ids_are_refused": replacing(b"../odd id/", b"odd id"),
    "large_records_come_back": reading(lambda data: data[:1_000_000]),
    "records_stay_what_they_are": mutants.GivesBuffers,
    "deleted_is_gone": mutants.DeletesNothing,
    "paths_are_read_alone": mutants.WrongPaths,
    "changes_wake": mutants.SleepsOn,
    "blobs_come_back": mutants.CutsBlobs,
    "missing_blobs_are_named": mutants.MakesBlobsUp,
    "blobs_never_change": mutants.ReplacesBlobs,
    "unsafe_names_are_refused": mutants.ReadersKeepBlobs,
    "blobs_are_written_side_by_side": mutants.CutsBlobs,
    "readers_write_no_blobs": mutants.ReadersKeepBlobs,
    "closed_storages_write_no_blobs": mutants.WritesWhenClosed,
    "blobs_are_deleted": mutants.DeletesNothing,
}
"""For each other clause, a backend that breaks it."""


@pytest.mark.parametrize("clause", [pytest.param(clause, id=clause.check.__name__) for clause in CLAUSES])
async def test_each_clause_can_fail(clause: Clause) -> None:
    """It passes for a backend that breaks nothing, and fails for one that breaks what it asks for."""
    name = clause.check.__name__
    good = await check_clause(clause, Subject(Memories(Mutant), jsonl_in()), 60)
    assert good.outcome == "passed", good.traceback
    kind = IN_MEMORY.get(name, Mutant)
    bad = await check_clause(clause, Subject(Memories(kind), ON_DISK.get(name, jsonl_in())), 10)
    assert bad.outcome == "failed", f"{kind.__name__} is not noticed"
    assert bad.detail


def test_every_clause_has_its_mutant() -> None:
    """The tables name each clause, and nothing else."""
    assert sorted([*ON_DISK, *IN_MEMORY]) == sorted(clause.check.__name__ for clause in CLAUSES)  # type: ignore[attr-defined]


async def test_without_a_folder_what_is_about_files_is_absent() -> None:
    """Who gives no folder is told so, and has not failed."""
    report = await check_storage(Memories(Mutant))
    report.raise_for_failures()
    assert len(report.absent) == len(ON_DISK)
    assert all("no in_folder was given" in result.detail for result in report.absent)


async def test_it_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that it makes are gone afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for clause in CLAUSES:
        if clause.check.__name__ in ON_DISK:  # type: ignore[attr-defined]
            await check_clause(clause, Subject(Memories(Mutant), jsonl_in()), 60)
    assert list(tmp_path.iterdir()) == []


def clause_of(name: str) -> Clause:
    """The clause that the function of that name checks."""
    return next(clause for clause in CLAUSES if clause.check.__name__ == name)  # type: ignore[attr-defined]


async def what_is_found(name: str, kind: type[Mutant], in_folder: FolderOpener | None = None) -> str:
    """What the report says of a clause that fails."""
    result = await check_clause(clause_of(name), Subject(Memories(kind), in_folder), 10)
    assert result.outcome == "failed"
    return result.detail


async def test_it_shows_what_is_different() -> None:
    """What came back for what was committed is shown, where they differ, and what to do about it."""
    found = await what_is_found("foreign_lines_stay", replacing(b"1.50", b"1.5"))
    assert "record 0 differs from byte" in found
    assert "1.5}}'" in found
    assert "1.50}}'" in found
    assert "keep Record.data as it is" in found
    assert "0 records are there, not 5" in await what_is_found("committed_bytes_come_back", mutants.Forgets)
    assert "in another order" in await what_is_found("large_records_come_back", mutants.WritesBackwards)
    assert "Record.data is a bytearray" in await what_is_found("records_stay_what_they_are", mutants.GivesBuffers)
    assert "read() gave a generator; give a list" in await what_is_found("pages_are_exact", mutants.Generates)


async def test_it_says_what_is_wrong() -> None:
    """What is missing or in another order is counted, and what leads to it is named."""
    lost = await what_is_found("long_queues_are_written", mutants.ForgetsTheLast)
    assert lost == "600 were written in one go: 3 of 600 entries are missing (the first is number 255)"
    again = await what_is_found("pages_make_the_whole", mutants.StartsAnew)
    assert again == "pages of 1 never end: what was given before is given again"
    torn = await what_is_found("odd_texts_come_back", replacing("\u2028".encode(), b'"'))
    assert "split bytes on LF alone: invalid session JSON" in torn
    locked = await what_is_found("copies_hold_what_was_acknowledged", Mutant, jsonl_in(kind=mutants.LocksByName))
    assert "lock an open file: that a file exists says nothing" in locked


async def test_files_may_be_closed_even_to_their_owner() -> None:
    """A file that is sealed is as private as one that is not."""
    subject = Subject(Memories(Mutant), jsonl_in(kind=mutants.Sealed))
    result = await check_clause(clause_of("files_are_private"), subject, 10)
    assert result.outcome == "passed", result.detail


async def test_it_names_the_line_of_the_backend() -> None:
    """What a backend raises is told with the place where it did, also when the log had it in between."""
    mine = await what_is_found("wrong_places_are_refused", mutants.ComesLate)
    assert "was refused with KeyError, not StaleSessionError" in mine
    theirs = await what_is_found("long_queues_are_written", mutants.BelongsToOneThread)
    assert re.search(r"made in another thread \(raised in commit\(\), mutants.py line \d+\)", theirs)


def test_no_two_calls_come_from_one_thread() -> None:
    """Nor from one that ended and another that got its number."""
    watch = Watch()
    threads = [watch.call("it", threading.get_ident) for _ in range(200)]
    watch.end()
    assert all(one != other for one, other in pairwise(threads))


async def test_a_second_writer_is_refused_by_the_right_error() -> None:
    """A backend that refuses it by another error is told which one to raise."""

    class Busy(Memories):
        async def __call__(self, name: str, mode: Mode) -> SessionStorage:
            try:
                return await super().__call__(name, mode)
            except SessionLockedError as error:
                raise RuntimeError("busy") from error

    result = await check_clause(clause_of("one_writer"), Subject(Busy(Mutant)), 10)
    assert result.detail == "a second writer was refused with RuntimeError, not with SessionLockedError: busy"


async def test_a_call_that_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told which call, and where it is; the report comes all the same, and nobody waits as long for the next one."""
    monkeypatch.setattr("storage.testing.conformance._IMPATIENT_SECONDS", 0.3)
    mutants.Hangs.let_go.clear()
    try:
        report = await check_storage(Memories(mutants.Hangs), seconds_per_clause=5)
    finally:
        mutants.Hangs.let_go.set()
    details = [result.detail for result in report.failed]
    where = r"commit\(\) has not come back; it is in commit\(\), mutants.py line \d+"
    assert [bool(re.fullmatch(rf"after 5 seconds {where}", detail)) for detail in details[:2]] == [True, False]
    assert any(re.fullmatch(rf"after 0.3 seconds {where}", detail) for detail in details)


async def test_who_opens_may_block_and_is_not_waited_for_either() -> None:
    """The opener is called in a worker thread: the event loop goes on, and one that hangs is named."""
    let_go = threading.Event()

    def opener(name: str, mode: Mode) -> SessionStorage:
        let_go.wait()
        raise OSError(name, mode)

    turns = 0
    results: list[ClauseResult] = []

    async def check(seconds: float, done: anyio.Event) -> None:
        results.append(await check_clause(clause_of("committed_bytes_come_back"), Subject(opener), seconds))
        done.set()

    for seconds in (0.3, 3, 30):  # until this machine lets the event loop have its turns
        turns, done = 0, anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(check, seconds, done)
            while not done.is_set():
                turns += 1
                await anyio.sleep(0.01)
        assert "the opener has not come back" in results[-1].detail
        if turns > 10:
            break
    let_go.set()
    assert turns > 10


class Opens:
    """An opener that comes back when it is let go, with a storage or with the coroutine of one."""

    def __init__(self, *, later: bool) -> None:
        self.called, self.let_go = anyio.Event(), threading.Event()
        self.later = later
        self.closed = threading.Event()
        self.given: Any = None

    def open_in(self, portal: Any) -> Any:
        """Called in a worker."""

        def opener(name: str, mode: Mode) -> Any:
            portal.call(self.called.set)
            self.let_go.wait()
            self.given = self.storage() if self.later else self
            return self.given

        return opener

    async def storage(self) -> Opens:
        """The storage, in a moment."""
        return self

    def close(self) -> None:
        """It is closed."""
        self.closed.set()

    @property
    def is_left(self) -> bool:
        """Whether somebody should have closed it, and nobody did."""
        if self.later:
            return inspect.getcoroutinestate(self.given) != inspect.CORO_CLOSED
        return not self.closed.is_set()


@pytest.mark.parametrize("later", [False, True], ids=["storage", "coroutine"])
async def test_what_is_opened_for_nobody_is_closed(later: bool) -> None:
    """A clause that is cancelled while the opener works, as one of two that fight, leaves nothing open behind."""
    opens = Opens(later=later)

    async def check(subject: Subject) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(subject.storage)
            await opens.called.wait()
            group.cancel_scope.cancel()
            opens.let_go.set()

    async with BlockingPortal() as portal:
        result = await check_clause(Clause("R0", "it opens", check), Subject(opens.open_in(portal)), 60)
        assert result.outcome == "passed", result.traceback
    assert not opens.is_left


@pytest.mark.parametrize("later", [False, True], ids=["storage", "coroutine"])
async def test_what_is_opened_too_late_is_closed(later: bool) -> None:
    """What an opener gives when its time is up is closed by the thread that was left behind."""
    async with BlockingPortal() as portal:
        for seconds in (0.3, 3, 30):  # until it is time enough for the opener to be called
            opens = Opens(later=later)
            subject = Subject(opens.open_in(portal))
            result = await check_clause(clause_of("committed_bytes_come_back"), subject, seconds)
            assert "the opener has not come back" in result.detail
            if opens.called.is_set():
                break
            opens.let_go.set()
        opens.let_go.set()
        with anyio.fail_after(60):
            while opens.given is None or opens.is_left:
                await anyio.sleep(0.01)


async def test_files_of_python_are_seen() -> None:
    """A backend that writes with ``open`` and syncs nothing is not let off because of that: it loses what it promised."""
    subject = Subject(Memories(Mutant), mutants.lines_in)
    lost = await check_clause(clause_of("power_loss_is_survived"), subject, 60)
    assert lost.outcome == "failed"
    assert "records were acknowledged, " in lost.detail or "cannot be opened" in lost.detail
    assert "on the disk lay " in lost.detail
    torn = await check_clause(clause_of("full_disks_tear_nothing"), Subject(Memories(Mutant), mutants.lines_in), 60)
    assert torn.outcome == "failed"
    assert "the disk took " in torn.detail


async def test_a_swallowed_write_is_found() -> None:
    """A commit that raises nothing, while the disk took nothing, is told so."""
    in_folder = jsonl_in(kind=mutants.ForgetsFailedWrites)
    assert "and commit() raised nothing" in await what_is_found("full_disks_tear_nothing", Mutant, in_folder)


async def test_what_a_backend_raises_never_makes_a_clause_absent() -> None:
    """Not a ``RuntimeError`` while crashes are recorded, and not a ``NotImplementedError`` of who opens to write."""

    class Raises(JsonlStorage):
        def commit(self, records: Sequence[Record]) -> Any:
            raise RuntimeError("no")

    assert "no" in await what_is_found("power_loss_is_survived", Mutant, jsonl_in(kind=Raises))

    def opener(name: str, mode: Mode) -> SessionStorage:
        raise NotImplementedError(f"{name} {mode}")

    result = await check_clause(clause_of("committed_bytes_come_back"), Subject(opener), 10)
    assert result.outcome == "failed"


async def test_closing_goes_on_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be closed keeps neither the others open nor the folders there, and is reported."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    memories = Memories(mutants.CannotBeClosed)

    async def check(subject: Subject) -> None:
        await subject.storage()
        await subject.storage("read")
        await subject.within(subject.folder()).storage()

    closed: list[object] = []
    monkeypatch.setattr(JsonlStorage, "close", spied(JsonlStorage.close, closed))
    result = await check_clause(Clause("R0", "it is closed", check), Subject(memories, jsonl_in()), 10)
    assert "closing: OSError: closing failed (raised in close(), mutants.py line" in result.detail
    assert all(memory.writer is None for memory in memories.memories.values())
    assert closed
    assert list(tmp_path.iterdir()) == []


def spied(method: Any, calls: list[object]) -> Any:
    """The method, which notes what it is called on."""

    def call(self: object) -> None:
        calls.append(self)
        method(self)

    return call


async def test_a_cancelled_run_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is tired of waiting is let go when the clause under way is closed; its folders are gone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    began = anyio.Event()

    async def check(subject: Subject) -> None:
        await subject.within(subject.folder()).storage()
        began.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(check_clause, Clause("R0", "it waits", check), Subject(Memories(Mutant), jsonl_in()), 60)
        await began.wait()
        group.cancel_scope.cancel()
    assert list(tmp_path.iterdir()) == []


async def test_who_is_cancelled_leaves_no_task_behind() -> None:
    """A clause whose time is up while it waits to cancel a task cancels that, and waits for its end."""
    ended: list[str] = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("ended")

    with anyio.fail_after(30):
        with anyio.move_on_after(0.01):
            await cancelled_natively(wait, 3600)
        assert ended == ["ended"]
