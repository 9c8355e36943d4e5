"""A turn keeps its connection from step to step, and leaves none open behind it."""

from __future__ import annotations

import anyio
import pytest

from harness.agent import AgentHarness
from harness.models import OpenAIChatModel
from harness.session import Session
from harness.testing import Reply, ScriptedServer, tool_call
from storage.memory import MemoryStorage

pytestmark = pytest.mark.anyio


def add(first: int, second: int) -> int:
    return first + second


CALLS = [tool_call("add", "a", first=1, second=2), tool_call("add", "b", first=3, second=4)]


async def test_a_turn_of_many_steps_keeps_its_connection() -> None:
    """The requests of a turn go over one connection; the next turn has one of its own, since none is left open.

    A server that is slow to end its answer may cost one; without the wiring each request has its own.
    """
    with ScriptedServer([*[CALLS] * 7, "Done.", CALLS, "Done again."]) as server:
        model = OpenAIChatModel("any", base_url=server.base_url, api_key="any")
        async with (
            Session.open(MemoryStorage.create()) as session,
            AgentHarness(session, model, tools=[add]) as harness,
        ):
            await harness.prompt("Add.")
            first = {request.client for request in server.requests}
            assert len(first) <= 4
            await harness.prompt("Add again.")
    assert len(server.requests) == 10
    assert server.requests[8].client not in first


async def test_an_app_may_keep_the_connection_from_turn_to_turn() -> None:
    """``async with model`` around the turns keeps it across them."""
    with ScriptedServer(["Next."] * 8) as server:
        async with OpenAIChatModel("any", base_url=server.base_url, api_key="any") as model:
            async with Session.open(MemoryStorage.create()) as session:
                harness = AgentHarness(session, model)
                for _ in range(8):
                    await harness.prompt("Go on.")
    assert len({request.client for request in server.requests}) <= 4


async def test_two_sessions_share_a_model_and_end_at_different_times() -> None:
    """Where the turn that connected first ends first, the other one's answer goes on."""
    with ScriptedServer(
        lambda request: Reply("Slow answer.", pause=0.02) if "slow" in str(request.body) else "Quick."
    ) as server:
        model = OpenAIChatModel("any", base_url=server.base_url, api_key="any")
        answers: dict[str, str] = {}

        async def ask(prompt: str) -> None:
            async with Session.open(MemoryStorage.create()) as session:
                answers[prompt] = (await AgentHarness(session, model).prompt(prompt)).text

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "quick")
            group.start_soon(ask, "slow")
    assert answers == {"quick": "Quick.", "slow": "Slow answer."}
