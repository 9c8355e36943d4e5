"""What is left behind when one goes from one branch to another, and a summary of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compaction.breathing import Breath, Steps, run_with_pauses
from compaction.compacting import ask, checked
from compaction.file_operations import FileOperations, with_files
from compaction.preparation import messages_of
from compaction.projection import UnknownEntries, refuse_unknown
from compaction.rough_tokens import RoughEstimator
from compaction.selection import Selection, select
from compaction.settings import CompactionSettings
from compaction.shown_unit import Shown, ShownUnit
from compaction.summary_checks import check_reply
from compaction.summary_request import Summarizer, summary_request
from compaction.tokens import TextCounter, TokenEstimator
from compaction.walk import Projector, Walk
from storage.entry_path import EntryPath
from storage.messages import Usage


@dataclass(frozen=True, slots=True)
class AbandonedBranch:
    """What lies between the common ancestor and the leaf that is left.

    ``messages`` are its newest that fit the budget, oldest first, as the model was shown them; ``is_whole`` says whether
    that is all. ``previous_summary`` is that of a compaction on the branch, which may also speak of what came before it.
    ``ancestor_id`` is ``None`` where the two paths share nothing.
    """

    ancestor_id: str | None
    from_id: str
    messages: list[Shown]
    previous_summary: str | None
    files: FileOperations
    tokens: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class BranchSummary:
    """What a ``branch_summary`` entry takes; ``details`` hold ``readFiles`` and ``modifiedFiles``."""

    summary: str
    from_id: str
    details: dict[str, Any]
    usage: Usage | None = None


def common_depth(one: EntryPath, other: EntryPath) -> int:
    """How many entries two paths share, from the root on. Takes as long as the shorter one is beyond that."""
    depth = min(len(one), len(other))
    while depth and one.entry_id(depth - 1) != other.entry_id(depth - 1):
        depth -= 1
    return depth


def collect_branch(
    left: EntryPath,
    target: EntryPath,
    *,
    max_tokens: int,
    estimator: TokenEstimator | None = None,
    projectors: Mapping[str, Projector] | None = None,
    unknown_entries: UnknownEntries = "raise",
) -> Steps[AbandonedBranch | None]:
    """What is left behind on the path ``left`` by going to the end of the path ``target``; ``None``: nothing to show.

    Whole units, newest first, in at most ``max_tokens`` tokens; files are collected from all that was looked at. Only
    what is not on both paths is looked at, however long they are. Raises ``UnsupportedEntryError`` where what is left
    holds an entry that this version does not know.
    """
    shared = common_depth(left, target)
    if left.unknown is not None and left.unknown >= shared:
        refuse_unknown(left, unknown_entries)
    selection = _beyond(select(left), shared)
    counter = TextCounter(estimator or RoughEstimator())
    walk = Walk(selection, projectors or {}, Breath())
    units: list[ShownUnit] = []
    tokens, is_whole = 0, True
    for unit in walk.units():
        if unit is None:
            yield
            continue
        size = sum((yield from counter.messages([unit.message, *[result.message for result in unit.results]])))
        if tokens + size > max_tokens:
            is_whole = False
            if units:
                break
        tokens += size
        units.append(unit)
        if not is_whole:
            break
    units.reverse()
    files = FileOperations()
    summary = selection.compaction
    if summary is not None and not summary.from_hook:
        files.carry_on(summary.details)
    messages = yield from messages_of(units, left, files)
    if not messages and (summary is None or not summary.summary):
        return None
    return AbandonedBranch(
        ancestor_id=left.entry_id(shared - 1) if shared else None,
        from_id=left.entry_id(len(left) - 1),
        messages=messages,
        previous_summary=None if summary is None else summary.summary,
        files=files,
        tokens=tokens,
        is_whole=is_whole,
    )


async def summarize_branch(
    branch: AbandonedBranch,
    summarizer: Summarizer,
    settings: CompactionSettings,
    *,
    instructions: str | None = None,
    estimator: TokenEstimator | None = None,
) -> BranchSummary:
    """Have the summary of an abandoned branch made, and check it. Nothing is written.

    Raises ``CompactionError`` as ``compact`` does, but a short branch may have a longer summary: it replaces nothing.
    """
    limit = settings.summary_tokens(settings.window - settings.reserve)
    request = await run_with_pauses(
        summary_request(
            "branch",
            branch.messages,
            window=settings.summarizer_window or settings.window,
            max_tokens=limit,
            previous_summary=branch.previous_summary,
            files=branch.files,
            instructions=instructions,
            estimator=estimator,
        )
    )
    reply = await ask(summarizer, request, settings.summary_timeout)
    text = checked(lambda: check_reply(reply, limit, estimator), reply)
    return BranchSummary(with_files(text, branch.files, limit), branch.from_id, branch.files.details(), reply.usage)


def _beyond(selection: Selection, shared: int) -> Selection:
    """What of a selection lies beyond the first ``shared`` entries; a compaction only where it does itself."""
    path = selection.path
    stretches = [range(max(stretch.start, shared), stretch.stop) for stretch in selection.stretches]
    if path.compaction is not None and path.compaction >= shared:
        return Selection(path, stretches, selection.compaction, selection.tail)
    return Selection(path, stretches)
