"""Kills agents in the middle of turns and compares what recovery says with what the tools really did.

``python -m tests.agent.killing_program FOLDER ROUNDS SEED``. Each round forks an agent whose model calls three tools at a
time. Each tool writes to a witness file as it begins and as it ends, under its idempotency key. The agent is killed at a
random instant; another process takes the session over, prompts, and every result is held against the witness. It prints
one JSON object with how often each thing was seen.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio

from harness.agent import AgentHarness
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import Tool, ToolContext, tool
from storage.entries import Entry, MessageEntry, ToolStartEntry, TurnEndEntry
from storage.jsonl import JsonlStorage
from storage.messages import AssistantMessage, ToolResultMessage, UserMessage
from tests.agent.agents import check_well_formed
from tests.storage.killing_program import in_child, read_until_killed

ROUNDS_PER_SESSION = 4
DONE = "done"


def answer(request: ModelRequest) -> Any:
    """Three calls to a prompt, two more to their results, then a word."""
    results = 0
    for message in reversed(request.messages):
        if isinstance(message, UserMessage):
            break
        results += isinstance(message, ToolResultMessage)
    if results == 0:
        return [tool_call("waiting", "a"), tool_call("quick", "b"), tool_call("threaded", "c")]
    if results == 3:
        return [tool_call("threaded", "a"), tool_call("waiting", "b")]
    return "Done."


def tools(witness: Path, chooser: random.Random, *, parallel: bool = True) -> list[Tool]:
    """The tools, and nothing that they do is done without the witness."""
    file = os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(what: str, context: ToolContext) -> None:
        os.write(file, f"{what} {context.idempotency_key}\n".encode())

    async def quick(context: ToolContext) -> str:
        note("begin", context)
        note("end", context)
        return DONE

    async def waiting(context: ToolContext) -> str:
        note("begin", context)
        await anyio.sleep(chooser.random() * 0.004)
        note("end", context)
        return DONE

    def threaded(context: ToolContext) -> str:
        note("begin", context)
        time.sleep(chooser.random() * 0.002)
        note("end", context)
        return DONE

    return [tool(parallel=parallel)(function) for function in (quick, waiting, threaded)]


async def prompt_for_ever(place: Path, seed: int, durability: Any, parallel: bool, pipe: int) -> NoReturn:
    """The agent that is killed."""
    chooser = random.Random(seed)
    storage = JsonlStorage.open_or_create(place, durability=durability)
    async with Session.open(storage) as session:
        model = ScriptedModel(answer)
        mine = tools(place.with_suffix(".witness"), chooser, parallel=parallel)
        async with AgentHarness(session, model, tools=mine) as harness:
            os.write(pipe, b"ready\n")
            while True:
                await harness.prompt("Go")
                os.write(pipe, b"turn\n")
    raise AssertionError("it prompts for ever")


async def look(place: Path, pipe: int) -> None:
    """Take the session over, see that the next prompt works, and hold everything that is recorded against the witness."""
    witness = place.with_suffix(".witness")
    before = witness.read_bytes() if witness.exists() else b""
    async with Session.open(JsonlStorage.open_or_create(place, durability="os")) as session:
        model = ScriptedModel(["Fine."])
        async with AgentHarness(session, model, tools=tools(witness, random.Random(0))) as harness:
            if witness.read_bytes() != before:
                raise AssertionError("taking over ran a tool")
            await harness.prompt("And now?")
            if witness.read_bytes() != before:
                raise AssertionError("the prompt ran a tool again")
        entries = await session.entries(limit=1_000_000)
    check_well_formed(entries)
    counts = judge(entries, before.decode().splitlines())
    os.write(pipe, (json.dumps(counts) + "\n").encode())


def judge(entries: Sequence[Entry], witness: Sequence[str]) -> dict[str, int]:
    """What was seen how often. Raises ``AssertionError`` where a result says something that is not so."""
    begun = Counter(line.split()[1] for line in witness if line.startswith("begin "))
    ended = {line.split()[1] for line in witness if line.startswith("end ")}
    if begun and max(begun.values()) > 1:
        raise AssertionError(f"run twice: {[key for key, times in begun.items() if times > 1]}")
    seen: Counter[str] = Counter()
    calls: dict[str, str] = {}
    starts: set[str] = set()
    judged: set[str] = set()
    for entry in entries:
        if isinstance(entry, TurnEndEntry):
            seen[entry.reason] += 1
        elif isinstance(entry, ToolStartEntry):
            starts.add(entry.idempotency_key or "")
        elif isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage):
            calls = {call.id: f"{entry.id}/{call.id}" for call in entry.message.tool_calls}
        elif isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage):
            key = calls[entry.message.tool_call_id]
            judged.add(key)
            seen[said(entry.message, has_begun=key in begun, has_ended=key in ended, has_start=key in starts)] += 1
    if set(begun) - judged:
        raise AssertionError(f"begun, and nothing is said about it: {set(begun) - judged}")
    if set(begun) - starts:
        raise AssertionError(f"begun before its tool_start was on disk: {set(begun) - starts}")
    return dict(seen)


def said(result: ToolResultMessage, *, has_begun: bool, has_ended: bool, has_start: bool) -> str:
    """What a result says, if that is so."""
    if not result.is_error:
        if not has_ended:
            raise AssertionError("a result of a tool that did not end")
        return "ran"
    if result.details["begun"]:
        if not has_start:
            raise AssertionError("said to be begun, without a tool_start")
        return "unknown, and it had ended" if has_ended else "unknown"
    if has_begun:
        raise AssertionError("said not to be started, and it was")
    return "not started"


def run_in_child(work: Callable[..., Any], *arguments: Any, loop: str) -> tuple[int, int]:
    """Fork a process that runs ``work`` on an event loop of its own."""
    return in_child(lambda pipe: anyio.run(partial(work, *arguments), pipe, backend=loop))


def main(folder: str, rounds: int, seed: int) -> None:
    """Kill ``rounds`` agents."""
    chooser = random.Random(seed)
    totals: Counter[str] = Counter()
    place = Path(folder)
    for number in range(rounds):
        if number % ROUNDS_PER_SESSION == 0:
            place = Path(folder, f"{number}.jsonl")
        loop = chooser.choice(("asyncio", "trio"))
        durability = chooser.choice(("os", "fsync"))
        # Calls that run side by side are begun with one write: only behind others is one found that was not started.
        parallel = number % 6 != 5
        child, pipe = run_in_child(prompt_for_ever, place, chooser.random(), durability, parallel, loop=loop)
        # Half of them have a turn behind them, however slow the machine is.
        wait_for = chooser.choice((b"ready\n", b"turn\n"))
        problems = [
            line for line in read_until_killed(child, pipe, chooser.random() * 0.05, wait_for) if line[0] == "!"
        ]
        if problems:
            sys.exit(f"round {number}: the agent failed: {problems}")
        child, pipe = run_in_child(look, place, loop=chooser.choice(("asyncio", "trio")))
        told = b""
        while piece := os.read(pipe, 65536):
            told += piece
        os.close(pipe)
        os.waitpid(child, 0)
        if told.startswith(b"!") or not told:
            sys.exit(f"round {number}: {told.decode()}")
        if (number + 1) % ROUNDS_PER_SESSION == 0 or number + 1 == rounds:
            totals.update(json.loads(told))
    sys.stdout.write(json.dumps({"kills": rounds, **totals}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
