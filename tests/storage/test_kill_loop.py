"""Two hundred SIGKILLs a backend, at random instants: nothing acknowledged is lost (R9, R13)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 200


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("backend", ["jsonl", "entry files"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, backend: str) -> None:
    """R9, R13: on both event loops and both durabilities, with small, large and many messages.

    Each session is reopened with repair, holds what was acknowledged in order, is appended to, and opens again.
    """
    command = [sys.executable, "-m", "tests.storage.killing_program", backend, str(tmp_path), str(KILLS), "2"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] == KILLS
    assert counts["with writes under way"] >= KILLS / 5
    assert counts["acknowledged"] >= KILLS / 2
