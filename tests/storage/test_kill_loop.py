"""Two hundred SIGKILLs a backend, at random instants: nothing acknowledged is lost (R9, R13)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer

KILLS = 200
BACKENDS = ("jsonl", "entry files", "sqlite")

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(sys.platform == "win32", reason="forks")]


def start(backend: str, folder: str) -> subprocess.Popen[str]:
    """The killing program for a backend."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.storage.killing_program", backend, folder, str(KILLS), "2"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The killing program, for each backend, side by side."""
    started: dict[str, subprocess.Popen[str]] = {}
    for backend in BACKENDS:
        folder = str(tmp_path_factory.mktemp("killed"))
        started[backend] = start(backend, folder)
    yield started
    for program in started.values():
        program.kill()
        program.communicate()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_acknowledged_is_lost(programs: dict[str, subprocess.Popen[str]], backend: str) -> None:
    """R9, R13: an id is told only after its await; each session is reopened with repair and holds what was told.

    On both event loops and both durabilities, with small, large and many messages, in order; then it is appended to,
    and opens again.
    """
    judge(programs[backend], timeout=280)


def test_nothing_acknowledged_is_lost_in_postgres(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9, R12: the same for PostgreSQL, where what a killed writer sent may still be under way on the server."""
    monkeypatch.setenv("POSTGRES", postgres_server.dsn())
    program = start("postgres", str(tmp_path))
    try:
        judge(program, timeout=280)
    finally:
        program.kill()
        program.communicate()


def judge(program: subprocess.Popen[str], timeout: float) -> None:
    """It ended well, and did what it should have done often enough."""
    printed, errors = program.communicate(timeout=timeout)
    assert program.returncode == 0, errors
    counts = json.loads(printed)
    assert counts["kills"] == KILLS
    assert counts["with writes under way"] >= KILLS / 5
    assert counts["acknowledged"] >= KILLS / 2
