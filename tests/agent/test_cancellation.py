"""A turn can be cancelled at any point: the history stays whole, tells the truth, and goes on (R24)."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from harness.agent import AgentHarness
from harness.models.protocol import ModelRequest
from harness.recovery import NOT_STARTED, OUTCOME_UNKNOWN
from harness.session import Session, SessionTurn
from harness.testing import Reply, ScriptedModel, tool_call
from harness.tools import Tool, tool
from storage.entries import MessageEntry
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import AssistantMessage, UserMessage
from tests.agent.agents import check_well_formed, history, results
from tests.agent.cancelling import Cancel, StoppedAtStep, run_cancelled

pytestmark = pytest.mark.anyio

CALLS = [tool_call("threaded", "a"), tool_call("quick", "b"), tool_call("failing", "c"), tool_call("slow", "d")]


class Tools:
    """Four tools that note when they begin and when they end."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.ended: set[str] = set()

    def threaded(self) -> str:
        self.begun.add("a")
        self.ended.add("a")
        return "threaded"

    async def quick(self) -> str:
        self.begun.add("b")
        self.ended.add("b")
        return "quick"

    async def failing(self) -> str:
        self.begun.add("c")
        await anyio.lowlevel.checkpoint()
        self.ended.add("c")
        raise ValueError("failing")

    async def slow(self) -> str:
        self.begun.add("d")
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.ended.add("d")
        return "slow"

    def all(self, *, parallel: bool) -> list[Tool]:
        make = tool(parallel=parallel)
        return [make(self.threaded), make(self.quick), make(self.failing), make(self.slow)]


def answer(request: ModelRequest) -> Any:
    """Calls for "Go", a word for everything else."""
    last = request.messages[-1]
    if isinstance(last, UserMessage):
        return CALLS if last.text == "Go" else "Fine."
    return "Done."


def check_truth(found: dict[str, Any], tools: Tools) -> None:
    """What the results say of each tool is what happened."""
    real = {"a": "threaded", "b": "quick", "c": "ValueError: failing", "d": "slow"}
    for call_id, result in found.items():
        if result.text == NOT_STARTED:
            assert call_id not in tools.begun
        elif result.text == OUTCOME_UNKNOWN:
            assert call_id in tools.begun or call_id == "a"  # a thread may begin after nobody waits for it any more
        else:
            assert result.text == real[call_id]
            assert call_id in tools.ended


async def try_and_go_on(
    session: Session, way: str, parallel: bool, work: Callable[[AgentHarness, Cancel], Awaitable[Any]]
) -> str:
    """Run a turn that is cancelled somewhere; check what it left; run another turn; check again."""
    tools = Tools()
    harness = AgentHarness(session, ScriptedModel(answer), tools=tools.all(parallel=parallel))
    with anyio.fail_after(60):
        outcome = await run_cancelled(way, lambda cancel: work(harness, cancel))
    entries = await session.entries()
    check_well_formed(entries)
    check_truth(await results(session), tools)
    ends = [line for line in await history(session) if line.startswith("turn_end")]
    if outcome == "cancelled" and entries:
        assert ends in (["turn_end 1 cancelled"], ["turn_end 1 completed"])
    assert (await harness.prompt("Again")).text == "Fine."
    check_well_formed(await session.entries())
    return outcome


async def streamed(harness: AgentHarness) -> None:
    async with harness.stream("Go") as events:
        async for _ in events:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("plain", [True, False], ids=["prompt", "stream"])
async def test_cancelled_at_every_step(way: str, parallel: bool, plain: bool) -> None:
    """Wherever the turn, or its reader, waits, a cancellation there leaves a whole history, and the next turn works."""
    outcomes: list[str] = []
    for step in itertools.count(1):
        async with Session.open(MemoryStorage.create()) as session:

            async def work(harness: AgentHarness, cancel: Cancel, step: int = step) -> None:
                await StoppedAtStep(harness.prompt("Go") if plain else streamed(harness), step, cancel)

            outcomes.append(await try_and_go_on(session, way, parallel, work))
        if outcomes[-1] == "finished":
            break
    assert len(outcomes) > 15
    assert set(outcomes[:-2]) == {"cancelled"}


