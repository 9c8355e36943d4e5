"""Two hundred deaths a backend: what was acknowledged is there, whatever instant SIGKILL came (R9, R13).

A process that has everything imported forks the writers, so that a round takes some hundredths of a second. A writer tells
when it begins to wait for a write, and, only after its await, the id. Then a second child opens the session through the log.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from storage.entry_file_repository import EntryFileRepository
from storage.entry_log import EntryLog
from storage.jsonl_repository import JsonlRepository
from storage.messages import UserMessage
from storage.protocols import Durability

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

KILLS = 200
ROUNDS_A_SESSION = 5
REPOSITORIES = {"jsonl": JsonlRepository, "entry files": EntryFileRepository}


def _write(kind: str, root: str, session_id: str, durability: Durability, out: int, loop: str) -> NoReturn:
    """Append for ever: one at a time, a few at once, and sometimes a long one."""

    async def main() -> None:
        storage = await REPOSITORIES[kind](root, durability=durability).open_or_create(session_id)
        log = await EntryLog.open(storage)
        number = 0
        while True:
            number += 1
            text = "x" * (100_000 if number % 7 == 0 else 300)
            writes = [log.append_message(UserMessage(content=text)) for _ in range(1 + number % 4)]
            os.write(out, b"begin\n")
            for write in writes:
                entry_id = await write
                os.write(out, entry_id.encode() + b"\n")

    anyio.run(main, backend=loop)
    os._exit(3)


def _verify(kind: str, root: str, session_id: str, acknowledged: list[str], loop: str) -> None:
    """Open for reading, then for writing (which repairs), append, and open once more."""

    async def main() -> None:
        repository = REPOSITORIES[kind](root, durability="os")
        reader = await EntryLog.open(await repository.open(session_id, mode="read"))
        found = [entry.id for entry in await reader.entries(limit=100_000)]
        await reader.aclose()
        places = [found.index(entry_id) for entry_id in acknowledged]
        assert places == sorted(places)
        writer = await EntryLog.open(await repository.open(session_id))
        assert [entry.id for entry in await writer.entries(limit=100_000)] == found
        added = await writer.append_message(UserMessage(content="after"))
        await writer.aclose()
        again = await EntryLog.open(await repository.open(session_id, on_torn_tail="raise"))
        assert [entry.id for entry in await again.entries(limit=100_000)] == [*found, added]
        await again.aclose()
        acknowledged.append(added)

    anyio.run(main, backend=loop)


def _lines(descriptor: int) -> list[str]:
    with os.fdopen(descriptor) as stream:
        return stream.read().splitlines()


def _kill_loop(kind: str, root: str, result: Any) -> None:
    for loop in ("asyncio", "trio"):
        anyio.run(anyio.sleep, 0, backend=loop)  # imported here once, not in each child
    chooser = random.Random(kind)
    under_way = 0
    acknowledged: list[str] = []
    for number in range(KILLS):
        session_id = f"s{number // ROUNDS_A_SESSION}"
        if number % ROUNDS_A_SESSION == 0:
            acknowledged = []
        loop = ("asyncio", "trio")[number % 2]
        durability: Durability = "os" if number % 3 == 0 else "fsync"
        reader, out = os.pipe()
        child = os.fork()
        if child == 0:
            _write(kind, root, session_id, durability, out, loop)
        os.close(out)
        first = os.read(reader, 1)  # not before it has begun to write
        time.sleep(chooser.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        told = _lines(reader)
        told[0] = first.decode() + told[0]
        under_way += told[-1] == "begin"
        acknowledged += [line for line in told if line != "begin"]
        reader, out = os.pipe()
        child = os.fork()
        if child == 0:
            before = len(acknowledged)
            try:
                _verify(kind, root, session_id, acknowledged, loop)
                os.write(out, "\n".join(acknowledged[before:]).encode())
            except BaseException as error:  # noqa: BLE001 - told to the test
                os.write(out, f"round {number}: {type(error).__name__}: {error}".encode()[:4000])
                os._exit(1)
            os._exit(0)
        os.close(out)
        said = _lines(reader)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            result.put((number, under_way, said))
            return
        acknowledged += said
    result.put((KILLS, under_way, []))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", list(REPOSITORIES))
def test_two_hundred_kills(kind: str, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, in order, and each time one can go on; a fifth or more died with a write under way."""
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    process = context.Process(target=_kill_loop, args=(kind, str(tmp_path), result))
    process.start()
    try:
        kills, under_way, failure = result.get(timeout=390)
    finally:
        process.kill()
        process.join()
    assert failure == []
    assert kills == KILLS
    assert under_way >= KILLS / 5
