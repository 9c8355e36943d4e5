"""``branchline fork``: a new session of the way to an entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from harness.cli.failures import DONE, CommandLineError
from harness.cli.hints import command_for
from harness.cli.json_facts import json_facts
from harness.cli.label import checked_text
from harness.cli.places import Place, Shelf, check_file, expanded
from harness.cli.progress import Progress
from harness.cli.reading import named_entry, open_to_read, told
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.session import Session
from storage.copying import with_seq
from storage.decode import parse_record
from storage.entries import SessionInfoEntry
from storage.jsonl import JsonlStorage
from storage.protocols import Record
from storage.strict_json import encode_model

Creates = Callable[..., Awaitable[Any]]
"""A backend's ``create`` with its place bound."""


@dataclass(frozen=True, slots=True)
class Forked:
    """A new session: its id, where it lies, what it was made of, and the entry that it goes on from."""

    session: str
    path: str
    parent_session: str
    leaf: str | None
    entries: int
    name: str | None


def run_fork(
    screen: Screen,
    given: str,
    entry: str | None,
    *,
    before: bool,
    to: Path | None,
    name: str | None,
    root: str | None,
) -> int:
    """Fork the session that ``given`` names; its id goes to standard output, how to go on to standard error."""
    if before and entry is None:
        raise CommandLineError("--before needs an ENTRY to stop before")
    text = checked_text(name, remove=False, what="name")
    shelf = shelf_at(root)
    place = find_session_or_file(given, shelf)
    target = check_file(expanded(to), "--to") if to is not None else None
    done = anyio.run(_fork, screen, place, entry, before, creates_beside(place, shelf, target), text)
    if screen.as_json:
        screen.show_json(json_facts(done))
        return DONE
    screen.show([Span(done.session)], cut=False)
    made = Place(done.session, shelf.beside(place)) if target is None else Place(str(to), given_path=Path(done.path))
    screen.note(f"{told_of(done)}; go on with: {command_for('chat', made, root=root)}")
    return DONE


def creates_beside(place: Place, shelf: Shelf, target: Path | None = None) -> Creates:
    """What makes a new session: in the file ``target``, else on ``shelf`` under a new id, of the same kind as ``place``."""
    if target is not None:
        return partial(JsonlStorage.create, target)
    return shelf.beside(place).repository.create


async def _fork(
    screen: Screen, place: Place, entry: str | None, before: bool, create: Creates, name: str | None
) -> Forked:
    async with open_to_read(place) as session:
        screen.notes(f"warning: {told(warning)}" for warning in session.warnings)
        with Progress(screen, "making the new session"):
            return await fork_session(session, entry, before=before, create=create, name=name)


async def fork_session(
    session: Session, given: str | None = None, *, before: bool = False, create: Creates, name: str | None = None
) -> Forked:
    """A new session, made by ``create``, of the way to the entry that ``given`` names (default: the leaf).

    Made whole or not at all, its name included; ``session`` is untouched, and the new one is closed again. Raises
    ``EntryNotFoundError``, ``CommandLineError`` (several entries match), ``BrokenPathError`` and what ``create`` raises.
    """
    entry_id = await named_entry(session, given) if given is not None else None

    async def into(*, records: Sequence[Record], **details: Any) -> Any:
        return await create(records=records if name is None else _named(records, name), **details)

    fork = await session.fork(entry_id, position="before" if before else "at", into=into)
    async with fork:
        return Forked(
            session=fork.id,
            path=fork.storage.info.place,
            parent_session=session.id,
            leaf=fork.leaf_id,
            entries=len(fork.log.index),
            name=await fork.name(),
        )


def _named(records: Sequence[Record], name: str) -> list[Record]:
    """The records of a fork with the new name before the last one, which is the leaf."""
    *rest, leaf = records
    entry = SessionInfoEntry(parent_id=rest[-1].id if rest else None, name=name)
    named = parse_record(with_seq(encode_model(entry), len(rest)), len(rest))
    return [*rest, named, leaf._replace(seq=len(rest) + 1, data=with_seq(leaf.data, len(rest) + 1))]


def told_of(done: Forked) -> str:
    """What was made, as a line."""
    entries = "1 entry" if done.entries == 1 else f"{done.entries:,} entries"
    called = f' "{done.name}"' if done.name else ""
    return f"session {done.session}{called} has {entries} of {done.parent_session}"
