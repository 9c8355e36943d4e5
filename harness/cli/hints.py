"""Commands that a message suggests, written so that they can be pasted into a shell."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from harness.cli.plain_text import neutral_line
from harness.cli.shelf import ROOT_VARIABLE, Place, places_in

SHORTEST = 8


def command_for(command: str, place: Place, *words: str, root: Path | None) -> str:
    """The command line that runs ``command`` on the session at ``place``.

    ``root`` is what was given with ``--root``; it is repeated where the environment does not say the same.
    """
    session = place.name if place.root is None else shortest_name(place)
    in_file = place.root is None and command == "chat"
    line = ["branchline", command, *(["--file"] if in_file else ["--session"] if command == "chat" else []), session]
    if place.root is not None and root is not None and str(root) != os.environ.get(ROOT_VARIABLE):
        words = (*words, "--root", str(root))
    return neutral_line(shlex.join([*line, *words]))


def shortest_name(place: Place) -> str:
    """The shortest beginning of a session's id that no other session on its shelf has, at least ``SHORTEST`` long."""
    others = [each.name for each in places_in(place.root) if each.name != place.name] if place.root is not None else []
    for length in range(SHORTEST, len(place.name)):
        if not any(each.startswith(place.name[:length]) for each in others):
            return place.name[:length]
    return place.name
