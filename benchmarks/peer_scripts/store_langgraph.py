"""langgraph's checkpoints: AsyncSqliteSaver, or AsyncPostgresSaver where the plan has an address.

A checkpoint holds the whole conversation, and each step of a graph puts one: an append is a ``aput`` of one message
more. The messages are plain dictionaries; LangChain's own objects take longer. A fork is the newest checkpoint put
under another thread's id. What is measured are the savers alone, without a graph above them. PostgreSQL compresses
a checkpoint, and these messages are all alike: real ones take more room there.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from store_driver import Store, plan_from, run


class Savers(Store):
    """A session is a list: the thread's id, the newest checkpoint's configuration, and its messages."""

    async def start(self, place: Path) -> None:
        self._stack = AsyncExitStack()
        if self.dsn is None:
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            made = AsyncSqliteSaver.from_conn_string(str(place / "graph.db"))
        else:
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            made = AsyncPostgresSaver.from_conn_string(self.dsn)
        self._saver: Any = await self._stack.enter_async_context(made)
        await self._saver.setup()

    async def create(self, name: str) -> list[Any]:
        return [name, {"configurable": {"thread_id": name, "checkpoint_ns": ""}}, []]

    async def append(self, session: list[Any]) -> None:
        session[2].append({"role": "user", "content": self.text})
        await self._put(session)

    async def extend(self, session: list[Any], count: int) -> list[Any]:
        session[2] += [{"role": "user", "content": self.text} for _ in range(count)]
        await self._put(session)
        return session

    async def _put(self, session: list[Any]) -> None:
        versions = {"messages": f"{len(session[2]):032}.0"}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": session[2]}
        checkpoint["channel_versions"] = dict(versions)
        metadata = {"source": "loop", "step": len(session[2]), "parents": {}}
        session[1] = await self._saver.aput(session[1], checkpoint, metadata, versions)

    async def _messages(self, session: list[Any]) -> list[Any]:
        found = await self._saver.aget_tuple({"configurable": {"thread_id": session[0], "checkpoint_ns": ""}})
        return found.checkpoint["channel_values"]["messages"]

    async def whole(self, session: list[Any]) -> int:
        return len(await self._messages(session))

    async def last(self, session: list[Any], count: int) -> int:
        return len((await self._messages(session))[-count:])

    async def fork(self, session: list[Any]) -> None:
        self._forks = getattr(self, "_forks", 0) + 1
        other = await self.create(f"{session[0]}-fork-{self._forks}")
        other[2] = await self._messages(session)
        await self._put(other)

    async def stop(self) -> None:
        await self._stack.aclose()


run(Savers(), None, Path(sys.argv[1]), plan_from(sys.argv[2]))
