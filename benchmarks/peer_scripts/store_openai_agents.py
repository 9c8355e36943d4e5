"""openai-agents: SQLiteSession, all sessions in one file."""

from __future__ import annotations

import sys
from pathlib import Path

from agents import SQLiteSession
from store_driver import Store, plan_from, run


class OpenAIAgents(Store):
    """Each session is an object of its own, with its connections; it opens none before it is used."""

    async def start(self, place: Path) -> None:
        self._path = place / "agents.db"

    async def create(self, name: str) -> SQLiteSession:
        return SQLiteSession(name, self._path)

    async def append(self, session: SQLiteSession) -> None:
        await session.add_items([{"role": "user", "content": self.text}])

    async def extend(self, session: SQLiteSession, count: int) -> SQLiteSession:
        while count > 0:
            await session.add_items([{"role": "user", "content": self.text}] * min(count, 1_000))
            count -= 1_000
        return session

    async def close(self, session: SQLiteSession) -> None:
        session.close()

    async def reopen(self, session: SQLiteSession) -> SQLiteSession:
        return SQLiteSession(session.session_id, self._path)

    async def whole(self, session: SQLiteSession) -> int:
        return len(await session.get_items())

    async def last(self, session: SQLiteSession, count: int) -> int:
        return len(await session.get_items(limit=count))


run(OpenAIAgents(), None, Path(sys.argv[1]), plan_from(sys.argv[2]))
