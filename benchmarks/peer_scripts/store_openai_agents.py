"""openai-agents: SQLiteSession, all sessions in one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from store_driver import Store, plan_from, run


class OpenAIAgents(Store):
    """Each session is an object of its own, with its connections; it opens none before it is used."""

    async def start(self, place: Path) -> None:
        self._path = place / "agents.db"

    async def create(self, name: str) -> Any:
        return SQLiteSession(name, self._path)

    async def append(self, session: Any) -> None:
        await session.add_items([{"role": "user", "content": self.text}])

    async def extend(self, session: Any, count: int) -> Any:
        while count > 0:
            await session.add_items([{"role": "user", "content": self.text}] * min(count, 1_000))
            count -= 1_000
        return session

    async def close(self, session: Any) -> None:
        session.close()

    async def reopen(self, session: Any) -> Any:
        return SQLiteSession(session.session_id, self._path)

    async def whole(self, session: Any) -> int:
        return len(await session.get_items())

    async def last(self, session: Any, count: int) -> int:
        return len(await session.get_items(limit=count))


run(OpenAIAgents(), None, Path(sys.argv[1]), plan_from(sys.argv[2]))
