"""Kills writers at random instants and looks at what they left; run by the tests in a process of its own.

``python -m tests.storage.killing_program BACKEND FOLDER ROUNDS SEED``. Each round forks a writer that appends and
tells an id only after its await, kills it, and forks another process that reopens the session with repair, checks that
nothing acknowledged is lost, appends, and reopens it strictly. Forking once everything is imported, and before any event
loop or thread exists, makes a round cost milliseconds. It prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio

from storage import EntryFileStorage, EntryLog, JsonlStorage, PendingWrite, SqliteStorage, UserMessage

for _loop in ("asyncio", "trio"):
    importlib.import_module(f"anyio._backends._{_loop}")  # so that no child has to

ROUNDS_PER_SESSION = 5
KINDS = {"small": (100, 1), "side by side": (300, 6), "large": (60_000, 4)}
"""Bytes of a message, and how many are called side by side."""


SUFFIXES = {"jsonl": ".jsonl", "entry files": "", "sqlite": ".sqlite", "postgres": ".postgres"}


class InPostgres:
    """Sessions of the database that ``POSTGRES`` in the environment names, by the path that a file would have."""

    @staticmethod
    async def open(path: Path, **options: Any) -> Any:
        from storage import PostgresStorage

        return await PostgresStorage.open(os.environ["POSTGRES"], session_id=session_id_for(path), **options)

    @staticmethod
    async def open_or_create(path: Path, **options: Any) -> Any:
        from storage import PostgresStorage

        return await PostgresStorage.open_or_create(os.environ["POSTGRES"], session_id=session_id_for(path), **options)


def session_id_for(path: Path) -> str:
    """A session's id."""
    return f"{path.parent.name}-{path.stem}"


def storage_at(path: Path) -> Any:
    """The backend for a path."""
    backends = {".jsonl": JsonlStorage, ".sqlite": SqliteStorage, ".postgres": InPostgres}
    return backends.get(path.suffix, EntryFileStorage)


def in_child(work: Callable[[int], object]) -> tuple[int, int]:
    """Fork a child that does ``work`` with the writing end of a pipe; its process id and the reading end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            work(writing)
            code = 0
        except BaseException as error:  # noqa: BLE001 - told to the parent, which fails the test
            os.write(writing, f"! {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(writing)
    return child, reading


def write_for_ever(path: Path, kind: str, loop: str, durability: str) -> Callable[[int], NoReturn]:
    """A writer: says ``called`` before, and the id after, each await."""

    async def run(pipe: int) -> NoReturn:
        log = await EntryLog.open(
            await storage_at(path).open_or_create(path, cwd="/", durability=durability, on_torn_tail="repair")
        )
        size, side_by_side = KINDS[kind]
        while True:
            os.write(pipe, b"called\n")
            writes: list[PendingWrite] = [
                log.append_message(UserMessage(content="ä" * (size // 2))) for _ in range(side_by_side)
            ]
            for write in writes:
                os.write(pipe, (await write).encode() + b"\n")

    def work(pipe: int) -> NoReturn:
        anyio.run(run, pipe, backend=loop)
        raise AssertionError("it writes for ever")

    return work


def look(path: Path, acknowledged: list[str], loop: str) -> Callable[[int], None]:
    """Reopen with repair, check, append, and reopen strictly; tells the ids that are there now, and what was repaired."""

    async def run(pipe: int) -> None:
        log = await EntryLog.open(await storage_at(path).open_or_create(path, cwd="/", durability="os"))
        found = [entry.id for entry in await log.entries(limit=1_000_000)]
        known = set(acknowledged)
        if [entry_id for entry_id in found if entry_id in known] != acknowledged:
            lost = [entry_id for entry_id in acknowledged if entry_id not in found]
            raise AssertionError(f"lost or out of order: {lost}")
        codes = [warning.code for warning in log.warnings]
        new = await log.append_message(UserMessage(content="after the kill"))
        await log.aclose()
        log = await EntryLog.open(await storage_at(path).open(path, on_torn_tail="raise", durability="os"))
        now = [entry.id for entry in await log.entries(limit=1_000_000)]
        if now != [*found, new] or len(await log.path()) != len(now):
            raise AssertionError(f"{len(found)} entries and one more, but there are {len(now)}")
        await log.aclose()
        os.write(pipe, (json.dumps({"new": new, "repaired": codes.count("tail_repaired")}) + "\n").encode())

    return lambda pipe: anyio.run(run, pipe, backend=loop)


def read_until_killed(child: int, pipe: int, seconds: float, wait_for: bytes = b"") -> list[str]:
    """Read what the child says; kill it ``seconds`` after its start, or after it said ``wait_for``; the whole lines."""
    said = b""
    while wait_for not in said and (piece := os.read(pipe, 65536)):
        said += piece
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            piece = os.read(pipe, 65536)
            said += piece
            if not piece:
                break
    os.kill(child, signal.SIGKILL)
    while piece := os.read(pipe, 65536):
        said += piece
    os.close(pipe)
    os.waitpid(child, 0)
    return said.decode().split("\n")[:-1]


def main(backend: str, folder: str, rounds: int, seed: int) -> None:
    """Kill ``rounds`` writers."""
    if backend == "postgres":
        importlib.import_module("storage.postgres")
    chooser = random.Random(seed)
    counts = {"kills": 0, "with writes under way": 0, "acknowledged": 0, "repaired": 0}
    path = Path(folder)
    acknowledged: list[str] = []
    for number in range(rounds):
        if number % ROUNDS_PER_SESSION == 0:
            path = Path(folder, f"{number}{SUFFIXES[backend]}")
            acknowledged = []
        loop = chooser.choice(("asyncio", "trio"))
        kind = chooser.choice(("small", "side by side", "large"))
        child, pipe = in_child(write_for_ever(path, kind, loop, chooser.choice(("os", "fsync"))))
        early = chooser.random() < 0.15
        said = read_until_killed(child, pipe, chooser.random() * (0.02 if early else 0.01), b"" if early else b"\n")
        problems = [line for line in said if line.startswith("!")]
        if problems:
            sys.exit(f"round {number}: the writer failed: {problems}")
        counts["kills"] += 1
        counts["with writes under way"] += "called" in said and said[::-1].index("called") < KINDS[kind][1]
        ids = [line for line in said if line != "called"]
        acknowledged += ids
        counts["acknowledged"] += len(ids)
        child, pipe = in_child(look(path, acknowledged, loop))
        answer = b""
        while piece := os.read(pipe, 65536):
            answer += piece
        os.close(pipe)
        os.waitpid(child, 0)
        if answer.startswith(b"!") or not answer:
            sys.exit(f"round {number}: {answer.decode()}")
        result = json.loads(answer)
        acknowledged.append(result["new"])
        counts["repaired"] += result["repaired"]
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
