"""The projection: from a path of the record to messages that can be sent. Computed, never stored; deterministic (R20).

Its rules: R18 (compactions), R19 (units and budgets), R20 (sendable), R21 (sizes), R22 (state). ``project`` is plain
synchronous code that pauses now and then; ``compaction.breathing`` runs it, on an event loop or without one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from compaction.breathing import Breath, Steps, run_at_once
from compaction.characters import decoded_characters
from compaction.kept_units import KeptUnits
from compaction.ledger import Ledger
from compaction.pins import Pins, pins_of
from compaction.selection import Selection, Transform, select, transformed
from compaction.shortening import Shortener
from compaction.shown_unit import Shown, ShownUnit
from compaction.state import PathState, fold_state
from compaction.tokens import TokenEstimator, UsageAnchoredEstimator, warning_of
from compaction.trimming import Trimmed, Trimmer
from compaction.usage_anchor import AnchorRule
from compaction.walk import Projector, Walk
from compaction.wording import PLACEHOLDER
from storage.entries import Shortening
from storage.entry_path import EntryPath
from storage.errors import UnsupportedEntryError
from storage.messages import UserMessage
from storage.protocols import SessionWarning

PROJECTION_VERSION: Final = 1
"""Names what ``project`` makes of a record. A change of that, a word in it included, needs another number (R26)."""

UnknownEntries = Literal["raise", "skip"]
NO_PROJECTORS: Final[Mapping[str, Projector]] = MappingProxyType({})


@dataclass(slots=True)
class Projection:
    """What a model is shown. The messages are made for this projection alone: change them as you like.

    ``entry_ids`` has for each message the entry it came from: a made-up result its reply's, a retained tail the
    compaction's, the working memory its newest entry's, a placeholder ``None``. ``chars``: the size of the messages by
    R21. ``dropped``: the results without a call, as far as was looked. ``is_whole``: no budget left anything out.
    ``passing``: how many of the last messages are no part of the conversation (the working memory), 0 or 1.
    ``tail``: where that may be so, the places of a retained tail's messages that are shown, counted from its end (-1).
    """

    messages: list[Shown]
    entry_ids: list[str | None]
    chars: int
    dropped: list[str]
    compaction_id: str | None
    warnings: list[SessionWarning]
    is_whole: bool
    state: PathState
    tail: list[int] | None
    passing: int
    count: Callable[[], int] = field(repr=False, compare=False)
    _tokens: int | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        """Tokens of messages, system prompt and tool schemas.

        Without a token budget or an estimator they are counted when first asked for: anchored to the provider's count
        where there is one, else rough, which takes a few microseconds for each message.
        """
        if self._tokens is None:
            self._tokens = self.count()
        return self._tokens


def project(
    path: EntryPath,
    *,
    max_chars: int | None = None,
    max_tokens: int | None = None,
    estimator: TokenEstimator | None = None,
    transforms: Sequence[Transform] = (),
    projectors: Mapping[str, Projector] = NO_PROJECTORS,
    unknown_entries: UnknownEntries = "raise",
    shorten: Shortening | None = None,
    state: PathState | None = None,
    shown: Container[int] | None = None,
    kept: KeptUnits | None = None,
) -> Steps[Projection]:
    """What a model is shown at the end of ``path``.

    ``max_chars`` covers the messages, ``max_tokens`` also system prompt and tool schemas as ``state`` has them (folded
    from the path unless given). Without an ``estimator`` tokens are anchored to the provider's own count. Without a
    budget everything is decoded, with one about as much as is kept. ``transforms`` are called in order with all
    selected entries, after the compaction was chosen; working memory and state stay those of the path. ``shorten``: old,
    large tool results are shown shortened. ``shown`` takes the place of the budgets: the positions of the messages that
    are shown with what belongs to them, those of a retained tail counted from its end (-1 is its last). ``kept``: what
    was made for the request before, without transforms and projectors; then the messages are shared with the next one.

    Raises ``UnsupportedEntryError`` (unless ``unknown_entries="skip"``), ``BudgetError``, and ``NotOnPathError`` where
    ``shorten`` names an entry that is not on the path. Pauses as ``Steps`` do.
    """
    refuse_unknown(path, unknown_entries)
    shortener = None if shorten is None else Shortener(path, shorten)
    breath = Breath()
    if state is None:
        state = fold_state(path)
    selection = select(path)
    if transforms:
        selection = yield from transformed(selection, transforms, breath)
    pins = pins_of(path, selection, state)
    if kept is not None:
        kept = None if transforms or projectors else kept.on(path, shorten)
    walk = Walk(selection, projectors, breath, shortener, kept)
    counting = estimator or (UsageAnchoredEstimator() if max_tokens is not None else None)
    if shown is not None:
        trimmed = yield from _everything(walk, shown)
    elif max_chars is None and counting is None:
        trimmed = yield from _everything(walk)
    else:
        ledger = Ledger(counting, None if counting is None else AnchorRule(path, shorten))
        yield from pins.charge(ledger)
        placeholder = None
        if pins.summary is None:
            placeholder = yield from ledger.cost_of_own(_PLACEHOLDER, _PLACEHOLDER_CHARS)
        trimmer = Trimmer(walk, ledger, max_chars=max_chars, max_tokens=max_tokens, placeholder=placeholder)
        trimmed = yield from trimmer.run()
    warnings = list(selection.warnings)
    if path.unknown is not None:
        warnings.append(
            SessionWarning(
                "unknown_entry_skipped",
                f"{_unknown(path, path.unknown)}; it is not shown",
                entry_id=path.entry_id(path.unknown),
            )
        )
    if estimator is not None and (fallback := warning_of(estimator)) is not None:
        warnings.append(SessionWarning("token_estimate", fallback))
    return (yield from _assembled(trimmed, pins, selection, walk, AnchorRule(path, shorten), warnings, breath))


def refuse_unknown(path: EntryPath, unknown_entries: UnknownEntries) -> None:
    """Raise ``UnsupportedEntryError`` if the path holds an entry that may not be skipped (R4)."""
    if unknown_entries == "raise" and path.unknown is not None:
        raise UnsupportedEntryError(
            f"{_unknown(path, path.unknown)}, so a context would be a guess; update branchline, or build the context "
            'with unknown_entries="skip"',
            entry_id=path.entry_id(path.unknown),
        )


def _unknown(path: EntryPath, position: int) -> str:
    kind, role = path.entry_type(position), path.role(position)
    what = f"a message of role {role!r:.80}" if kind == "message" else f"an entry of type {kind!r:.80}"
    return f"entry {path.entry_id(position)!r:.140} is {what}, which this version does not know"


def _everything(walk: Walk, shown: Container[int] | None = None) -> Steps[Trimmed]:
    units: list[ShownUnit] = []
    for unit in walk.units():
        if unit is None:
            yield
        elif shown is None or unit.position in shown:
            units.append(unit)
    units.reverse()
    return Trimmed(units, is_whole=shown is None, tokens=None)


_PLACEHOLDER: Final = UserMessage(content=PLACEHOLDER, timestamp=0)
_PLACEHOLDER_CHARS: Final = decoded_characters(_PLACEHOLDER)


def _assembled(
    trimmed: Trimmed,
    pins: Pins,
    selection: Selection,
    walk: Walk,
    rule: AnchorRule,
    warnings: list[SessionWarning],
    breath: Breath,
) -> Steps[Projection]:
    messages: list[Shown] = []
    entry_ids: list[str | None] = []
    chars = 0
    if pins.summary is not None:
        messages.append(pins.summary.message)
        entry_ids.append(pins.summary.entry_id)
        chars = pins.summary.chars
    elif trimmed.units and not isinstance(trimmed.units[0].message, UserMessage):
        messages.append(_PLACEHOLDER.model_copy())
        entry_ids.append(None)
        chars = _PLACEHOLDER_CHARS
    for number, unit in enumerate(trimmed.units):
        if not number & 0xFF and breath.is_due():
            yield
            breath.taken()
        messages.append(unit.message)
        entry_ids.append(unit.entry_id)
        chars += unit.chars
        for result in unit.results:
            messages.append(result.message)
            entry_ids.append(result.entry_id)
    if pins.memory is not None:
        messages.append(pins.memory.message)
        entry_ids.append(pins.memory.entry_id)
        chars += pins.memory.chars

    def count() -> int:
        return run_at_once(_count(trimmed, pins, Ledger(UsageAnchoredEstimator(), rule)))

    return Projection(
        messages=messages,
        entry_ids=entry_ids,
        chars=chars,
        dropped=walk.dropped(),
        compaction_id=selection.compaction.id if selection.compaction is not None else None,
        warnings=warnings,
        is_whole=trimmed.is_whole,
        tail=_shown_of_tail(trimmed, selection),
        passing=0 if pins.memory is None else 1,
        state=pins.state,
        count=count,
        _tokens=trimmed.tokens,
    )


def _shown_of_tail(trimmed: Trimmed, selection: Selection) -> list[int] | None:
    if trimmed.is_whole or not selection.tail:
        return None
    return [unit.position for unit in trimmed.units if unit.position < 0]


def _count(trimmed: Trimmed, pins: Pins, ledger: Ledger) -> Steps[int]:
    """Tokens of what is shown, where no budget and no estimator had them counted."""
    yield from pins.charge(ledger)
    for unit in reversed(trimmed.units):
        ledger.add((yield from ledger.cost_of(unit)))
    if pins.summary is None and trimmed.units and not isinstance(trimmed.units[0].message, UserMessage):
        ledger.add((yield from ledger.cost_of_own(_PLACEHOLDER, _PLACEHOLDER_CHARS)))
    total = ledger.total
    anchor = ledger.anchored(total.fewest)
    return anchor.tokens + total.after if anchor is not None and trimmed.is_whole else total.after + total.covered
