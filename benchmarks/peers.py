"""The same work with other libraries, in an environment of their own and in the same run, for an honest table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import TEXT

PEERS = {
    "openai-agents, SQLiteSession": ("openai_agents.py", "openai-agents"),
    "pi-durable-python, JSONL": ("pi_durable_python.py", "pi-durable-python"),
    "pi-agent-harness-lc, JSONL": ("pi_agent_harness_lc.py", "pi-agent-harness-lc"),
}
LOOPS = {
    "openai-agents, SQLiteSession": "loop_openai_agents.py",
    "pydantic-ai, all written at the end": "loop_pydantic_ai.py",
}
USUAL = (*(package for _, package in PEERS.values()), "pydantic-ai-slim[openai]")
_SCRIPTS = Path(__file__).parent / "peer_scripts"


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """What one library took: seconds for an awaited append, and for reopening with its whole context."""

    name: str
    append: float
    reload: float


def environment(folder: Path, packages: Sequence[str] = USUAL) -> Path:
    """The interpreter of an environment that holds the peers; made once, kept in ``folder``.

    Raises ``CalledProcessError`` if they could not be installed; the next call tries again.
    """
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    made = folder / "packages"
    if not made.exists() or made.read_text().split() != list(packages):
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        made.write_text("\n".join(packages) + "\n")
    return python


def measure_loops(folder: Path, url: str, steps: int, rounds: int) -> dict[str, float]:
    """Each peer's seconds for a step of a turn against the server at ``url``: the median of so many rounds."""
    python = environment(folder)
    found: dict[str, float] = {}
    for name, script in LOOPS.items():
        took: list[float] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as place:
                command = [str(python), str(_SCRIPTS / script), place, url, str(steps)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{name}: {done.stderr.strip().splitlines()[-1:]}; left out", file=sys.stderr)
                break
            took.append(json.loads(done.stdout)["step"])
        else:
            found[name] = statistics.median(took)
    return found


def measure(folder: Path, count: int, rounds: int) -> list[PeerFigures]:
    """Each peer's figures; one that cannot be run is left out, with a word on stderr."""
    try:
        python = environment(folder)
    except subprocess.CalledProcessError as error:
        print(f"the peers could not be installed ({error}); their figures are left out", file=sys.stderr)
        return []
    figures: list[PeerFigures] = []
    for name, (script, _) in PEERS.items():
        appends: list[float] = []
        reloads: list[float] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as place:
                command = [str(python), str(_SCRIPTS / script), place, str(count), TEXT]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{name}: {done.stderr.strip().splitlines()[-1:]}; left out", file=sys.stderr)
                break
            result = json.loads(done.stdout)
            appends.append(result["append"])
            reloads.append(result["reload"])
        else:
            figures.append(PeerFigures(name, statistics.median(appends), statistics.median(reloads)))
    return figures
