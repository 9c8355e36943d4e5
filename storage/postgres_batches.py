"""Appends of many sessions in one statement: whoever comes while one is under way goes along with the next (R8).

Each session's commit is one thread that blocks. The first of them sends what has gathered, its own and the others', in
one round trip with one sync, and hands on to the next. What becomes of each session is decided for itself: one that was
taken over writes nothing, and the others do not notice.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from storage.errors import CommitFailed, StaleSessionError, StorageError
from storage.postgres_leases import Lease, move_fence, taken_over
from storage.postgres_schema import APPEND, APPEND_ONE, PAGE, run_past_locks, untold, waiting
from storage.postgres_wire import (
    Connection,
    ConnectionLost,
    Refused,
    Value,
    bigint,
    bigints,
    boolean,
    byteas,
    uuids,
)
from storage.protocols import Record

if TYPE_CHECKING:
    from storage.postgres_pool import Pool

_AGAIN: Final = ("40001", "40P01")
"""SQLSTATEs that say: nothing was done, try once more (serialisation, deadlock)."""

_PASSING: Final = (*_AGAIN, "25006", "55P03", "57014")
"""Those, and what a server says that is read-only, or has waited too long for a lock: another one may say more, or later."""

_DUPLICATE: Final = "23505"
_ALL_BYTES: Final = bigint(1 << 62)
_ATTEMPTS: Final = 10
_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_RECORDS: Final = 1024
_AT_ONCE: Final = 2
"""How many statements of a pool are under way at the same time: while one waits for its sync, the next is prepared."""

_PAUSE: Final = 0.05
_SHORTEST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5


class _NotSent(Exception):  # noqa: N818
    """There was no connection to send it on."""


class _Job:
    """One session's batch, and what became of it."""

    __slots__ = ("alone", "durable", "error", "lease", "passed_over", "records", "size", "turn", "written")

    def __init__(self, lease: Lease, records: Sequence[Record], durable: bool, alone: bool) -> None:
        self.lease = lease
        self.records = records
        self.durable = durable
        self.alone = alone
        """Whether it has to go in a statement of its own: the last connection may have been lost on account of it."""
        self.size = sum([len(record.data) for record in records])
        self.written: bool | None = None
        """Whether the database took it; ``None``: not tried yet, or not known."""
        self.error: Exception | None = None
        self.passed_over = False
        """Whether its row was locked by somebody, or is not as it should be: its own thread finds out which."""
        self.turn = threading.Lock()
        """Free when it is decided, was passed over, or when its own thread has to send it."""
        self.turn.acquire()

    @property
    def is_decided(self) -> bool:
        return self.written is not None or self.error is not None


