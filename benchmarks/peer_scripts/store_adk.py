"""google-adk: DatabaseSessionService over sqlite and aiosqlite."""

from __future__ import annotations

import sqlite3
import sys
import uuid
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai.types import Content, Part
from store_driver import Store, plan_from, run

NAMES = {"app_name": "bench", "user_id": "somebody"}


class Adk(Store):
    """An append takes milliseconds, so many at once are rows that are copied past the library, with ids of their own."""

    async def start(self, place: Path) -> None:
        self._path = place / "adk.db"
        self._service = DatabaseSessionService(f"sqlite+aiosqlite:///{self._path}")

    async def create(self, name: str) -> Any:
        return await self._service.create_session(**NAMES, session_id=name)

    async def append(self, session: Any) -> None:
        content = Content(role="user", parts=[Part(text=self.text)])
        await self._service.append_event(session, Event(author="user", invocation_id="one", content=content))

    async def extend(self, session: Any, count: int) -> Any:
        if count <= 0:
            return session
        await self.append(session)
        with sqlite3.connect(self._path) as connection:
            cursor = connection.execute("SELECT * FROM events WHERE session_id = ?", (session.id,))
            columns = [column[0] for column in cursor.description]
            first = dict(zip(columns, cursor.fetchone(), strict=True))

            def copy() -> list[Any]:
                name = str(uuid.uuid4())
                changed = {"id": name, "event_data": first["event_data"].replace(first["id"], name)}
                return list((first | changed).values())

            marks = ", ".join("?" * len(columns))
            rows = (copy() for _ in range(count - 1))
            connection.executemany(f"INSERT INTO events ({', '.join(columns)}) VALUES ({marks})", rows)
        connection.close()
        return await self.reopen(session)

    async def reopen(self, session: Any) -> Any:
        return await self._service.get_session(**NAMES, session_id=session.id)

    async def glance(self, session: Any) -> Any:
        return session

    async def whole(self, session: Any) -> int:
        return len(session.events)

    async def last(self, session: Any, count: int) -> int:
        config = GetSessionConfig(num_recent_events=count)
        return len((await self._service.get_session(**NAMES, session_id=session.id, config=config)).events)

    async def stop(self) -> None:
        await self._service.close()


run(Adk(), None, Path(sys.argv[1]), plan_from(sys.argv[2]))
