"""Threads of the log's own, for what blocks: a shared limiter can be full of tools that themselves wait for the log.

A worker waits for its next job a little while and then ends, so that an idle process keeps no threads. A job always runs
to its end; its outcome is published by the worker itself, before any task can see it, and whatever befalls the task.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_IDLE_SECONDS = 10.0

_idle: list[_Worker] = []


class _Worker:
    """One daemon thread with a mailbox."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[tuple[Callable[[], None], Callable[[], object]]] = SimpleQueue()
        threading.Thread(target=self._run, name="branchline worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                job, then = self.jobs.get(timeout=_IDLE_SECONDS)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    continue  # taken out of the list this moment: a job is on its way
                return
            job()
            # Idle before anybody is told: whoever hears of it may have the next job at once, and needs no other thread.
            _idle.append(self)
            then()
            del job, then


def submit(job: Callable[[], None], then: Callable[[], object]) -> None:
    """Run ``job`` in a worker thread, at once, and ``then`` in the same: it tells those who wait, and is quick.

    A new thread is made if none is idle. Neither may raise.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        try:
            worker = _Worker()
        except RuntimeError:
            # The system gives no more threads. A pause of the event loop is better than that nobody ever settles the job.
            job()
            then()
            return
    worker.jobs.put((job, then))


if hasattr(os, "register_at_fork"):
    # The threads do not exist in a forked child.
    os.register_at_fork(after_in_child=_idle.clear)
