"""PostgreSQL: what it does beyond what every backend does, on a real server."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from harness import Session
from storage import (
    DamagedSessionError,
    EntryLog,
    PostgresRepository,
    PostgresStorage,
    ReadOnlySessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StaleSessionError,
    StorageError,
    UnsupportedVersionError,
    Watchable,
    postgres_following,
)
from storage.event_loops import run_in_worker
from storage.postgres_pool import Pool, Settings
from storage.testing import check_storage
from tests.postgres_server import PostgresServer, started_server
from tests.storage.places import PostgresPlace, assert_chain, fork, said
from tests.storage.postgres_helpers import Pooler, Proxy, rows_in, sql
from tests.storage.test_conformance import postgres_opener

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[Pooler]:
    pooler = Pooler(postgres_server)
    yield pooler
    pooler.stop()


# --- through a pooler


async def test_it_conforms_through_a_transaction_pooler(pooler: Pooler) -> None:
    """Every clause holds where each transaction may run on another connection of the server."""
    report = await check_storage(postgres_opener(pooler.dsn, "os"))
    report.raise_for_failures()
    assert len(report.passed) >= 35


async def test_many_writers_through_a_transaction_pooler(pooler: Pooler, place: PostgresPlace) -> None:
    """Two repositories that share the pooler's three connections, with other statements: none is taken for another."""
    repositories = [PostgresRepository(pooler.dsn, answer_seconds=20 + number) for number in range(3)]

    async def write(number: int) -> None:
        repository = repositories[number % 3]
        log = await EntryLog.open(await repository.create(f"{place.session_id}-{number}"))
        for turn in range(20):
            writes = [log.append_message(said(f"{number} {turn} {part}")) for part in range(1 + turn % 3)]
            for one in writes:
                await one
        await log.aclose()

    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(write, number)
    for number in range(9):
        storage = await repositories[0].open(f"{place.session_id}-{number}", mode="read")
        assert len(await run_in_worker(storage.read)) == 39
        storage.close()


async def test_a_lease_is_kept_through_a_pooler(pooler: Pooler, place: PostgresPlace) -> None:
    """The lease is a row, not a lock of a connection: it holds when every connection has been another's meanwhile."""
    storage = await PostgresStorage.create(pooler.dsn, session_id=place.session_id)
    for _ in range(5):
        with pytest.raises(SessionLockedError) as caught:
            await PostgresStorage.open(place.dsn, session_id=place.session_id)
        assert caught.value.details["owner"]["pid"] == os.getpid()
    storage.close()
    (await place.open()).close()


# --- following


async def follow_one(reader: PostgresStorage, writer: EntryLog) -> bool:
    """Whether a reader that waits is woken by an append, and sees it."""
    await run_in_worker(reader.read)
    woken: list[bool] = []
    entry_id = ""

    async def wait() -> None:
        woken.append(await run_in_worker(lambda: reader.wait_for_change(60)))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(0.05)
        entry_id = await writer.append_message(said("news"))
    records = await run_in_worker(reader.read)
    return woken == [True] and records[-1].id == entry_id


async def begin_to_follow(reader: PostgresStorage) -> bool:
    """Whether it is told by the server. The first call says at once that there may be something to read."""
    assert await run_in_worker(lambda: reader.wait_for_change(5))
    assert reader._follower is not None
    return reader._follower._is_told


