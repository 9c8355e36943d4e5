"""Threads of the log's own, for what blocks: a shared limiter can be full of tools that themselves wait for the log.

A worker waits for its next job a little while and then ends, so that an idle process keeps no threads. A job always runs
to its end; its outcome is published by the worker itself, before any task can see it, and whatever befalls the task.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_IDLE_SECONDS = 10.0

_idle: list[_Worker] = []


class _Worker:
    """One daemon thread with a mailbox."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="branchline worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=_IDLE_SECONDS)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    continue  # taken out of the list this moment: a job is on its way
                return
            job()
            _idle.append(self)
            del job


def submit(job: Callable[[], Any]) -> None:
    """Run ``job`` in a worker thread, at once: a new thread is made if none is idle. ``job`` must not raise."""
    try:
        worker = _idle.pop()
    except IndexError:
        try:
            worker = _Worker()
        except RuntimeError:
            # The system gives no more threads. A pause of the event loop is better than that nobody ever settles the job.
            job()
            return
    worker.jobs.put(job)


if hasattr(os, "register_at_fork"):
    # The threads do not exist in a forked child.
    os.register_at_fork(after_in_child=_idle.clear)
