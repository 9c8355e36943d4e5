"""``branchline show``: one entry whole, its line as it is on disk, or the request that a reply answered."""

from __future__ import annotations

import json

import anyio

from harness.cli.drawn_entry import EntryFacts, blocks_of, draw_facts
from harness.cli.entry_ids import ShortIds
from harness.cli.failures import DONE, CommandLineError
from harness.cli.places import Place
from harness.cli.reading import named_entry, open_to_read, told
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.session import Session
from storage.entries import MessageEntry, RequestHeaderEntry
from storage.index import NONE, EntryIndex
from storage.messages import AssistantMessage


def run_show(screen: Screen, given: str, entry: str, *, raw: bool, request: bool, root: str | None) -> int:
    """Show the entry that was named, of the session that ``given`` names."""
    place = find_session_or_file(given, shelf_at(root))
    anyio.run(_show, screen, place, entry, raw, request)
    return DONE


async def _show(screen: Screen, place: Place, entry: str, raw: bool, request: bool) -> None:
    async with open_to_read(place, on_corrupt="skip") as session:
        entry_id = await named_entry(session, entry)
        index = session.log.index
        if raw:
            screen.show_file(index.line(index.seq_of(entry_id)) + b"\n")
        elif request:
            screen.show_file(await request_of(session, entry_id) + b"\n")
        else:
            facts = facts_of(session.id, index, entry_id, await session.label(entry_id))
            _write(screen, facts, ShortIds(name for name in index.names if name))
        screen.notes(f"warning: {told(warning)}" for warning in session.warnings)


def facts_of(session_id: str, index: EntryIndex, entry_id: str, label: str | None) -> EntryFacts:
    """All there is to tell of an entry."""
    seq = index.seq_of(entry_id)
    leaf = index.ids.get(index.leaf_id, NONE) if index.leaf_id is not None else NONE
    parent = index.parents[seq]

    def is_leaf(other: int) -> bool:
        return index.kind(other)[0] == "leaf"

    def named(other: int) -> tuple[str, str]:
        kind, role = index.kind(other)
        return index.names[other], role or kind

    return EntryFacts(
        session=session_id,
        entry=json.loads(index.line(seq)),
        kind=named(seq)[1],
        label=label,
        number=seq + 1,
        of=len(index),
        depth=index.depths[seq],
        active=index.is_on_path(seq, leaf),
        leaf=seq == leaf,
        parent=named(parent) if parent >= 0 else None,
        # A leaf entry is a place to go on from, no step of a way.
        children=[named(other) for other, above in enumerate(index.parents) if above == seq and not is_leaf(other)],
    )


async def request_of(session: Session, entry_id: str) -> bytes:
    """The body that was sent for a reply, rebuilt from the record. Raises ``CommandLineError`` for what is no reply."""
    from harness.models.recorded import RecordedModel
    from harness.rebuilding import rebuild_request

    entry = await session.entry(entry_id)
    if not isinstance(entry, MessageEntry) or not isinstance(entry.message, AssistantMessage):
        raise CommandLineError(f"entry {entry_id} is no reply of a model, so no request led to it")
    header_id = entry.request.header_id if entry.request is not None else None
    if header_id is None:
        raise CommandLineError(f"entry {entry_id} does not say what it answered: another program recorded it")
    header = await session.entry(header_id)
    if not isinstance(header, RequestHeaderEntry):
        raise CommandLineError(f"entry {entry_id} names {header_id} as its request's header, which is a {header.type}")
    return RecordedModel(header, entry.message).payload(await rebuild_request(session, entry_id))


def _write(screen: Screen, facts: EntryFacts, short: ShortIds) -> None:
    if screen.as_json:
        screen.show_json(
            {
                "session": facts.session,
                "entry": facts.entry,
                "label": facts.label,
                "active": facts.active,
                "leaf": facts.leaf,
                "depth": facts.depth,
                "children": [entry_id for entry_id, _ in facts.children],
            }
        )
        return
    for line in draw_facts(facts, short=short):
        screen.show(line, cut=False)
    for block in blocks_of(facts.entry):
        screen.show([Span(f"{block.title}:", "bold")], cut=False)
        screen.show_text("".join(f"  {line}\n" for line in block.text.split("\n")))
