"""openai-agents: SQLiteSession in a file."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from agents import SQLiteSession

PLACE, COUNT, TEXT = sys.argv[1], int(sys.argv[2]), sys.argv[3]


async def main() -> None:
    session = SQLiteSession("bench", f"{PLACE}/agents.db")
    began = time.perf_counter()
    for _ in range(COUNT):
        await session.add_items([{"role": "user", "content": TEXT}])
    append = (time.perf_counter() - began) / COUNT
    session.close()
    began = time.perf_counter()
    session = SQLiteSession("bench", f"{PLACE}/agents.db")
    items = await session.get_items()
    reload = time.perf_counter() - began
    assert len(items) == COUNT
    began = time.perf_counter()
    assert len(await session.get_items(limit=50)) == 50
    last = time.perf_counter() - began
    session.close()
    print(json.dumps({"append": append, "reload": reload, "last": last}))


asyncio.run(main())
