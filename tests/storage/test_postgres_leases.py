"""PostgreSQL: the writer's lease when answers get lost, statements are refused, and threads die (R12)."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from typing import Any

import anyio
import pytest

from harness import Session
from storage import (
    EntryLog,
    PostgresRepository,
    PostgresStorage,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from storage.event_loops import run_in_worker
from storage.postgres_leases import Keeper
from tests.postgres_server import PostgresServer
from tests.storage.places import PostgresPlace, assert_chain, said
from tests.storage.postgres_helpers import Proxy, rows_in, sql

pytestmark = pytest.mark.anyio

TAKING = b"SET fence = s.fence + 1"
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
    proxy.cut_all()
    await anyio.sleep(0.2)
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
        with anyio.fail_after(10):
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
    repository = PostgresRepository(postgres_server.dsn(port=proxy.port), answer_seconds=0.3)
    log = await EntryLog.open(await repository.create(place.session_id))
    await log.append_message(said("first"))
    proxy.cut_answer_to = b"who knows"
    proxy.cut_always = b"SET fence = fence + 1"
    with pytest.raises(StorageError, match="whether they are there"):
        await log.append_message(said("who knows"))
    proxy.cut_always = None
    await log.aclose()
    assert len(place.lines()) == 2
    told, found = await sizes(place)
    assert told == found


# --- the thread that renews


async def holds(place: PostgresPlace, names: list[str], seconds: float) -> bool:
    """Whether nobody else can open any of these sessions for that long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name in names:
            try:
                (await PostgresStorage.open(place.dsn, session_id=name)).close()
            except SessionLockedError:
                continue
            return False
        await anyio.sleep(0.1)
    return True


async def test_a_renewing_thread_that_died_is_replaced(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next session that is opened, for all."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    repository = PostgresRepository(place.dsn, lease_seconds=3)
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "renew", lambda _: 1 / 0)
        first = await repository.create(place.session_id)
        await anyio.sleep(1.2)
    second = await repository.create(f"{place.session_id}-2")
    assert await holds(place, [place.session_id, f"{place.session_id}-2"], 3.2)
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
    assert await holds(place, [place.session_id, f"{place.session_id}-2"], 2.5)
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
    with anyio.fail_after(10):
        while thread.is_alive():
            await anyio.sleep(0.01)
    (await place.open()).close()
