"""Opening: every line checked and indexed, against ``json.loads`` of each line; and how much memory that takes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measuring import Figure, message, ratio, seconds, seconds_of
from harness.session import Session
from storage.jsonl import JsonlStorage


async def make_session(path: Path, count: int) -> None:
    """A session of ``count`` messages of about 1 KB."""
    async with Session.open(JsonlStorage.create(path, durability="os")) as session:
        for number in range(count):
            session.append_message(message(number))
            if number % 1000 == 999:
                await session.flush()


async def open_and_index(path: Path, rounds: int, count: int) -> list[Figure]:
    """The time of opening, against the floor beside it."""
    await make_session(path, count)
    ours: list[float] = []
    floors: list[float] = []

    async def open_it() -> None:
        async with Session.open(JsonlStorage.open(path)) as session:
            assert len(session.log.index) == count

    def floor() -> None:
        with path.open("rb") as file:
            for line in file:
                json.loads(line)

    for _ in range(rounds):
        ours.append(await seconds_of(open_it))
        floors.append(seconds(floor))
    note = f"{statistics.median(ours) * 1e3:.0f} ms against {statistics.median(floors) * 1e3:.0f} ms"
    return [Figure(f"open {count:,} entries / json.loads of each line", ratio(ours, floors), "×", 1.3, note)]


_MEMORY = """
import resource, sys, anyio
from harness.session import Session
from storage.jsonl import JsonlStorage

def peak():
    try:
        with open("/proc/self/status") as status:  # ru_maxrss would begin with the peak of the process that started us
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

async def main():
    before = peak()
    async with Session.open(JsonlStorage.open(sys.argv[1])) as session:
        print(peak() - before)

anyio.run(main)
"""


def peak_memory(path: Path) -> list[Figure]:
    """Peak memory of opening, in a process of its own, over the size of the file."""
    done = subprocess.run([sys.executable, "-c", _MEMORY, path], capture_output=True, text=True, check=True)
    size = path.stat().st_size
    note = f"{int(done.stdout) / 1e6:.0f} MB for a file of {size / 1e6:.0f} MB"
    return [Figure("peak memory of opening / size of the file", int(done.stdout) / size, "×", 1.5, note)]
