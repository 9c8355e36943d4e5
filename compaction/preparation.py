"""What a compaction would do: which messages are summarised, from where on they are kept, and what that is worth.

Nothing is written and no model is asked. The plan names an entry of the path, so whatever is appended while the summary
is made is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compaction.breathing import Breath, Steps
from compaction.cut_point import Cut, choose_cut, keep_waiting
from compaction.file_operations import FileOperations
from compaction.measured_context import ContextFacts, MeasuredContext, measured_context
from compaction.projection import UnknownEntries
from compaction.refusals import refusal
from compaction.settings import CompactionSettings
from compaction.shown_unit import Shown, ShownUnit
from compaction.state import PathState
from compaction.tokens import TokenEstimator
from compaction.walk import Projector
from storage.entries import BranchSummaryEntry, Shortening
from storage.entry_path import EntryPath
from storage.errors import CompactionError
from storage.messages import AssistantMessage, UserMessage

_LEAST_TOKENS = 64
"""Less than this is not worth a summary."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A compaction that can be made. Sizes are in tokens.

    ``messages`` are to be summarised, oldest first, as the model was shown them, and the newest ``turn_prefix`` of them
    are the beginning of a turn whose rest is kept. ``previous_summary`` is what stood for everything before them.
    ``tokens_replaced``: what the summary takes the place of, the previous one included. ``tokens_after``: the whole
    context afterwards, if the summary is as long as it may be (``summary_tokens``).
    """

    first_kept_entry_id: str
    messages: list[Shown]
    turn_prefix: int
    previous_summary: str | None
    files: FileOperations
    facts: ContextFacts
    settings: CompactionSettings
    usable: int
    summary_tokens: int
    tokens_replaced: int
    tokens_after: int
    kept_turns: int

    @property
    def tokens_before(self) -> int:
        """The context now, system prompt and tools included."""
        return self.facts.tokens


def prepare_compaction(
    path: EntryPath,
    settings: CompactionSettings,
    *,
    estimator: TokenEstimator | None = None,
    projectors: Mapping[str, Projector] | None = None,
    unknown_entries: UnknownEntries = "raise",
    shorten: Shortening | None = None,
    state: PathState | None = None,
) -> Steps[CompactionPlan | None]:
    """The compaction that ``settings`` want at the end of ``path``; ``None`` if there is nothing to summarise.

    Whole units are kept, newest first, up to ``keep_recent_turns`` turns; the aim of ``target_ratio`` goes before that
    number. A turn too large for it is split between two units. What it costs depends on what came since the last
    compaction. The other arguments are those of ``measure_context``.

    Raises ``CompactionError``: ``settings`` that cannot work, or ``does_not_fit`` if the newest unit alone is more than
    is usable and no summary can help. Raises ``PendingCallError`` where a call that waits for its approval would be
    summarised away, and ``UnsupportedEntryError`` as ``project`` does.
    """
    context = yield from measured_context(
        path,
        estimator=estimator,
        projectors=projectors,
        unknown_entries=unknown_entries,
        shorten=shorten,
        state=state,
    )
    usable = settings.check(context.facts.system_tokens, context.facts.tool_tokens)
    limit = settings.summary_tokens(usable)
    memory = round(context.memory_tokens * context.scale)
    pinned = limit + memory
    # A summary that a model with a larger window made can be what is too large; it is made anew with the oldest unit.
    summary = round(context.summary_tokens * context.scale)
    is_summary_large = summary > 2 * limit
    over = is_summary_large and context.facts.message_tokens > settings.trigger_tokens(usable)
    cut = choose_cut(
        context,
        settings.target_tokens(usable) - pinned,
        usable - max(pinned, summary + memory),  # it may be a little longer than it should, and stays if all is kept
        settings.keep_recent_turns,
        least=1 if over else 0,
    )
    cut = keep_waiting(context, cut, settings.trigger_tokens(usable) - pinned)
    replaced = context.sized(0, cut.at) + summary
    if cut.at == 0 or (context.sized(0, cut.at) < _LEAST_TOKENS and not over):
        if context.facts.message_tokens > usable and context.units:
            raise _does_not_fit(context, settings, usable, pinned)
        return None
    kept = context.sized(cut.at, len(context.units))
    fixed = context.facts.system_tokens + context.facts.tool_tokens
    compaction = context.selection.compaction
    files = FileOperations()
    if compaction is not None and not compaction.from_hook:
        files.carry_on(compaction.details)
    return CompactionPlan(
        first_kept_entry_id=_first_kept(context, cut, settings, usable, pinned),
        messages=(yield from messages_of(context.units[: cut.at], path, files)),
        turn_prefix=_message_count(context.units[cut.turn : cut.at]) if cut.splits else 0,
        previous_summary=None if compaction is None else compaction.summary,
        files=files,
        facts=context.facts,
        settings=settings,
        usable=usable,
        summary_tokens=limit,
        tokens_replaced=replaced,
        tokens_after=fixed + memory + min(limit, replaced) + kept,
        kept_turns=cut.turns,
    )


def messages_of(units: list[ShownUnit], path: EntryPath, files: FileOperations) -> Steps[list[Shown]]:
    """The messages of units, in order; what they did to files is added to ``files``. Pauses as ``Steps`` do."""
    breath = Breath()
    messages: list[Shown] = []
    for unit in units:
        if breath.is_due():
            yield
            breath.taken()
        messages.append(unit.message)
        messages.extend(result.message for result in unit.results)
        if isinstance(unit.message, AssistantMessage):
            failed = (number for number, result in enumerate(unit.results) if result.message.is_error)
            files.add(unit.message, failed)
        elif unit.position >= 0 and path.entry_type(unit.position) == "branch_summary":
            entry = path.entry(unit.position)
            if isinstance(entry, BranchSummaryEntry) and not entry.from_hook:
                files.carry_on(entry.details)
    return messages


def _message_count(units: list[ShownUnit]) -> int:
    return sum(1 + len(unit.results) for unit in units)


def _first_kept(context: MeasuredContext, cut: Cut, settings: CompactionSettings, usable: int, pinned: int) -> str:
    """The entry from which on all is kept. Where no unit is, it is the newest one, which then shows nothing.

    A result whose call is summarised is not shown, nor is what shows nothing by itself. So what others append before the
    summary is there is kept in any case. What a person said last is never summarised away.
    """
    units, path = context.units, context.path
    if cut.at < len(units):
        return units[cut.at].entry_id
    last = len(path) - 1
    newest = units[-1]
    if newest.position == last or (newest.position >= 0 and isinstance(newest.message, UserMessage)):
        raise _does_not_fit(context, settings, usable, pinned)
    return path.entry_id(last)


def _does_not_fit(context: MeasuredContext, settings: CompactionSettings, usable: int, pinned: int) -> CompactionError:
    newest = len(context.units) - 1
    unit = context.units[newest]
    sizes = {
        "window": settings.window,
        "system": context.facts.system_tokens,
        "tools": context.facts.tool_tokens,
        "reserve": settings.reserve,
        "pinned": pinned,
        "size": context.sized(newest, newest + 1),
        "usable": usable,
    }
    return refusal(
        "does_not_fit",
        f"no summary can help: the newest unit ({unit.name()}) has {sizes['size']} tokens, and {usable - pinned} are left "
        f"for it; of the context window of {settings.window} the system prompt takes {sizes['system']}, the tools "
        f"{sizes['tools']}, the reserve for the reply {settings.reserve}, the summary and the working memory {pinned}; "
        "say it in fewer words, or use a model with a larger window",
        entry_id=unit.entry_id,
        **sizes,
    )
