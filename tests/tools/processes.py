"""What the tests of commands look at: whether processes run."""

from __future__ import annotations

import os
import time
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether it is there and did not end (a zombie only waits for its parent to look)."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state not in (b"Z", b"X")


def processes_in(file: Path, count: int) -> list[int]:
    """The ids that a command writes into a file, one a line, once all are there."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if file.exists():
            words = file.read_text().split("\n")[:-1]
            if len(words) >= count:
                return [int(word) for word in words]
        time.sleep(0.005)
    raise AssertionError(f"{file} does not hold {count} process ids")
