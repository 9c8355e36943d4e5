"""pi-durable-python: a conversation on its JSONL storage."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from pi_durable import Harness, UserEntry, create_registry
from pi_durable.context import BACKGROUND_CONTEXT
from pi_durable.env.posix import PosixExecutionEnv
from pi_durable.storage.jsonl import JsonlStorage

PLACE, COUNT, TEXT = sys.argv[1], int(sys.argv[2]), sys.argv[3]


async def opened() -> Any:
    storage = await JsonlStorage.open(f"{PLACE}/durable", PosixExecutionEnv(cwd=PLACE), BACKGROUND_CONTEXT)
    return await Harness.open(storage, {"models": {}, "registry": create_registry()}, BACKGROUND_CONTEXT)


async def main() -> None:
    harness = await opened()
    conversation = await harness.root(BACKGROUND_CONTEXT)
    began = time.perf_counter()
    for _ in range(COUNT):
        message = {"role": "user", "content": TEXT, "timestamp": 0}
        await conversation.submit(
            {"type": "write", "entry": {"kind": UserEntry.kind, "model": [message]}}, BACKGROUND_CONTEXT
        )
    append = (time.perf_counter() - began) / COUNT
    await harness.close(BACKGROUND_CONTEXT)
    began = time.perf_counter()
    harness = await opened()
    conversation = await harness.root(BACKGROUND_CONTEXT)
    view = await conversation.context(BACKGROUND_CONTEXT)
    reload = time.perf_counter() - began
    assert len(view["messages"]) == COUNT
    await harness.close(BACKGROUND_CONTEXT)
    print(json.dumps({"append": append, "reload": reload, "last": None}))


asyncio.run(main())
