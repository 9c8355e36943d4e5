"""All sessions of a repository, page by page, while others write to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

from storage.repository import SessionPage, SessionRepository, SessionSummary

PAGE: Final = 500


async def each_session(
    repository: SessionRepository, *, at_once: int, deep: bool = False
) -> AsyncIterator[SessionSummary]:
    """Every session, once, as it was when it was come upon: the one written to last first, as far as nobody writes.

    A session that is written to moves to the front, maybe from a page that is still to come to one that was read. So the
    front is looked at again, until nothing new is there. Pages are of ``at_once`` sessions. Raises what ``list`` raises.
    """
    seen: set[str] = set()
    seen_since: datetime | None = None
    while True:
        count = len(seen)
        newest: datetime | None = None
        after: str | None = None
        while True:
            page = await _page(repository, after, at_once, deep=deep, seen=seen if seen_since is not None else None)
            for summary in page:
                if summary.id not in seen:
                    seen.add(summary.id)
                    yield summary
            if after is None and page.after is None:
                return  # all on one page, so all of one moment
            newest = newest or (page[0].modified if page else None)
            after = page.after
            if after is None or (seen_since is not None and page[-1].modified < seen_since):
                break
        if len(seen) == count:
            return
        seen_since = newest


async def all_sessions(repository: SessionRepository) -> list[SessionSummary]:
    """What ``each_session`` comes upon."""
    return [summary async for summary in each_session(repository, at_once=PAGE)]


async def _page(
    repository: SessionRepository, after: str | None, limit: int, *, deep: bool, seen: set[str] | None
) -> SessionPage:
    if deep and seen is not None:  # a look again, at what was read whole already: only what is new is worth it
        page = await repository.list(after=after, limit=limit)
        if all(summary.id in seen for summary in page):
            return page
    return await repository.list(after=after, limit=limit, deep=deep)
