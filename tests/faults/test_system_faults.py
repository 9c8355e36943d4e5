"""The system fails under a real process and its session: full disks, limits, interrupted calls, rivals (R10, R12)."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from harness import Session
from tests.faults.faulty_program import backend
from tests.programs import REPOSITORY, can, run

PROGRAM = [sys.executable, "-m", "tests.faults.faulty_program"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")


@pytest.fixture(params=["chat.jsonl", "chat"])
def name(request: pytest.FixtureRequest) -> str:
    """A session's name, of either backend on disk."""
    return request.param


@pytest.fixture(params=["asyncio", "trio"])
def loop(request: pytest.FixtureRequest) -> str:
    """An event loop."""
    return request.param


def test_a_small_disk_that_fills_up_and_is_emptied(tmp_path: Path, name: str, loop: str) -> None:
    """R10: on a tmpfs that is really full, twice: entries, blobs, forks fail with typed errors or are whole.

    Nothing that was acknowledged is lost, nothing is left of what failed, and the same session goes on each time.
    """
    if not can("unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"):
        pytest.skip("no mount name spaces here")
    script = 'mount -t tmpfs -o size=2m tmpfs "$1" && shift && exec "$@"'
    found = run("unshare", "-Urm", "sh", "-c", script, "sh", tmp_path, *PROGRAM, "disk", tmp_path / name, loop)
    assert found["held"] == found["expected"]
    assert found["warnings"] == []
    assert found["codes"] == ["storage"]
    for number in (1, 2):
        full, room = found[f"full {number}"], found[f"room {number}"]
        assert full["failed"] >= 2 * number  # the large entry, the blob or the fork
        assert room["failed"] == full["failed"]
        assert room["acknowledged"] == full["acknowledged"] + 3
        assert room["blobs"] == full["blobs"] + 1


def test_a_limit_of_file_size(tmp_path: Path, name: str, loop: str) -> None:
    """R10: RLIMIT_FSIZE cuts writes short: what does not fit fails alone and leaves nothing, what fits is written."""
    found = run(*PROGRAM, "size", tmp_path / name, loop)
    assert found["held"] == found["expected"]
    assert found["codes"] == ["storage"]
    assert found["limited"]["failed"] >= 2
    assert found["limited"]["acknowledged"] >= found["before"]["acknowledged"] + 2
    assert found["room"]["acknowledged"] == found["limited"]["acknowledged"] + 3
    assert found["room"]["failed"] == found["limited"]["failed"]
    left = [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp") or ".creating-" in path.name]
    assert left == []


@pytest.mark.parametrize("call", ["write", "fdatasync", "fsync", "ftruncate"])
def test_interrupted_calls(tmp_path: Path, name: str, call: str) -> None:
    """R10: calls that a signal interrupts (EINTR), one in three, are made again; nobody notices."""
    if not can("strace", "-qq", "-e", "trace=none", "true"):
        pytest.skip("strace cannot trace here")
    trace = tmp_path / "trace.txt"
    inject = f"inject={call}:error=EINTR:when=2+3"
    command = ["strace", "-f", "-qq", "-o", trace, "-e", f"trace={call}", "-e", inject]
    found = run(*command, *PROGRAM, "plain", tmp_path / name, "asyncio")
    assert "EINTR" in trace.read_text()
    assert found["codes"] == []
    assert found["held"] == found["expected"]
    assert (found["acknowledged"], found["blobs"]) == (9, 3)


def test_processes_that_fight(tmp_path: Path, name: str) -> None:
    """R12: four processes open one session by turns, as fast as they can, one is killed at a random moment and replaced.

    Each acknowledged entry is there once, in the order in which its process was told; the dead one's lock is free.
    """
    path = tmp_path / name
    anyio.run(begin, path)
    chooser = random.Random(5)
    rivals = [start(path, "asyncio", "fight until killed")]
    rivals += [start(path, ("trio", "asyncio")[number % 2]) for number in range(3)]
    assert rivals[0].stdout is not None
    assert select.select([rivals[0].stdout], [], [], 60)[0]  # it has begun, and has something to say
    time.sleep(chooser.random() / 50)
    rivals[0].kill()
    rivals.append(start(path, "trio"))
    told: list[list[str]] = []
    ended = [rival.communicate(timeout=240) for rival in rivals]
    for rival, (output, errors) in zip(rivals, ended, strict=True):
        assert rival.returncode == (-9 if rival is rivals[0] else 0), errors
        told.append([line for line in output.split("\n")[:-1] if line])
    assert [len(ids) for ids in told[1:]] == [36] * 4
    held = anyio.run(held_in, path)
    for ids in told:
        places = [held.index(entry_id) for entry_id in ids]
        assert places == sorted(places)
    assert len(held) == len(set(held))
    assert sum(map(len, told)) <= len(held) <= sum(map(len, told)) + 1  # one was written as the kill came, perhaps


def start(path: Path, loop: str, scenario: str = "fight") -> subprocess.Popen[str]:
    """One that fights."""
    return subprocess.Popen(
        [*PROGRAM, scenario, str(path), loop],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


async def begin(path: Path) -> None:
    """A new session."""
    async with Session.open(backend(str(path)).create(path)):
        pass


async def held_in(path: Path) -> list[str]:
    """The ids that it holds, in one chain."""
    async with Session.open(backend(str(path)).open(path, on_torn_tail="repair")) as session:
        ids = [entry.id for entry in await session.entries(limit=100_000)]
        assert len(await session.branch()) == len(ids)
        return ids