@pytest.mark.parametrize("parallel", [True, False])
async def test_cancelled_at_every_write(
    way: str, parallel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever entry is being written, by the turn or by a tool's task: whole history, and after reopening too."""
    ways = {name: getattr(SessionTurn, name) for name in ("append_entry", "append_message")}
    for number in itertools.count(1):
        count = 0
        place = tmp_path / f"{number}.jsonl"
        async with Session.open(JsonlStorage.create(place, durability="os")) as session:

            async def work(harness: AgentHarness, cancel: Cancel, number: int = number) -> None:
                def counting(write: Callable[[SessionTurn, Any], Any]) -> Callable[[SessionTurn, Any], Any]:
                    def counted(turn: SessionTurn, what: Any) -> Any:
                        nonlocal count
                        count += 1
                        pending = write(turn, what)
                        if count == number:
                            cancel()
                        return pending

                    return counted

                with monkeypatch.context() as patch:
                    for name, write in ways.items():
                        patch.setattr(SessionTurn, name, counting(write))
                    await harness.prompt("Go")

            outcome = await try_and_go_on(session, way, parallel, work)
            kept = await history(session)
        async with Session.open(JsonlStorage.open(place)) as session:
            assert await history(session) == kept
            assert await session.recover() == []
        if count < number:
            assert outcome == "finished"
            assert count == 14
            break


async def test_cancelled_in_the_model_call(session: Session, way: str) -> None:
    """The prompt is kept, and so is what was heard of the reply, marked as aborted."""
    heard = anyio.Event()
    model = ScriptedModel([Reply("Hello, this is long", pause=0.01, chunk_size=5), "Fine."])
    harness = AgentHarness(session, model)

    async def work(cancel: Cancel) -> None:
        async with harness.stream("Hi") as events:
            async for event in events:
                if getattr(event, "text", None):
                    heard.set()
                    cancel()

    assert await run_cancelled(way, work) == "cancelled"
    assert await history(session) == [
        "turn_start 1",
        "user: Hi",
        "request_header",
        "assistant aborted: Hello",
        "turn_end 1 cancelled",
    ]
    partial = (await session.entries())[3]
    assert isinstance(partial, MessageEntry)
    assert isinstance(partial.message, AssistantMessage)
    assert partial.message.model == "scripted"
    assert (await harness.prompt("Again")).text == "Fine."


async def test_finished_siblings_keep_their_results(session: Session, way: str) -> None:
    """Of three tools one is done, one is at work and one was refused: each result says so."""
    done = anyio.Event()

    async def quick() -> str:
        return "quick"

    async def hanging() -> str:
        await anyio.sleep_forever()
        raise AssertionError

    async def watch(cancel: Cancel) -> None:
        while "result a: quick" not in await history(session):  # it is on disk
            await anyio.sleep(0.002)
        done.set()
        cancel()

    model = ScriptedModel([[tool_call("quick", "a"), tool_call("hanging", "b"), tool_call("nowhere", "c")], "Fine."])
    harness = AgentHarness(session, model, tools=[quick, hanging])
    async with anyio.create_task_group() as group:

        async def work(cancel: Cancel) -> None:
            group.start_soon(watch, cancel)
            await harness.prompt("Go")

        assert await run_cancelled(way, work) == "cancelled"
    assert (await history(session))[4:] == [
        "error c: There is no tool 'nowhere'. The tools are: quick, hanging.",
        "tool_start a",
        "tool_start b",
        "result a: quick",
        f"error b: {OUTCOME_UNKNOWN}",
        "turn_end 1 cancelled",
    ]
    assert (await harness.prompt("Again")).text == "Fine."


async def test_calls_that_were_not_begun_say_so(session: Session, way: str) -> None:
    """Sequential tools: the one at work is of unknown outcome, the next one was not run."""

    async def hanging() -> str:
        cancel_now[0]()
        await anyio.sleep_forever()
        raise AssertionError

    cancel_now: list[Cancel] = []

    async def work(cancel: Cancel) -> None:
        cancel_now.append(cancel)
        await AgentHarness(session, model, tools=[tool(parallel=False)(hanging)]).prompt("Go")

    model = ScriptedModel([[tool_call("hanging", "a"), tool_call("hanging", "b")]])
    assert await run_cancelled(way, work) == "cancelled"
    assert (await history(session))[4:] == [
        "tool_start a",
        f"error a: {OUTCOME_UNKNOWN}",
        f"error b: {NOT_STARTED}",
        "turn_end 1 cancelled",
    ]


CHILD = """
    import sys
    from pathlib import Path
    import anyio
    from harness.agent import AgentHarness
    from harness.session import Session
    from harness.testing import ScriptedModel, tool_call
    from storage.jsonl import JsonlStorage

    place, backend, how = sys.argv[1:]

    async def quick() -> str:
        return "quick"

    async def hanging() -> str:
        while '"role":"toolResult"' not in Path(place).read_text():  # the sibling's is on record
            await anyio.sleep(0.001)
        if how == "raised":
            raise KeyboardInterrupt
        print("ready", flush=True)
        await anyio.sleep(600)
        return "late"

    async def main():
        async with Session.open(JsonlStorage.create(place)) as session:
            model = ScriptedModel([[tool_call("quick", "a"), tool_call("hanging", "b")]])
            await AgentHarness(session, model, tools=[quick, hanging]).prompt("Go")

    try:
        anyio.run(main, backend=backend)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("how", ["raised", "signalled"])
async def test_an_interrupt_goes_up(anyio_backend_name: str, tmp_path: Path, how: str) -> None:
    """Ctrl-C, or a KeyboardInterrupt of a tool, is no tool's result: the turn is closed, and it leaves the program."""
    place = tmp_path / "session.jsonl"
    root = str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(place), anyio_backend_name, how],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        if how == "signalled":
            child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    async with Session.open(JsonlStorage.open(place)) as session:
        check_well_formed(await session.entries())
        assert (await history(session))[-3:] == [
            "result a: quick",
            f"error b: {OUTCOME_UNKNOWN}",
            "turn_end 1 cancelled",
        ]


