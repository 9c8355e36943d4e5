"""A database whose disk fails, fills up, or is taken away, under a real process and under our hands (R10, R12, R15)."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage import (
    DamagedSessionError,
    EntryLog,
    JsonlRepository,
    SessionNotFoundError,
    SqliteRepository,
    SqliteStorage,
    StaleSessionError,
    StorageError,
    UnsupportedVersionError,
    UserMessage,
    migrate_all,
)
from storage.sqlite_database import Database
from storage.sqlite_schema import APPLICATION_ID
from tests.storage.places import SqlitePlace, assert_chain, said, texts
from tests.storage.test_system_failures import PROGRAM, can, check_recovered, run

pytestmark = pytest.mark.anyio

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")


@pytest.fixture
def chats(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


@pytest.fixture(params=["asyncio", "trio"])
def loop(request: pytest.FixtureRequest) -> str:
    return request.param


def begin(path: Path, count: int = 2) -> list[str]:
    """A session of some entries; their ids."""

    async def make() -> list[str]:
        log = await EntryLog.open(await SqliteStorage.create(path, session_id="chat"))
        ids = [await log.append_message(UserMessage(content="before")) for _ in range(count)]
        await log.aclose()
        return ids

    return anyio.run(make)


def inject(path: Path, loop: str, what: str) -> dict[str, Any]:
    """Append six times under strace, which makes a call on the log's file fail."""
    if not can("strace", "-qq", "-e", "trace=none", "true"):
        pytest.skip("strace cannot trace here")
    trace = path.parent / "trace.txt"
    call = what.split(":", maxsplit=1)[0]
    found = run(
        *("strace", "-f", "-qq", "-o", trace, "-P", f"{path}-wal", "-e", f"trace={call}", "-e", f"inject={what}"),
        *(*PROGRAM, "plain", path, loop),
    )
    assert "(INJECTED)" in trace.read_text()
    return found


@on_linux
def test_a_full_disk(tmp_path: Path, loop: str) -> None:
    """R10: on a disk that is really full a batch fails whole, with one cause; with room again the same log goes on.

    Nothing can be created there meanwhile, and nothing of that is left.
    """
    if not can("unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"):
        pytest.skip("no mount name spaces here")
    script = 'mount -t tmpfs -o size=512k tmpfs "$1" && shift && exec "$@"'
    place = tmp_path / "chats.sqlite"
    found = run("unshare", "-Urm", "sh", "-c", script, "sh", tmp_path, *PROGRAM, "disk", place, loop)
    full = found["full"]
    assert (full["failed"], full["committed"]) == (40, [])
    assert (full["kinds"], full["causes"], full["errnos"]) == (["StorageError"], 1, [errno.ENOSPC])
    assert full["writable"]
    assert found["created"] == "refused"
    assert [name for name in found["left"] if not name.endswith((".locks", "2.sqlite"))] == []
    check_recovered(found)


@on_linux
def test_a_limit_of_the_process(tmp_path: Path, loop: str) -> None:
    """R10: a write that the system cuts short at the file size limit: nothing of its batch stays, and the log goes on."""
    place = tmp_path / "chats.sqlite"
    begin(place)
    found = run(*PROGRAM, "size", place, loop)
    full = found["full"]
    assert full["failed"] == 40
    assert (full["causes"], full["errnos"]) == (1, [errno.EIO])
    assert full["writable"]
    check_recovered(found)


@on_linux
@pytest.mark.parametrize("when", [3, 4, 5])
def test_a_failed_sync_is_not_retried(tmp_path: Path, loop: str, when: int) -> None:
    """R10: an fdatasync that fails with EIO: that write fails, the log is tainted, nothing is written or synced again."""
    place = tmp_path / "chats.sqlite"
    ids = begin(place)
    found = inject(place, loop, f"fdatasync:error=EIO:when={when}")
    results = found["results"]
    good = [result for result in results if isinstance(result, str)]
    bad = results[len(good) :]
    assert bad
    assert bad == [{"errno": errno.EIO, "kind": "StorageError"}] * len(bad)
    assert found["calls"] == ["OSError", "OSError"]
    assert found["held"][: len(ids) + len(good)] == [*ids, *good]
    assert len(found["held"]) <= len(ids) + len(good) + 1  # written, though nobody knows whether durably
    trace = (tmp_path / "trace.txt").read_text()
    reopened = trace[trace.index("(INJECTED)") :].count("fdatasync(")
    assert reopened == 0 or len(found["held"]) > 0


