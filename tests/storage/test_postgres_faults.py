"""PostgreSQL: connections that are cut at any byte, answers that get lost, servers that are killed (R9, R10, R12)."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest

from storage import EntryLog, PostgresRepository, SessionLockedError, StaleSessionError, StorageError
from storage.event_loops import run_in_worker
from tests.postgres_server import PostgresServer, started_server
from tests.storage.places import PostgresPlace, assert_chain, said
from tests.storage.postgres_helpers import Appends, Proxy, impatient, pool_of, sql, until_gathered, until_waiting

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def log_through(place: PostgresPlace, dsn: str, *, answer_seconds: float = 60) -> AsyncGenerator[EntryLog]:
    """A log over the session of ``place``, by way of ``dsn``, with one entry, so that everything is prepared."""
    repository = PostgresRepository(dsn, answer_seconds=answer_seconds)
    log = await EntryLog.open(await repository.create(place.session_id))
    await log.append_message(said("first"))
    try:
        yield log
    finally:
        with contextlib.suppress(StorageError):
            await log.aclose()


@pytest.mark.parametrize("side_by_side", [1, 3])
async def test_cut_at_any_byte(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy, side_by_side: int
) -> None:
    """An append whose connection is cut after k bytes of it is there once, whatever k is, and in order."""
    called: list[str] = []
    async with log_through(place, postgres_server.dsn(port=proxy.port)) as log:
        called.append(log.index.names[0])
        before = proxy.sent
        called += [await log.append_message(said("x" * 100))]
        length = proxy.sent - before
        for cut_after in (1, 2, 5, 6, 40, 41, *range(60, length, 50), length - 1, length):
            proxy.cut_after = cut_after
            writes = [log.append_message(said(f"{number}" * 100)) for number in range(side_by_side)]
            for write in writes:
                called.append(await write)
            proxy.cut_after = None
    assert proxy.cuts >= 12
    assert [entry["id"] for entry in place.entries()] == called
    assert_chain(place.entries())


@pytest.mark.parametrize("side_by_side", [1, 3])
async def test_a_lost_answer(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy, side_by_side: int
) -> None:
    """The server committed and its answer never came: it is looked up, acknowledged, and not written twice."""
    called: list[str] = []
    async with log_through(place, postgres_server.dsn(port=proxy.port)) as log:
        called.append(log.index.names[0])
        for number in range(5):
            proxy.cut_on_answer = True
            writes = [log.append_message(said(f"{number}")) for _ in range(side_by_side)]
            for write in writes:
                called.append(await write)
    assert proxy.cuts == 5
    assert [entry["id"] for entry in place.entries()] == called


async def test_an_append_that_is_still_under_way_on_the_server(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy
) -> None:
    """Its connection is lost while it waits for a lock: looking waits for it, so it is there once, and not twice."""
    dsn = postgres_server.dsn()
    async with log_through(place, postgres_server.dsn(port=proxy.port)) as log:
        with psycopg.connect(dsn) as other:
            other.execute("SELECT 1 FROM branchline_sessions WHERE id = %s FOR UPDATE", (place.session_id,))
            async with anyio.create_task_group() as group:
                write = log.append_message(said("slow"))
                group.start_soon(write.wait)
                await until_waiting(dsn, 1)
                await run_in_worker(proxy.cut_all)
                await until_waiting(dsn, 2)
                other.rollback()
        await log.append_message(said("after it"))
    assert [entry["message"]["content"] for entry in place.entries()] == ["first", "slow", "after it"]


async def test_a_server_that_waits_for_nothing_long(
    postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy
) -> None:
    """The question what became of an append is refused for now (a timeout of the server's): it is asked again."""
    user = f"hasty_{time.time_ns()}"
    sql(place.dsn, f"CREATE ROLE {user} LOGIN SUPERUSER")
    asked = "SELECT query_start FROM pg_stat_activity WHERE usename = %s AND wait_event_type = 'Lock'"
    async with log_through(place, postgres_server.dsn(port=proxy.port).replace("postgres@", f"{user}@")) as log:
        with psycopg.connect(place.dsn) as other:
            other.execute("SELECT 1 FROM branchline_sessions WHERE id = %s FOR UPDATE", (place.session_id,))
            async with anyio.create_task_group() as group:
                write = log.append_message(said("slow"))
                group.start_soon(write.wait)
                await until_waiting(place.dsn, 1)
                sql(place.dsn, f"ALTER ROLE {user} SET statement_timeout = 150")  # of connections from now on
                await run_in_worker(proxy.cut_all)
                times: set[object] = set()
                with anyio.fail_after(60):
                    while len(times) < 4:
                        times.update(await run_in_worker(lambda: sql(place.dsn, asked, user)))
                other.rollback()
        for connection in pool_of(log)._free:
            connection.run("SET statement_timeout = 0")
        await log.append_message(said("after it"))
    assert [entry["message"]["content"] for entry in place.entries()] == ["first", "slow", "after it"]


async def test_nobody_can_be_asked(postgres_server: PostgresServer, place: PostgresPlace, proxy: Proxy) -> None:
    """A network that swallows everything: after the stated time the append fails as unknown; opening anew shows."""
    async with log_through(place, postgres_server.dsn(port=proxy.port)) as log:
        proxy.silent = True
        write = log.append_message(said("who knows"))
        with impatient(log, 0.3), pytest.raises(StorageError, match="whether they are there"):
            await write
        with pytest.raises(StorageError, match="whether they are there"):
            log.append_message(said("tainted"))
        proxy.silent = False
    again = await place.log(lock_timeout=60)
    found = again.index.names
    assert found[1:] in ([], [write.entry_id])
    await again.append_message(said("goes on"))
    await again.aclose()
    assert_chain(place.entries())


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that nobody minds being killed."""
    server = started_server()
    yield server
    server.stop()


async def test_a_server_that_is_away_for_a_while(own_server: PostgresServer) -> None:
    """Down before an append was sent: it is tried for the stated time, then fails with nothing written; the log goes on."""
    place = PostgresPlace(own_server.dsn())
    async with log_through(place, own_server.dsn()) as log:
        own_server.shut_down()
        with impatient(log, 0.4), pytest.raises(StorageError, match="nothing was written"):
            await log.append_message(said("away"))
        with pytest.raises(StorageError, match="cannot be reached") as caught:
            await place.open(mode="read")
        assert "\n" not in str(caught.value), "one line in a log, whatever the driver says"
        own_server.restart()
        await log.append_message(said("back"))
    assert [entry["message"]["content"] for entry in place.entries()] == ["first", "back"]


WRITER = """
import sys, anyio
from storage import EntryLog, PostgresRepository, UserMessage

async def main():
    repository = PostgresRepository(sys.argv[1])
    async def write(number):
        log = await EntryLog.open(await repository.create(f"{sys.argv[2]}-{number}"))
        while True:
            print(number, await log.append_message(UserMessage(content="x" * 300)), flush=True)
    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(write, number)

anyio.run(main)
"""


@pytest.mark.heavy
def test_the_server_is_killed_mid_stream(own_server: PostgresServer) -> None:
    """Eight sessions write while the server is killed with -9 and restarted, three times: nothing acknowledged is lost.

    The writers notice nothing but the time it takes; each session is a chain, and no entry is there twice.
    """
    name = f"stream-{time.time_ns()}"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, own_server.dsn(), name],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    acknowledged: dict[str, list[str]] = {f"{name}-{number}": [] for number in range(8)}
    count = 0

    def listen() -> None:
        nonlocal count
        assert writer.stdout is not None
        for line in writer.stdout:
            if not line.endswith("\n"):  # it was killed while it said it
                break
            number, entry_id = line.split()
            acknowledged[f"{name}-{number}"].append(entry_id)
            count += 1

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        for _ in range(3):
            wanted = count + 60
            wait_until(lambda wanted=wanted: count >= wanted or writer.poll() is not None)
            own_server.kill()
            own_server.restart()
        wanted = count + 60
        wait_until(lambda: count >= wanted or writer.poll() is not None)
        assert writer.poll() is None, writer.communicate()[1]
    finally:
        writer.kill()
        listener.join()
        writer.communicate()
    for session_id, ids in acknowledged.items():
        found = [
            json.loads(bytes(line))
            for (line,) in sql(
                own_server.dsn(),
                "SELECT e.data FROM branchline_entries e JOIN branchline_sessions s USING (session) WHERE s.id = %s "
                "ORDER BY e.seq",
                session_id,
            )
        ]
        assert_chain(found)
        assert [entry["id"] for entry in found][: len(ids)] == ids
        assert len(found) - len(ids) <= 1


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_taken_over_while_it_was_stopped(postgres_server: PostgresServer, place: PostgresPlace) -> None:
    """R12: a process that stands still for longer than its lease loses the session; woken up, it writes nothing more."""
    program = WRITER.replace("PostgresRepository(sys.argv[1])", "PostgresRepository(sys.argv[1], lease_seconds=10)")
    program = program.replace("range(8)", "range(1)")
    writer = subprocess.Popen(
        [sys.executable, "-c", program, postgres_server.dsn(), place.session_id],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    place.session_id += "-0"
    try:
        assert writer.stdout is not None
        await anyio.to_thread.run_sync(writer.stdout.readline)
        writer.send_signal(signal.SIGSTOP)
        with pytest.raises(SessionLockedError) as caught:
            await place.open()
        assert caught.value.details["owner"]["pid"] == writer.pid
        log = await EntryLog.open(await place.open(lock_timeout=60))
        before = len(log.index)
        ours = [await log.append_message(said("ours")) for _ in range(3)]
        writer.send_signal(signal.SIGCONT)
        _, errors = await anyio.to_thread.run_sync(writer.communicate)
        assert "StaleSessionError" in errors
        assert "taken over" in errors
        await log.aclose()
    finally:
        writer.kill()
        writer.communicate()
    assert [entry["id"] for entry in place.entries()][before:] == ours
    assert_chain(place.entries())


async def test_two_that_fight(place: PostgresPlace) -> None:
    """R12: of two writers that both believe the session is theirs one writes, and the other loses, with nothing written."""
    first = await place.new_log()
    await first.append_message(said("first"))
    sql(place.dsn, "UPDATE branchline_sessions SET held_until = now() - interval '1 s' WHERE id = %s", place.session_id)
    second = await EntryLog.open(await place.open())
    ids = [second.index.names[0]]

    async def fight(log: EntryLog, outcomes: list[str]) -> None:
        for number in range(20):
            try:
                ids.append(await log.append_message(said(f"{number}")))
                outcomes.append("written")
            except StaleSessionError:
                outcomes.append("stale")
                return

    outcomes: list[list[str]] = [[], []]
    async with anyio.create_task_group() as group:
        group.start_soon(fight, first, outcomes[0])
        group.start_soon(fight, second, outcomes[1])
    assert outcomes == [["stale"], ["written"] * 20]
    await first.aclose()
    await second.aclose()
    assert [entry["id"] for entry in place.entries()] == ids


async def test_one_that_was_taken_over_does_not_harm_the_others(dsn: str) -> None:
    """Of sessions whose appends go in one statement, the one that was taken over writes nothing; the others do."""
    place = PostgresPlace(dsn)
    repository = place.repository
    logs = [await EntryLog.open(await repository.create(f"{place.session_id}-{number}")) for number in range(6)]
    for log in logs:
        await log.append_message(said("first"))
    sql(
        place.dsn,
        "UPDATE branchline_sessions SET fence = fence + 1, holder = gen_random_uuid() WHERE id = %s",
        f"{place.session_id}-2",
    )
    outcomes: dict[int, str] = {}

    async def append(number: int) -> None:
        try:
            await logs[number].append_message(said("second"))
            outcomes[number] = "written"
        except StaleSessionError:
            outcomes[number] = "stale"

    # While the first two are under way, the others gather for one statement.
    async with anyio.create_task_group() as group:
        with Appends(dsn).held_up(f"{place.session_id}-0", f"{place.session_id}-1"):
            for number in (0, 1):
                group.start_soon(append, number)
            await until_waiting(dsn, 2)
            for number in range(2, 6):
                group.start_soon(append, number)
            await until_gathered(logs[0], 4)
    assert outcomes == {number: "stale" if number == 2 else "written" for number in range(6)}
    for log in logs:
        with contextlib.suppress(StaleSessionError):
            await log.aclose()


async def test_one_that_the_server_refuses_does_not_harm_the_others(postgres_server: PostgresServer) -> None:
    """An append that the server refuses fails alone and known; what comes after it is written."""
    dsn = postgres_server.new_schema()
    repository = PostgresRepository(dsn)
    logs = [await EntryLog.open(await repository.create(f"chat-{number}")) for number in range(6)]
    sql(dsn, "ALTER TABLE branchline_entries ADD CHECK (position('poison'::bytea IN data) = 0)")
    outcomes: dict[int, str] = {}

    async def append(number: int) -> None:
        try:
            await logs[number].append_message(said("poison" if number == 3 else "good"))
            outcomes[number] = "written"
        except StorageError as error:
            outcomes[number] = "refused" if "violates check constraint" in str(error) else "failed"

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(append, number)
    assert outcomes == {number: "refused" if number == 3 else "written" for number in range(6)}
    for log in logs:
        await log.append_message(said("goes on"))
        await log.aclose()
    assert sql(dsn, "SELECT count(*) FROM branchline_entries") == [(11,)]
