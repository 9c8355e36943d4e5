"""pi-agent-harness-lc: its JSONL session."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from pi_agent_harness import JsonlSessionRepo, UserMessage

PLACE, COUNT, TEXT = sys.argv[1], int(sys.argv[2]), sys.argv[3]


async def main() -> None:
    repository = JsonlSessionRepo(f"{PLACE}/lc")
    session = await repository.create({"cwd": PLACE})
    began = time.perf_counter()
    for _ in range(COUNT):
        await session.append_message(UserMessage(role="user", content=TEXT, timestamp=0))
    append = (time.perf_counter() - began) / COUNT
    metadata = (await repository.list())[0]
    began = time.perf_counter()
    session = await repository.open(metadata)
    context = await session.build_context()
    reload = time.perf_counter() - began
    assert len(context.messages) == COUNT
    print(json.dumps({"append": append, "reload": reload, "last": None}))


asyncio.run(main())
