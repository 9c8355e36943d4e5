"""``python -m benchmarks.idle FOLDER COUNT``: the memory of many idle sessions in one process, in bytes each."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from pathlib import Path

import anyio

from benchmarks.measuring import Figure
from harness.agent import AgentHarness
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.testing import ScriptedModel
from storage.jsonl import JsonlStorage


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


async def hold(folder: Path, count: int) -> float:
    """Bytes for each session with a harness and two turns behind it."""
    model = ScriptedModel(lambda _: "An answer of a few words.")
    model.requests = Forgetful()

    async def one(number: int) -> AgentHarness:
        storage = JsonlStorage.create(folder / f"{number}.jsonl", durability="os")
        harness = AgentHarness(await Session.open(storage), model)
        await harness.prompt("A question of a few words?")
        await harness.prompt("And another one?")
        return harness

    kept = [await one(number) for number in range(20)]  # what is made once is made
    gc.collect()
    before = resident()
    kept += [await one(number) for number in range(20, 20 + count)]
    gc.collect()
    each = (resident() - before) / count
    for harness in kept:
        await harness.aclose()
        await harness.session.aclose()
    return each


class Forgetful(list[ModelRequest]):
    """Keeps nothing: the requests would be counted as the sessions' own."""

    def append(self, value: object) -> None:
        """Let it go."""


def idle_sessions(folder: Path, count: int) -> list[Figure]:
    """Measured in a process of its own."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.idle", str(folder), str(count)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    return [Figure(f"memory of an idle session, {count:,} in one process", float(done.stdout) / 1024, "KB", 50)]


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(anyio.run(hold, Path(sys.argv[1]), int(sys.argv[2])))
