"""pi-durable-python: conversations of one harness on its SQLite storage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pi_durable import Harness, UserEntry, create_registry
from pi_durable.context import BACKGROUND_CONTEXT
from pi_durable.storage.sqlite.posix import open_posix_sqlite_storage
from store_driver import Store, plan_from, run

OWNERLESS = {"ownership": {"kind": "ownerless"}}


class PiDurable(Store):
    """``synchronous`` is NORMAL, as the library sets it."""

    async def start(self, place: Path) -> None:
        storage = await open_posix_sqlite_storage(str(place / "durable.db"))
        self._harness = await Harness.open(storage, {"models": {}, "registry": create_registry()}, BACKGROUND_CONTEXT)

    async def create(self, name: str) -> Any:
        del name
        return await self._harness.create_conversation(OWNERLESS, BACKGROUND_CONTEXT)

    def _entry(self) -> dict[str, Any]:
        message = {"role": "user", "content": self.text, "timestamp": 0}
        return {"kind": UserEntry.kind, "model": [message]}

    async def append(self, session: Any) -> None:
        await session.submit({"type": "write", "entry": self._entry()}, BACKGROUND_CONTEXT)

    async def extend(self, session: Any, count: int) -> Any:
        async def append_all(transaction: Any) -> None:
            for _ in range(some):
                await transaction.append_entry(session.id, self._entry())

        while count > 0:
            some = min(count, 1_000)
            await session.commit(append_all, BACKGROUND_CONTEXT)
            count -= some
        return session

    async def reopen(self, session: Any) -> Any:
        return await self._harness.conversation(session.id, BACKGROUND_CONTEXT)

    async def whole(self, session: Any) -> int:
        return len((await session.context(BACKGROUND_CONTEXT))["messages"])

    async def last(self, session: Any, count: int) -> int:
        return len((await session.entries({"order": "descending"}, count, None, BACKGROUND_CONTEXT))["items"])

    async def fork(self, session: Any) -> None:
        newest = await session.entries({"order": "descending"}, 1, None, BACKGROUND_CONTEXT)
        await session.fork(newest["items"][0]["id"], OWNERLESS, BACKGROUND_CONTEXT)

    async def stop(self) -> None:
        await self._harness.close(BACKGROUND_CONTEXT)


run(PiDurable(), None, Path(sys.argv[1]), plan_from(sys.argv[2]))
