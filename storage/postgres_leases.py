"""The one writer's right to a session in a database: a row that is held for a while, with a number that fences (R12).

Who holds a row renews it long before its time is over; when its owner dies, another takes it over as soon as that time
is over, or at once if it can see that the owner is dead (the same machine). Nobody's clock counts but the server's, and
no promise rests on it: each statement that writes compares the fence, which every new holder raises.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from storage.entries import iso_timestamp
from storage.errors import SessionLockedError, StaleSessionError
from storage.postgres_schema import GIVE_UP, MOVE_FENCE, RECOUNT, RENEW, TAKE, WHO, run_past_locks, waiting
from storage.postgres_wire import (
    Connection,
    ConnectionLost,
    Refused,
    Value,
    bigint,
    bigints,
    boolean,
    number,
    text,
    transaction,
    uuids,
)

if TYPE_CHECKING:
    from storage.postgres_pool import Pool

_RENEWALS: Final = 3
"""How often a lease is renewed in its time."""

_IMPATIENT_SECONDS: Final = 1.0
_ROW_SECONDS: Final = 0.25
"""How long the renewal of one lease waits for its row: in the queue behind an append, it has its turn in that time."""

_NOT_IN_TIME: Final = ("55P03", "57014")
"""SQLSTATEs of what the server gave up: a lock was not free in time, a statement took too long."""

_held: set[bytes] = set()
"""The secrets of this process's leases. One that says it is this process's and is not among them, nobody has any more."""


class Lease:
    """The right to write one session. ``fence`` is what each of its appends is compared with.

    ``size`` is the session's, in bytes, as a listing counts them. Its row is told it from time to time.
    """

    def __init__(self, session: bytes, holder: bytes, fence: int, size: int) -> None:
        """Use ``take``, or ``storage.postgres_sessions.create``."""
        self.session = session
        self.holder = holder
        self.fence = fence
        self.size = size
        self.is_counted = True
        """Whether that is known: not after an append whose outcome is not."""
        self._process = os.getpid()
        self._wrote_at = 0.0

    @property
    def ours(self) -> bool:
        """Whether it is this process's: not in a forked child, where it stays the parent's."""
        return self._process == os.getpid()

    def wrote(self, size: int) -> None:
        """So many bytes were written now. One append of a session is under way at a time."""
        self._wrote_at = time.monotonic()
        self.size += size

    @property
    def age(self) -> int:
        """How many microseconds ago that was."""
        return int((time.monotonic() - self._wrote_at) * 1_000_000)


def take(connection: Connection, session: bytes, holder: bytes, seconds: int, *, place: str) -> Lease | None:
    """The writer's place of ``session``; ``None`` if there is no such session.

    ``holder``: a new secret. Asked again with the same one after its outcome got lost, it finds that the place is its own.
    Raises ``SessionLockedError``, whose ``details["owner"]`` names the holder.
    """
    dead: Value = None
    while True:
        rows = connection.run(TAKE, session, holder, text(this_owner()), bigint(seconds), dead)
        if rows:
            size = rows[0][2]
            if rows[0][1] is not None:  # the last writer died, and what it told its row last is not the end
                size = (connection.run(RECOUNT, session, holder) or [(size,)])[0][0]
            return Lease(session, holder, number(rows[0][0]), number(size))
        rows = connection.run(WHO, session)
        if not rows:
            return None
        other, name = rows[0]
        if other is None or other == holder:
            dead = other  # it became free this moment, or is ours: an answer got lost on its way
            continue
        owner = _parsed(name)
        if dead == other or not (is_dead(owner) or (_is_this_process(owner) and other not in _held)):
            raise locked(owner, place)
        dead = other


def move_fence(connection: Connection, lease: Lease, seconds: int, *, durable: bool) -> bool:
    """Raise the lease's fence, after whatever of its statements is under way; false if the lease is another's by now."""
    rows = connection.run(MOVE_FENCE, lease.session, lease.holder, bigint(seconds), boolean(durable))
    if rows:
        lease.fence = number(rows[0][0])
    return bool(rows)


def renew_leases(connection: Connection, leases: Sequence[Lease], seconds: int, statement: str = RENEW) -> set[Value]:
    """Renew those that are still theirs and, by this ``statement``, that nobody has locked; the keys of their sessions."""
    rows = run_past_locks(
        connection,
        statement,
        uuids([lease.session for lease in leases]),
        uuids([lease.holder for lease in leases]),
        bigints([lease.size for lease in leases]),
        bigints([lease.age for lease in leases]),
        bigint(seconds),
    )
    return {row[0] for row in rows}


def renew_in_turn(connection: Connection, lease: Lease, seconds: int, *, patience: float, deadline: float) -> bool:
    """Renew one, waiting for its row at most ``patience`` seconds; false if it could not be had in that time.

    ``deadline``: after so many seconds an engine gives up that does not know how to wait for a lock for a while only.
    """
    try:
        with transaction(connection):
            connection.run(
                "SELECT set_config('lock_timeout', $1::text, true), set_config('statement_timeout', $2::text, true)",
                text(f"{max(1, round(patience * 1000))}"),
                text(f"{max(1, round(deadline * 1000))}"),
            )
            renew_leases(connection, [lease], seconds, waiting(RENEW))
    except Refused as refused:
        if refused.sqlstate not in _NOT_IN_TIME:
            raise
        return False
    return True


def give_up(connection: Connection, lease: Lease) -> None:
    """Let the next writer in."""
    if not lease.is_counted and (rows := connection.run(RECOUNT, lease.session, lease.holder)):
        lease.size = number(rows[0][0])
    connection.run(GIVE_UP, lease.session, lease.holder, bigint(lease.size), bigint(lease.age))


def locked(owner: dict[str, Any], place: str) -> SessionLockedError:
    """The error for who came second."""
    here = is_this_machine(owner) and owner.get("pid") == os.getpid()
    name = f"process {owner.get('pid')!s:.20} on {owner.get('host')!s:.100}" + (", this one," if here else "")
    return SessionLockedError(
        f"the session is being written by {name} since {owner.get('since')!s:.40}; end that writer, wait for it "
        "(lock_timeout=seconds), or open the session for reading (mode='read')",
        path=place,
        owner=owner,
    )


def taken_over(connection: Connection, lease: Lease, first: int, *, place: str) -> StaleSessionError:
    """Why the database took nothing: looked up afterwards, for the message only."""
    rows = connection.run(
        "SELECT s.holder, s.owner, coalesce((SELECT max(e.seq) + 1 FROM branchline_entries e WHERE e.session = s.session), "
        "s.first) FROM branchline_sessions s WHERE s.session = $1::uuid",
        lease.session,
    )
    if not rows:
        why = "the session was deleted"
    elif rows[0][0] != lease.holder:
        owner = _parsed(rows[0][1])
        who = f" by process {owner.get('pid')!s:.20} on {owner.get('host')!s:.100}" if owner else ""
        why = f"the session was taken over{who}, for this writer had not been heard of for too long"
    else:
        why = f"the next entry of this session is {number(rows[0][2])}, not {first}"
    return StaleSessionError(f"{why}; nothing was written; open the session anew", path=place)


# --- who an owner is


def new_holder() -> bytes:
    """The secret of a lease. Until it is forgotten, this process has what is held with it."""
    holder = uuid.uuid4().bytes
    _held.add(holder)
    return holder


def forget(holder: bytes) -> None:
    """Nobody here has that lease any more. If the database could not be told, the next writer here takes it over at once."""
    _held.discard(holder)


@contextlib.contextmanager
def forgotten_on_error(holder: bytes) -> Generator[None]:
    """Forget ``holder`` if no lease comes of it."""
    try:
        yield
    except BaseException:
        forget(holder)
        raise


def this_owner() -> str:
    """This process, as others read it: JSON with ``pid``, ``host``, ``since``, and what tells whether it still runs."""
    return json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": iso_timestamp(),
            "machine": _machine(),
            "started": _started(os.getpid()),
        }
    )


def is_dead(owner: dict[str, Any]) -> bool:
    """Whether that process is known to have ended. Of another machine's processes nothing is known."""
    pid = owner.get("pid")
    if not is_this_machine(owner) or not isinstance(pid, int) or pid <= 0:
        return False
    started = _started(pid)
    if started is not None:
        return isinstance(owner.get("started"), int) and started != owner["started"]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _is_this_process(owner: dict[str, Any]) -> bool:
    here = os.getpid()
    return is_this_machine(owner) and owner.get("pid") == here and owner.get("started") == _started(here)