async def test_a_reader_is_told(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the server, while it follows; appends that nobody follows tell nobody."""
    monkeypatch.setattr(postgres_following, "_LOOK_EVERY_WHEN_TOLD", 1000)
    writer = await place.new_log()
    await writer.append_message(said("first"))
    assert sql(place.dsn, "SELECT followed_until FROM branchline_sessions WHERE id = %s", place.session_id) == [(None,)]
    reader = await PostgresStorage.open(place.dsn, session_id=place.session_id, mode="read")
    assert isinstance(reader, Watchable)
    assert await begin_to_follow(reader)
    assert await follow_one(reader, writer)
    assert not await run_in_worker(lambda: reader.wait_for_change(0.05))
    reader.close()
    await writer.aclose()


async def test_a_reader_looks_where_nobody_can_tell(pooler: Pooler, place: PostgresPlace) -> None:
    """Through a pooler it is looked up; given a direct address besides, it is told again."""
    writer = await place.new_log()
    reader = await PostgresStorage.open(pooler.dsn, session_id=place.session_id, mode="read")
    assert not await begin_to_follow(reader)
    assert await follow_one(reader, writer)
    reader.close()
    repository = PostgresRepository(pooler.dsn, direct_dsn=place.dsn)
    reader = await repository.open(place.session_id, mode="read")
    assert await begin_to_follow(reader)
    assert await follow_one(reader, writer)
    reader.close()
    await writer.aclose()


async def test_following_outlives_its_connection(postgres_server: PostgresServer, place: PostgresPlace) -> None:
    """All its connections are cut while it waits: it connects anew and goes on."""
    with Proxy(postgres_server) as proxy:
        writer = await place.new_log()
        dsn = postgres_server.dsn(port=proxy.port)
        reader = await PostgresStorage.open(dsn, session_id=place.session_id, mode="read")
        assert await begin_to_follow(reader)
        for _ in range(3):
            await run_in_worker(proxy.cut_all)
            assert await follow_one(reader, writer)
        reader.close()
        await writer.aclose()


async def test_a_deleted_session_ends_following(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a change that is told, and reading says what happened."""
    monkeypatch.setattr(postgres_following, "_LOOK_EVERY_WHEN_TOLD", 1000)
    log = await place.new_log()
    await log.aclose()
    reader = await place.open(mode="read")
    assert isinstance(reader, PostgresStorage)
    assert await run_in_worker(lambda: reader.wait_for_change(1))
    await place.repository.delete(place.session_id)
    assert await run_in_worker(lambda: reader.wait_for_change(60))
    with pytest.raises(StaleSessionError, match="deleted"):
        await run_in_worker(reader.read)
    reader.close()


# --- durability


@pytest.fixture(scope="module")
def lazy_server() -> Iterator[PostgresServer]:
    """A server that syncs late, and by default not for anybody."""
    server = started_server(synchronous_commit="off", wal_writer_delay="10s", wal_writer_flush_after="1GB")
    yield server
    server.stop()


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_what_is_synced_before_it_is_acknowledged(lazy_server: PostgresServer, durability: str) -> None:
    """R9: with "fsync" the server's log is on disk, whatever the server's default; with "os" nobody waits for that."""
    place = PostgresPlace(lazy_server.dsn())
    logs = [await place.another(0).new_log(durability=durability) for _ in range(3)]
    synced: list[bool] = []
    for _ in range(5):
        for log in logs:
            ((before,),) = sql(place.dsn, "SELECT pg_current_wal_insert_lsn()::text")
            await log.append_message(said())
            ((is_synced,),) = sql(place.dsn, "SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", before)
            synced.append(is_synced)
    assert all(synced) if durability == "fsync" else not all(synced)
    for log in logs:
        await log.aclose()


# --- the tables

FIRST_USE = """
import sys, anyio
from storage import EntryLog, PostgresRepository, UserMessage

async def main():
    repository = PostgresRepository(sys.argv[1])
    async def use(number):
        log = await EntryLog.open(await repository.create(f"{sys.argv[2]}-{number}"))
        await log.append_message(UserMessage(content="hello"))
        await log.aclose()
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(use, number)

anyio.run(main)
"""


@pytest.mark.heavy
def test_first_use_by_many_processes_at_once(dsn: str) -> None:
    """Eight processes of five tasks each come to a database without tables: each gets what it wants."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_USE, dsn, f"process-{number}"],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    for program in programs:
        _, errors = program.communicate(timeout=250)
        assert program.returncode == 0, errors
    assert rows_in(dsn)["branchline_sessions"] == rows_in(dsn)["branchline_entries"] == 40


async def test_looking_makes_no_tables(dsn: str) -> None:
    """R15: opening, listing, finding and deleting what is not there writes nothing, not even tables."""
    repository = PostgresRepository(dsn)
    assert list(await repository.list()) == []
    for call in (
        lambda: repository.open("x"),
        lambda: repository.open("x", mode="read"),
        lambda: repository.find("x"),
        lambda: repository.delete("x"),
        lambda: PostgresStorage.open(dsn, session_id="x"),
    ):
        with pytest.raises(SessionNotFoundError):
            await call()
    assert sql(dsn, "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()") == [(0,)]


async def test_newer_tables_are_refused(dsn: str) -> None:
    """R4: by name and untouched."""
    (await PostgresStorage.create(dsn, session_id="x")).close()
    sql(dsn, "UPDATE branchline_schema SET version = 99")
    for call in (
        lambda: PostgresStorage.open(dsn, session_id="x"),
        lambda: PostgresStorage.open_or_create(dsn, session_id="x"),
        lambda: PostgresStorage.create(dsn, session_id="y"),
        lambda: PostgresRepository(dsn).list(),
    ):
        with pytest.raises(UnsupportedVersionError, match="99"):
            await call()
    assert rows_in(dsn)["branchline_sessions"] == 1


async def test_a_newer_session_is_refused(dsn: str) -> None:
    """R4: a session of a later format is named and left alone, and hides no other."""
    repository = PostgresRepository(dsn)
    for name in ("new", "old"):
        (await repository.create(name)).close()
    line = b'{"type":"session","version":4,"id":"new"}'
    sql(dsn, "UPDATE branchline_sessions SET header = %s WHERE id = 'new'", line)
    with pytest.raises(UnsupportedVersionError):
        await repository.open("new")
    assert {one.id: one.problem_code for one in await repository.list()} == {"old": None, "new": "unsupported_version"}
    await repository.delete("new")
    assert [one.id for one in await repository.list()] == ["old"]


async def test_tables_that_may_not_be_made(dsn: str) -> None:
    """A user without the right to make tables is told what to do."""
    name = f"guest_{time.time_ns()}"
    sql(dsn, f"CREATE ROLE {name} LOGIN")
    with pytest.raises(StorageError, match="could not be made"):
        await PostgresStorage.create(dsn.replace("postgres@", f"{name}@"))


# --- damage


async def test_a_row_that_somebody_removed_or_changed(place: PostgresPlace) -> None:
    """R14: named when it is read; opened to save what is left, it is left out, and nothing can be appended."""
    log = await place.new_log()
    for number in range(6):
        await log.append_message(said(f"{number}"))
    await log.aclose()
    key = "session = (SELECT session FROM branchline_sessions WHERE id = %s)"
    sql(place.dsn, f"DELETE FROM branchline_entries WHERE seq = 2 AND {key}", place.session_id)
    storage = await place.open()
    with pytest.raises(DamagedSessionError, match=r"at line 4: entry 2 is missing"):
        await EntryLog.open(storage)
    storage.close()
    sql(place.dsn, f"UPDATE branchline_entries SET data = 'no' WHERE seq = 4 AND {key}", place.session_id)
    log = await place.log(on_corrupt="skip")
    assert [warning.line for warning in log.warnings if warning.code == "bad_line"] == [4, 6]
    assert [entry.seq for entry in await log.entries()] == [0, 1, 3, 5]
    with pytest.raises(ReadOnlySessionError, match="damaged"):
        log.append_message(said())
    await log.aclose()


async def test_an_older_copy_took_over(place: PostgresPlace) -> None:
    """R12: entries that were read or written before are gone: reading and appending say so; nothing is written."""
    log = await place.new_log()
    for number in range(4):
        await log.append_message(said(f"{number}"))
    reader = await place.log(mode="read")
    key = "session = (SELECT session FROM branchline_sessions WHERE id = %s)"
    sql(place.dsn, f"DELETE FROM branchline_entries WHERE seq >= 2 AND {key}", place.session_id)
    with pytest.raises(StaleSessionError, match="not there any more"):
        await reader.refresh()
    with pytest.raises(StaleSessionError, match="the next entry of this session is 2, not 4"):
        await log.append_message(said("on"))
    await reader.aclose()
    await log.aclose()
    assert len(place.lines()) == 2


# --- processes, connections


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
async def test_a_forked_child_writes_nothing(place: PostgresPlace) -> None:
    """The lease and the connections stay the parent's: in a child appending is refused, and the parent goes on."""
    log = await place.new_log()
    await log.append_message(said("first"))
    storage = log.storage
    record = (await run_in_worker(storage.read))[0]
    child = fork()
    if child == 0:
        code = 1
        try:
            storage.commit([record._replace(seq=1)])
        except StaleSessionError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await log.append_message(said("second"))
    await log.aclose()
    assert_chain(place.entries())


FORKING = """
import gc, os, sys, anyio
from storage import EntryLog, PostgresRepository, UserMessage

said = []
sys.unraisablehook = said.append

async def write(repository):
    log = await EntryLog.open(await repository.open_or_create("chat"))
    await log.append_message(UserMessage(content="hello"))
    count = len(await log.entries())
    await log.aclose()
    return count

repository = PostgresRepository(sys.argv[1])
anyio.run(write, repository)
child = os.fork()
if child == 0:
    del repository
    gc.collect()
    anyio.run(write, PostgresRepository(sys.argv[1]))
    os._exit(len(said))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), anyio.run(write, repository))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_forked_child_that_lets_go(dsn: str) -> None:
    """A child that drops what it has of its parent closes nothing of it, without a warning, and makes its own."""
    found = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", FORKING, dsn],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == "0 3\n", found.stderr


FORKING_MEANWHILE = """
import os, signal, threading, time
from storage.postgres_pool import _pools_guard, Settings, shared_pool

has_it = threading.Event()

def hold():
    with _pools_guard:
        has_it.set()
        time.sleep(0.5)

thread = threading.Thread(target=hold)
thread.start()
has_it.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    shared_pool(Settings("postgresql://h/d"))
    os._exit(0)
shared_pool(Settings("postgresql://h/d"))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_child_forked_while_a_pool_is_looked_up() -> None:
    """Another thread has the lock at that moment, and does not exist in the child: nobody waits for ever."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING_MEANWHILE],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == "0\n", found.stderr


async def test_sessions_share_few_connections(postgres_server: PostgresServer, place: PostgresPlace) -> None:
    """Sixty sessions that write at once share four connections, which are closed when the last of them is."""
    name = f"counted-{time.time_ns()}"

    def count() -> int:
        return sql(place.dsn, "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", name)[0][0]

    async def use() -> int:
        repository = PostgresRepository(f"{postgres_server.dsn()}?application_name={name}", lease_seconds=600)
        logs = [await EntryLog.open(await repository.create(f"{place.session_id}-{number}")) for number in range(60)]
        async with anyio.create_task_group() as group:
            for log in logs:
                for _ in range(3):
                    group.start_soon(log.append_message(said()).wait)
        most = count()
        for log in logs:
            await log.aclose()
        return most

    assert 1 <= await use() <= 4
    with anyio.fail_after(60):
        while count():
            gc.collect()
            await anyio.sleep(0.01)


def test_a_pool_is_collected_in_a_cycle(dsn: str) -> None:
    """The collector may come to a connection before it comes to the pool that holds it: it is closed, without a warning."""
    first = Pool(Settings(dsn))
    with first.connection(first.deadline()) as older:
        younger = Pool(Settings(dsn))
        vars(younger)["_free"].append(older)
        vars(younger)["itself"] = younger
    vars(first)["_free"].clear()
    with warnings.catch_warnings(record=True) as said_of_it:
        warnings.simplefilter("always")
        older_closes = weakref.ref(older)
        del first, older, younger
        gc.collect()
    assert older_closes() is None
    assert not said_of_it


def test_the_driver_is_named_where_it_is_missing() -> None:
    """Importing all names needs no driver; connecting says which extra brings it."""
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import anyio\n"
        "from harness import *\n"
        "try:\n"
        "    anyio.run(lambda: PostgresStorage.create('postgresql://h/d'))\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert "pip install 'branchline[postgres]'" in found.stdout


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=s3cret",
        "postgresql://me:s3cret@/%zz",
        "postgresql://me:s3cret%zz@127.0.0.1:1/db",
        "postgresql://localhost:s3cret/x@127.0.0.1:1/db",
        "postgresql://localhost:1/s3cret@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=me&password=x@s3cret",
        "host=127.0.0.1 port=1 password='x host=s3cret'",
        "host=127.0.0.1 port=1 password=x s3cret",
        "postgresql://me:s3cret 1@127.0.0.1:1/db",
        "s3cret",
    ],
)
async def test_a_password_is_never_shown(address: str) -> None:
    """Neither in an error nor in its causes."""
    with pytest.raises((StorageError, ValueError)) as caught:
        await PostgresStorage.create(address)
    assert "s3cret" not in repr(Settings(address))
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__cause__


@pytest.mark.parametrize(
    "wrong", [{"connections": 0}, {"answer_seconds": 0}, {"answer_seconds": float("inf")}, {"lease_seconds": 0}]
)
def test_settings_that_cannot_work(wrong: dict[str, float]) -> None:
    """They are refused at once, by name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PostgresRepository("postgresql://h/d", **wrong)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "127.0.0.1,127.0.0.1,127.0.0.1:1,2", "127.0.0.1:99999"])
