"""How long one waits before anything happens: importing the library, and the command line's help."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.measuring import Figure, seconds

_ROUNDS = 7


def starting() -> list[Figure]:
    """Each in a process of its own, the interpreter's start counted in; the median of seven."""
    empty = _milliseconds("-c", "pass")
    note = f"an empty program: {empty:.0f} ms"
    return [
        Figure("import harness", _milliseconds("-c", "import harness"), "ms", 300, note),
        Figure("branchline --help", _milliseconds("-m", "harness.cli", "--help"), "ms", 400, note),
        Figure(
            "import of a session and its storage",
            _milliseconds("-c", "from harness import JsonlStorage, Session"),
            "ms",
        ),
    ]


def _milliseconds(*arguments: str) -> float:
    def run() -> None:
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)

    run()  # once unmeasured: the byte code is compiled, the files are in memory
    return statistics.median(seconds(run) for _ in range(_ROUNDS)) * 1e3