def is_this_machine(owner: dict[str, Any]) -> bool:
    """Whether its process numbers mean ours: the same boot of the same kernel, the same space of numbers."""
    machine = _machine()
    return machine is not None and owner.get("machine") == machine


def _machine() -> str | None:
    if sys.platform != "linux":
        return None  # host names are not unique; there its time has to run out
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """When that process began, in ticks since the machine did; ``None`` if it is over or not to be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A process that ended and was not waited for yet is dead, too.
    return int(fields[19]) if fields[0] not in (b"Z", b"X") else -1


def _parsed(name: Value) -> dict[str, Any]:
    try:
        loaded: object = json.loads(name or b"{}")
    except ValueError:
        loaded = None
    return cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}


class Keeper:
    """Renews the leases of a pool, in a thread that lives as long as there are any.

    One statement renews all whose rows nobody has locked. Those that it passed over are waited for one by one, each for a
    moment (its own append may have it), and are tried again soon: whoever locks a row, and however long, holds up that
    session alone.
    """

    def __init__(self, pool: Pool) -> None:
        """Nothing to renew yet."""
        self._pool = weakref.ref(pool)
        self._every = pool.settings.lease_seconds / _RENEWALS
        self._soon = min(self._every, _IMPATIENT_SECONDS)
        self._leases: dict[bytes, Lease] = {}
        # Held by a thread as often as it likes: the garbage collector may come in the middle, and close what was dropped.
        self._guard = threading.RLock()
        self._running = False
        self._ended = threading.Event()

    def add(self, lease: Lease) -> None:
        """Renew it from now on."""
        with self._guard:
            self._leases[lease.holder] = lease
            if not self._running:
                ended = self._ended = threading.Event()
                thread = threading.Thread(
                    target=_keep, args=(self, ended, self._every, self._soon), name="branchline leases", daemon=True
                )
                # The system may give no more threads: it is tried again with the next session, and the fence decides.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._running = True

    def remove(self, lease: Lease) -> None:
        """Renew it no more."""
        with self._guard:
            self._leases.pop(lease.holder, None)
            if not self._leases:
                self._running = False
                self._ended.set()

    def stopped(self, ended: threading.Event) -> None:
        """The thread that was to end with ``ended`` is over, whatever ended it."""
        with self._guard:
            if self._ended is ended:
                self._running = False

    def renew(self, late: Sequence[Lease] | None = None) -> Sequence[Lease]:
        """Renew all leases, or those that were ``late`` before; the ones that are late now, first those not waited for yet.

        Raises ``ConnectionLost`` and ``Refused``: it is not known which were renewed, and the same are tried again soon.
        """
        pool = self._pool()
        with self._guard:
            leases = [*self._leases.values()] if late is None else [one for one in late if one.holder in self._leases]
        if pool is None or not leases:
            return ()
        seconds = pool.settings.lease_seconds
        with self._connection(pool) as connection:
            renewed = renew_leases(connection, leases, seconds)
        left = deque(lease for lease in leases if lease.session not in renewed)
        waited_for: list[Lease] = []
        patience = min(_ROW_SECONDS, self._every / 4)
        until = time.monotonic() + self._soon
        while left and time.monotonic() < until:
            with self._connection(pool) as connection:
                if not renew_in_turn(connection, left[0], seconds, patience=patience, deadline=self._every):
                    waited_for.append(left[0])
            left.popleft()
        return (*left, *waited_for)

    @contextlib.contextmanager
    def _connection(self, pool: Pool) -> Generator[Connection]:
        """One of the pool's; one beside those if all are in use, each by a statement that waits for a lock, say."""
        until = time.monotonic() + self._soon
        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(pool.connection(until, free_until=until))
            except ConnectionLost:
                connection = stack.enter_context(pool.extra_connection())
            yield connection


def _keep(keeper: Keeper, ended: threading.Event, every: float, soon: float) -> None:
    late: Sequence[Lease] = ()
    due = time.monotonic() + every
    wait = every
    try:
        while not ended.wait(wait):
            all_are_due = time.monotonic() >= due
            wait = soon
            # Not to be heard of for a while loses nothing: the fence decides, and appends say what is wrong.
            with contextlib.suppress(ConnectionLost, Refused):
                late = keeper.renew(None if all_are_due else late)
                if all_are_due:
                    due = time.monotonic() + every
                wait = max(0.0, due - time.monotonic())
                if late:
                    wait = min(wait, soon)
    finally:
        keeper.stopped(ended)
