"""PostgreSQL: servers that are full, read-only, strictly set, or cut off what they do not like (R9, R10, R12)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest

from harness import Session
from storage import (
    EntryLog,
    PostgresRepository,
    PostgresStorage,
    SessionClosedError,
    StorageError,
    postgres_following,
)
from storage.event_loops import run_in_worker
from tests.postgres_server import PostgresServer
from tests.storage.places import PostgresPlace, assert_chain, said
from tests.storage.postgres_helpers import Appends, Proxy, sql, until_gathered, until_waiting

pytestmark = pytest.mark.anyio


def with_setting(dsn: str, setting: str) -> str:
    """The address, with a setting of the session besides."""
    return f"{dsn}%20-c{setting}" if "options=" in dsn else f"{dsn}?options=-c{setting}"


# --- an append that the connection does not survive


async def test_an_append_that_is_always_cut(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy
) -> None:
    """Whatever carries it dies of it: it fails, known not to be there, and is not tried for ever; the others are written."""
    repository = PostgresRepository(postgres_server.dsn(port=proxy.port))
    logs = [await EntryLog.open(await repository.create(f"{place.session_id}-{number}")) for number in range(5)]
    proxy.cut_always = b"poison"
    outcomes: dict[int, str] = {}

    async def append(number: int) -> None:
        try:
            await logs[number].append_message(said("poison" if number == 3 else "good"))
            outcomes[number] = "written"
        except StorageError as error:
            outcomes[number] = str(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(append, number)
    assert "nothing was written" in outcomes.pop(3)
    assert outcomes == dict.fromkeys((0, 1, 2, 4), "written")
    proxy.cut_always = None
    for log in logs:
        await log.append_message(said("goes on"))
        assert len(await log.entries()) == (1 if log is logs[3] else 2)
        await log.aclose()


async def test_connections_that_are_terminated_all_the_time(place: PostgresPlace) -> None:
    """pg_terminate_backend under four writers: everything is acknowledged, once, in order."""
    name = place.session_id
    repository = PostgresRepository(f"{place.dsn}?application_name={name}")
    called: dict[int, list[str]] = {number: [] for number in range(4)}
    done = 0

    async def write(number: int) -> None:
        nonlocal done
        log = await EntryLog.open(await repository.create(f"{name}-{number}"))
        for turn in range(25):
            called[number].append(await log.append_message(said(f"{turn}")))
        await log.aclose()
        done += 1

    async def terminate() -> None:
        """Once for each append that was acknowledged: on a slow machine no append would live long enough otherwise."""
        while done < 4:
            before = sum(map(len, called.values()))
            await anyio.to_thread.run_sync(
                sql,
                place.dsn,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND random() < 0.4",
                name,
            )
            while done < 4 and sum(map(len, called.values())) == before:
                await anyio.sleep(0.005)

    (await repository.create(f"{name}-x")).close()
    async with anyio.create_task_group() as group:
        group.start_soon(terminate)
        for number in range(4):
            group.start_soon(write, number)
    for number in range(4):
        place.session_id = f"{name}-{number}"
        assert [entry["id"] for entry in place.entries()] == called[number]


async def test_connections_that_the_server_closes_when_idle(place: PostgresPlace) -> None:
    """A server or something on the way that cuts idle connections is not noticed."""
    with psycopg.connect(place.dsn) as connection:
        if connection.info.server_version < 140000:
            pytest.skip("the server cannot close idle connections")
    repository = PostgresRepository(with_setting(place.dsn, "idle_session_timeout%3D100ms"))
    log = await EntryLog.open(await repository.create(place.session_id))
    for number in range(3):
        await log.append_message(said(f"{number}"))
        await anyio.sleep(0.25)
    async with Session.open(repository.open(place.session_id, mode="read")) as reader:
        assert len(await reader.branch()) == 3
        await anyio.sleep(0.25)
        await reader.refresh()
    await anyio.sleep(0.25)
    await log.aclose()
    assert len(place.lines()) == 3


# --- a blob and a fence


async def test_a_blob_beside_a_lost_connection(place: PostgresPlace) -> None:
    """An append moved the fence when it had lost its connection; that is no other writer to a blob under way."""
    async with Session.open(place.create()) as session:
        sql(place.dsn, "UPDATE branchline_sessions SET fence = fence + 1 WHERE id = %s", place.session_id)
        name = await session.write_blob(b"large")
        assert await session.read_blob(name) == b"large"


# --- a server that is full, and one that is strict


async def test_a_server_that_takes_two_connections_of_us(postgres_server: PostgresServer, dsn: str) -> None:
    """The pool may have four, and gets two: what is to be done waits for those."""
    name = f"two_{time.time_ns()}"
    (await PostgresStorage.create(dsn, session_id="first")).close()
    sql(dsn, f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 2")
    schema = dsn.rpartition("%3D")[2]
    sql(dsn, f"GRANT ALL ON SCHEMA {schema} TO {name}")
    sql(dsn, f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {name}")
    repository = PostgresRepository(dsn.replace("postgres@", f"{name}@"))

    async def use(number: int) -> None:
        async with Session.open(repository.create(f"chat-{number}")) as session:
            for turn in range(5):
                await session.append_message(said(f"{turn}"))
            await repository.list()

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(use, number)
    assert {one.entries for one in await repository.list(deep=True)} == {0, 5}


@pytest.mark.parametrize("isolation", ["serializable", "repeatable%20read"])
async def test_a_strict_default_isolation(dsn: str, isolation: str) -> None:
    """Eight that come to an empty database at once, then write side by side, fork and delete."""
    address = with_setting(dsn, f"default_transaction_isolation%3D{isolation.replace('%20', '%5C%20')}")
    shelves = [PostgresRepository(address, answer_seconds=30 + number) for number in range(8)]

    async def use(number: int) -> None:
        shelf = shelves[number]
        async with Session.open(shelf.create(f"chat-{number}")) as session:
            for turn in range(10):
                await session.append_message(said(f"{turn}"))
            await (await shelf.fork(session, session_id=f"fork-{number}")).aclose()
        if number % 2:
            await shelf.delete(f"chat-{number}")

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(use, number)
    found = {one.id: one.entries for one in await shelves[0].list(deep=True)}
    assert found == {f"fork-{n}": 11 for n in range(8)} | {f"chat-{n}": 10 for n in range(0, 8, 2)}


async def test_a_statement_timeout(dsn: str) -> None:
    """The server gives up on an append: known, alone, and the next one is written."""
    log = await EntryLog.open(
        await PostgresStorage.create(with_setting(dsn, "statement_timeout%3D3000"), session_id="chat")
    )
    with psycopg.connect(dsn) as other:
        other.execute("SELECT 1 FROM branchline_sessions FOR UPDATE")
        with pytest.raises(StorageError, match=r"(?s)statement timeout.*nothing was written"):
            await log.append_message(said("too late"))
    await log.append_message(said("goes on"))
    assert len(await log.entries()) == 1
    await log.aclose()


async def test_another_encoding_and_old_strings(dsn: str) -> None:
    """What is kept is bytes, whatever the client's encoding; nothing depends on how strings are written."""
    address = with_setting(dsn, "standard_conforming_strings%3Doff") + "&client_encoding=latin1"
    text = "é ✓ 你好 \x00 \\ ' 🙂"
    async with Session.open(PostgresStorage.create(address, session_id="chat", cwd="/tmp/é✓")) as session:
        await session.append_message(said(text))
        await session.write_blob(text.encode())
    async with Session.open(PostgresStorage.open(dsn, session_id="chat")) as session:
        assert [message.text for message in (await session.build_context()).messages] == [text]
        assert session.storage.info.header.cwd == "/tmp/é✓"


