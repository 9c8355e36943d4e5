"""What is in force at an entry: for each thing, where on its path it was said last."""

from __future__ import annotations

from typing import Final, NamedTuple

NONE: Final = -1
"""No entry: the parent of a root."""


class State(NamedTuple):
    """What is in force at an entry: for each thing the ``seq`` of the newest entry on its path that sets it, or ``NONE``."""

    compaction: int = NONE
    model: int = NONE
    thinking_level: int = NONE
    active_tools: int = NONE
    request_header: int = NONE
    working_memory: int = NONE
    edit: int = NONE
    system: int = NONE
    """The newest system message (pi-coding-agent's way to record prompt and tools)."""
    unknown: int = NONE
    broken: int = NONE
    """The entry on this path whose parent is not there."""
    turn: int = NONE
    """The ``turn_start`` of the turn that is open here."""
    turns: int = 0
    """How many turns began on this path."""
    queue: int = NONE
    """The newest entry that put a message in the queue of this path, or may have taken one out."""


ROOT: Final = State()
"""Before the first entry."""
