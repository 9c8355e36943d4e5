"""Commands that a message suggests, written so that they can be pasted into a shell."""

from __future__ import annotations

import os
import shlex

from harness.cli.places import ROOT_VARIABLE, Place, without_password
from harness.cli.plain_text import neutral_line

SHORTEST = 8


def command_for(command: str, place: Place, *words: str, root: str | None) -> str:
    """The command line that runs ``command`` on the session at ``place``.

    ``root`` is what was given with ``--root``; it is repeated, without a password, where the environment does not say the
    same.
    """
    session = shortest_name(place)
    in_file = place.section is None and command == "chat"
    line = ["branchline", command, *(["--file"] if in_file else ["--session"] if command == "chat" else []), session]
    if place.section is not None and root is not None and root != os.environ.get(ROOT_VARIABLE):
        line += ["--root", without_password(root)]
    return neutral_line(shlex.join([*line, *words]))


def shortest_name(place: Place) -> str:
    """The shortest beginning of an id that no other session in its folder has; in a database, which is not asked, all of it.

    At least ``SHORTEST`` characters long.
    """
    if place.section is None or place.path is None:
        return place.name
    try:
        others = [
            each.name for each in place.path.parent.iterdir() if not each.name.startswith((f"{place.name}.", "."))
        ]
    except OSError:
        return place.name
    others = [name for name in others if name != place.name]
    for length in range(SHORTEST, len(place.name)):
        if not any(each.startswith(place.name[:length]) for each in others):
            return place.name[:length]
    return place.name
