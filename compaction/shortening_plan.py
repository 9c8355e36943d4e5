"""When the cheap step is taken, and which results are then old: chosen seldom, and the same in between.

What is in force is what the newest reply on the path says that its request showed. So it follows the path over branches,
forks and restarts, and changes only where it is chosen anew: when a compaction is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compaction.breathing import Steps
from compaction.cut_point import choose_cut
from compaction.measured_context import MeasuredContext, measured_context
from compaction.projection import UnknownEntries
from compaction.settings import CompactionSettings
from compaction.shortening import shorten_result
from compaction.state import PathState
from compaction.tokens import TextCounter, TokenEstimator, UsageAnchoredEstimator
from compaction.usage_anchor import shortened_for
from compaction.walk import Projector
from storage.entries import Shortening
from storage.entry_path import EntryPath


@dataclass(frozen=True, slots=True)
class ShorteningPlan:
    """Shorten the results before ``shortening.before``: the context then has about ``tokens_after`` tokens."""

    shortening: Shortening
    tokens_before: int
    tokens_after: int


def shortening_in_force(path: EntryPath) -> Shortening | None:
    """Which results the newest request on the path showed shortened: to be passed to ``project`` again.

    Looks back as far as the newest reply, and no further than that.
    """
    for position in range(len(path) - 1, -1, -1):
        if path.role(position) == "assistant":
            return shortened_for(path, position)
    return None


def plan_shortening(
    path: EntryPath,
    settings: CompactionSettings,
    *,
    estimator: TokenEstimator | None = None,
    projectors: Mapping[str, Projector] | None = None,
    unknown_entries: UnknownEntries = "raise",
    shorten: Shortening | None = None,
    state: PathState | None = None,
) -> Steps[ShorteningPlan | None]:
    """The cheap step that may be taken where a compaction is due; ``None`` if it would not help enough.

    Old is what a compaction would summarise. It helps enough if the messages then have at most ``shorten_ratio`` of what
    is usable. ``shorten`` is what is in force now; the other arguments are those of ``measure_context``.
    """
    if settings.shorten_ratio is None:
        return None
    context = yield from measured_context(
        path,
        estimator=estimator,
        projectors=projectors,
        unknown_entries=unknown_entries,
        shorten=shorten,
        state=state,
    )
    usable = settings.check(context.facts.system_tokens, context.facts.tool_tokens)
    room = settings.target_tokens(usable) - settings.summary_tokens(usable)
    cut = choose_cut(context, room, usable, settings.keep_recent_turns)
    if cut.at in (0, len(context.units)):
        return None
    saved = yield from _saved(context, cut.at, settings.shortened_chars, estimator)
    facts = context.facts
    if saved <= 0 or facts.message_tokens - saved > usable * settings.shorten_ratio:
        return None
    before = context.units[cut.at].entry_id
    return ShorteningPlan(
        Shortening(before=before, max_chars=settings.shortened_chars), facts.tokens, facts.tokens - saved
    )


def _saved(context: MeasuredContext, end: int, max_chars: int, estimator: TokenEstimator | None) -> Steps[int]:
    """Tokens that are saved by shortening the results of the units before ``end``."""
    counter = TextCounter(estimator or UsageAnchoredEstimator())
    saved = 0
    for unit in context.units[:end]:
        for result in unit.results:
            whole = (yield from counter.messages([result.message]))[0]
            if shorten_result(result.entry_id, result.message, max_chars):
                saved += whole - (yield from counter.messages([result.message]))[0]
    return round(saved * context.scale)
