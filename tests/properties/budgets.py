"""The brute-force reference for R19: which units a budget must show, found by trying every number of units.

And the judge of a context under a budget, which compares with it and says which rule a difference breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.properties.checker import Group, Plain, Shown, Violation, check_form
from tests.properties.record import fold, path_to
from tests.properties.wire import Json, characters, compact

Fits = Callable[[list[Json]], bool]
"""Whether these messages, the whole context, hold every budget."""


@dataclass
class Choice:
    """What must be shown: the groups in order, and the context they make with what is pinned."""

    groups: list[Group]
    messages: list[Json]
    entry_ids: list[str | None]


def with_newest(shown: Shown, count: int, placeholder: Json, *, tail_opener: bool = False) -> Choice:
    """The context of the ``count`` newest units: with the summary, the opener of the oldest one's turn, the memory."""
    first = len(shown.groups) - count
    groups = shown.groups[first:]
    if groups:
        oldest = groups[0].item
        opener = oldest.tail_opener if tail_opener and oldest.opener is None else oldest.opener
        wanted = None if opener is None else shown.offer.items[opener]
        if wanted is not None and not any(group.item is wanted for group in groups):
            groups = [*(group for group in shown.groups[:first] if group.item is wanted), *groups]
    groups = [*shown.pinned, *groups]
    messages = [message for group in groups for message in group.messages]
    ids = [entry_id for group in groups for entry_id in group.entry_ids]
    if messages and messages[0]["role"] != "user":
        messages, ids = [placeholder, *messages], [None, *ids]
    if shown.memory is not None:
        messages, ids = [*messages, shown.memory], [*ids, None]
    return Choice(groups, messages, ids)


def must_show(shown: Shown, fits: Fits, placeholder: Json, *, tail_opener: bool = False) -> Choice | None:
    """As many of the newest units as fit; None where not even the newest does (an error is due).

    That is newest first, up to the first that does not fit, where the placeholder counts only for what is sent with it:
    without it more units are never shorter, so that all before the largest number that fits could be kept as well.
    """
    least = 1 if shown.groups else 0
    for count in range(len(shown.groups), least - 1, -1):
        choice = with_newest(shown, count, placeholder, tail_opener=tail_opener)
        if fits(choice.messages):
            return choice
    return None


def within(max_chars: int) -> Fits:
    """The character budget of R21."""
    return lambda messages: characters(messages) <= max_chars


def check_budgeted(
    entries: list[Json],
    leaf: str | None,
    shown: Shown,
    fits: Fits,
    context: Plain | None,
    placeholder: Json,
) -> list[Violation]:
    """Every violation in a context under a budget. ``context`` is None where the budget was refused as too small."""
    choices = [must_show(shown, fits, placeholder)]
    if any(group.item.opener is None and group.item.tail_opener is not None for group in shown.groups):
        choices.append(must_show(shown, fits, placeholder, tail_opener=True))
    if context is None:
        if None in choices:
            return []
        return [Violation("R19 refused", "the budget was refused, though what is pinned and the newest unit fit")]
    path = path_to(entries, leaf)
    found = check_form(context, fold(path), path)
    if not fits(context.messages):
        found.append(Violation("R19 over budget", f"{characters(context.messages)} characters are shown"))
    if any(choice is not None and _same(choice, context) for choice in choices):
        return found
    if choices[0] is None:
        found.append(Violation("R19 not refused", "not even the newest unit fits, and no error was raised"))
        return found
    return [*found, *_explain(shown, choices[0], context)]


def _same(choice: Choice, context: Plain) -> bool:
    ids = list(context.entry_ids)
    if ids and choice.entry_ids and choice.entry_ids[-1] is None:
        ids[-1] = None
    return choice.messages == context.messages and choice.entry_ids == ids


def _explain(shown: Shown, choice: Choice, context: Plain) -> list[Violation]:
    """Which rule the difference to ``choice`` breaks."""
    messages = list(context.messages)
    if shown.memory is not None:
        if not messages or messages[-1] != shown.memory:
            return [Violation("R18 working memory", "is not the last message, unchanged")]
        messages.pop()
    summary = [message for group in shown.pinned for message in group.messages]
    if messages[: len(summary)] != summary:
        return [Violation("R18 summary", "is not the first message, unchanged")]
    rest = messages[len(summary) :]
    if rest and rest[0] == placeholder_of(choice, context):
        rest.pop(0)
    kept = _whole_units(shown, rest)
    if kept is None:
        return [Violation("R19 half a unit", f"{[compact(message)[:120] for message in rest]}")]
    units = [at for at, group in enumerate(shown.groups) if any(group is other for other in choice.groups)]
    if shown.groups and (not kept or kept[-1] != len(shown.groups) - 1):
        return [Violation("R19 newest unit", "is not shown")]
    if len(kept) < len(units):
        return [Violation("R19 too few units", f"{kept} of {len(shown.groups)}; {units} fit")]
    if len(kept) > len(units):
        return [Violation("R19 too many units", f"{kept} of {len(shown.groups)}; after {units} the next does not fit")]
    return [Violation("R19 wrong units", f"{kept} for {units}: ids {context.entry_ids} for {choice.entry_ids}")]


def placeholder_of(choice: Choice, context: Plain) -> Json | None:
    """The message that stands for no entry at the beginning of the context, if it has one."""
    has = bool(context.entry_ids) and context.entry_ids[0] is None and len(context.messages) > 1
    return context.messages[0] if has else None


def _whole_units(shown: Shown, messages: list[Json]) -> list[int] | None:
    """Which units these messages are, found from the newest on; None where they are not whole units in order."""
    kept: list[int] = []
    end = len(messages)
    for at in range(len(shown.groups) - 1, -1, -1):
        unit = shown.groups[at].messages
        if end and messages[max(0, end - len(unit)) : end] == unit:
            kept.append(at)
            end -= len(unit)
    return kept[::-1] if end == 0 else None
