"""PostgreSQL: a primary and its standby, and one address for both (R12)."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from harness import Session
from storage import EntryLog, PostgresRepository, StaleSessionError, StorageError
from storage.event_loops import run_in_worker
from tests.postgres_server import PostgresServer, started_server
from tests.storage.places import said
from tests.storage.postgres_helpers import impatient, sql

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    server = started_server()
    yield server
    server.stop()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    server = primary.standby()
    yield server
    server.stop()


def both(primary: PostgresServer, standby: PostgresServer) -> str:
    """The address of whichever of the two takes writes."""
    ports = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    return f"postgresql://postgres@{ports}/postgres?target_session_attrs=read-write"


async def until_replayed(primary: PostgresServer, standby: PostgresServer) -> None:
    """The standby has all that the primary has."""
    ((position,),) = sql(primary.dsn(), "SELECT pg_current_wal_lsn()::text")
    with anyio.fail_after(60):
        while not sql(standby.dsn(), "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", position)[0][0]:
            await anyio.sleep(0.02)


async def texts_in(server: PostgresServer, name: str) -> list[str]:
    repository = PostgresRepository(server.dsn())
    async with Session.open(repository.open(name, mode="read")) as session:
        return [message.text for message in (await session.build_context()).messages]


async def test_the_standby_takes_over(primary: PostgresServer, standby: PostgresServer) -> None:
    """The primary dies and the standby is promoted: the same session goes on there, and only waits."""
    log = await EntryLog.open(await PostgresRepository(both(primary, standby), answer_seconds=60).create("chat"))
    await log.append_message(said("first"))
    await until_replayed(primary, standby)
    primary.kill()
    write = log.append_message(said("second"))
    async with anyio.create_task_group() as group:
        group.start_soon(write.wait)
        await run_in_worker(lambda: sql(standby.dsn(), "SELECT pg_promote()"))
    await log.append_message(said("third"))
    await log.aclose()
    assert await texts_in(standby, "chat") == ["first", "second", "third"]


async def test_a_standby_that_lacks_what_was_acknowledged(primary: PostgresServer, standby: PostgresServer) -> None:
    """Asynchronous replication lost an entry: the writer is told, and there is no gap."""
    log = await EntryLog.open(await PostgresRepository(both(primary, standby), answer_seconds=60).create("chat"))
    await log.append_message(said("first"))
    await until_replayed(primary, standby)
    sql(standby.dsn(), "SELECT pg_wal_replay_pause()")
    standby.kill()  # it gets nothing more
    await log.append_message(said("lost"))
    primary.kill()
    standby.restart()
    sql(standby.dsn(), "SELECT pg_promote()")
    with pytest.raises(StaleSessionError, match="the next entry of this session is 1, not 2"):
        await log.append_message(said("after a gap"))
    await log.aclose()
    assert await texts_in(standby, "chat") == ["first"]


async def test_an_append_that_no_standby_has(primary: PostgresServer) -> None:
    """With synchronous replication, one whose connection was lost while it waited for the standby is not acknowledged yet.

    The server has it, and shows it; whether a standby would, nobody knows before one is there.
    """
    log = await EntryLog.open(await PostgresRepository(primary.dsn(), answer_seconds=60).create("chat"))
    await log.append_message(said("first"))
    for statement in ("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"):
        sql(primary.dsn(), statement)
    with anyio.fail_after(60):
        while sql(primary.dsn(), "SHOW synchronous_standby_names") != [("nobody",)]:
            await anyio.sleep(0.02)
    write = log.append_message(said("second"))
    async with anyio.create_task_group() as group:
        group.start_soon(terminate_who_waits, primary.dsn())
        with impatient(log, 2), pytest.raises(StorageError, match="whether they are there"):
            await write
    for statement in ("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"):
        sql(primary.dsn(), statement)
    await log.aclose()
    assert await texts_in(primary, "chat") == ["first", "second"]


async def terminate_who_waits(dsn: str) -> None:
    """End the connection that waits for a standby, once."""
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with anyio.fail_after(60):
        while not await run_in_worker(lambda: sql(dsn, ended)):
            await anyio.sleep(0.02)


async def test_a_primary_that_became_read_only(primary: PostgresServer, standby: PostgresServer) -> None:
    """Demoted without a restart, its connections live on; they are not kept, and the address leads to the new one."""
    log = await EntryLog.open(await PostgresRepository(both(primary, standby), answer_seconds=60).create("chat"))
    await log.append_message(said("first"))
    await until_replayed(primary, standby)
    sql(primary.dsn(), "ALTER SYSTEM SET default_transaction_read_only = on")
    sql(primary.dsn(), "SELECT pg_reload_conf()")
    with anyio.fail_after(60):
        while sql(primary.dsn(), "SELECT current_setting('default_transaction_read_only')") != [("on",)]:
            await anyio.sleep(0.02)
    await run_in_worker(lambda: sql(standby.dsn(), "SELECT pg_promote()"))
    with pytest.raises(StorageError, match=r"(?s)read-only transaction.*nothing was written"):
        await log.append_message(said("refused"))
    await log.append_message(said("second"))
    await log.aclose()
    assert await texts_in(standby, "chat") == ["first", "second"]


async def test_reading_from_a_standby(primary: PostgresServer, standby: PostgresServer) -> None:
    """It reads, lists and follows; what it cannot do it says."""
    log = await EntryLog.open(await PostgresRepository(primary.dsn()).create("chat"))
    await log.append_message(said("first"))
    await until_replayed(primary, standby)
    repository = PostgresRepository(standby.dsn())
    assert [one.id for one in await repository.list()] == ["chat"]
    storage = await repository.open("chat", mode="read")
    reader = await EntryLog.open(storage)
    assert await run_in_worker(lambda: storage.wait_for_change(1))
    await log.append_message(said("second"))
    with anyio.fail_after(60):
        while not await run_in_worker(lambda: storage.wait_for_change(1)):
            pass
    await reader.refresh()
    assert len(await reader.entries()) == 2
    for call in (lambda: repository.open("chat"), lambda: repository.create("new"), lambda: repository.delete("chat")):
        with pytest.raises(StorageError, match="read-only transaction"):
            await call()
    await reader.aclose()
    await log.aclose()
