"""Many users of one database: tasks, threads and processes, first use at once, writers that fight, one commit for many."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness import Session
from storage import EntryLog, PendingWrite, SqliteRepository, SqliteStorage, StorageError, UserMessage
from storage.sqlite_connections import file_status, look
from storage.sqlite_database import Database
from storage.sqlite_errors import NotWrittenError
from tests.storage.entry_folders import chain
from tests.storage.places import SqlitePlace, assert_chain, rows, said, texts

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def chats(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


async def test_first_use_by_twenty_tasks(tmp_path: Path) -> None:
    """R12: twenty first appends through twenty storages to a file that is not there yet: twenty entries, no error."""
    path = tmp_path / "new" / "chats.sqlite"

    async def first(number: int) -> None:
        log = await EntryLog.open(await SqliteStorage.open_or_create(path, session_id=f"s{number}", durability="os"))
        await log.append_message(said(f"{number}"))
        await log.aclose()

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(first, number)
    assert len(await SqliteRepository(path).list()) == 20
    assert rows(path, "SELECT count(*) FROM entries") == [(20,)]


WRITER = """
import sys, anyio
from storage import EntryLog, SessionLockedError, SqliteStorage, UserMessage

async def main(path, name, shared, count):
    sys.stdin.readline()
    for turn in range(3):
        for session_id in (name, shared):
            log = await EntryLog.open(await SqliteStorage.open_or_create(
                path, session_id=session_id, durability="os", lock_timeout=60))
            writes = [log.append_message(UserMessage(content=f"{name} {turn} {n}")) for n in range(count)]
            for write in writes:
                await write
            await log.aclose()
    print("done", flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
"""


def start(path: Path, name: str, shared: str, count: int = 5) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, shared, str(count)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.heavy
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_first_use_by_eight_processes(tmp_path: Path) -> None:
    """R12: eight processes make the file at once, each with a session of its own, and one that they take turns in."""
    path = tmp_path / "chats.sqlite"
    processes = [start(path, f"p{number}", "shared") for number in range(8)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        printed, errors = process.communicate(timeout=60)
        assert (process.returncode, printed, errors) == (0, "done\n", "")
    found = {summary.id: summary.entries for summary in await SqliteRepository(path).list(deep=True)}
    assert found == {"shared": 120, **{f"p{number}": 15 for number in range(8)}}
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    log = await EntryLog.open(await SqliteStorage.open(path, session_id="shared", mode="read"))
    assert len(await log.path()) == 120
    await log.aclose()


async def test_threads_that_make_the_tables_at_once(tmp_path: Path) -> None:
    """Threads that open a new file at the same instant, past the lock of this process: the tables are made once."""
    from storage.sqlite_connections import connect_to_write, make_file

    for turn in range(5):
        path = str(tmp_path / f"{turn}.sqlite")
        make_file(path, durable=False)
        ready = threading.Barrier(6)
        errors: list[BaseException] = []

        def open_one(path: str = path, ready: threading.Barrier = ready, errors: list[BaseException] = errors) -> None:
            ready.wait()
            try:
                connect_to_write(path).close()
            except BaseException as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        threads = [threading.Thread(target=open_one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
        assert errors == []
        assert rows(path, "SELECT count(*) FROM sqlite_master WHERE name = 'entries'") == [(1,)]


async def test_somebody_else_holds_the_database(chats: SqlitePlace) -> None:
    """A transaction of another program makes an append wait, in a worker, and the event loop goes on."""
    for durability in ("os", "fsync"):
        log = await (chats.new_log if durability == "os" else chats.log)(durability=durability)
        await log.append_message(said("before"))
        other = sqlite3.connect(chats.path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        turns = 0
        async with anyio.create_task_group() as group:
            done = anyio.Event()

            async def append(log: EntryLog = log, done: anyio.Event = done) -> None:
                await log.append_message(said("waited"))
                done.set()

            group.start_soon(append)
            for _ in range(20):
                await anyio.sleep(0.005)
                turns += 1
            assert not done.is_set()
            other.execute("ROLLBACK")
        other.close()
        assert turns == 20
        await log.aclose()
    assert texts(chats.entries()) == ["before", "waited"] * 2


async def test_held_for_too_long(chats: SqlitePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: when it is held for longer than one waits, the append fails, known not to be written, and the next succeeds."""
    import storage.sqlite_writer as module
    from storage.sqlite_connections import patiently

    log = await chats.new_log()
    await log.append_message(said("before"))
    monkeypatch.setattr(module, "patiently", lambda action: patiently(action, 0.05))
    other = sqlite3.connect(chats.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="locked") as caught:
        await log.append_message(said("late"))
    assert isinstance(caught.value.__cause__, BlockingIOError)
    other.execute("ROLLBACK")
    other.close()
    await log.append_message(said("after"))
    await log.aclose()
    assert texts(chats.entries()) == ["before", "after"]
    assert_chain(chats.entries())


async def test_a_failed_write_holds_nothing(chats: SqlitePlace) -> None:
    """After any error of ours, another connection writes at once, without waiting: no transaction was left open."""
    log = await chats.new_log()
    await log.append_message(said())
    other = sqlite3.connect(chats.path, isolation_level=None, timeout=0)

    def can_write() -> bool:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        return True

    with pytest.raises(Exception, match="content"):
        await log.append_message(UserMessage(content="x").model_copy(update={"content": object()}))
    assert can_write()
    await log.aclose()
    storage: Any = await chats.open()
    database: Database = storage._database

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO entries VALUES (1, 'x')")
        connection.execute("INSERT INTO nowhere VALUES (1)")

    def fail_otherwise(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO entries VALUES (1, ?)", (object(),))

    for work in (fail, fail_otherwise):
        with pytest.raises(NotWrittenError):
            database.writer.write(work, durable=False)
        assert can_write()
    assert rows(chats.path, "SELECT count(*) FROM entries") == [(1,)]
    storage.close()
    other.close()


async def test_one_to_blame_in_a_batch(chats: SqlitePlace) -> None:
    """Writes of several sessions that share a transaction: one that fails takes none of the others along."""
    storage: Any = await chats.create(durability="fsync")
    database: Database = storage._database
    held, go = threading.Event(), threading.Event()
    outcomes: dict[str, object] = {}

    def hold(_: sqlite3.Connection) -> None:
        held.set()
        go.wait(60)

    def good(name: int, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO entries VALUES (?, 'x')", (name,))

    def bad(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO entries VALUES (3, 'of the bad one')")
        connection.execute("INSERT INTO nowhere VALUES (1)")

    def run(name: str, work: Any) -> None:
        try:
            database.writer.write(work, durable=False)
            outcomes[name] = "written"
        except NotWrittenError:
            outcomes[name] = "not written"

    threads = [threading.Thread(target=run, args=("hold", hold))]
    threads[0].start()
    assert held.wait(60)
    for number in range(6):
        work = bad if number == 2 else (lambda connection, number=number: good(number + 100, connection))
        threads.append(threading.Thread(target=run, args=(f"{number}", work)))
        threads[-1].start()
    while len(database.writer._waiting) < 6:
        await anyio.sleep(0.001)
    before = connection_writes(database)
    go.set()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert outcomes == {"hold": "written", **{f"{n}": "not written" if n == 2 else "written" for n in range(6)}}
    assert before >= 0
    assert rows(chats.path, "SELECT place FROM entries") == [(100,), (101,), (103,), (104,), (105,)]
    storage.close()


def connection_writes(database: Database) -> int:
    return database.writer._connection.total_changes


async def test_sessions_share_a_commit(tmp_path: Path) -> None:
    """Group commit across sessions: of many synced appends at once, far fewer transactions than appends."""
    repository = SqliteRepository(tmp_path / "chats.sqlite")
    sessions = [await Session.open(repository.create(f"s{number}")) for number in range(16)]
    storage: Any = sessions[0].storage
    database: Database = storage._database
    assert all(getattr(session.storage, "_database") is database for session in sessions)  # noqa: B009
    commits = 0
    connection: sqlite3.Connection = database.writer._connection

    def counted(statement: str) -> None:
        """In the thread that writes. The first one waits until the others wait for it, as behind a slow disk."""
        nonlocal commits
        if statement == "COMMIT":
            commits += 1
            end = time.monotonic() + 60
            while commits == 1 and len(database.writer._waiting) < len(sessions) - 1 and time.monotonic() < end:
                time.sleep(0.001)

    connection.set_trace_callback(counted)
    async with anyio.create_task_group() as group:
        for session in sessions:
            for _ in range(5):
                group.start_soon(session.append_message(UserMessage(content="x")).wait)
    assert 1 <= commits <= 8
    connection.set_trace_callback(None)
    for session in sessions:
        assert len(await session.entries()) == 5
        await session.aclose()


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_many_sessions_side_by_side(tmp_path: Path, durability: Any) -> None:
    """Both durabilities in one file, with blobs, reads and listings between them: each session is as it should be."""
    repository = SqliteRepository(tmp_path / "chats.sqlite", durability=durability)
    mixed = SqliteRepository(tmp_path / "chats.sqlite", durability="os")

    async def one(number: int) -> None:
        shelf = repository if number % 2 else mixed
        async with Session.open(shelf.create(f"s{number}")) as session:
            for turn in range(6):
                writes: list[PendingWrite] = [
                    session.append_message(UserMessage(content=f"{turn} {n}")) for n in range(3)
                ]
                for write in writes:
                    await write
                name = await session.write_blob(f"{number} {turn}".encode())
                assert await session.read_blob(name) == f"{number} {turn}".encode()
                if turn == 3:
                    assert len(await repository.list(limit=3)) >= 1

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(one, number)
    found = await repository.list(deep=True)
    assert [(summary.entries, summary.problem) for summary in found] == [(18, None)] * 12


FIGHTER = """
import json, sys, time, anyio
from storage import EntryLog, SessionLockedError, StorageError, SqliteStorage, UserMessage

async def main(path, name, seconds):
    acknowledged, locked = [], 0
    sys.stdin.readline()
    end = time.monotonic() + seconds
    while time.monotonic() < end or not acknowledged:
        try:
            log = await EntryLog.open(await SqliteStorage.open_or_create(path, session_id="fought-over", durability="os"))
        except SessionLockedError as error:
            assert error.details["owner"] is None or error.details["owner"]["pid"]
            locked += 1
            await anyio.sleep(0.001)
            continue
        for _ in range(3):
            acknowledged.append(await log.append_message(UserMessage(content=name)))
        await log.aclose()
        await anyio.sleep(0.001)
    print(json.dumps([acknowledged, locked]), flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_two_processes_fight_over_one_session(tmp_path: Path) -> None:
    """R12: both are let in by turns, everything acknowledged is there once, in one chain, and nothing else."""
    path = tmp_path / "chats.sqlite"
    fighters = [
        subprocess.Popen(
            [sys.executable, "-c", FIGHTER, str(path), name, "1.5"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    results: list[tuple[list[str], int]] = []
    for fighter in fighters:
        assert fighter.stdin is not None
        fighter.stdin.write("\n")
        fighter.stdin.flush()
    for fighter in fighters:
        printed, errors = fighter.communicate(timeout=240)
        assert (fighter.returncode, errors) == (0, "")
        results.append(json.loads(printed))
    log = await EntryLog.open(await SqliteStorage.open(path, session_id="fought-over"))
    held = [entry.id for entry in await log.entries(limit=100_000)]
    assert len(await log.path()) == len(held)
    await log.aclose()
    assert sorted(held) == sorted([*results[0][0], *results[1][0]])
    assert all(acknowledged for acknowledged, _ in results)


async def test_a_storage_after_a_fork_of_the_process(chats: SqlitePlace) -> None:
    """In a forked child the writer's lock is not ours: an append is stale, and the parent goes on undisturbed."""
    if sys.platform == "win32":
        pytest.skip("no fork here")
    import os

    from storage import StaleSessionError
    from tests.storage.places import fork

    log = await chats.new_log()
    await log.append_message(said("parent"))
    child = fork()
    if child == 0:
        code = 1
        try:
            log.storage.commit(chain(2)[1:])
        except StaleSessionError:
            code = 0
        except BaseException:  # noqa: BLE001 - told by the exit code
            code = 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await log.append_message(said("on"))
    await log.aclose()
    assert texts(chats.entries()) == ["parent", "on"]


async def test_a_database_that_keeps_one_waiting_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one file is locked by another program, and its opening waits for that, another one is opened and closed."""
    slow, other = tmp_path / "slow.sqlite", tmp_path / "other.sqlite"
    (await SqliteStorage.create(slow, session_id="s", durability="os")).close()
    program = sqlite3.connect(slow, isolation_level=None)
    program.execute("PRAGMA locking_mode = EXCLUSIVE")
    program.execute("BEGIN EXCLUSIVE")
    waits = threading.Event()

    def look_and_say(path: str) -> int:
        if path == str(slow.resolve()):
            waits.set()
        return look(path)

    monkeypatch.setattr("storage.sqlite_database.look", look_and_say)
    opened: list[SqliteStorage] = []

    async def open_slow() -> None:
        opened.append(await SqliteStorage.open(slow, session_id="s", durability="os"))

    async with anyio.create_task_group() as group:
        group.start_soon(open_slow)
        try:
            assert await anyio.to_thread.run_sync(waits.wait, 30)
            with anyio.fail_after(30):
                (await SqliteStorage.create(other, session_id="s", durability="os")).close()
            assert not opened
        finally:
            program.close()
    opened[0].close()


async def test_a_storage_that_was_dropped_is_collected_while_its_database_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector closes it in the very thread that opens the file once more; that one gets a database."""
    path = tmp_path / "chats.sqlite"
    (await SqliteStorage.create(path, session_id="s", durability="os")).close()
    dropped = [await SqliteStorage.open(path, session_id="s", mode="read")]
    thread: list[int] = []

    def status_and_collect(path: str) -> os.stat_result:
        if dropped:
            dropped.clear()  # what holds it last may be a cycle, which the collector finds here or anywhere
            thread.append(threading.get_ident())
        return file_status(path)

    monkeypatch.setattr("storage.sqlite_database.file_status", status_and_collect)
    with pytest.warns(ResourceWarning, match="without being closed"), anyio.fail_after(30):
        storage = await SqliteStorage.open(path, session_id="s", durability="os")
    assert thread and thread[0] != threading.get_ident()
    log = await EntryLog.open(storage)
    await log.append_message(said("after"))
    await log.aclose()