class Batches:
    """The appends of one pool."""

    def __init__(self, pool: Pool) -> None:
        """Nothing waits."""
        self._place = pool.place
        self._together = pool.settings.together
        self._statements = (APPEND_ONE, APPEND)
        self._waiting: deque[_Job] = deque()
        self._sending = 0
        self._at_once = _AT_ONCE if self._together else pool.settings.connections
        self._guard = threading.RLock()  # as the one of the leases

    def tell_nobody(self) -> None:
        """The server cannot tell news: its appends must not ask for it."""
        self._statements = (untold(APPEND_ONE), untold(APPEND))

    def commit(self, pool: Pool, lease: Lease, records: Sequence[Record], *, durable: bool) -> None:
        """Write ``records``; they are as durable as asked when this returns.

        Raises ``CommitFailed`` (nothing is there), ``StaleSessionError`` (nothing is there, and another writes), and
        ``StorageError`` when the connection was lost on the way and nobody could be asked in time what became of it.
        """
        until = pool.deadline()
        attempts = _ATTEMPTS
        while True:
            job = _Job(lease, records, durable, alone=attempts < _ATTEMPTS)
            self._send(pool, job, until)
            if job.written or (isinstance(job.error, ConnectionLost) and self._is_there(pool, job, until)):
                lease.wrote(job.size + len(records))
                return
            if not isinstance(job.error, ConnectionLost):
                raise self._failure(pool, job)
            attempts -= 1
            if not attempts or time.monotonic() > until:  # the server or somebody on the way dies of it, say
                raise self._failed(f"the connection was lost each time: {job.error}", job.error.__cause__)
            time.sleep(_PAUSE)

    # --- sending

    def _send(self, pool: Pool, job: _Job, until: float) -> None:
        """Have the job tried: by this thread, or by another that sends."""
        with self._guard:
            leads = self._sending < self._at_once
            if leads:
                self._sending += 1
            else:
                self._waiting.append(job)
        if not leads:
            job.turn.acquire()
            leads = not job.is_decided and not job.passed_over
        if leads:
            self._lead(pool, job, until)
        if job.passed_over:
            # Not as one of those that are under way at the same time, or two locked rows would hold up everybody.
            self._try(pool, [job], until)

    def _lead(self, pool: Pool, job: _Job, until: float) -> None:
        """Send it, together with those who wait, and hand on."""
        jobs = [job]
        try:
            self._gather(jobs)
            self._try(pool, jobs, until)
        except BaseException as error:
            for one in jobs:
                if not one.is_decided and not one.passed_over:
                    one.error = StorageError(f"the append was interrupted: {error!r}", path=self._place)
            raise
        finally:
            for one in jobs[1:]:
                one.turn.release()
            self._hand_on()

    def _gather(self, jobs: list[_Job]) -> None:
        """Add those who wait, as many as fit into one statement, and of one session one."""
        size, count = jobs[0].size, len(jobs[0].records)
        sessions = {jobs[0].lease.session}
        with self._guard:
            while self._waiting and self._together and not jobs[0].alone:
                job = self._waiting[0]
                size += job.size
                count += len(job.records)
                if size > _MOST_BYTES or count > _MOST_RECORDS or job.alone or job.lease.session in sessions:
                    break
                sessions.add(job.lease.session)
                jobs.append(self._waiting.popleft())

    def _hand_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().turn.release()  # undecided: its thread sends it, and who waits behind it
            else:
                self._sending -= 1

    def _try(self, pool: Pool, jobs: list[_Job], until: float) -> None:
        attempts = _ATTEMPTS
        while True:
            try:
                with pool.connection(until) as connection:
                    written = self._append(connection, jobs)
            except ConnectionLost as lost:
                if not lost.sent and time.monotonic() < until:
                    continue
                for job in jobs:
                    job.error = lost if lost.sent else _not_sent(lost)
                return
            except Refused as refused:
                attempts -= 1
                if refused.sqlstate in _AGAIN and attempts:
                    give_way(_ATTEMPTS - attempts)
                    continue
                if len(jobs) > 1:
                    for job in jobs:  # one of them is the reason, and only that one shall fail
                        self._try(pool, [job], until)
                elif refused.sqlstate == _DUPLICATE:
                    jobs[0].written = False
                else:
                    jobs[0].error = refused
                return
            for job in jobs:
                if job.lease.session in written:
                    job.written = True
                elif job.passed_over:
                    job.written = False
                else:
                    job.passed_over = True
            return

    def _append(self, connection: Connection, jobs: Sequence[_Job]) -> set[Value]:
        """Send it, by the statement for one session or the one for several; the keys of the sessions that were written."""
        one, several = self._statements
        durable = boolean(any(job.durable for job in jobs))
        places = bigints([record.seq for job in jobs for record in job.records])
        lines = byteas([record.data for job in jobs for record in job.records])
        lease = jobs[0].lease
        if len(jobs) == 1:
            first = bigint(jobs[0].records[0].seq)
            values = (lease.session, bigint(lease.fence), first, places, lines, durable)
            if jobs[0].passed_over:
                rows = connection.run(waiting(one), *values, prepared=True)
            else:
                rows = run_past_locks(connection, one, *values, prepared=True)
        else:
            rows = run_past_locks(
                connection,
                several,
                uuids([job.lease.session for job in jobs]),
                bigints([job.lease.fence for job in jobs]),
                bigints([job.records[0].seq for job in jobs]),
                uuids([job.lease.session for job in jobs for _ in job.records]),
                places,
                lines,
                durable,
                prepared=True,
            )
        return {row[0] for row in rows}

    # --- what became of it

    def _failure(self, pool: Pool, job: _Job) -> Exception:
        error = job.error
        if error is None:
            return self._why_not(pool, job)
        if isinstance(error, Refused):
            return self._failed(f"the database refused: {error}", error.error, sqlstate=error.sqlstate)
        if isinstance(error, _NotSent):
            return self._failed(f"the database cannot be reached: {error}", error.__cause__)
        return error

    def _failed(self, why: str, cause: BaseException | None, **details: Any) -> CommitFailed:
        """The error for what is known not to be there. Its cause, which the writes are told, says so in our words."""
        told = StorageError(f"{why}; nothing was written; try again", path=self._place, **details)
        told.__cause__ = cause
        failed = CommitFailed(told.message, committed=0, path=self._place)
        failed.__cause__ = told
        return failed

    def _why_not(self, pool: Pool, job: _Job) -> StaleSessionError:
        first = job.records[0].seq
        try:
            return pool.call(lambda connection: taken_over(connection, job.lease, first, place=self._place))
        except StorageError:
            return StaleSessionError(
                "the session was taken over, changed or deleted by someone else; nothing was written; open the session anew",
                path=self._place,
            )

    def _is_there(self, pool: Pool, job: _Job, until: float) -> bool:
        """Whether a batch whose connection was lost has been committed; if not, it never will be.

        The fence is moved first: that waits for a statement of ours that is still under way on the server, and shuts out
        one that has not begun. Then what is there, byte for byte, is the answer.
        Raises ``StaleSessionError``, and ``StorageError`` if nobody could be asked until then.
        """
        lease, records = job.lease, job.records
        count = bigint(len(records))
        begin, end = bigint(records[0].seq), bigint(records[-1].seq + 1)
        while True:
            try:
                with pool.connection(until) as connection:
                    ours = move_fence(connection, lease, pool.settings.lease_seconds, durable=job.durable)
                    found = [row[1] for row in connection.run(PAGE, lease.session, begin, end, count, _ALL_BYTES)]
                break
            except (ConnectionLost, Refused) as error:
                passing = isinstance(error, ConnectionLost) or error.sqlstate in _PASSING
                if not passing or time.monotonic() > until:
                    lease.is_counted = False
                    raise StorageError(
                        f"the connection was lost ({job.error}) while {len(records)} entries were being written, and within "
                        f"{pool.settings.answer_seconds:g} s nobody could be asked whether they are there: {error}; open "
                        "the session anew to see",
                        path=self._place,
                    ) from job.error
            time.sleep(_PAUSE)
        if found == [record.data for record in records]:
            return True
        if not ours or found:
            raise self._why_not(pool, job)
        return False


def give_way(attempt: int) -> None:
    """Pause after that many attempts, by chance not as long as those whom one met."""
    longest = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(attempt, _ATTEMPTS))
    time.sleep(random.uniform(0, longest))  # noqa: S311 - no secret


def _not_sent(lost: ConnectionLost) -> _NotSent:
    error = _NotSent(str(lost))
    error.__cause__ = lost.__cause__ or lost
    return error
