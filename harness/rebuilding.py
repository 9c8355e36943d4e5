"""Answered requests, made again from the record alone (R26).

A reply's entry names the header it was asked under, the entries that were shown, the version of the projection, and what
hooks changed. From these the very request comes back that was sent for it; a model's ``payload`` makes its bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from compaction.breathing import run_with_pauses
from compaction.projection import PROJECTION_VERSION, project
from harness.models.protocol import ModelRequest
from harness.models.recorded import SENT_OPTIONS
from harness.request_headers import request_of
from harness.session import Session
from storage.entries import MessageEntry, RequestFacts, RequestHeaderEntry
from storage.entry_path import EntryPath
from storage.errors import SessionError, UnsupportedVersionError
from storage.messages import AssistantMessage


async def rebuild_request(session: Session, reply_entry_id: str) -> ModelRequest:
    """What was sent for the reply that the entry ``reply_entry_id`` holds.

    ::

        request = await rebuild_request(session, reply_entry_id)
        body = model.payload(request)

    The bytes are those that the server got, with any model of that provider and id, or with ``RecordedModel``, which
    needs neither key nor address. Reads only; what was appended since changes nothing.

    Raises ``EntryNotFoundError``; ``SessionError`` for an entry that is no reply, or one that was not asked for by a
    harness (pi's, an app's own), or whose facts do not fit its path; ``UnsupportedVersionError`` where another version of
    the projection made the request.
    """
    entry = await session.entry(reply_entry_id)
    facts = entry.request if isinstance(entry, MessageEntry) else None
    if facts is None or not isinstance(entry, MessageEntry) or not isinstance(entry.message, AssistantMessage):
        raise SessionError(
            f"entry {reply_entry_id!r:.140} names no request: it is no reply that a harness asked for",
            entry_id=reply_entry_id,
        )
    if facts.projection != PROJECTION_VERSION:
        raise UnsupportedVersionError(
            f"the request of entry {reply_entry_id!r:.140} was made by version {facts.projection} of the projection, and "
            f"this is {PROJECTION_VERSION}; rebuild it with a version of branchline that has that one",
            entry_id=reply_entry_id,
        )
    path = await session.log.path(facts.leaf_id or entry.parent_id)
    header = await _header(session, facts, reply_entry_id)
    steps = project(path, unknown_entries="skip", shorten=facts.shortened, shown=_shown(path, facts, reply_entry_id))
    shown = await run_with_pauses(steps)
    sent: Any = (entry.message.model_extra or {}).get(SENT_OPTIONS)
    changed: Mapping[str, Any] = cast("Mapping[str, Any]", sent) if isinstance(sent, dict) else {}
    try:
        return request_of(header, shown.messages, edits=facts.edits or (), passing=shown.passing, options=changed)
    except ValueError as error:
        raise _unfit(reply_entry_id, str(error)) from error


async def _header(session: Session, facts: RequestFacts, reply_entry_id: str) -> RequestHeaderEntry:
    if facts.header_id is None:
        raise _unfit(reply_entry_id, "it names no header")
    header = await session.entry(facts.header_id)
    if not isinstance(header, RequestHeaderEntry):
        raise _unfit(reply_entry_id, f"its header {facts.header_id!r:.140} is of type {header.type!r:.80}")
    return header


def _shown(path: EntryPath, facts: RequestFacts, reply_entry_id: str) -> set[int]:
    """The positions that the request showed."""
    ids = sorted((path.entry_id(position), position) for position in range(len(path)))
    shown: set[int] = set()
    for run in facts.shown or ():
        first, last = _positions(ids, run, reply_entry_id)
        shown.update(range(first, last + 1))
    if facts.tail is not None:
        shown.update(facts.tail)
    else:
        compaction = path.compaction
        entry: Any = None if compaction is None else path.entry(compaction)
        shown.update(range(-len(getattr(entry, "retained_tail", None) or ()), 0))
    return shown


def _positions(ids: Sequence[tuple[str, int]], run: Iterable[str], reply_entry_id: str) -> list[int]:
    positions: list[int] = []
    for short in run:
        place = bisect_left(ids, (short,))
        if place == len(ids) or not ids[place][0].startswith(short):
            raise _unfit(reply_entry_id, f"it showed entry {short!r:.140}, which is not on its path")
        positions.append(ids[place][1])
    if len(positions) != 2:
        raise _unfit(reply_entry_id, "a run of shown entries has two ends")
    return positions


def _unfit(reply_entry_id: str, why: str) -> SessionError:
    return SessionError(
        f"the request of entry {reply_entry_id!r:.140} cannot be rebuilt: {why}", entry_id=reply_entry_id
    )
