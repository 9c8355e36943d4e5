"""A tool is a typed function: its signature and its docstring are what the model is told of it."""

from __future__ import annotations

from typing import Literal

import anyio

from harness import AgentHarness, MemoryStorage, Session
from harness.testing import ScriptedModel, tool_call

CITIES = {"Oslo": 4.0, "Lagos": 31.0}


async def temperature(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """The temperature in a city, now.

    Args:
        city: The city's English name.
        unit: In which unit to answer.
    """
    celsius = CITIES[city]  # an unknown city is an error result: the model is told, and the turn goes on
    return f"{celsius if unit == 'celsius' else celsius * 9 / 5 + 32:.0f} degrees {unit}"


async def main() -> None:
    """The scripted model calls the tool for three cities at once, one of them unknown, and then answers."""
    cities = ("Oslo", "Lagos", "Atlantis")
    calls = [tool_call("temperature", f"call_{number}", city=city) for number, city in enumerate(cities)]
    async with Session.open(MemoryStorage.create()) as session:
        harness = AgentHarness(session, ScriptedModel([calls, "Lagos is warmer."]), tools=[temperature])
        reply = await harness.prompt("Where is it warmest: in Oslo, Lagos or Atlantis?")
        for message in (await session.build_context()).messages:
            print(f"{message.role}: {message.text or '(calls its tools)'}")
        assert reply.text == "Lagos is warmer."


if __name__ == "__main__":
    anyio.run(main)
