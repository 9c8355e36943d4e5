"""openai-agents: one turn of many steps, streamed, with its SQLiteSession in a file."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

PLACE, URL, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])


@function_tool
async def note(text: str) -> str:
    """Note a text."""
    return text


async def main() -> None:
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="any", openai_client=AsyncOpenAI(base_url=URL, api_key="any"))
    agent = Agent(name="noter", tools=[note], model=model)
    session = SQLiteSession("bench", f"{PLACE}/loop.db")

    async def prompt(text: str) -> str:
        run = Runner.run_streamed(agent, text, session=session, max_turns=STEPS + 1)
        async for _ in run.stream_events():
            pass
        return str(run.final_output)

    await prompt("Before.")
    began = time.perf_counter()
    assert await prompt("Note it, many times.") == "Done."
    took = time.perf_counter() - began
    session.close()
    print(json.dumps({"step": took / (STEPS + 1)}))


asyncio.run(main())
