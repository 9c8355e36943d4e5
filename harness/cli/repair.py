"""``branchline repair``: say what is wrong and what can be done about it, ask, and do it.

Two kinds of repair go into the session itself, and both only add: a last line that was never committed is moved to a
file beside it, and a turn that was cut off gets its end. Damage is another matter: nothing in a damaged session is
touched, and what can be read of it is written to a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio

from harness.cli.asking import is_confirmed
from harness.cli.failures import DONE, FAILED, for_people, naming
from harness.cli.hints import command_for
from harness.cli.json_facts import json_facts
from harness.cli.places import Place, Section
from harness.cli.progress import Progress
from harness.cli.reading import all_entries, open_to_read, open_to_write, storage_at, told
from harness.cli.salvaging import Salvage, finished, oddities, salvage_bytes, salvage_lines
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.cli.verify import HARMLESS
from harness.recovery import plan_recovery
from harness.session import Session
from storage.blob_folder import BlobFolder
from storage.blobs import Blobs, blob_names_in
from storage.entries import TurnEndEntry
from storage.entry_folder import BLOBS
from storage.errors import BlobNotFoundError, BrokenPathError, DamagedSessionError, SessionError
from storage.jsonl_file import blob_folder
from storage.protocols import BlobStore, Record, SessionWarning

_TAIL = "unterminated_tail"


@dataclass(slots=True)
class Repair:
    """What is wrong with a session, what would be done, and what was done."""

    session: str
    path: str
    plan: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    """What a salvaged copy lacks."""
    repaired: bool = False
    salvaged: str | None = None
    """The id of the salvaged copy."""
    salvaged_path: str | None = None


def run_repair(screen: Screen, given: str, *, yes: bool, root: str | None) -> int:
    """Repair the session that ``given`` names, after asking."""
    shelf = shelf_at(root)
    place = find_session_or_file(given, shelf)
    repair = Repair(place.name, place.where)
    with Progress(screen, f"reading {place.name}"):
        salvage = anyio.run(_examine, place, repair)
        if salvage is None and repair.plan:
            anyio.run(_check_free, place)
    if not repair.plan:
        _tell_plan(screen, repair, ["nothing to repair"])
        return DONE
    _tell_plan(screen, repair, [*repair.plan, *(f"  {lost}" for lost in repair.lost)])
    if not is_confirmed(screen, "Do this?", yes=yes, what="nothing was repaired"):
        screen.note("nothing was repaired")
        return FAILED
    if salvage is not None:
        with Progress(screen, "writing what can be read"):
            anyio.run(_write_copy, place, salvage, shelf.new, repair)
        copy = Place(repair.salvaged or "", shelf.new)
        hint = command_for("chat", copy, root=root)
        screen.note(f"{salvage.kept:,} entries are in the new session {copy.name}; go on with: {hint}")
    else:
        anyio.run(_mend, screen, place)
        screen.note("repaired")
    repair.repaired = True
    if screen.as_json:
        screen.show_json(json_facts(repair))
    return DONE


def _tell_plan(screen: Screen, repair: Repair, lines: list[str]) -> None:
    if screen.as_json:
        if not repair.plan:
            screen.show_json(json_facts(repair))
        return
    screen.show([Span(f"session {repair.session}", "bold")], cut=False)
    for line in lines:
        screen.show([Span(f"  {line}")], cut=False)


async def _examine(place: Place, repair: Repair) -> Salvage | None:
    """Say in ``repair`` what is wrong. Returns what can be saved, where the session is damaged."""
    file = None if place.is_folder else place.path
    try:
        async with open_to_read(place, on_corrupt="skip") as session:
            damage = [warning for warning in session.warnings if warning.code not in {*HARMLESS, _TAIL}]
            odd = [] if damage else await _odd_entries(session)
            if not damage and not odd:
                await _plan(session, repair)
                return None
            problem = told(damage[0]) if damage else odd[0]
            salvage = _salvage_open(session, damage) if file is None else None
    except DamagedSessionError as error:
        if file is None:
            raise
        problem, salvage = for_people(error.message), None
    if salvage is None and file is not None:
        with naming(place.where):
            salvage = salvage_bytes(await anyio.Path(file).read_bytes())
    if salvage is None:
        return None
    if not salvage.kept:
        raise DamagedSessionError(f"{problem}; no entry of it can be read, so nothing can be saved", path=repair.path)
    repair.plan.append(
        f"it is damaged ({problem}): what can be read of it ({_count(salvage.kept, 'entry', 'entries')}) is copied to a "
        "new session, and this one is not touched"
    )
    repair.lost = salvage.lost
    return salvage


async def _odd_entries(session: Session) -> list[str]:
    """What can be read, and cannot be what was recorded."""
    found: list[str] = []
    before: set[str] = set()
    async for entry in all_entries(session):
        if session.header.branchline is not None and entry.seq is not None:
            found += [f"entry {entry.id}: {what}" for what in oddities(entry, before)]
        before.add(entry.id)
    return found


def _salvage_open(session: Session, damage: Sequence[SessionWarning]) -> Salvage:
    """What can be saved of a session that is no file of lines: what opening it has read."""
    salvage = salvage_lines(session.header, [line for line in session.log.index.lines if line is not None])
    salvage.lost[:0] = [told(warning) for warning in damage if warning.code != "broken_link"]
    return salvage


async def _plan(session: Session, repair: Repair) -> None:
    """What can be done in a session that is sound."""
    for warning in session.warnings:
        if warning.code == _TAIL:
            repair.plan.append(f"{told(warning).split('; ')[0]}: they are moved to a file beside the session")
    try:
        path = await session.log.path()
    except BrokenPathError:
        return
    index = session.log.index
    entries = plan_recovery(path, has_ended=lambda entry_id: index.ids[entry_id] in index.ended_turns)
    turns = [entry.turn for entry in entries if isinstance(entry, TurnEndEntry)]
    if turns:
        calls = len(entries) - len(turns)
        open_calls = (
            f"{_count(calls, 'call')} without a result {'gets' if calls == 1 else 'get'} one that says so, and "
        )
        repair.plan.append(
            f"turn {turns[0]} was cut off: {open_calls if calls else ''}it is recorded as interrupted; nothing is run again"
        )


async def _check_free(place: Place) -> None:
    """Raise ``SessionLockedError`` while somebody writes: what looks cut off may be going on."""
    with naming(place.where):
        async with Session.open(storage_at(place, mode="write")):
            pass


async def _mend(screen: Screen, place: Place) -> None:
    async with open_to_write(place, screen.note) as session:
        await session.recover()


async def _write_copy(place: Place, salvage: Salvage, section: Section, repair: Repair) -> None:
    """A new session of what was saved, made whole or not at all."""
    header = salvage.header
    records = finished(salvage, repair.path)
    create: Any = section.repository.create  # each of ours takes blobs
    async with AsyncExitStack() as stack:
        read = _reader_beside(place)
        if read is None:
            damaged = await stack.enter_async_context(open_to_read(place, on_corrupt="skip"))
            store = damaged.storage
            read = store.read_blob if isinstance(store, BlobStore) else None
        storage = await create(
            cwd=header.cwd if header is not None else None,
            parent_session=header.id if header is not None else None,
            records=records,
            blobs=_blobs(read, records) if read is not None else (),
        )
        async with Session.open(storage) as session:
            repair.salvaged, repair.salvaged_path = session.id, storage.info.place


def _reader_beside(place: Place) -> Callable[[str], bytes] | None:
    """What reads a blob that lies on disk beside a session, however damaged that is; ``None`` in a database."""
    if place.path is None:
        return None
    path = place.path.absolute()
    return BlobFolder(str(path / BLOBS) if place.is_folder else blob_folder(str(path))).read


def _blobs(read: Callable[[str], bytes], records: list[Record]) -> Blobs:
    """The blobs that the records name, as far as they are there."""
    for name in blob_names_in(record.data for record in records):
        try:
            yield name, read(name)
        except (BlobNotFoundError, SessionError):
            continue  # the copy lacks what its source lacks


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