async def test_tables_that_were_dropped(dsn: str) -> None:
    """They are made again by the next session; who used them is told."""
    repository = PostgresRepository(dsn)
    (await repository.create("chat")).close()
    for table in ("names", "sessions", "entries", "shares", "blobs", "schema"):
        sql(dsn, f"DROP TABLE branchline_{table}")
    with pytest.raises(StorageError, match="does not exist"):
        await repository.create("again")
    async with Session.open(repository.create("again")) as session:
        await session.append_message(said("hello"))


async def test_a_server_that_became_read_only(postgres_server: PostgresServer, dsn: str) -> None:
    """A connection to what was the primary once is not kept: the address may find another one."""
    repository = PostgresRepository(dsn)
    log = await EntryLog.open(await repository.create("chat"))
    await log.append_message(said("first"))
    pool = log.storage._pool  # pyright: ignore[reportAttributeAccessIssue]
    for connection in pool._free:
        connection.run("SET default_transaction_read_only = on")
    with pytest.raises(StorageError, match="read-only transaction; nothing was written"):
        await log.append_message(said("refused"))
    await log.append_message(said("second"))
    await log.aclose()
    async with Session.open(repository.open("chat", mode="read")) as session:
        assert len(await session.branch()) == 2


async def test_a_role_that_may_only_read(dsn: str) -> None:
    """Readers need no right but to read; what they may not do says so."""
    log = await EntryLog.open(await PostgresStorage.create(dsn, session_id="chat"))
    name = f"reader_{time.time_ns()}"
    schema = dsn.rpartition("%3D")[2]
    sql(dsn, f"CREATE ROLE {name} LOGIN")
    sql(dsn, f"GRANT USAGE ON SCHEMA {schema} TO {name}")
    sql(dsn, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    repository = PostgresRepository(dsn.replace("postgres@", f"{name}@"))
    reader = await EntryLog.open(await repository.open("chat", mode="read"))
    storage = reader.storage
    assert isinstance(storage, PostgresStorage)
    assert await run_in_worker(lambda: storage.wait_for_change(1))
    await log.append_message(said("news"))
    with anyio.fail_after(60):
        while not await run_in_worker(lambda: storage.wait_for_change(1)):
            pass
    await reader.refresh()
    assert len(await reader.entries()) == 1
    for call in (lambda: repository.open("chat"), lambda: repository.create("mine"), lambda: repository.delete("chat")):
        with pytest.raises(StorageError, match="permission denied"):
            await call()
    await reader.aclose()
    await log.aclose()


# --- following


async def test_news_that_come_along_with_an_answer(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket does not tell of what was read already: the follower looks there first."""
    monkeypatch.setattr(postgres_following, "_LOOK_EVERY_WHEN_TOLD", 1000)
    writer = await place.new_log()
    reader = await PostgresStorage.open(place.dsn, session_id=place.session_id, mode="read")
    assert await run_in_worker(lambda: reader.wait_for_change(5))
    await writer.append_message(said("news"))
    assert reader._follower is not None
    connection = reader._follower._connection
    assert connection is not None
    await run_in_worker(lambda: connection.run("SELECT pg_sleep(0.1)"))
    with anyio.fail_after(60):
        assert await run_in_worker(lambda: reader.wait_for_change(30))
    reader.close()
    await writer.aclose()


async def test_news_of_somebody_else(place: PostgresPlace) -> None:
    """Anybody may tell anything, in any encoding, under our name."""
    await (await place.new_log()).aclose()
    reader = await PostgresStorage.open(f"{place.dsn}?client_encoding=latin1", session_id=place.session_id, mode="read")
    assert await run_in_worker(lambda: reader.wait_for_change(5))
    sql(place.dsn, "NOTIFY branchline, 'é'")
    assert not await run_in_worker(lambda: reader.wait_for_change(0.3))
    reader.close()


async def test_a_follower_that_may_not_tell_for_a_while(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the row cannot be marked is no reason not to follow: it looks meanwhile, and is told again afterwards."""
    monkeypatch.setattr(postgres_following, "_TELL_EVERY", 0.0)
    log = await EntryLog.open(await PostgresStorage.create(dsn, session_id="chat"))
    name = f"reader_{time.time_ns()}"
    sql(dsn, f"CREATE ROLE {name} LOGIN")
    sql(dsn, f"GRANT USAGE ON SCHEMA {dsn.rpartition('%3D')[2]} TO {name}")
    sql(dsn, f"GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA {dsn.rpartition('%3D')[2]} TO {name}")
    reader = await PostgresStorage.open(dsn.replace("postgres@", f"{name}@"), session_id="chat", mode="read")
    assert await run_in_worker(lambda: reader.wait_for_change(1))
    follower = reader._follower
    assert follower is not None
    for change, is_told in (("REVOKE UPDATE ON {} FROM {}", False), ("GRANT UPDATE ON {} TO {}", True)):
        sql(dsn, change.format("branchline_sessions", name))
        await log.append_message(said("news"))
        with anyio.fail_after(60):
            assert await run_in_worker(lambda: reader.wait_for_change(60))
        assert follower._is_told is is_told
    await run_in_worker(reader.close)
    await log.aclose()


async def test_a_follower_that_is_closed_while_it_waits(place: PostgresPlace) -> None:
    """Who waits in another thread is told, and no connection is left behind."""
    await (await place.new_log()).aclose()
    name = f"waits-{time.time_ns()}"
    dsn = f"{place.dsn}?application_name={name}"
    reader = await PostgresStorage.open(dsn, session_id=place.session_id, mode="read")
    assert await run_in_worker(lambda: reader.wait_for_change(1))
    outcomes: list[str] = []

    async def wait() -> None:
        try:
            await run_in_worker(lambda: reader.wait_for_change(100))
        except SessionClosedError as error:
            outcomes.append(error.code)

    follower = reader._follower
    assert follower is not None
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            while follower._guard.acquire(blocking=False):
                follower._guard.release()
                await anyio.sleep(0.01)
            await run_in_worker(reader.close)
    assert outcomes == ["session_closed"]
    assert follower._connection is None


# --- our own process

DESCRIPTORS = """
import os, resource, sys, anyio
from storage import PostgresStorage, StorageError

async def main():
    storage = await PostgresStorage.create(sys.argv[1], session_id="kept")
    storage.close()
    del storage
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(5):
        try:
            (await PostgresStorage.open(sys.argv[1], session_id="kept")).close()
        except StorageError as error:
            print(str(error).partition(":")[0])
        os.close(taken.pop())
    for one in taken:
        os.close(one)
    (await PostgresStorage.open(sys.argv[1], session_id="kept")).close()
    print("opened")

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_no_file_descriptors_left(dsn: str) -> None:
    """An error of ours, and it works again when there are some."""
    found = subprocess.run(
        [sys.executable, "-c", DESCRIPTORS, dsn],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    *refused, opened = found.stdout.split()
    assert set(refused) == {"postgresql"}, found.stderr
    assert opened == "opened", found.stderr


async def test_two_that_share_a_statement(dsn: str) -> None:
    """R12: an older writer of the same session in the same process, whose append meets the new one's, writes nothing."""
    place = PostgresPlace(dsn)
    first = await place.new_log()
    await first.append_message(said("first"))
    sql(place.dsn, "UPDATE branchline_sessions SET held_until = now() - interval '1 s' WHERE id = %s", place.session_id)
    second = await EntryLog.open(await place.open())
    others = [PostgresPlace(place.dsn) for _ in range(2)]
    third, fourth = [await other.new_log() for other in others]
    outcomes: dict[str, str] = {}

    async def append(name: str, log: EntryLog) -> None:
        try:
            await log.append_message(said(name))
            outcomes[name] = "written"
        except StorageError as error:
            outcomes[name] = type(error).__name__

    # The newest entry is gone, so that the older writer's place is another than the new one's.
    sql(
        place.dsn,
        "DELETE FROM branchline_entries WHERE session = (SELECT session FROM branchline_sessions WHERE id = %s)",
        place.session_id,
    )
    await second.aclose()
    second = await EntryLog.open(await place.open())
    # Two statements are under way. When the first ends, who waits goes along with the next: both in one.
    appends = Appends(dsn)
    with appends.held_up(others[0].session_id) as held_up, appends.held_up(others[1].session_id) as longer_held_up:
        async with anyio.create_task_group() as group:
            for count, name, log in ((1, "third", third), (2, "fourth", fourth)):
                group.start_soon(append, name, log)
                await until_waiting(dsn, count)
            for count, name, log in ((1, "second", second), (2, "first", first)):
                group.start_soon(append, name, log)
                await until_gathered(third, count)
            held_up.rollback()
            await until_gathered(third, 0)
            longer_held_up.rollback()
    assert outcomes == {"third": "written", "fourth": "written", "second": "written", "first": "StaleSessionError"}
    assert [entry["message"]["content"] for entry in place.entries()] == ["second"]
    assert_chain(place.entries())
    for log in (second, third, fourth):
        await log.aclose()
    with contextlib.suppress(StorageError):
        await first.aclose()
