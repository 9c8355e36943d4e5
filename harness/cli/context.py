"""``branchline context``: what the model would be shown, with sizes and what is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import anyio

from compaction.characters import decoded_characters
from compaction.tokens import RoughEstimator, texts_of
from harness.cli.drawn_context import ContextFacts, LeftOut, ShownMessage, draw_context
from harness.cli.entry_ids import ShortIds
from harness.cli.entry_lines import SPOKEN, describe, describe_message, kind_of
from harness.cli.failures import DONE
from harness.cli.json_facts import json_facts
from harness.cli.places import Place
from harness.cli.plain_text import preview
from harness.cli.reading import named_entry, open_to_read, told
from harness.cli.screen import Screen
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.context import SessionContext
from harness.session import Session
from storage.entries import Entry, RequestHeaderEntry
from storage.protocols import SessionWarning

TEXT_LENGTH = 100


def run_context(
    screen: Screen, given: str, *, at: str | None, max_chars: int | None, max_tokens: int | None, root: str | None
) -> int:
    """Show the context of the session that ``given`` names."""
    place = find_session_or_file(given, shelf_at(root))
    facts, path_ids, warnings = anyio.run(_look, place, at, max_chars, max_tokens)
    if screen.as_json:
        screen.show_json(json_facts(facts))
    else:
        for line in draw_context(facts, short=ShortIds(path_ids)):
            screen.show(line)
    screen.notes(f"warning: {told(warning)}" for warning in warnings)
    return DONE


async def _look(
    place: Place, at: str | None, max_chars: int | None, max_tokens: int | None
) -> tuple[ContextFacts, list[str], list[SessionWarning]]:
    async with open_to_read(place) as session:
        leaf_id = session.leaf_id if at is None else await named_entry(session, at)
        facts, path_ids, warnings = await context_facts(session, leaf_id, max_chars, max_tokens)
        return facts, path_ids, [*session.warnings, *warnings]


async def context_facts(
    session: Session, leaf_id: str | None, max_chars: int | None, max_tokens: int | None
) -> tuple[ContextFacts, list[str], list[SessionWarning]]:
    """What the model would be shown at ``leaf_id``, the ids of its path, and what was noticed while it was built."""
    context = await session.build_context(leaf_id=leaf_id, max_chars=max_chars, max_tokens=max_tokens)
    whole = context
    if max_chars is not None or max_tokens is not None:
        whole = await session.build_context(leaf_id=leaf_id)
    path = await session.branch(leaf_id) if leaf_id is not None else []
    facts = ContextFacts(
        session=session.id,
        leaf=leaf_id,
        model=_model_of(context),
        thinking_level=context.thinking_level if any(entry.type == "thinking_level_change" for entry in path) else None,
        tools=context.active_tools if context.active_tools is not None else _offered(path),
        system_prompt=preview(context.system_prompt, 4 * TEXT_LENGTH) if context.system_prompt else None,
        shown=[*_shown(context)],
        left_out=[*left_out(path, context, whole)],
        chars=context.chars,
        tokens=context.tokens,
        max_chars=max_chars,
        max_tokens=max_tokens,
    )
    return facts, [entry.id for entry in path], [*context.warnings]


def left_out(path: Iterable[Entry], context: SessionContext, whole: SessionContext) -> Iterable[LeftOut]:
    """The entries of ``path`` that say something and are not in ``context``; ``whole`` is the same without budgets."""
    shown = {each for each in context.entry_ids if each is not None}
    without_budget = {each for each in whole.entry_ids if each is not None}
    before_summary = whole.compaction_id is not None
    for entry in path:
        if entry.id == whole.compaction_id:
            before_summary = False
        if entry.id in shown or entry.type not in SPOKEN:
            continue
        why = _why(entry, without_budget, whole.dropped, summarised=before_summary)
        yield LeftOut(entry.id, kind_of(entry), why, describe(entry, TEXT_LENGTH))


def _why(entry: Entry, without_budget: Collection[str], dropped: Collection[str], *, summarised: bool) -> str:
    if entry.id in without_budget:
        return "over the budget"
    if entry.id in dropped:
        return "a result without its call"
    return "summarised" if summarised else "nothing to show"


def _shown(context: SessionContext) -> Iterable[ShownMessage]:
    estimator = RoughEstimator()
    for message, entry_id in zip(context.messages, context.entry_ids, strict=True):
        texts, rest = texts_of(message)
        tokens = rest + sum(map(estimator.count, texts))
        text = describe_message(message, TEXT_LENGTH)
        yield ShownMessage(entry_id, message.role, decoded_characters(message), tokens, text)


def _offered(path: Iterable[Entry]) -> list[str] | None:
    """The names of the tools in the newest request header; ``None`` if nothing was asked yet."""
    headers = [entry for entry in path if isinstance(entry, RequestHeaderEntry)]
    return [str(schema.get("name")) for schema in headers[-1].tools or ()] if headers else None


def _model_of(context: SessionContext) -> str | None:
    if context.model is None:
        return None
    return "/".join(part for part in context.model if part)