async def test_addresses_that_lead_nowhere(host: str) -> None:
    """An error of ours, or a ``ValueError`` for what is no address."""
    with pytest.raises(StorageError, match="cannot be reached"):
        await PostgresStorage.create(f"postgresql://{host}/db?connect_timeout=2")


@pytest.mark.parametrize("option", ["connect_timeout=soon", "sslmod=require", "port=x"])
async def test_what_is_no_address(option: str) -> None:
    """A ``ValueError`` that says so."""
    with pytest.raises(ValueError, match="no address"):
        await PostgresStorage.create(f"postgresql://127.0.0.1/db?{option}")


async def test_an_id_that_differs_in_case(dsn: str) -> None:
    """R16: for the storage itself too."""
    (await PostgresStorage.create(dsn, session_id="Mine")).close()
    with pytest.raises(SessionExistsError, match="'Mine' already, which differs only in case"):
        await PostgresStorage.create(dsn, session_id="mine")
    with pytest.raises(SessionNotFoundError, match="which is another id"):
        await PostgresStorage.open(dsn, session_id="mine")


async def test_a_session_of_the_harness(dsn: str) -> None:
    """The whole way: a session over it remembers."""
    async with Session.open(PostgresStorage.open_or_create(dsn, session_id="chat")) as session:
        await session.append_message(said("What is this project called?"))
    async with Session.open(PostgresStorage.open(dsn, session_id="chat")) as session:
        context = await session.build_context()
    assert [message.text for message in context.messages] == ["What is this project called?"]
