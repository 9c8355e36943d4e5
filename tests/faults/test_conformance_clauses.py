"""No clause of the conformance suite that cannot fail: for each there is a backend that breaks it, and it alone is run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from storage.testing import check_storage
from storage.testing.clause import CLAUSES, Clause
from storage.testing.conformance import check_clause
from storage.testing.subject import Subject
from tests.faults import mutants
from tests.faults.mutants import Memories, Mutant, jsonl_in, reading, replacing

pytestmark = pytest.mark.anyio

ON_DISK: dict[str, Any] = {
    "copies_hold_what_was_acknowledged": jsonl_in(kind=mutants.BuffersOnDisk),
    "power_loss_is_survived": jsonl_in("os"),
    "blobs_survive_power_loss": jsonl_in("os"),
    "files_are_private": jsonl_in(kind=mutants.Readable),
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


async def test_it_leaves_no_files_behind(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that it makes are gone afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for clause in CLAUSES:
        if clause.check.__name__ in ON_DISK:  # type: ignore[attr-defined]
            await check_clause(clause, Subject(Memories(Mutant), jsonl_in()), 60)
    assert list(tmp_path.iterdir()) == []
