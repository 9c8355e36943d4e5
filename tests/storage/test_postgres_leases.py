"""PostgreSQL: the writer's lease when answers get lost, statements are refused, and threads die (R12)."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref
from datetime import timedelta
from typing import Any

import anyio
import psycopg
import pytest

from harness import Session
from storage import (
    EntryLog,
    PostgresRepository,
    PostgresStorage,
    SessionLockedError,
    SessionNotFoundError,
    StaleSessionError,
    StorageError,
)
from storage.event_loops import run_in_worker
from storage.postgres_leases import Keeper
from storage.postgres_wire import Connection, Refused, Row, Value
from tests.postgres_server import PostgresServer
from tests.storage.places import PostgresPlace, assert_chain, said
from tests.storage.postgres_helpers import Proxy, impatient, rows_in, sql

pytestmark = pytest.mark.anyio

TAKING = b"SET fence = s.fence + 1, holder"
MOVING_THE_FENCE = b"SET fence = s.fence + 1, held_until"
GIVING_UP = b"SET holder = NULL"
RENEWING = b"given.age"
COMMITTING = b"COMMIT\0"


async def new_session(place: PostgresPlace, entries: int = 3) -> None:
    log = await place.new_log()
    for number in range(entries):
        await log.append_message(said(f"{number}"))
    await log.aclose()


async def test_a_lost_answer_to_opening(postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy) -> None:
    """The server gave the place and its answer never came: asked again, it is ours, not held by a ghost of ourselves."""
    await new_session(place)
    proxy.cut_answer_to = TAKING
    log = await EntryLog.open(
        await PostgresStorage.open(postgres_server.dsn(port=proxy.port), session_id=place.session_id)
    )
    assert proxy.cuts == 1
    await log.append_message(said("goes on"))
    with pytest.raises(SessionLockedError):
        await place.open()
    await log.aclose()
    (await place.open()).close()
    assert_chain(place.entries())


async def test_a_lost_answer_to_closing(postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy) -> None:
    """The place is free, and nobody else's is given up."""
    await new_session(place)
    storage = await PostgresStorage.open(postgres_server.dsn(port=proxy.port), session_id=place.session_id)
    proxy.cut_answer_to = GIVING_UP
    await run_in_worker(storage.close)
    assert proxy.cuts == 1
    (await place.open()).close()


async def test_a_lease_that_nobody_here_has_any_more(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy
) -> None:
    """The server could not be told that the session is free: its own process need not wait until the lease is over."""
    await new_session(place)
    storage = await PostgresStorage.open(postgres_server.dsn(port=proxy.port), session_id=place.session_id)
    proxy.cut_always = GIVING_UP
    await run_in_worker(storage.close)
    assert proxy.cuts
    assert sql(place.dsn, "SELECT holder IS NULL FROM branchline_sessions WHERE id = %s", place.session_id) == [
        (False,)
    ]
    log = await place.log()
    with pytest.raises(SessionLockedError):
        await place.open()
    await log.append_message(said("goes on"))
    await log.aclose()


