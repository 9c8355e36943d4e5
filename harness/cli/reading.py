"""Opening a session, and reading it whole. Opened for reading, nothing is written, not even a lock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from harness.cli.failures import for_people, naming
from harness.cli.places import Place
from harness.cli.plain_text import given_text
from harness.session import Session
from storage.entries import Entry
from storage.entry_files import EntryFileStorage
from storage.errors import ReadOnlySessionError
from storage.jsonl import JsonlStorage
from storage.protocols import Corrupt, Mode, SessionStorage, SessionWarning, TornTail

PAGE = 2000
"""Entries read at once."""


def storage_at(
    place: Place, *, mode: Mode, on_torn_tail: TornTail = "read_only", on_corrupt: Corrupt = "raise"
) -> Awaitable[SessionStorage]:
    """The storage of the session at ``place``; one on a shelf is opened by its id, under the shelf's rules."""
    if place.section is None:
        kind = EntryFileStorage if place.is_folder else JsonlStorage
        return kind.open(
            place.name if place.path is None else place.path,
            mode=mode,
            on_torn_tail=on_torn_tail,
            on_corrupt=on_corrupt,
        )
    return place.section.repository.open(place.name, mode=mode, on_torn_tail=on_torn_tail, on_corrupt=on_corrupt)


@asynccontextmanager
async def open_to_read(place: Place, *, on_corrupt: Corrupt = "raise") -> AsyncGenerator[Session]:
    """The session at ``place``, for reading; ``skip`` leaves damaged lines out and lists them as warnings."""
    with naming(place.where):
        async with Session.open(storage_at(place, mode="read", on_corrupt=on_corrupt)) as session:
            yield session


@asynccontextmanager
async def open_to_write(place: Place, tell: Callable[[str], object]) -> AsyncGenerator[Session]:
    """The session at ``place``, for appending; a last line that was cut off is set aside, and ``tell`` is told.

    Raises ``SessionLockedError`` while another program writes, and ``ReadOnlySessionError`` where it takes no entries.
    """
    with naming(place.where):
        async with Session.open(storage_at(place, mode="write", on_torn_tail="repair")) as session:
            for warning in session.warnings:
                tell(f"warning: {told(warning)}")
            if not session.writable:
                raise ReadOnlySessionError(session.log.read_only_reason or "it takes no more entries")
            yield session


async def all_entries(session: Session) -> AsyncIterator[Entry]:
    """Every entry, in the order they were recorded."""
    after = -1
    while page := await session.entries(after_seq=after, limit=PAGE):
        for entry in page:
            yield entry
        last = page[-1].seq
        if last is None or last <= after:
            return
        after = last


async def named_entry(session: Session, given: str) -> str:
    """The id of the entry that a person means by ``given``. Raises ``EntryNotFoundError`` and ``CommandLineError``."""
    from harness.cli.entry_ids import find_entry

    ids = [entry.id async for entry in all_entries(session)]
    return find_entry(given_text(given), ids, await session.labels())


def told(warning: SessionWarning) -> str:
    """A warning as a line, with its place."""
    known = warning.line is None or f"line {warning.line}" in warning.message
    return for_people(warning.message if known else f"line {warning.line}: {warning.message}")