@on_linux
def test_a_write_that_fails(tmp_path: Path, loop: str) -> None:
    """R10: a write that fails with EIO: that entry fails, it is known that nothing of it stays, and the next succeed."""
    place = tmp_path / "chats.sqlite"
    ids = begin(place)
    failed = 0
    for when in (3, 5, 8):
        found = inject(place, loop, f"pwrite64:error=EIO:when={when}")
        good = [result for result in found["results"] if isinstance(result, str)]
        failed += len(found["results"]) - len(good)
        assert found["held"] == [*ids, *good]
        assert found["calls"] == ["fine", "fine"]
        ids += good
    assert failed


async def test_a_failed_sync_is_everybodys(chats: SqlitePlace) -> None:
    """R10: all sessions of the file in this process are tainted with that one error; opened anew, each goes on."""
    first = await chats.new_log(durability="fsync")
    second = await EntryLog.open(await SqliteStorage.create(chats.path, session_id="second", durability="os"))
    await second.append_message(said("before"))
    error = OSError(errno.EIO, "Input/output error")
    storage: Any = first.storage
    storage._database.writer._broken = error
    for log in (first, second):
        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                await log.append_message(said("late"))
            assert caught.value.__cause__ is error
        assert not log.writable
    await first.aclose()
    again = await chats.log()  # while the other one still holds what is broken
    await again.append_message(said("anew"))
    await second.aclose()
    await again.append_message(said("on"))
    await again.aclose()
    assert texts(chats.entries()) == ["anew", "on"]


def replace_file(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy(path, other)
    os.replace(other, path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.with_name("moved")),
    "replaced": replace_file,
}


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("how", CHANGES)
async def test_taken_away_before_the_write(chats: SqlitePlace, how: str, durability: str) -> None:
    """R12: the next append, read and blob are StaleSessionError; nothing is written where the file was."""
    log = await chats.new_log(durability=durability)
    await log.append_message(said("first"))
    CHANGES[how](chats.path)
    before = chats.path.read_bytes() if chats.path.exists() else None
    with pytest.raises(StaleSessionError):
        await log.blobs.write(b"x")
    for _ in range(2):
        with pytest.raises(StaleSessionError):
            await log.append_message(said("late"))
    assert not log.writable
    await log.aclose()
    assert (chats.path.read_bytes() if chats.path.exists() else None) == before


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("how", ["the log", "the log replaced", "emptied"])
async def test_something_else_is_taken_away(chats: SqlitePlace, how: str, durability: str) -> None:
    """R12: a log that something cleans up, and a file that is emptied: what is written then would be lost, and is stale."""
    log = await chats.new_log(durability=durability)
    await log.append_message(said("first"))
    wal = chats.path.with_name("chats.sqlite-wal")
    if how == "emptied":
        os.truncate(chats.path, 0)
    else:
        data = wal.read_bytes()
        wal.unlink()
        if how == "the log replaced":
            wal.write_bytes(data)
    for _ in range(2):
        with pytest.raises(StaleSessionError):
            await log.append_message(said("late"))
    await log.aclose()


async def test_a_reader_of_what_was_taken_away(chats: SqlitePlace) -> None:
    """R12: a reader is told, too; and so is the reader of a session that was deleted, while others are read on."""
    await (await chats.new_log()).aclose()
    kept = await SqliteStorage.create(chats.path, session_id="kept")
    reader, other = await chats.log(mode="read"), await EntryLog.open(kept)
    await SqliteRepository(chats.path).delete("chat")
    with pytest.raises(StaleSessionError, match="deleted"):
        await reader.refresh()
    await other.append_message(said())
    chats.path.unlink()
    with pytest.raises(StaleSessionError):
        await reader.refresh()
    await reader.aclose()
    await other.aclose()


