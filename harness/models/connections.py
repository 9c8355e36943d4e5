"""The HTTP connections of one model: kept from request to request while somebody holds them, and open no longer than that.

Whoever makes a model need not close it, so nothing may stay open behind their back; but a turn of many requests should
not shake hands for each. Each event loop has connections of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread
import httpx
from anyio.lowlevel import RunVar

_CLOSING_SECONDS = 1.0
"""How long saying goodbye may take; then the sockets are closed without."""


@dataclass(slots=True)
class _OfOneLoop:
    holders: int = 0
    kept: httpx.AsyncClient | None = None
    """While there are holders."""
    passing: httpx.AsyncClient | None = None
    """Keeps no connection: what it opens for a request is closed with it."""


class Connections:
    """Gives the client for a request. ``make(keep)`` makes one, in a worker thread, as it reads certificates."""

    def __init__(self, make: Callable[[bool], httpx.AsyncClient]) -> None:
        self._make = make
        self._loop: RunVar[_OfOneLoop] = RunVar("connections")

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Keep connections meanwhile. May be entered any number of times; when all have left, they are closed."""
        mine = self._mine()
        mine.holders += 1
        try:
            yield
        finally:
            mine.holders -= 1
            if mine.holders == 0:
                kept, mine.kept = mine.kept, None
                await _close(kept)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx.AsyncClient]:
        """The client for one request, which is over on leaving. The connection of a held one is used again."""
        mine = self._mine()
        if mine.holders == 0:
            if mine.passing is None:
                made = await anyio.to_thread.run_sync(self._make, False)
                mine.passing = mine.passing or made
            yield mine.passing
            return
        async with self.held():
            if mine.kept is None:
                made = await anyio.to_thread.run_sync(self._make, True)
                mine.kept = mine.kept or made
            yield mine.kept

    @property
    def are_kept(self) -> bool:
        """Whether somebody holds them."""
        return self._mine().holders > 0

    async def aclose(self) -> None:
        """Close them all, also those in use."""
        mine = self._mine()
        kept, mine.kept = mine.kept, None
        passing, mine.passing = mine.passing, None
        await _close(kept)
        await _close(passing)

    def _mine(self) -> _OfOneLoop:
        mine = self._loop.get(None)
        if mine is None:
            mine = _OfOneLoop()
            self._loop.set(mine)
        return mine


async def _close(client: httpx.AsyncClient | None) -> None:
    if client is not None:
        with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
            await client.aclose()
