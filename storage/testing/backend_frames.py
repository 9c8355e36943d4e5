"""Where in a backend something happened: the line that its author should look at."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence

import storage


def _folders(*names: str) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in names)


_OTHERS = (*_folders("stdlib"), os.path.join(os.path.realpath(os.path.dirname(storage.__file__)), ""))
"""Python's own, and ours: a line that cannot be read is found by us, and given by the backend."""

_INSTALLED = _folders("purelib", "platlib")
_CALLER = os.path.join(os.path.dirname(__file__), "watched_storage.py")
"""From there every call of a backend is made: what lies below it is the backend's."""


def place_in_backend(frames: Sequence[traceback.FrameSummary]) -> str:
    """Function, file and line of the innermost of ``frames`` (outermost first) that is the backend's own; "" without one.

    One that is installed, as its driver is, is told by its outermost line.
    """
    places = [place for place, frame in enumerate(frames) if frame.filename == _CALLER]
    own: list[traceback.FrameSummary] = []
    installed: list[traceback.FrameSummary] = []
    for frame in frames[places[-1] + 1 :] if places else frames:
        path = os.path.realpath(frame.filename)
        if path.startswith(_INSTALLED):
            installed.append(frame)
        elif os.path.exists(path) and not path.startswith(_OTHERS):
            own.append(frame)
    found = own[-1:] or installed[:1]
    return "".join(f"{frame.name}(), {os.path.basename(frame.filename)} line {frame.lineno}" for frame in found)


def place_of_error(error: BaseException) -> str:
    """Where the first cause of ``error`` was raised, if that was in a call of the backend."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    traces = [traceback.extract_tb(one.__traceback__) for one in chain]
    is_backends = any(frame.filename == _CALLER for trace in traces for frame in trace[:-1])
    return place_in_backend(traces[-1]) if is_backends else ""
