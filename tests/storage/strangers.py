"""What another user meets, who is not root: looked at in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

STRANGER = 65534  # nobody


def as_stranger(look: Callable[[str, Any], None], folder: Path) -> dict[str, Any]:
    """What ``look(folder, result)`` puts into ``result`` as JSON; it changes the user to ``STRANGER`` itself.

    Meanwhile the folder lies elsewhere: where pytest keeps it nobody else may go, and whoever opens that for others sees
    it closed again by the next run of pytest that begins on this machine.
    """
    with tempfile.TemporaryDirectory() as open_folder:
        Path(open_folder).chmod(0o755)
        place = Path(open_folder, folder.name)
        folder.rename(place)
        try:
            context = multiprocessing.get_context("spawn")
            result = context.Queue()
            process = context.Process(target=look, args=(str(place), result))
            process.start()
            found = json.loads(result.get(timeout=240))
            process.join()
        finally:
            place.rename(folder)
    return found
