"""Sessions moved from one repository to another, of whatever backend: entries, header and blobs to the byte, and checked.

The source is only read. In the target a session is made whole or not at all, so that it can be stopped and begun again
at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from storage.errors import BranchlineError, StorageError
from storage.event_loops import run_in_worker
from storage.listing import all_sessions
from storage.repository import SessionRepository, SessionSummary
from storage.session_move import MigratedSession, SessionMove, Tell
from storage.session_streams import LooksAhead

_REFUSALS: Final = 3
"""When the target has failed for so many sessions one after the other, it is not about the sessions."""


@dataclass(frozen=True, slots=True)
class SessionMigration:
    """What became of one session of many: it is ``migrated``, or an ``error`` says why not.

    Not ``tried``: the target had failed for the three before it, one after the other.
    """

    session_id: str
    migrated: MigratedSession | None = None
    error: BranchlineError | None = None
    tried: bool = True


async def migrate_session(
    source: SessionRepository, session_id: str, target: SessionRepository, *, tell: Tell | None = None
) -> MigratedSession:
    """Put the session of that id in ``source`` into ``target`` too, with its id, its header and all its bytes.

    Afterwards what ``target`` holds is read again and compared: each entry's bytes, their number, the leaf, each blob.
    A session that is written to meanwhile is there as it was at one moment; migrated once more, the rest is added.

    Raises ``SessionNotFoundError``; ``UnsupportedEntryError`` for a session that another program wrote (or wrote on);
    ``DamagedSessionError``; ``SessionExistsError`` where ``target`` has something else under this id; ``StorageError`` (also
    where what was written is not what was read); and what the backends raise. Nothing of the session is in the target
    then. Cancelled, it stops after the page that is under way; the target has nothing of the session then, or all of it.
    """
    return await SessionMove(source, target, tell).run(session_id)


async def migrate_all(
    source: SessionRepository,
    target: SessionRepository,
    session_ids: Iterable[str] | None = None,
    *,
    tell: Tell | None = None,
    each: Callable[[SessionMigration], object] | None = None,
) -> list[SessionMigration]:
    """Migrate these sessions, or all; one that cannot be does not stop the others, and its error is in the answer.

    A fork comes after the session it was forked from, so that the target can share what both have. ``each`` is told of
    every session when it is done. Raises what listing ``source`` raises, and what ``migrate_each`` raises.
    """
    wanted = None if session_ids is None else set(session_ids)
    summaries = [found for found in await all_sessions(source) if wanted is None or found.id in wanted]
    order = parents_first(summaries)
    order += [] if wanted is None else sorted(wanted.difference(order))  # not listed: opening says why
    return await migrate_each([(source, session_id) for session_id in order], target, tell=tell, each=each)


async def migrate_each(
    sessions: Sequence[tuple[SessionRepository, str]],
    target: SessionRepository,
    *,
    tell: Tell | None = None,
    each: Callable[[SessionMigration], object] | None = None,
) -> list[SessionMigration]:
    """Migrate these sessions, in this order; see ``migrate_all``. After three in a row that ``target`` fails, no more.

    Raises at once, and once, where nothing can be made in ``target``: ``StorageError``, ``DamagedSessionError`` (it is
    something else), ``UnsupportedVersionError`` or ``SessionError`` (it cannot receive). A cancellation is let through.
    """
    if sessions and isinstance(target, LooksAhead):
        await run_in_worker(target.check_receiving)
    results: list[SessionMigration] = []
    refusals = 0
    for source, session_id in sessions:
        if refusals < _REFUSALS:
            move = SessionMove(source, target, tell)
            try:
                done = SessionMigration(session_id, await move.run(session_id))
                refusals = 0
            except BranchlineError as error:
                done = SessionMigration(session_id, error=error)
                refusals = refusals + 1 if move.in_target and isinstance(error, StorageError) else 0
        else:
            why = f"it was not tried: the target had failed for the {_REFUSALS} sessions before it"
            done = SessionMigration(session_id, error=StorageError(why), tried=False)
        results.append(done)
        if each is not None:
            each(done)
    return results


def parents_first(summaries: Iterable[SessionSummary]) -> list[str]:
    """The ids, each after that of its parent, if that is among them.

    Otherwise the one written to last comes last, so that it is so in the target as well.
    """
    found = {each.id: each for each in sorted(summaries, key=lambda each: (each.modified, each.id))}
    order: dict[str, None] = {}
    for session_id in found:
        way: list[str] = []
        here: str | None = session_id
        while here in found and here not in order and here not in way:
            way.append(here)
            here = found[here].parent_session
        order.update(dict.fromkeys(reversed(way)))
    return list(order)


__all__ = [
    "MigratedSession",
    "SessionMigration",
    "migrate_all",
    "migrate_each",
    "migrate_session",
    "parents_first",
]
