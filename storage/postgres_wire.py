"""One connection to PostgreSQL, as low as psycopg goes: libpq, binary values, and a deadline for every answer.

psycopg's own cursors cost three times as much per statement, and asyncpg on a loop in a thread ten times, as
``docs/postgres.md`` shows. What is sent here has one of three ends: an answer, ``Refused`` (the server says no, and
nothing of the statement is there), or ``ConnectionLost`` (nobody knows).
"""

from __future__ import annotations

import hashlib
import os
import select
import socket
import struct
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import psycopg
    from psycopg import conninfo, errors, pq
else:
    try:
        import psycopg
        from psycopg import conninfo, errors, pq
    except ImportError as _error:  # named when somebody wants to connect: importing our package needs no driver
        psycopg, _missing = None, _error

Value = bytes | None
"""A parameter, or a field of a row, in PostgreSQL's binary format."""

Row = tuple[Value, ...]

_UNKNOWN_OUTCOME = ("08", "57P", "40003", "58")
"""SQLSTATEs after which it is not known whether the statement was committed: the connection or the server went."""

_UUID, _BIGINT, _BYTEA = 2950, 20, 17
_EPOCH: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL's clock begins."""

DEFAULTS: Final = {
    "tcp_user_timeout": "15000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "application_name": "branchline",
}
"""What the address does not say. A network that swallows everything is noticed."""


_CONNECT_SECONDS: Final = 5
"""At most, for each address. Whole numbers from 2 on are all that it can be; 0 would be for ever."""


_of_parents: Final[list[Any]] = []


