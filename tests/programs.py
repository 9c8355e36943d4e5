"""Running programs in the repository, for tests of what only a real process meets."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def run(*command: str | Path) -> dict[str, Any]:
    """Run a command in the repository; the JSON object in the last line that it prints."""
    done = subprocess.run(
        [str(part) for part in command], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def can(*command: str) -> bool:
    """Whether this machine can do that."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
