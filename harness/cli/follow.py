"""``branchline follow``: what is added to a session, as another process commits it. Only reads."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

import anyio

from harness.cli.entry_ids import ShortIds
from harness.cli.entry_lines import describe, describe_call, is_spoken, kind_of, word_for
from harness.cli.failures import CommandLineError
from harness.cli.places import Place, Shelf
from harness.cli.plain_text import neutral
from harness.cli.reading import named_entry, open_to_read, told
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session_or_file, place_of_id, shelf_at
from harness.session import Session
from storage.entries import Entry, LeafEntry, MessageEntry
from storage.errors import SessionError, SessionNotFoundError, StaleSessionError
from storage.event_loops import run_in_worker
from storage.messages import AssistantMessage, UserMessage
from storage.protocols import Watchable

SECONDS_BETWEEN_LOOKS: Final = 0.1
"""Where nobody tells us of a change, a session is looked at so often."""

SECONDS_TO_WAIT: Final = 0.5
"""So long a backend that tells of changes is waited for at a time; Ctrl-C is answered after at most that."""

_LONGEST_PLACE: Final = 7
_RESULT_LENGTH: Final = 200


def run_follow(screen: Screen, given: str, *, after: str | None, everything: bool, root: str | None) -> int:
    """Show what is added to the session that ``given`` names, until Ctrl-C; it is an error that it was deleted."""
    if after is not None and everything:
        raise CommandLineError("--after and --all each say where to begin: give one of them")
    shelf = shelf_at(root)
    place = find_session_or_file(given, shelf)
    return anyio.run(_follow, screen, place, shelf, after, everything)


async def _follow(screen: Screen, place: Place, shelf: Shelf, after: str | None, everything: bool) -> int:
    async with open_to_read(place) as session:
        for warning in session.warnings:
            screen.note(f"warning: {told(warning)}")
        shown = await _beginning(session, after, everything)
        short = ShortIds(name for name in session.log.index.names if name)
        try:
            while True:
                shown = await _show_after(screen, session, shown, short)
                await _wait(session)
                await session.refresh()
        except (StaleSessionError, SessionNotFoundError) as error:
            if await _is_there(place, shelf):
                raise
            raise StaleSessionError(
                "the session was deleted; there is nothing to follow any more", path=place.where
            ) from error


async def _beginning(session: Session, after: str | None, everything: bool) -> int:
    """The place of the last entry that is not shown; -1 to show all."""
    if everything:
        return -1
    index = session.log.index
    if after is None:
        return len(index) - 1
    if after.isascii() and after.isdigit() and len(after) <= _LONGEST_PLACE:
        place = int(after)
        if place >= len(index):
            raise CommandLineError(f"--after {place}: the session has no such entry yet, it has {len(index):,}")
        return place
    return index.seq_of(await named_entry(session, after))


async def _show_after(screen: Screen, session: Session, shown: int, short: ShortIds) -> int:
    """Show the entries behind the place ``shown``; the place of the last one now."""
    index = session.log.index
    while page := await session.entries(after_seq=shown, limit=500):
        for entry in page:
            if entry.seq is None:
                shown += 1
            else:
                shown = entry.seq
            if screen.as_json:
                screen.show_json(json.loads(index.line(index.seq_of(entry.id))))
            else:
                _show(screen, entry, short)
    screen.flush()
    return shown


def _show(screen: Screen, entry: Entry, short: ShortIds) -> None:
    if isinstance(entry, LeafEntry):
        where = short(entry.target_id) if entry.target_id is not None else "the beginning"
        screen.show([Span(f"(goes on from {where})", "dim")], cut=False)
        return
    if not is_spoken(entry):
        return
    screen.show([Span(word_for(kind_of(entry)), "bold"), Span(f" {short(entry.id)}", "dim")], cut=False)
    screen.show_text("".join(f"  {line}\n" for line in _text(entry).split("\n")))


def _text(entry: Entry) -> str:
    if isinstance(entry, MessageEntry) and isinstance(entry.message, UserMessage | AssistantMessage):
        message = entry.message
        calls = (
            [f"-> {describe_call(call)}" for call in message.tool_calls]
            if isinstance(message, AssistantMessage)
            else []
        )
        said = [neutral(message.text)] if message.text else []
        return "\n".join([*said, *calls]) or describe(entry, _RESULT_LENGTH)
    return describe(entry, _RESULT_LENGTH)


async def _wait(session: Session) -> None:
    """Until there may be more."""
    storage = session.storage
    if isinstance(storage, Watchable):
        await run_in_worker(partial(storage.wait_for_change, SECONDS_TO_WAIT))
    else:
        await anyio.sleep(SECONDS_BETWEEN_LOOKS)


async def _is_there(place: Place, shelf: Shelf) -> bool:
    if place.section is None or place.path is not None:
        return place.path is not None and place.path.exists()
    try:
        return await place_of_id(place.name, shelf) is not None
    except SessionError:
        return True  # who cannot be asked has deleted nothing that we know of