async def test_deleted_under_its_writer_by_a_tool(chats: SqlitePlace) -> None:
    """R12: somebody with sqlite3 in hand deletes the rows, or adds one: the next append is stale, and writes nothing."""
    for statement in ("DELETE FROM progress", "UPDATE progress SET next_seq = next_seq + 1"):
        log = await chats.new_log()
        await log.append_message(said())
        with sqlite3.connect(chats.path) as connection:
            connection.execute(statement)
        connection.close()
        with pytest.raises(StaleSessionError):
            await log.append_message(said("late"))
        await log.aclose()
        assert len(chats.lines()) == (1 if "UPDATE" in statement else 0) or "DELETE" in statement
        for side in chats.path.parent.glob("chats.sqlite*"):
            if side.is_file():
                side.unlink()


NO_DATABASE = {
    "text": b"this is no database, but it is longer than a header of one is\n" * 40,
    "jsonl": b'{"type":"session","version":3,"id":"x"}\n',
    "half a header": b"SQLite format 3\0\x10\0",
    "zeros": bytes(8192),
}


@pytest.mark.parametrize("what", NO_DATABASE)
async def test_what_is_no_database(chats: SqlitePlace, what: str) -> None:
    """R15: damage by name, for every call; the file is left as it is, and nothing lies beside it."""
    chats.path.write_bytes(NO_DATABASE[what])
    repository = SqliteRepository(chats.path)
    calls: list[Callable[[], Any]] = [
        chats.create,
        chats.open,
        lambda: chats.open(mode="read"),
        lambda: SqliteStorage.open_or_create(chats.path),
        repository.list,
        lambda: repository.find("x"),
        lambda: repository.delete("x"),
    ]
    for call in calls:
        with pytest.raises(DamagedSessionError) as caught:
            await call()
        assert str(chats.path) in str(caught.value)
    assert chats.path.read_bytes() == NO_DATABASE[what]
    assert [path.name for path in chats.path.parent.iterdir()] == ["chats.sqlite"]


