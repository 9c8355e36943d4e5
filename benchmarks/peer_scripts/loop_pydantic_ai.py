"""pydantic-ai: one turn of many steps, streamed; it keeps no session, so its messages are written to a file at the end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

PLACE, URL, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])

agent = Agent(OpenAIChatModel("any", provider=OpenAIProvider(base_url=URL, api_key="any")))


@agent.tool_plain
async def note(text: str) -> str:
    """Note a text."""
    return text


async def main() -> None:
    async def take(_context: object, events: object) -> None:
        async for _ in events:  # type: ignore[attr-defined]
            pass

    limits = UsageLimits(request_limit=STEPS + 1)
    before = await agent.run("Before.", event_stream_handler=take, usage_limits=limits)
    began = time.perf_counter()
    done = await agent.run(
        "Note it, many times.", message_history=before.all_messages(), event_stream_handler=take, usage_limits=limits
    )
    Path(PLACE, "loop.json").write_bytes(done.all_messages_json())
    took = time.perf_counter() - began
    assert done.output == "Done."
    print(json.dumps({"step": took / (STEPS + 1)}))


asyncio.run(main())