@pytest.mark.parametrize("by", ["repository", "session"])
async def test_a_lost_answer_to_deleting(postgres_server: PostgresServer, dsn: str, proxy: Proxy, by: str) -> None:
    """It is gone, so deleting succeeded."""
    shelf = PostgresRepository(dsn.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
    session = await Session.open(shelf.create("chat"))
    await session.append_message(said("hello"))
    proxy.cut_answer_to = COMMITTING
    if by == "session":
        await session.delete()
    else:
        proxy.cut_answer_to = None
        await session.aclose()
        proxy.cut_answer_to = COMMITTING
        await shelf.delete("chat")
    assert proxy.cuts == 1
    assert set(rows_in(dsn).values()) == {0}
    with pytest.raises(SessionNotFoundError):
        await shelf.delete("chat")


@pytest.mark.parametrize("by", ["repository", "session"])
async def test_a_session_that_could_not_be_deleted_is_free(dsn: str, by: str) -> None:
    """The server refuses to delete it: that is said, nothing is gone, and the next writer need not wait for a lease."""
    shelf = PostgresRepository(dsn)
    session = await Session.open(shelf.create("chat"))
    await session.append_message(said("hello"))
    sql(dsn, "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$not today$$; END'")
    sql(dsn, "CREATE TRIGGER no BEFORE DELETE ON branchline_sessions FOR EACH ROW EXECUTE FUNCTION no()")
    if by == "repository":
        await session.aclose()
    with pytest.raises(StorageError, match="not today"):
        await (session.delete() if by == "session" else shelf.delete("chat"))
    async with Session.open(shelf.open("chat")) as session:
        assert len(await session.branch()) == 1
        await session.append_message(said("goes on"))


# --- what a listing says of the size


async def sizes(place: PostgresPlace) -> tuple[int | None, int | None]:
    """What a listing says, and what it finds when it reads everything."""
    repository = place.repository
    told = {one.id: one.size for one in await repository.list(limit=1000)}
    found = {one.id: one.size for one in await repository.list(limit=1000, deep=True)}
    return told[place.session_id], found[place.session_id]


async def test_the_size_after_closing_over_dead_connections(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy
) -> None:
    """The connections went while nobody looked: what was written last is counted all the same."""
    log = await EntryLog.open(
        await PostgresStorage.create(postgres_server.dsn(port=proxy.port), session_id=place.session_id)
    )
    await log.append_message(said("hello"))
    await run_in_worker(proxy.cut_all)
    await log.aclose()
    told, found = await sizes(place)
    assert told == found


@pytest.mark.parametrize("statement", [RENEWING, GIVING_UP])
async def test_the_size_after_a_lost_answer(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy, statement: bytes
) -> None:
    """The server counted and its answer never came: it is not counted twice."""
    repository = PostgresRepository(postgres_server.dsn(port=proxy.port), lease_seconds=1)
    log = await EntryLog.open(await repository.create(place.session_id))
    await log.append_message(said("hello"))
    proxy.cut_answer_to = statement
    if statement == RENEWING:
        with anyio.fail_after(60):
            while not proxy.cuts:
                await anyio.sleep(0.01)
    await log.aclose()
    assert proxy.cuts == 1
    told, found = await sizes(place)
    assert told == found


async def test_the_size_after_an_unknown_outcome(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy
) -> None:
    """Nobody could be asked whether an append is there: it is counted if it is."""
    repository = PostgresRepository(postgres_server.dsn(port=proxy.port), answer_seconds=60)
    log = await EntryLog.open(await repository.create(place.session_id))
    await log.append_message(said("first"))
    proxy.cut_answer_to = b"who knows"
    proxy.cut_always = MOVING_THE_FENCE
    with impatient(log, 0.3), pytest.raises(StorageError, match="whether they are there"):
        await log.append_message(said("who knows"))
    proxy.cut_always = None
    await log.aclose()
    assert len(place.lines()) == 2
    told, found = await sizes(place)
    assert told == found


# --- the thread that renews


def held_until(place: PostgresPlace, name: str) -> Any:
    """When the lease of ``name`` is over."""
    return sql(place.dsn, "SELECT held_until FROM branchline_sessions WHERE id = %s", name)[0][0]


async def until_held(place: PostgresPlace, name: str, held: Any, seconds: float = 0) -> None:
    """Until the lease of ``name`` lasts so much longer than ``held``."""
    with anyio.fail_after(60):
        while True:
            rows = await run_in_worker(
                lambda: sql(
                    place.dsn,
                    "SELECT held_until > %s::timestamptz + %s * interval '1 s' FROM branchline_sessions WHERE id = %s",
                    held,
                    seconds,
                    name,
                )
            )
            if rows == [(True,)]:
                return
            await anyio.sleep(0.05)


async def test_a_lease_is_renewed(place: PostgresPlace) -> None:
    """R12: a writer that says nothing for longer than its lease keeps it as long as its process lives."""
    log = await EntryLog.open(await PostgresRepository(place.dsn, lease_seconds=2).create(place.session_id))
    await until_held(place, place.session_id, held_until(place, place.session_id), 2)
    await log.append_message(said("still here"))
    await log.aclose()


async def test_a_renewing_thread_that_died_is_replaced(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next session that is opened, for all."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    repository = PostgresRepository(place.dsn, lease_seconds=3)
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "renew", lambda *_: 1 / 0)
        first = await repository.create(place.session_id)
        assert first._pool is not None
        keeper = first._pool.keeper
        with anyio.fail_after(60):
            while keeper._running:
                await anyio.sleep(0.01)
    second = await repository.create(f"{place.session_id}-2")
    held = held_until(place, f"{place.session_id}-2")
    for name in (place.session_id, f"{place.session_id}-2"):
        await until_held(place, name, held, 3)
    await run_in_worker(first.close)
    await run_in_worker(second.close)


async def test_no_thread_to_renew_with(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives no more threads: the session opens all the same, and the next one's thread renews both."""
    repository = PostgresRepository(place.dsn, lease_seconds=2)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "branchline leases":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        first = await repository.create(place.session_id)
    second = await repository.create(f"{place.session_id}-2")
    held = held_until(place, f"{place.session_id}-2")
    for name in (place.session_id, f"{place.session_id}-2"):
        await until_held(place, name, held, 2)
    await run_in_worker(first.close)
    await run_in_worker(second.close)


async def test_a_storage_that_is_collected_while_leases_are_counted(place: PostgresPlace) -> None:
    """The garbage collector comes whenever it likes, in the middle of adding a lease too: nobody waits for ever."""
    repository = PostgresRepository(place.dsn)
    storage: Any = await repository.create(place.session_id)
    keeper: Keeper = storage._pool.keeper
    storage.itself = storage
    left = weakref.ref(storage)
    del storage

    def collect() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            while left() is not None:  # a worker may hold it for a moment
                with keeper._guard:
                    gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    with anyio.fail_after(60):
        while thread.is_alive():
            await anyio.sleep(0.01)
    (await place.open()).close()


# --- rows that somebody locks

LOCK = "SELECT 1 FROM branchline_sessions WHERE id = %s FOR UPDATE"


async def logs_of(repository: PostgresRepository, place: PostgresPlace, count: int) -> dict[str, EntryLog]:
    """So many new sessions, by their ids."""
    names = [f"{place.session_id}-{number}" for number in range(count)]
    return {name: await EntryLog.open(await repository.create(name)) for name in names}


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("taken", [False, True])
async def test_a_locked_row_holds_up_its_own_lease_only(place: PostgresPlace, connections: int, taken: bool) -> None:
    """An operator locks one session's row for longer than leases last, and one connection waits for it.

    All others are renewed meanwhile. The one is, as soon as it is free: it is stale only if somebody took it.
    """
    repository = PostgresRepository(place.dsn, lease_seconds=3, connections=connections)
    logs = await logs_of(repository, place, 4)
    name, *others = logs
    held = held_until(place, name)
    async with anyio.create_task_group() as group:
        with psycopg.connect(place.dsn) as operator:
            operator.execute(LOCK, (name,))
            if not taken:
                group.start_soon(logs[name].append_message(said("waits")).wait)
            for other in others:
                await until_held(place, other, held, 5)
            if connections > 1:
                for other in others:
                    await logs[other].append_message(said("goes on"))
            if taken:
                operator.execute(
                    "UPDATE branchline_sessions SET fence = fence + 1, holder = gen_random_uuid() WHERE id = %s",
                    (name,),
                )
    if taken:
        with pytest.raises(StaleSessionError, match="taken over"):
            await logs[name].append_message(said("too late"))
    else:
        await until_held(place, name, held, 5)
        await logs[name].append_message(said("goes on"))
    for other in others:
        await logs[other].append_message(said("goes on"))
    for log in logs.values():
        await log.aclose()


async def test_a_row_that_is_never_free(place: PostgresPlace) -> None:
    """Whoever looks finds it locked, as that of a session with one append after the other is: its lease has its turn."""
    repository = PostgresRepository(place.dsn, lease_seconds=3)
    storage = await repository.create(place.session_id)
    held = held_until(place, place.session_id)
    over = False

    def hand_on(first: psycopg.Connection, second: psycopg.Connection) -> None:
        """Each waits for the row before the other lets it go."""
        first.execute(LOCK, (place.session_id,))
        for one, other in itertools.cycle([(first, second), (second, first)]):
            waits = threading.Thread(target=other.execute, args=(LOCK, (place.session_id,)))
            waits.start()
            pid = other.info.backend_pid
            while not sql(place.dsn, "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", pid):
                pass
            one.rollback()
            waits.join()
            if over:
                other.rollback()
                return

    with psycopg.connect(place.dsn) as first, psycopg.connect(place.dsn) as second:
        async with anyio.create_task_group() as group:
            group.start_soon(run_in_worker, lambda: hand_on(first, second))
            try:
                await until_held(place, place.session_id, held, 5)
            finally:
                over = True
    await run_in_worker(storage.close)


async def test_locked_rows_hold_up_their_own_appends_only(place: PostgresPlace) -> None:
    """More of them than statements are under way at the same time: what others append is written meanwhile."""
    logs = await logs_of(place.repository, place, 6)
    locked, free = list(logs)[:3], list(logs)[3:]
    async with anyio.create_task_group() as group:
        with psycopg.connect(place.dsn) as operator:
            for name in locked:
                operator.execute(LOCK, (name,))
            waiting = [logs[name].append_message(said("waits")) for name in locked]
            for write in waiting:
                group.start_soon(write.wait)
            with anyio.fail_after(60):
                for _ in range(3):
                    for name in free:
                        await logs[name].append_message(said("goes on"))
            assert not any(write.is_done() for write in waiting)
    for name, log in logs.items():
        assert len(await log.entries()) == (1 if name in locked else 3)
        await log.aclose()


async def test_a_lease_that_was_waited_for_is_whole(place: PostgresPlace) -> None:
    """The row of a free session was locked when it was opened: the lease lasts from when it was got, not asked for."""
    await (await place.new_log()).aclose()
    opened: list[PostgresStorage] = []
    free: Any = None

    async def open_it() -> None:
        opened.append(await PostgresRepository(place.dsn, lease_seconds=60).open(place.session_id))

    async with anyio.create_task_group() as group:
        with psycopg.connect(place.dsn) as operator:
            operator.execute(LOCK, (place.session_id,))
            group.start_soon(open_it)
            with anyio.fail_after(60):
                waits = (
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    "AND now() - query_start > interval '1 s'"
                )
                while not await run_in_worker(lambda: sql(place.dsn, waits)):
                    await anyio.sleep(0.05)
            ((free,),) = sql(place.dsn, "SELECT clock_timestamp()")
    assert held_until(place, place.session_id) - free > timedelta(seconds=60)
    await run_in_worker(opened[0].close)


async def test_an_engine_that_cannot_pass_over_locks(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses to: then its rows are waited for, and everything goes on."""
    run = Connection.run
    refused: list[str] = []

    def run_without(connection: Connection, statement: str, *values: Value, **how: Any) -> list[Row]:
        if "SKIP LOCKED" in statement:
            refused.append(statement)
            raise Refused(NotImplementedError("SKIP LOCKED"), "0A000")
        return run(connection, statement, *values, **how)

    monkeypatch.setattr(Connection, "run", run_without)
    repository = PostgresRepository(place.dsn, lease_seconds=3)
    logs = await logs_of(repository, place, 3)
    held = held_until(place, [*logs][-1])
    writes = [log.append_message(said("goes on")) for log in logs.values() for _ in range(3)]
    for write in writes:
        await write
    for name, log in logs.items():
        await until_held(place, name, held, 3)
        await log.aclose()
    assert {"given.age" in statement for statement in refused} == {True, False}