class ConnectionLost(Exception):  # noqa: N818 - it says what happened
    """The connection is gone, or did not answer in time. What was ``sent`` may have been committed, or be yet."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class Refused(Exception):  # noqa: N818
    """The server refused a statement: ``sqlstate`` says why. Nothing of the statement is there."""

    def __init__(self, error: Exception, sqlstate: str) -> None:
        super().__init__(str(error).strip())
        self.error = error
        self.sqlstate = sqlstate


class Connection:
    """A connection, used by one thread at a time. ``lost`` tells that it cannot be used any more."""

    def __init__(self, dsn: str, *, seconds: float = 30.0) -> None:
        """Connect. ``seconds``: how long an answer may take.

        Raises ``ConnectionLost``, ``ValueError`` for what is no address, and ``ImportError`` without psycopg.
        """
        self._whole = _connect(dsn, seconds)
        self._link = self._whole.pgconn
        self._link.nonblocking = 1
        self._seconds = seconds
        self._poll = select.poll()
        self._poll.register(self._link.socket, select.POLLIN)
        self._prepared: set[bytes] = set()
        self._process = os.getpid()
        self.lost = False

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._link.transaction_status != pq.TransactionStatus.IDLE

    @property
    def backend(self) -> int:
        """The process id of the server's side, as it was told when connecting. A pooler tells a number of its own."""
        return self._link.backend_pid

    @property
    def socket(self) -> int:
        """The descriptor, to wait on."""
        return self._link.socket

    def run(self, statement: str, *values: Value, prepared: bool = False, seconds: float | None = None) -> list[Row]:
        """Run one statement; its rows. Values go as ``$1``, ``$2`` …, which the statement casts to their types.

        ``prepared``: plan it once for each connection. Its name is made of its text, so that behind a transaction pooler,
        where a connection is another one each time, a name never means another statement.
        Raises ``Refused`` and ``ConnectionLost``.
        """
        until = time.monotonic() + (self._seconds if seconds is None else seconds)
        text = statement.encode()
        if not prepared:
            return self._answer(lambda: self._link.send_query_params(text, values, None, [1] * len(values), 1), until)
        name = b"branchline_%b" % hashlib.sha256(text).hexdigest()[:24].encode()
        while True:
            if name not in self._prepared:
                try:
                    self._answer(lambda: self._link.send_prepare(name, text), until)
                except Refused as refused:
                    if refused.sqlstate != "42P05":  # behind a pooler, somebody has prepared it on that connection
                        raise
                self._prepared.add(name)
            try:
                return self._answer(lambda: self._link.send_query_prepared(name, values, [1] * len(values), 1), until)
            except Refused as refused:
                # Behind a pooler, or after DISCARD ALL: it is not prepared here (or no more), and was not run.
                if refused.sqlstate != "26000" or self.in_transaction or time.monotonic() > until:
                    raise
                self._prepared.discard(name)

    def notifications(self) -> list[str]:
        """The payloads of what was notified since the last call; does not wait."""
        try:
            self._link.consume_input()
        except errors.OperationalError as error:
            raise self._gone(error) from error
        found: list[str] = []
        while (notice := self._link.notifies()) is not None:
            found.append(notice.extra.decode(errors="replace"))  # anybody may tell anything
        return found

    def close(self) -> None:
        """Let it go. In a forked child only the copy is let go: the connection is the parent's."""
        self.lost = True
        if self._process == os.getpid():
            self._whole.close()
        else:
            _of_parents.append(self._whole)  # collected, it would warn that it was not closed

    def _answer(self, send: Any, until: float) -> list[Row]:
        link = self._link
        if self.lost or self._process != os.getpid():
            raise ConnectionLost("the connection is closed, or another process's")
        self._check_alive()
        try:
            send()
            while link.flush():
                self._wait(select.POLLIN | select.POLLOUT, until)
                link.consume_input()
            while link.is_busy():
                self._wait(select.POLLIN, until)
                link.consume_input()
            answer = link.get_result()
            while True:
                while link.is_busy():
                    self._wait(select.POLLIN, until)
                    link.consume_input()
                further = link.get_result()
                if further is None:
                    break
                answer = further
        except errors.OperationalError as error:
            raise self._gone(error) from error
        if answer is None or link.status != pq.ConnStatus.OK:
            error = errors.error_from_result(answer) if answer is not None and answer.error_message else None
            raise self._gone(error or ConnectionError("the server closed the connection"))
        if answer.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            columns = range(answer.nfields)
            get = answer.get_value
            return [tuple([get(row, column) for column in columns]) for row in range(answer.ntuples)]
        error = errors.error_from_result(answer)
        sqlstate = (answer.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        severity = answer.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b""
        if severity in (b"FATAL", b"PANIC") or sqlstate.startswith(_UNKNOWN_OUTCOME):
            raise self._gone(error) from error
        raise Refused(error, sqlstate) from error

    def _check_alive(self) -> None:
        """A server that went away while nobody was asking has said so by now: then nothing is sent, and that is known."""
        self._poll.modify(self._link.socket, select.POLLIN)
        while self._poll.poll(0):
            try:
                self._link.consume_input()
            except errors.OperationalError as error:
                raise self._gone(error, sent=False) from error

    def _wait(self, events: int, until: float) -> None:
        self._poll.modify(self._link.socket, events)
        left = until - time.monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise self._gone(TimeoutError("the server did not answer in time"))

    def _gone(self, error: BaseException, *, sent: bool = True) -> ConnectionLost:
        self.close()
        lost = ConnectionLost(_in_a_line(error) or type(error).__name__, sent=sent)
        lost.__cause__ = error
        return lost


@contextmanager
def transaction(connection: Connection) -> Generator[None]:
    """One transaction; who leaves with an error has written nothing (the pool rolls back)."""
    connection.run("BEGIN ISOLATION LEVEL READ COMMITTED")
    yield
    connection.run("COMMIT")


def _in_a_line(error: BaseException) -> str:
    """What the driver says, which has lines and a full stop of its own, as a part of a sentence of ours."""
    return " ".join(str(error).split()).rstrip(".")


def _connect(dsn: str, seconds: float) -> psycopg.Connection[Any]:
    if psycopg is None:  # pyright: ignore[reportUnnecessaryComparison] - without the driver it is
        raise ImportError(
            "PostgreSQL needs psycopg, which is not installed (or finds no libpq): pip install 'branchline[postgres]'"
        ) from _missing  # pyright: ignore[reportUndefinedVariable]
    try:
        given = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items()}
    except errors.ProgrammingError as error:
        raise _no_address(error) from None
    if not _has_ports(given):
        raise _no_address("the port is no number")
    patience = {"connect_timeout": str(max(2, round(min(_CONNECT_SECONDS, seconds))))}
    options = {**DEFAULTS, **patience, **given}
    try:
        # Not by libpq alone: while that connects, or asks for a name, no other Python thread runs.
        return psycopg.connect(conninfo.make_conninfo("", **(options | _addresses(options))), autocommit=True)
    except (errors.OperationalError, OSError) as error:  # or there are no file descriptors left, say
        raise ConnectionLost(_in_a_line(error)) from error
    except errors.Error as error:
        raise _no_address(error) from None


