"""More than a hundred SIGKILLs in turns with three tools: recovery says the truth about each call (R24)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 120
"""A hundred with three parallel tools, and twenty in which the same tools run one after the other."""

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(sys.platform == "win32", reason="forks")]


def test_recovery_says_the_truth_about_each_call(tmp_path: Path) -> None:
    """R24: by the witness file of the tools themselves, no call ran twice, and each result says what was so.

    On both event loops and both durabilities; after each kill another process takes the session over and prompts.
    """
    program = subprocess.run(
        [sys.executable, "-m", "tests.agent.killing_program", str(tmp_path), str(KILLS), "7"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert program.returncode == 0, program.stdout + program.stderr
    counts = json.loads(program.stdout)
    assert counts["kills"] == KILLS
    assert counts["interrupted"] >= KILLS / 2
    assert counts["ran"] >= KILLS
    assert counts["unknown"] + counts["unknown, and it had ended"] >= KILLS / 5
    assert counts.get("not started", 0) >= 1