async def test_somebody_elses_database(chats: SqlitePlace) -> None:
    """R15: another program's tables are refused, and a newer version of ours by its number; both untouched."""
    for statements, error in (
        (["CREATE TABLE notes (text TEXT)"], DamagedSessionError),
        (["PRAGMA user_version = 7"], DamagedSessionError),
        ([f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 99"], UnsupportedVersionError),
    ):
        connection = sqlite3.connect(chats.path)
        connection.execute("PRAGMA journal_mode = WAL")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        before = chats.path.read_bytes()
        for call in (chats.create, chats.open, lambda: chats.open(mode="read"), SqliteRepository(chats.path).list):
            with pytest.raises(error) as caught:
                await call()
            assert "99" in str(caught.value) or error is DamagedSessionError
        assert chats.path.read_bytes() == before
        assert [path.name for path in chats.path.parent.iterdir()] == ["chats.sqlite"]
        chats.path.unlink()


async def test_an_empty_file_is_none_yet(chats: SqlitePlace) -> None:
    """R15: a file of no bytes, and a missing one, hold no session yet; opening one makes nothing, creating one does."""
    for _ in range(2):
        for call in (chats.open, lambda: chats.open(mode="read"), lambda: SqliteStorage.open(chats.path)):
            with pytest.raises(SessionNotFoundError):
                await call()
        assert not list(await SqliteRepository(chats.path).list())
        if not chats.path.exists():
            chats.path.touch()
    assert chats.path.read_bytes() == b""
    log = await EntryLog.open(await SqliteStorage.open_or_create(chats.path, session_id="chat"))
    await log.append_message(said())
    await log.aclose()
    assert texts(chats.entries()) == ["hello"]


async def test_what_is_no_file(tmp_path: Path) -> None:
    """R15: a folder, a pipe, /dev/full: a StorageError, at once, and nothing is made."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/full")):
        if path.exists():
            for call in (SqliteStorage.open, SqliteStorage.open_or_create, SqliteStorage.create):
                with pytest.raises(StorageError, match="not a file"):
                    await call(path)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


async def damaged(chats: SqlitePlace, *statements: str) -> None:
    """A session of five, whose rows somebody then changed."""
    log = await chats.new_log()
    for number in range(5):
        await log.append_message(said(str(number)))
    await log.aclose()
    connection = sqlite3.connect(chats.path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


BAD_ROWS = {
    "no JSON": ("UPDATE entries SET data = CAST('{\"half' AS BLOB) WHERE place & 255 = 2", r"session JSON at line 4"),
    "text": ("UPDATE entries SET data = 'text' WHERE place & 255 = 2", r"record at line 4: a str"),
    "a number": ("UPDATE entries SET data = 7 WHERE place & 255 = 2", r"record at line 4: a int"),
    "missing": ("DELETE FROM entries WHERE place & 255 = 2", r"record at line 4: expected seq 2, found 3"),
    "the end is missing": ("DELETE FROM entries WHERE place & 255 = 4", r"record at line 6: expected seq 4, found 5"),
    "another place": (
        "UPDATE entries SET data = (SELECT data FROM entries AS e WHERE e.place & 255 = 1) WHERE place & 255 = 2",
        r"record at line 4: expected seq 2, found 1",
    ),
}


@pytest.mark.parametrize("how", BAD_ROWS)
async def test_a_bad_row(chats: SqlitePlace, how: str) -> None:
    """R14: a row that is no record is named by its line; ``skip`` shows the rest, to read only; a listing says it."""
    statement, match = BAD_ROWS[how]
    await damaged(chats, statement)
    before = chats.path.read_bytes()
    for mode in ("write", "read"):
        with pytest.raises(DamagedSessionError, match=match):
            await chats.open(mode=mode)
    log = await chats.log(on_corrupt="skip")
    assert not log.writable
    (bad,) = [warning for warning in log.warnings if warning.code != "broken_link"]
    assert bad.code == ("entries_missing" if "missing" in how else "bad_line")
    assert bad.line == {"missing": 5, "the end is missing": 7}.get(how, 4)
    assert len(await log.entries()) == 4
    await log.refresh()
    await log.aclose()
    repository = SqliteRepository(chats.path)
    (quick,) = await repository.list()
    (deep,) = await repository.list(deep=True)
    assert (quick.problem, deep.problem_code) == (None, "damaged_session")
    assert chats.path.read_bytes() == before


async def test_a_lost_header(chats: SqlitePlace) -> None:
    """R14: damage, for every way to open it; ``skip`` shows the entries, to read only, under the id it is listed by."""
    await damaged(chats, "UPDATE sessions SET header = CAST('{half' AS BLOB)")
    for mode in ("write", "read"):
        with pytest.raises(DamagedSessionError, match="header"):
            await chats.open(mode=mode)
    log = await chats.log(on_corrupt="skip")
    assert (len(await log.entries()), log.writable, log.storage.info.header.id) == (5, False, "chat")
    await log.aclose()
    (listed,) = await SqliteRepository(chats.path).list()
    assert (listed.id, listed.problem_code) == ("chat", "damaged_session")


async def test_a_bad_page(chats: SqlitePlace) -> None:
    """R15: a database with a ruined page is a DamagedSessionError that says what to do; the file is left as it is."""
    log = await chats.new_log()
    for _ in range(60):
        await log.append_message(said("x" * 900))
    await log.aclose()
    data = bytearray(chats.path.read_bytes())
    for page in range(9, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    chats.path.write_bytes(data)
    with pytest.raises(DamagedSessionError, match="damaged"):
        await chats.open()
    assert chats.path.read_bytes() == data


async def test_a_header_that_is_newer(chats: SqlitePlace) -> None:
    """R4: a session of a newer format is refused by its number, listed with that, and hides no other."""
    await (await chats.new_log()).aclose()
    await (await EntryLog.open(await SqliteStorage.create(chats.path, session_id="other"))).aclose()
    connection = sqlite3.connect(chats.path)
    connection.execute(
        "UPDATE sessions SET header = replace(header, '\"version\":3', '\"version\":4') WHERE id = 'chat'"
    )
    connection.commit()
    connection.close()
    with pytest.raises(UnsupportedVersionError, match="version 4"):
        await chats.open()
    found = {summary.id: summary.problem_code for summary in await SqliteRepository(chats.path).list()}
    assert found == {"chat": "unsupported_version", "other": None}


CRASHING = """
import anyio, os, sys
from storage import EntryLog, SqliteStorage, UserMessage

async def main():
    log = await EntryLog.open(await SqliteStorage.create(sys.argv[1], session_id="chat"))
    await log.append_message(UserMessage(content="in the log"))
    os._exit(0)

anyio.run(main)
"""


async def test_after_a_crash(chats: SqlitePlace) -> None:
    """R15: what a killed writer left in the log is read by a reader, who changes no byte of any file."""
    process = await anyio.run_process(
        [
            sys.executable,
            "-c",
            CRASHING,
            str(chats.path),
        ]
    )
    assert process.returncode == 0
    wal = chats.path.with_name("chats.sqlite-wal")
    before = (chats.path.read_bytes(), wal.read_bytes())
    assert len(before[1]) > 4096
    log = await chats.log(mode="read")
    assert len(log.index) == 1
    await log.aclose()
    assert [summary.first_message for summary in await SqliteRepository(chats.path).list()] == ["in the log"]
    assert (chats.path.read_bytes(), wal.read_bytes()) == before
    log = await chats.log()
    await log.append_message(said("on"))
    await log.aclose()
    assert not wal.exists()
    assert texts(chats.entries()) == ["in the log", "on"]
    assert_chain(chats.entries())


# --- what a hostile reader found


async def test_deleted_while_it_is_read(chats: SqlitePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R14: a session that is deleted between two pieces of its reading is gone, not damaged: opened, migrated, listed."""
    repository = SqliteRepository(chats.path)
    read = Database.read
    left = 0

    def reads_on(database: Database, work: Callable[[sqlite3.Connection], Any]) -> Any:
        nonlocal left
        found = read(database, work)
        if isinstance(found, list) and found and isinstance(found[0], tuple) and len(found[0]) == 2:
            left -= 1
            if left == 0:
                with ThreadPoolExecutor() as other:
                    other.submit(anyio.run, repository.delete, "chat").result()
        return found

    monkeypatch.setattr(Database, "read", reads_on)

    async def opened() -> None:
        for skips in ("raise", "skip"):
            await fill()
            with pytest.raises(StaleSessionError, match="was deleted"):
                await chats.open(mode="read", on_corrupt=skips)

    async def listed() -> None:
        await fill()
        assert not list(await repository.list(deep=True))

    async def migrated() -> None:
        await fill()
        target = JsonlRepository(tmp_path / "target")
        (result,) = await migrate_all(repository, target)
        assert isinstance(result.error, StaleSessionError)
        assert not list(await target.list())

    async def fill() -> None:
        nonlocal left
        log = await chats.new_log(durability="os")
        for _ in range(3):
            await log.append_message(said("x" * 700_000))
        await log.aclose()
        left = 1

    for look in (opened, listed, migrated):
        await look()
        assert left == 0


@pytest.mark.parametrize("begun", ["all in the log", "in the file"])
async def test_two_names(chats: SqlitePlace, begun: str) -> None:
    """R12: SQLite keeps a log for each name, so who writes under a second one is refused, and nothing is lost.

    A reader is let in. With one name again it goes on; a name that a killed maker of the file has left goes by itself.
    """
    log = await chats.new_log()
    await log.append_message(said("first"))
    if begun == "in the file":
        await log.aclose()
        log = await chats.log()
    other = chats.path.with_name("other.sqlite")
    os.link(chats.path, other)
    repository = SqliteRepository(other)
    for attempt in (repository.open, repository.open_or_create, repository.create, repository.delete):
        if attempt != repository.delete or begun == "in the file":
            with pytest.raises(StorageError, match="second name"):
                await attempt("chat" if attempt != repository.create else "new")
    await log.append_message(said("second"))
    await log.aclose()
    assert [found.id for found in await repository.list()] == ["chat"]
    other.unlink()
    left = chats.path.with_name(".chats.sqlite.0123456789ab.tmp")
    os.link(chats.path, left)
    log = await chats.log()
    await log.append_message(said("third"))
    await log.aclose()
    assert texts(chats.entries()) == ["first", "second", "third"]
    assert not left.exists()


@on_linux
def test_a_read_that_fails(tmp_path: Path) -> None:
    """R15: a disk that fails in the middle of a reading: that error is told, and what to do, not what SQLite says of it."""
    if not can("strace", "-qq", "-e", "trace=none", "true"):
        pytest.skip("strace cannot trace here")
    place = tmp_path / "chats.sqlite"
    begin(place, 300)
    inject = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(place), "-e", "trace=pread64", "-e")
    program = (
        "import sys, anyio\nfrom storage import SqliteStorage, StorageError\n"
        "async def main():\n    try:\n        (await SqliteStorage.open(sys.argv[1], mode='read')).close()\n"
        "    except StorageError as error:\n        print(error)\nanyio.run(main)\n"
    )
    told: set[str] = set()
    for when in range(2, 60, 5):
        done = subprocess.run(
            [*inject, f"inject=pread64:error=ESTALE:when={when}+", sys.executable, "-c", program, str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        if not done.stdout:
            break
        told.add(done.stdout.strip())
    else:
        pytest.fail("it never came to its end")
    why = "the disk did not do what it was told; see whether it is full, and what the system's log says of it"
    assert told == {f"{place}: the session cannot be opened: disk I/O error; {why}"}


async def test_what_was_begun_alone_is_ended(chats: SqlitePlace) -> None:
    """R10: work that fails in a transaction of its own leaves none open: the next append is written, by others as well."""
    log = await chats.new_log()
    storage: Any = log.storage

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        raise MemoryError

    with pytest.raises(MemoryError):
        storage._database.writer.alone(fails)
    with closing(sqlite3.connect(chats.path, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    await log.append_message(said("on"))
    await log.aclose()
    assert texts(chats.entries()) == ["on"]


@pytest.mark.parametrize("table", ["progress", "sessions", "entries", "shared"])
async def test_a_table_that_is_gone(chats: SqlitePlace, table: str) -> None:
    """R15: a table that somebody has dropped is damage, by its name, with a way out."""
    await damaged(chats, "DROP VIEW session_entries", f"DROP TABLE {table}")
    for mode in ("write", "read"):
        with pytest.raises(DamagedSessionError, match=f"no such table: {table}.*Restore a copy"):
            await chats.open(mode=mode)


async def test_what_lies_beside_it(chats: SqlitePlace) -> None:
    """R15: a file in place of the locks' folder, a folder in place of the log: an error that says what to do."""
    await (await chats.new_log()).aclose()
    locks = chats.path.with_name("chats.sqlite.locks")
    locks.rmdir()
    locks.touch()
    with pytest.raises(StorageError, match=r"chats\.sqlite\.locks'; move away"):
        await chats.open()
    locks.unlink()
    chats.path.with_name("chats.sqlite-wal").mkdir()
    for mode in ("write", "read"):
        with pytest.raises(StorageError, match=r"unable to open database file; see that the file, .*-wal"):
            await chats.open(mode=mode)


@on_linux
def test_reading_without_room(tmp_path: Path, loop: str) -> None:
    """R10: with no room for SQLite's ``-shm`` either, sessions are read and listed; who writes is told to make some."""
    if not can("unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"):
        pytest.skip("no mount name spaces here")
    begin(tmp_path / "chats.sqlite")
    (tmp_path / "full").mkdir()
    script = (
        'mount -t tmpfs -o size=256k tmpfs "$1/full" && cp "$1/chats.sqlite" "$1/full" || exit 1\n'
        'while head -c 1024 /dev/zero >> "$1/full/filling"; do :; done 2>/dev/null\n'
        'exec "$2" -c "$3" "$1/full/chats.sqlite" "$4"'
    )
    program = (
        "import sys, anyio\nfrom storage import SqliteRepository, SqliteStorage, StorageError\n"
        "async def main():\n    for _ in range(2):\n"
        "        print([found.entries for found in await SqliteRepository(sys.argv[1]).list(deep=True)])\n"
        "        reader = await SqliteStorage.open(sys.argv[1], mode='read')\n"
        "        print(len(reader.read()))\n        reader.close()\n        try:\n"
        "            await SqliteStorage.open(sys.argv[1])\n        except StorageError as error:\n"
        "            print(error.__cause__.errno, error)\nanyio.run(main, backend=sys.argv[2])\n"
    )
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, "sh", tmp_path, sys.executable, program, loop],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed, count, refused = done.stdout.splitlines()[:3]
    assert (listed, count) == ("[2]", "2")
    assert refused.startswith(f"{errno.ENOSPC} ") and "make room on the disk" in refused
    assert done.stdout.splitlines()[3:] == [listed, count, refused]
