"""Opening a session to look at it: nothing is written, not even a lock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.cli.plain_text import given_text
from harness.cli.shelf import Place
from harness.session import Session
from storage.entries import Entry
from storage.entry_files import EntryFileStorage
from storage.jsonl import JsonlStorage
from storage.protocols import Corrupt, SessionWarning

PAGE = 2000
"""Entries read at once."""


@asynccontextmanager
async def open_to_read(place: Place, *, on_corrupt: Corrupt = "raise") -> AsyncIterator[Session]:
    """The session at ``place``, for reading; ``skip`` leaves damaged lines out and lists them as warnings."""
    kind = EntryFileStorage if place.is_folder else JsonlStorage
    async with Session.open(kind.open(place.path, mode="read", on_corrupt=on_corrupt)) as session:
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
    """A warning as a line."""
    at_line = f"line {warning.line}: " if warning.line is not None and f"line {warning.line}" not in warning.message else ""
    return f"warning: {at_line}{warning.message}"
