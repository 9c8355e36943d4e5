"""A whole context with the tokens of each unit: what deciding and preparing look at.

Everything is measured from the newest compaction on, so that what it costs depends on what came since, and not on the
length of the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from compaction.breathing import Breath, Steps
from compaction.kept_units import KeptUnits
from compaction.ledger import SLACK_TOKENS, Ledger
from compaction.pins import Pins, pins_of
from compaction.projection import UnknownEntries, refuse_unknown
from compaction.selection import Selection, select
from compaction.shortening import Shortener
from compaction.shown_unit import ShownResult, ShownUnit
from compaction.state import PathState, fold_state
from compaction.tokens import TextCounter, TokenEstimator, UsageAnchoredEstimator, fixed_texts
from compaction.usage_anchor import Anchor, AnchorRule
from compaction.walk import Projector, Walk
from compaction.wording import WAITING
from storage.entries import Shortening
from storage.entry_path import EntryPath

_BYTES_PER_TOKEN = 5
"""A committed line has at least so many bytes for each of the fewest tokens that its text can have."""


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """How large the context at the end of a path is, in tokens.

    ``tokens`` is all of it: system prompt, tools, messages. ``is_counted``: the provider's own count of the newest reply
    is in it, and only what came after is estimated.
    """

    tokens: int
    system_tokens: int
    tool_tokens: int
    is_counted: bool = False

    @property
    def message_tokens(self) -> int:
        """Of the messages alone, the summary and the working memory included."""
        return max(0, self.tokens - self.system_tokens - self.tool_tokens)


@dataclass(slots=True)
class MeasuredContext:
    """The units of a context, oldest first, each with its tokens by the estimate.

    ``scale``: by how much the provider counts more than the estimate (1 where it counts less, or is not asked).
    ``summary_tokens`` and ``memory_tokens`` are those of the summary and of the working memory, by the estimate.
    ``waiting``: the units with a call that waits for its approval. ``last_places``: for each unit, where the last of it
    and of all older ones lies.
    """

    path: EntryPath
    selection: Selection
    walk: Walk
    units: list[ShownUnit]
    tokens: list[int]
    last_places: list[int]
    waiting: list[int]
    facts: ContextFacts
    scale: float
    summary_tokens: int
    memory_tokens: int
    _sums: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._sums = [0, *accumulate(self.tokens)]

    def sized(self, begin: int, end: int) -> int:
        """Tokens of the units from ``begin`` up to ``end``, as the provider would count them."""
        return round((self._sums[end] - self._sums[begin]) * self.scale)


def measure_context(
    path: EntryPath,
    *,
    estimator: TokenEstimator | None = None,
    projectors: Mapping[str, Projector] | None = None,
    unknown_entries: UnknownEntries = "raise",
    shorten: Shortening | None = None,
    state: PathState | None = None,
    kept: KeptUnits | None = None,
) -> Steps[ContextFacts]:
    """How large the context at the end of ``path`` is: what ``should_compact`` decides by.

    The provider's count of the newest reply after the last compaction, plus an estimate of what came since; where there
    is no count, an estimate of everything from that compaction on. ``shorten`` as ``project`` has it. ``state`` gives
    prompt and tools where the path does not have them yet, ``kept`` what was made before, as ``project`` has it. Raises
    ``UnsupportedEntryError`` as that does.
    """
    meter = _Meter(path, estimator, projectors, unknown_entries, shorten, state, kept)
    yield from meter.start()
    for unit in meter.walk.units():
        if unit is None:
            yield
            continue
        meter.ledger.add((yield from meter.ledger.cost_of(unit)))
        anchor = meter.ledger.anchor
        if anchor is not None and anchor.position == unit.position and meter.is_covered(anchor):
            return meter.facts(anchor)
    return meter.facts(meter.ledger.anchored(meter.ledger.total.fewest))


def measured_context(
    path: EntryPath,
    *,
    estimator: TokenEstimator | None = None,
    projectors: Mapping[str, Projector] | None = None,
    unknown_entries: UnknownEntries = "raise",
    shorten: Shortening | None = None,
    state: PathState | None = None,
) -> Steps[MeasuredContext]:
    """As ``measure_context``, with every unit."""
    meter = _Meter(path, estimator, projectors, unknown_entries, shorten, state)
    yield from meter.start()
    units: list[ShownUnit] = []
    tokens: list[int] = []
    places: list[int] = []
    waiting: list[int] = []
    for unit in meter.walk.units():
        if unit is None:
            yield
            continue
        cost = yield from meter.ledger.cost_of(unit)
        meter.ledger.add(cost)
        if unit.results and any(is_waiting(unit, result) for result in unit.results):
            waiting.append(len(units))
        places.append(max((result.place for result in unit.results), default=unit.position))
        units.append(unit)
        tokens.append(cost.after + cost.covered)
    units.reverse()
    tokens.reverse()
    places.reverse()
    total = meter.ledger.total
    anchor = meter.ledger.anchored(total.fewest)
    scale = 1.0 if anchor is None or not total.covered else max(1.0, anchor.tokens / total.covered)
    counter = meter.counter
    summary, memory = meter.pins.summary, meter.pins.memory
    return MeasuredContext(
        path=path,
        selection=meter.selection,
        walk=meter.walk,
        units=units,
        tokens=tokens,
        last_places=list(accumulate(places, max)),
        waiting=[len(units) - 1 - place for place in reversed(waiting)],
        facts=meter.facts(anchor),
        scale=scale,
        summary_tokens=0 if summary is None else (yield from counter.messages([summary.message]))[0],
        memory_tokens=0 if memory is None else (yield from counter.messages([memory.message]))[0],
    )


def is_waiting(unit: ShownUnit, result: ShownResult) -> bool:
    """Whether a result was made up for a call whose approval is open."""
    return result.place == unit.position and result.message.content == WAITING


class _Meter:
    """A walk with its account."""

    def __init__(
        self,
        path: EntryPath,
        estimator: TokenEstimator | None,
        projectors: Mapping[str, Projector] | None,
        unknown_entries: UnknownEntries,
        shorten: Shortening | None,
        state: PathState | None,
        kept: KeptUnits | None = None,
    ) -> None:
        refuse_unknown(path, unknown_entries)
        counting = estimator or UsageAnchoredEstimator()
        shortener = None if shorten is None else Shortener(path, shorten)
        self.path = path
        self.state = fold_state(path) if state is None else state
        self.selection = select(path)
        self.pins: Pins = pins_of(path, self.selection, self.state)
        usable = None if kept is None else kept.on(path, shorten)
        self.walk = Walk(self.selection, projectors or {}, Breath(), shortener, usable)
        self.ledger = Ledger(counting, AnchorRule(path, shorten))
        self.counter = TextCounter(counting)
        self._system_tokens = 0
        self._tool_tokens = 0

    def start(self) -> Steps[None]:
        self._system_tokens = yield from self.counter.texts(fixed_texts(self.state.system_prompt, None))
        self._tool_tokens = yield from self.counter.texts(fixed_texts(None, self.state.tools))
        yield from self.pins.charge(self.ledger)

    def is_covered(self, anchor: Anchor) -> bool:
        """Whether the count at ``anchor`` holds all that lies before it, told by sizes alone, so without decoding it.

        It does not if that request's context was cut: then there is more text than so few tokens can be.
        """
        if self.selection.tail or self.walk.dropped():
            return False
        left = (anchor.tokens + SLACK_TOKENS + 1) * _BYTES_PER_TOKEN
        for stretch in self.selection.stretches:
            for position in range(min(stretch.stop, anchor.place) - 1, stretch.start - 1, -1):
                left -= self.path.size(position)
                if left <= 0:
                    return False
        return True

    def facts(self, anchor: Anchor | None) -> ContextFacts:
        total = self.ledger.total
        tokens = total.after + (total.covered if anchor is None else anchor.tokens)
        return ContextFacts(tokens, self._system_tokens, self._tool_tokens, is_counted=anchor is not None)
