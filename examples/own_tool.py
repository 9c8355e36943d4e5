"""A tool is a typed function: its signature and its docstring are what the model is told of it.

One that only looks needs no more than that. One that does something can ask a person first, and say what it is about to
do; the key in its context is the same if the same call is ever tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import anyio

from harness import AgentHarness, ApprovalRequest, Decision, MemoryStorage, Session, ToolContext, tool
from harness.testing import ScriptedModel, tool_call

CITIES = {"Oslo": 4.0, "Lagos": 31.0}
ORDERS: dict[str, str] = {}


async def temperature(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """The temperature in a city, now.

    Args:
        city: The city's English name.
        unit: In which unit to answer.
    """
    celsius = CITIES[city]  # an unknown city is an error result: the model is told, and the turn goes on
    return f"{celsius if unit == 'celsius' else celsius * 9 / 5 + 32:.0f} degrees {unit}"


def order_text(arguments: Mapping[str, Any]) -> str:
    """What a person is shown before a coat is ordered."""
    return f"Order a coat for {arguments['city']}."


@tool(needs_approval=True, preview=order_text)
async def order_coat(context: ToolContext, city: str) -> str:
    """Order a coat for a journey to that city."""
    ORDERS.setdefault(context.idempotency_key, city)  # a shop that knows the key sends one coat, not two
    return "ordered"


async def decide(request: ApprovalRequest) -> Decision:
    """Stands for a person: nobody needs a coat where it is warm."""
    print(f"asked: {request.preview}")
    if CITIES[request.call.arguments["city"]] > 20:
        return Decision.deny("It is warm there.")
    return Decision.approve()


async def main() -> None:
    """The scripted model calls a tool for three cities at once, one of them unknown, then orders coats, and answers."""
    cities = ("Oslo", "Lagos", "Atlantis")
    looks = [tool_call("temperature", f"call_{number}", city=city) for number, city in enumerate(cities)]
    orders = [tool_call("order_coat", f"order_{number}", city=city) for number, city in enumerate(cities[:2])]
    model = ScriptedModel([looks, orders, "Lagos is warmer, and a coat for Oslo is on its way."])
    async with Session.open(MemoryStorage.create()) as session:
        harness = AgentHarness(session, model, tools=[temperature, order_coat], approve=decide)
        await harness.prompt("Where is it warmest: in Oslo, Lagos or Atlantis? And see that I do not freeze.")
        for message in (await session.build_context()).messages:
            print(f"{message.role}: {message.text or '(calls its tools)'}")
    print(f"ordered: {list(ORDERS.values())}")


if __name__ == "__main__":
    anyio.run(main)
