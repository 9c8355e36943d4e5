"""One shell command with all that it starts, from its beginning to its end. Blocking code, for a thread of its own."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from harness.tools.process_session import kill_session, wait_for_session

_CHUNK_BYTES = 1 << 16
_SHORTEST_LOOK = 0.001
_LONGEST_LOOK = 0.05
_REST_SECONDS = 0.2
_LEAVE_SECONDS = 0.1
_MOST_DRAINED_BYTES = 1 << 22
_REAP_SECONDS = 1.0

HowEnded = Literal["exit", "timeout", "output limit", "stopped"]


class OutputSink(Protocol):
    """**Protocol:** takes what a command writes, as it comes."""

    def write(self, data: bytes) -> bool:
        """Take a piece. ``False``: that is enough, stop the command."""
        ...

    def look(self) -> None:
        """Called again and again while the command runs, whether it writes or not."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. All its processes are gone by then."""

    how: HowEnded
    seconds: float
    exit_code: int | None = None
    """The shell's, unless a signal ended it or it was killed."""
    signal: str | None = None
    """The name of the signal that ended the shell, unless that was ours."""
    left_behind: int = 0
    """Processes that still ran when the shell had ended; they were killed."""


class ShellCommand:
    """``run`` runs it, in a thread; ``stop`` ends it, from any other.

    Standard output and standard error are one pipe, so that they keep their order; standard input is empty. The command
    is a session of its own (no terminal, no Ctrl-C). When ``run`` returns or raises, all processes of that session were
    killed with SIGKILL. A process that made a session of its own (``setsid``) is out of reach.
    """

    def __init__(
        self, arguments: list[str], *, folder: Path, environment: Mapping[str, str], timeout: float, sink: OutputSink
    ) -> None:
        self._arguments = arguments
        self._folder = folder
        self._environment = environment
        self._timeout = timeout
        self._sink = sink
        self._lock = threading.Lock()
        self._stopped = False
        self._state: Literal["new", "running", "over"] = "new"
        self._waker: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether its thread is at work. After ``stop`` it does not begin any more."""
        return self._state == "running"

    def stop(self) -> None:
        """Have it killed at once. Returns without waiting; idempotent, and fine before the start and after the end."""
        with self._lock:
            self._stopped = True
            if self._waker is not None:
                os.write(self._waker, b"!")

    def run(self) -> Ended:
        """Run it to its end, or until its time is over, its sink has enough, or ``stop`` was called.

        Raises:
            OSError: the shell could not be started, or what the sink raises.
        """
        begun = time.monotonic()
        with self._lock:
            if self._stopped:
                return Ended("stopped", 0.0)
            self._state = "running"
            woken, self._waker = os.pipe()
        try:
            return self._run(begun, woken)
        finally:
            with self._lock:
                waker, self._waker = self._waker, None
            os.close(woken)
            os.close(waker)
            self._state = "over"

    def _run(self, begun: float, woken: int) -> Ended:
        output, written = os.pipe()
        try:
            try:
                process = subprocess.Popen(  # noqa: S603 - running what it is given is what this is for
                    self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    cwd=self._folder,
                    env=self._environment,
                    start_new_session=True,
                )
            finally:
                os.close(written)
            killed: set[int] = set()
            how: HowEnded = "stopped"
            try:
                how = self._watch(process, begun + self._timeout, output, woken)
                if how == "exit":
                    # What is just about to end by itself was not left behind.
                    wait_for_session(process.pid, _LEAVE_SECONDS)
            finally:
                killed = kill_session(process.pid)
                exit_code = _reap(process)
            self._drain(output)
        finally:
            os.close(output)
        seconds = time.monotonic() - begun
        if how != "exit":
            return Ended(how, seconds)
        left_behind = len(killed - {process.pid})
        if exit_code is not None and exit_code < 0:
            return Ended(how, seconds, signal=_signal_name(-exit_code), left_behind=left_behind)
        return Ended(how, seconds, exit_code=exit_code, left_behind=left_behind)

    def _watch(self, process: subprocess.Popen[bytes], deadline: float, output: int, woken: int) -> HowEnded:
        """Hand on what comes until it is over, one way or another."""
        os.set_blocking(output, False)
        exited: float | None = None
        pause = _SHORTEST_LOOK
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            is_open = True
            while True:
                self._sink.look()
                now = time.monotonic()
                if self._stopped:
                    return "stopped"
                if exited is None and _has_exited(process):
                    exited = now
                # What the shell left in the background may keep the pipe open for ever.
                if exited is not None and (not is_open or now >= exited + _REST_SECONDS):
                    return "exit"
                if now >= deadline:
                    return "timeout"
                ready = selector.select(min(pause, deadline - now))
                pause = min(_LONGEST_LOOK, pause * 2)
                if any(key.fd == output for key, _ in ready):
                    pause = _SHORTEST_LOOK
                    data = os.read(output, _CHUNK_BYTES)
                    if not data:
                        selector.unregister(output)
                        is_open = False
                    elif not self._sink.write(data):
                        return "output limit"

    def _drain(self, output: int) -> None:
        """What is still in the pipe; not for ever, since a process out of reach may go on writing."""
        left = _MOST_DRAINED_BYTES
        while left > 0 and not self._stopped:
            try:
                data = os.read(output, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not data or not self._sink.write(data):
                return
            left -= len(data)


def shell_arguments(command: str, find: Callable[[str], bool] = os.path.exists) -> list[str]:
    """What runs ``command``: bash where it is, else the system's sh."""
    shell = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if find(path)), "/bin/sh")
    return [shell, "-c", command]


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether the shell ended. It is not waited for yet where that can be had, so that its number stays taken."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # somebody else in this program waits for every child


def _reap(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        return None  # the system does not let go of it (a dead network disk)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
