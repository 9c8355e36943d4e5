"""The processes of one session of the system: a command's shell and whatever it started, unless that left the session.

A process group is not enough: ``timeout`` and shells with job control put what they run into groups of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_PATIENCE = 0.5
_PAUSE = 0.001


def kill_session(session: int) -> set[int]:
    """SIGKILL every process of ``session``, and wait (half a second at most) until none of them runs any more.

    Returns the ids of those that ran. Its leader must not have been waited for yet, so that no other session can have
    its number. Those that we may not kill (run by sudo) are left.
    """
    killed: set[int] = set()
    found = _running(session)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)  # also where processes cannot be listed
    until = time.monotonic() + _PATIENCE
    while True:
        # Whoever was started since the last look is killed now.
        for process in found - killed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        killed |= found
        if not found or time.monotonic() > until:
            return killed
        time.sleep(_PAUSE)
        found = _running(session)


def wait_for_session(session: int, seconds: float) -> None:
    """Wait until no process of ``session`` runs any more, for so long at most."""
    until = time.monotonic() + seconds
    while _running(session) and time.monotonic() < until:
        time.sleep(_PAUSE)


def _running(session: int) -> set[int]:
    found: set[int] = set()
    for process in _processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process) == session and not _is_zombie(process):
                found.add(process)
    return found


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - names are all it takes
    except FileNotFoundError:  # macOS has no /proc
        return [int(word) for word in _ps("-A", "-o", "pid=").split()]


def _is_zombie(process: int) -> bool:
    """Whether it ended, and only waits for its parent to look."""
    try:
        known = Path(f"/proc/{process}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return Path("/proc/self").exists() or _ps("-o", "stat=", "-p", str(process)).strip()[:1] in (b"Z", b"")
    # The name of the program, in parentheses, may hold anything.
    return known.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])


def _ps(*options: str) -> bytes:
    try:
        return subprocess.run(["/bin/ps", *options], capture_output=True, check=False).stdout  # noqa: S603 - the system's
    except OSError:
        return b""
