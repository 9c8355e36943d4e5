"""What the harness adds to a step, against the bare exchange over HTTP; how soon a cancelled turn is quiet."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import httpx

from benchmarks.measuring import Figure, percentile, seconds_of
from benchmarks.peers import measure_loops
from harness.agent import AgentHarness
from harness.models import OpenAIChatModel
from harness.models.events import ModelEvent
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import Reply, ScriptedServer, tool_call
from storage.jsonl import JsonlStorage

_WINDOW = 128_000


@contextmanager
def answering(steps: int) -> Generator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.answering", str(steps)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


async def note(text: str) -> str:
    """Note a text."""
    return text


class RecordingModel(OpenAIChatModel):
    """Keeps the requests."""

    asked: list[ModelRequest]

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.asked.append(request)
        async with super().stream(request) as events:
            yield events


async def turn_of(
    folder: Path, url: str, steps: int, number: int, window: int | None = None
) -> tuple[float, list[bytes]]:
    """The seconds of one turn with so many steps in a new session, and what was sent.

    With a ``window`` each request is measured before it is made, and held against that.
    """
    model = RecordingModel("any", base_url=url, api_key="any", context_window=window)
    model.asked = []
    settings = AgentSettings(max_steps=steps + 1)
    storage = JsonlStorage.create(folder / f"steps-{number}-{window or 0}.jsonl")
    async with (
        model,
        Session.open(storage) as session,
        AgentHarness(session, model, tools=[note], settings=settings) as harness,
    ):
        await harness.prompt("Before.")  # the connection is made, everything is imported
        model.asked.clear()
        took = await seconds_of(lambda: harness.prompt("Note it, many times."))
    assert len(model.asked) == steps + 1
    return took, [model.payload(request) for request in model.asked]


async def bare(url: str, bodies: list[bytes]) -> float:
    """The seconds that sending the same bodies and reading the answers takes without us."""
    headers = {"Content-Type": "application/json"}

    async def exchange() -> None:
        for body in bodies:
            async with client.stream("POST", f"{url}/chat/completions", content=body, headers=headers) as response:
                async for _ in response.aiter_raw():
                    pass

    async with httpx.AsyncClient(timeout=30) as client:
        await client.get(f"{url}/models")
        return await seconds_of(exchange)


async def overhead(folder: Path, steps: int, rounds: int, peers: Path | None) -> list[Figure]:
    """Each step: a request, a reply with a call, a tool, and its result, each synced to disk before the next.

    ``peers``: the environment of the other libraries, which do the same beside us; ``None`` leaves them out.
    """
    ours: list[float] = []
    measured: list[float] = []
    theirs: list[float] = []
    beside: dict[str, float] = {}
    with answering(steps) as url:
        for number in range(rounds):
            took, bodies = await turn_of(folder, url, steps, number)
            ours.append(took / len(bodies) * 1e3)
            measured.append((await turn_of(folder, url, steps, number, _WINDOW))[0] / len(bodies) * 1e3)
            theirs.append(await bare(url, bodies) / len(bodies) * 1e3)
        if peers is not None:
            beside = measure_loops(peers, url, steps, rounds)
    added = statistics.median(one - other for one, other in zip(ours, theirs, strict=True))
    note_of = f"{statistics.median(ours):.2f} ms, of which the exchange {statistics.median(theirs):.2f}"
    figures = [Figure("added to a step of a turn, fsync", added, "ms", 2, note_of)]
    more = statistics.median(one - other for one, other in zip(measured, theirs, strict=True))
    figures.append(Figure("the same, where the model's window is known", more, "ms"))
    exchange = statistics.median(theirs)
    figures += [Figure(f"added to a step by {name}", took * 1e3 - exchange, "ms") for name, took in beside.items()]
    return figures


async def cancelled(place: Path, url: str, slow: Callable[[], Awaitable[str]]) -> float:
    """The seconds from the cancellation of a turn to its end on disk."""
    began = ended = 0.0
    async with (
        OpenAIChatModel("any", base_url=url, api_key="any") as model,
        Session.open(JsonlStorage.create(place)) as session,
        AgentHarness(session, model, tools=[slow]) as harness,
        anyio.create_task_group() as group,
    ):
        group.start_soon(harness.prompt, "Go")
        await anyio.sleep(0.05)
        began = time.perf_counter()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await harness.wait_for_idle()
            ended = time.perf_counter()
    return ended - began


async def quiet_after_cancel(folder: Path, rounds: int) -> list[Figure]:
    """From the cancellation to a turn whose end is on disk: with three tools at work, and while the model is silent."""

    async def sleep() -> str:
        await anyio.sleep(60)
        return "late"

    calls = [tool_call("sleep", name) for name in ("a", "b", "c")]
    figures: list[Figure] = []
    for what, replies in (("three tools at work", [calls]), ("a silent model", [Reply("late", delay=60)])):
        took: list[float] = []
        for number in range(rounds):
            place = folder / f"cancelled-{what[:3]}-{number}.jsonl"
            with ScriptedServer(replies) as server:
                took.append(await cancelled(place, server.base_url, sleep))
        figures.append(Figure(f"from cancel to quiet, {what}", percentile(took, 0.99) * 1e3, "ms", 50))
    return figures