def _no_address(why: object) -> ValueError:
    """libpq quotes what it does not understand, and that may be the password, so it ends where the quotes begin."""
    begins = str(why).strip().replace('missing "="', "missing =").partition('"')[0].strip(" :")
    return ValueError(
        f"no address of a PostgreSQL database: {begins}; write postgresql://user@host/database, with %-escapes for what is "
        "special in a password"
    )


def _addresses(options: dict[str, str]) -> dict[str, str]:
    """Every address of every host, so that libpq need not ask for them."""
    if not options.get("host") or options.get("hostaddr"):
        return {}
    hosts = options["host"].split(",")
    if any(host.startswith(("/", "@")) for host in hosts):
        return {}
    ports = options.get("port", "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts):
        return {}  # libpq says what is wrong
    found: list[tuple[str, str, str]] = []
    for host, port in zip(hosts, ports, strict=True):
        try:
            every = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if len(hosts) == 1:
                raise ConnectionLost(
                    f"the host {host!r} has no address: {getattr(error, 'strerror', None) or error}"
                ) from error
            continue
        found += [(host, str(one[4][0]), port) for one in every]
    if not found:
        raise ConnectionLost(f"none of the hosts {options['host']!r} has an address")
    return dict(zip(("host", "hostaddr", "port"), map(",".join, zip(*found, strict=True)), strict=True))


def shown(dsn: str) -> str:
    """The address as it may stand in a message: user, hosts, ports and database. Of what is no address, nothing is shown.

    Nor of one whose database has an ``@``: that is the end of a password with a slash in it.
    """
    if psycopg is None:  # pyright: ignore[reportUnnecessaryComparison] - without the driver it is
        return "postgresql:"
    try:
        given = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
    except errors.ProgrammingError:
        return "postgresql:"
    if not _has_ports(given) or "@" in given.get("dbname", ""):
        return "postgresql:"
    hosts = given.get("host", "").split(",")
    ports = given.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    names = ["" if host.startswith(("/", "@")) else f"[{host}]" if ":" in host else host for host in hosts]
    places = [f"{name}:{port}" if port else name for name, port in zip(names, ports, strict=False)]
    user = f"{given['user']}@" if given.get("user") else ""
    return f"postgresql://{user}{','.join(places)}/{given.get('dbname', '')}"


def _has_ports(given: dict[str, str]) -> bool:
    """Whether what stands in the ports' place is ports: it is a password's beginning, if that has a slash in it."""
    return all(port.isdecimal() for port in given.get("port", "").split(",") if port)


# --- binary values


def text(value: str) -> bytes:
    """A text."""
    return value.encode()


def bigint(value: int) -> bytes:
    """A bigint."""
    return value.to_bytes(8, "big", signed=True)


def boolean(value: bool) -> bytes:
    """A boolean."""
    return b"\1" if value else b"\0"


def instant(microseconds: int) -> bytes:
    """A timestamptz, from microseconds since 1970."""
    return bigint(microseconds - _EPOCH)


def number(value: Value) -> int:
    """A bigint of a row."""
    return int.from_bytes(value or b"\0", "big", signed=True)


def microseconds(value: Value) -> int:
    """A timestamptz of a row, as microseconds since 1970."""
    return number(value) + _EPOCH


def _array(oid: int, items: Iterable[bytes], count: int) -> bytes:
    if not count:
        return struct.pack(">iii", 0, 0, oid)
    parts = [struct.pack(">iiiii", 1, 0, oid, count, 1)]
    for item in items:
        parts += (len(item).to_bytes(4, "big"), item)
    return b"".join(parts)


def uuids(items: Sequence[bytes]) -> bytes:
    """An array of uuids, of 16 bytes each."""
    return _array(_UUID, items, len(items))


def bigints(items: Sequence[int]) -> bytes:
    """An array of bigints."""
    return _array(_BIGINT, [bigint(item) for item in items], len(items))


def byteas(items: Sequence[bytes]) -> bytes:
    """An array of byte strings."""
    return _array(_BYTEA, items, len(items))


def items_of(array: Value) -> list[bytes]:
    """The items of an array of a row, none of them null."""
    if not array or number(array[:4]) == 0:
        return []
    count = int.from_bytes(array[12:16], "big")
    found: list[bytes] = []
    at = 20
    for _ in range(count):
        size = int.from_bytes(array[at : at + 4], "big")
        found.append(array[at + 4 : at + 4 + size])
        at += 4 + size
    return found