async def test_a_timeout_around_a_turn(session: Session) -> None:
    """``fail_after`` raises its own error after the turn was closed."""

    def answer_late(_: ModelRequest) -> Reply:
        scope.deadline = anyio.current_time()
        return Reply("late", delay=10)

    harness = AgentHarness(session, ScriptedModel([answer_late, "Fine."]))
    with pytest.raises(TimeoutError):
        with anyio.fail_after(60) as scope:
            await harness.prompt("Hi")
    assert (await history(session))[-1] == "turn_end 1 cancelled"
    assert (await harness.prompt("Again")).text == "Fine."


async def test_cancelled_while_a_thread_works(session: Session, way: str) -> None:
    """A cancellation does not wait for a synchronous tool; its outcome is unknown."""
    begun, release = threading.Event(), threading.Event()

    def waiting() -> str:
        begun.set()
        release.wait(60)
        return "late"

    harness = AgentHarness(session, ScriptedModel([[tool_call("waiting", "a")], "Fine."]), tools=[waiting])
    async with anyio.create_task_group() as group:

        async def work(cancel: Cancel) -> None:
            async def later() -> None:
                await anyio.to_thread.run_sync(begun.wait, 60)
                cancel()

            group.start_soon(later)
            await harness.prompt("Go")

        assert await run_cancelled(way, work) == "cancelled"
    assert not release.is_set()
    release.set()
    assert (await results(session))["a"].text == OUTCOME_UNKNOWN
    assert (await harness.prompt("Again")).text == "Fine."


async def test_a_second_cancellation_while_the_turn_is_closed(anyio_backend_name: str, session: Session) -> None:
    """Cancelled natively again at each step of closing: nothing is lost once the log is drained."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but by scopes")
    import asyncio

    async def hanging() -> str:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    begun = anyio.Event()
    harness = AgentHarness(session, ScriptedModel([[tool_call("hanging", "a")], "Fine."]), tools=[hanging])
    task = asyncio.ensure_future(harness.prompt("Go"))
    await begun.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    check_well_formed(await session.entries())
    assert (await history(session))[-2:] == [f"error a: {OUTCOME_UNKNOWN}", "turn_end 1 cancelled"]
    assert (await harness.prompt("Again")).text == "Fine."
