"""A database of sessions: its file, what a listing reads, what deleting leaves, who may read it (R12, R15-R17)."""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import sys
import warnings
from pathlib import Path

import pytest

from harness import Session
from storage import (
    EntryLog,
    MessageEntry,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SqliteRepository,
    SqliteStorage,
    StorageError,
    UserMessage,
)
from storage.entries import SessionInfoEntry
from storage.sqlite_schema import APPLICATION_ID, MIGRATIONS
from tests.storage.places import SqlitePlace, rows, said, texts
from tests.storage.test_permissions import as_nobody, open_folder

pytestmark = pytest.mark.anyio

__all__ = ["open_folder"]


@pytest.fixture
def chats(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


@pytest.fixture
def shelf(tmp_path: Path) -> SqliteRepository:
    return SqliteRepository(tmp_path / "chats.sqlite", durability="os")


async def write(repository: SqliteRepository, session_id: str, *said_: str) -> None:
    """A new session with some messages."""
    async with Session.open(repository.create(session_id)) as session:
        for text in said_:
            await session.append_message(UserMessage(content=text))


def bytes_beside(path: Path) -> bytes:
    """All bytes of the database's files."""
    return b"".join(found.read_bytes() for found in sorted(path.parent.glob(f"{path.name}*")) if found.is_file())


async def test_the_file(tmp_path: Path) -> None:
    """One file, 0600, in folders of 0700; beside it only the locks once it is closed; it says whose it is."""
    path = tmp_path / "new" / "folders" / "chats.sqlite"
    before = os.umask(0)
    try:
        log = await EntryLog.open(await SqliteStorage.create(path))
    finally:
        os.umask(before)
    await log.append_message(said())
    for found in path.parent.iterdir():
        assert found.stat().st_mode & 0o777 == (0o700 if found.is_dir() else 0o600), found
    assert path.parent.stat().st_mode & 0o777 == 0o700
    await log.aclose()
    assert sorted(found.name for found in path.parent.iterdir()) == ["chats.sqlite", "chats.sqlite.locks"]
    assert rows(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert rows(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


async def test_the_id_may_be_left_out(tmp_path: Path) -> None:
    """With one session in the file, ``open`` and ``open_or_create`` need no id; with two, they say which there are."""
    path = tmp_path / "chats.sqlite"
    for expected in (0, 1):
        storage = await SqliteStorage.open_or_create(path)
        log = await EntryLog.open(storage)
        assert len(log.index) == expected
        await log.append_message(said())
        await log.aclose()
    (await SqliteStorage.open(path, mode="read")).close()
    (await SqliteStorage.create(path, session_id="second")).close()
    for call in (SqliteStorage.open, SqliteStorage.open_or_create):
        with pytest.raises(SessionNotFoundError, match="say which, by session_id: .*second") as caught:
            await call(path)
        assert len(caught.value.details["matches"]) == 2
    (await SqliteStorage.open(path, session_id="second")).close()


async def test_sessions_of_one_file_are_apart(shelf: SqliteRepository) -> None:
    """R12: each session has its own writer; two of them are written side by side, and neither sees the other's."""
    async with Session.open(shelf.create("a")) as first, Session.open(shelf.create("b")) as second:
        for number in range(5):
            await first.append_message(UserMessage(content=f"a{number}"))
            await second.append_message(UserMessage(content=f"b{number}"))
        with pytest.raises(SessionLockedError) as caught:
            await shelf.open("a")
        assert caught.value.details["owner"]["pid"] == os.getpid()
    for session_id in ("a", "b"):
        async with Session.open(shelf.open(session_id)) as session:
            found = [entry.message.text for entry in await session.branch() if isinstance(entry, MessageEntry)]
            assert found == [f"{session_id}{number}" for number in range(5)]


async def test_a_listing_reads_no_entry(shelf: SqliteRepository) -> None:
    """R17: a list of ids, times, sizes, names and first messages comes from columns, even if the entries were gone."""
    await write(shelf, "told", "What is this?", "And this?")
    async with Session.open(shelf.open("told")) as session:
        await session.append_session_name("draft")
        await session.append_session_name("final")
    await write(shelf, "silent")
    size = sum(len(line) + 1 for (line,) in rows(shelf.path, "SELECT data FROM entries"))
    connection = sqlite3.connect(shelf.path)
    connection.execute("DELETE FROM entries")
    connection.commit()
    connection.close()
    found = {summary.id: summary for summary in await shelf.list()}
    told = found["told"]
    assert (told.first_message, told.name, told.problem, told.entries) == ("What is this?", "final", None, None)
    assert told.size is not None
    assert 100 < told.size - size < 300  # the header
    assert told.place.endswith("chats.sqlite#told")
    assert (found["silent"].first_message, found["silent"].name) == (None, None)
    deep = {summary.id: summary for summary in await shelf.list(deep=True)}
    assert deep["told"].problem_code == "damaged_session"
    assert (deep["silent"].problem, deep["silent"].entries) == (None, 0)


async def test_a_name_in_a_batch(chats: SqlitePlace) -> None:
    """The newest name counts, wherever in a batch it stands, and also when it was taken away."""
    log = await chats.new_log()
    log.append(SessionInfoEntry(name="first"))
    log.append_message(said("hello"))
    log.append(SessionInfoEntry(name="second"))
    await log.flush()
    (summary,) = await SqliteRepository(chats.path).list()
    assert (summary.name, summary.first_message) == ("second", "hello")
    await log.append(SessionInfoEntry())
    await log.aclose()
    (summary,) = await SqliteRepository(chats.path).list()
    assert summary.name is None


async def test_large_pages_of_a_listing(shelf: SqliteRepository) -> None:
    """Sessions written at the same nanosecond are each listed once."""
    for number in range(6):
        await write(shelf, f"s{number}", "x")
    connection = sqlite3.connect(shelf.path)
    connection.execute("UPDATE progress SET modified = 1700000000000000000")
    connection.commit()
    connection.close()
    found: list[str] = []
    page = await shelf.list(limit=2)
    found += [summary.id for summary in page]
    while page.after is not None:
        page = await shelf.list(after=page.after, limit=2)
        found += [summary.id for summary in page]
    assert found == [f"s{number}" for number in reversed(range(6))]


# --- deleting


async def test_deleting_leaves_nothing_between_pages(shelf: SqliteRepository) -> None:
    """SQLite wipes what is deleted, but not what it left behind when it moved a row to another page: so we do.

    Rows of many sessions, of all sizes, come and go by turns, so that it has to move them.
    """
    chooser = random.Random(1)
    sessions = {f"{number:03}": await Session.open(shelf.create(f"{number:03}")) for number in range(30)}
    left: list[str] = []
    for turn in range(30, 46):
        for _ in range(300):
            name = chooser.choice(sorted(sessions))
            size = chooser.choice([300, 700, 1500])
            await sessions[name].append_message(UserMessage(content=f"MARKER-{name}-" * (size // 11)))
        name = chooser.choice(sorted(sessions))
        await sessions.pop(name).delete()
        left += [name] if f"MARKER-{name}".encode() in bytes_beside(Path(shelf.path)) else []
        sessions[f"{turn:03}"] = await Session.open(shelf.create(f"{turn:03}"))
    for session in sessions.values():
        await session.aclose()
    assert left == []


@pytest.mark.parametrize("is_open", [False, True])
async def test_deleting_leaves_nothing(shelf: SqliteRepository, is_open: bool) -> None:
    """Neither in the file nor in its log is a byte of what was said; other sessions, open or not, are as they were."""
    names = [f"s{number}" for number in range(8)]
    sessions = {name: await Session.open(shelf.create(name)) for name in names}
    for number in range(60):
        for name in names:
            size = (number * 37 + len(name)) % 23 * 170 + 20
            await sessions[name].append_message(UserMessage(content=f"MARKER-{name}-" * (size // 10)))
    blob = await sessions["s3"].write_blob(b"BLOB-OF-s3" * 3000)
    await sessions["s3"].append_session_name("NAME-OF-s3")
    await sessions["s4"].write_blob(b"BLOB-OF-s4" * 3000)
    assert blob
    if not is_open:
        for session in sessions.values():
            await session.aclose()
        await shelf.delete("s3")
    else:
        await sessions["s3"].delete()
    data = bytes_beside(Path(shelf.path))
    assert [data.count(marker) for marker in (b"MARKER-s3", b"BLOB-OF-s3", b"NAME-OF-s3")] == [0, 0, 0]
    assert data.count(b"BLOB-OF-s4") >= 2900
    assert not os.path.exists(f"{shelf.path}.locks/s3.lock")
    for name in names:
        if name == "s3":
            continue
        if is_open:
            await sessions[name].append_message(UserMessage(content="on"))
            await sessions[name].aclose()
        async with Session.open(shelf.open(name)) as session:
            assert len(await session.entries()) == 60 + is_open
    assert rows(shelf.path, "PRAGMA integrity_check") == [("ok",)]
    for name in names:
        if name != "s3":
            await shelf.delete(name)
    for table in ("sessions", "progress", "entries", "shared", "blobs", "contents"):
        assert rows(shelf.path, f"SELECT count(*) FROM {table}") == [(0,)]
    assert b"MARKER" not in bytes_beside(Path(shelf.path))
    assert list(await shelf.list()) == []


async def test_vacuum(shelf: SqliteRepository) -> None:
    """The room of what was deleted is given back; sessions that are open go on."""
    await write(shelf, "kept", "here")
    async with Session.open(shelf.open("kept")) as session:
        connection = sqlite3.connect(shelf.path)
        connection.execute("CREATE TABLE filler (data BLOB)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(3000000))")
        connection.execute("DROP TABLE filler")
        connection.commit()
        connection.close()
        await shelf.vacuum()
        await session.append_message(UserMessage(content="on"))
    assert os.path.getsize(shelf.path) < 200_000
    assert len(rows(shelf.path, "SELECT * FROM session_entries")) == 2
    with pytest.raises(SessionNotFoundError):
        await SqliteRepository(Path(shelf.path).with_name("none")).vacuum()


async def test_handles_are_freed(chats: SqlitePlace) -> None:
    """Closed is closed: nothing of the file is held any more, and nothing complains of being dropped."""
    if sys.platform != "linux":
        pytest.skip("looks at /proc")

    def held() -> list[str]:
        found: list[str] = []
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            except OSError:
                continue
        return [name for name in found if "chats.sqlite" in name]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log = await chats.new_log()
        await log.append_message(said())
        reader = await chats.log(mode="read")
        with pytest.raises(SessionExistsError):
            await chats.create()
        with pytest.raises(SessionLockedError):
            await chats.open()
        with pytest.raises(SessionNotFoundError):
            await SqliteRepository(chats.path).open("other")
        assert held()
        await log.aclose()
        await reader.aclose()
        assert held() == []
        await SqliteRepository(chats.path).list()
        await SqliteRepository(chats.path).delete("chat")
        assert held() == []
        gc.collect()


async def test_dropped_without_being_closed(chats: SqlitePlace) -> None:
    """A storage that is dropped says so, and holds nothing any more: the next writer is let in."""
    storage = await chats.create()
    with pytest.warns(ResourceWarning, match="dropped without being closed"):
        del storage
        gc.collect()
    (await chats.open()).close()


async def test_the_log_is_brought_into_the_file(chats: SqlitePlace) -> None:
    """The write-ahead log does not grow for ever, whichever way the appends are made."""
    for durability in ("os", "fsync"):
        log = await (chats.new_log if durability == "os" else chats.log)(durability=durability)
        for _ in range(30):
            await log.append_message(said("x" * 60_000 if durability == "os" else "x" * 1_000_000))
        for _ in range(2):
            for _ in range(150):
                log.append_message(said("x" * 60_000))
            await log.flush()
        wal = chats.path.with_name("chats.sqlite-wal")
        assert wal.stat().st_size < 24 * 1024 * 1024
        assert chats.path.stat().st_size > 16 * 1024 * 1024
        await log.aclose()
    assert len(chats.lines()) == 660


async def test_two_ways_to_one_file(tmp_path: Path) -> None:
    """R12: behind a symlink it is the same file, with the same locks."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    real, link = tmp_path / "real" / "chats.sqlite", tmp_path / "link" / "chats.sqlite"
    storage = await SqliteStorage.create(real, session_id="chat")
    with pytest.raises(SessionLockedError):
        await SqliteStorage.open(link, session_id="chat")
    storage.close()
    (await SqliteStorage.open(link, session_id="chat")).close()
    assert not (tmp_path / "real" / "chats.sqlite-wal").exists()


async def test_odd_paths(tmp_path: Path) -> None:
    """What means something in an address means nothing in a path."""
    for name in ("a?mode=ro&x#y%20.sqlite", "ä 漢.sqlite", "x:memory:", os.fsdecode(b"b\xff.sqlite")):
        log = await EntryLog.open(await SqliteStorage.create(tmp_path / name, session_id="chat"))
        await log.append_message(said())
        await log.aclose()
        assert (tmp_path / name).exists()
        log = await EntryLog.open(await SqliteStorage.open(tmp_path / name, mode="read"))
        assert len(log.index) == 1
        await log.aclose()


# --- permissions


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
@pytest.mark.parametrize("left_behind", [False, True])
def test_a_folder_that_cannot_be_written(open_folder: Path, left_behind: bool) -> None:
    """R15: it can be read and listed there, and nothing is made; writing is refused. Also beside a log that was left."""
    path = open_folder / "chats.sqlite"
    import anyio

    async def make() -> None:
        log = await EntryLog.open(await SqliteStorage.create(path, session_id="chat"))
        await log.append_message(said("first"))
        if left_behind:
            os._exit(0)
        await log.aclose()

    child = os.fork()
    if child == 0:
        anyio.run(make)
        os._exit(0)
    os.waitpid(child, 0)
    for found in open_folder.iterdir():
        found.chmod(0o755 if found.is_dir() else 0o444)
    assert (open_folder / "chats.sqlite-wal").exists() == left_behind
    open_folder.chmod(0o555)
    before = bytes_beside(path)

    async def work() -> None:
        for _ in range(2):
            reader = await EntryLog.open(await SqliteStorage.open(path, mode="read"))
            assert len(reader.index) == 1
            await reader.refresh()
            await reader.aclose()
        repository = SqliteRepository(path)
        assert [summary.first_message for summary in await repository.list()] == ["first"]
        for call in (
            lambda: repository.open("chat"),
            lambda: repository.create("new"),
            lambda: repository.delete("chat"),
            lambda: SqliteStorage.create(open_folder / "new.sqlite"),
        ):
            with pytest.raises(StorageError):
                await call()

    as_nobody(work)
    names = sorted(found.name for found in open_folder.iterdir())
    assert [name for name in names if not name.endswith(("-wal", "-shm"))] == ["chats.sqlite", "chats.sqlite.locks"]
    assert bytes_beside(path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_what_cannot_be_read_is_not_missing(open_folder: Path) -> None:
    """R15: an unreadable database is a StorageError, not "no session", and nothing is made in its place."""
    path = open_folder / "chats.sqlite"
    path.write_bytes(b"secret")
    path.chmod(0)

    async def work() -> None:
        for call in (SqliteStorage.open, SqliteStorage.open_or_create, SqliteStorage.create, _list):
            with pytest.raises(StorageError, match="unable to open") as caught:
                await call(path)
            assert not isinstance(caught.value, SessionNotFoundError)
            assert caught.value.errno is None or caught.value.path == str(path)

    as_nobody(work)
    path.chmod(0o600)
    assert path.read_bytes() == b"secret"


async def _list(path: Path) -> None:
    await SqliteRepository(path).list()


async def test_the_view(chats: SqlitePlace) -> None:
    """For people with sqlite3 in hand: entries by session and seq, as text, whatever is shared."""
    log = await chats.new_log()
    await log.append_message(said("grüße"))
    await log.aclose()
    ((session, seq, line),) = rows(chats.path, "SELECT session, seq, data FROM session_entries")
    assert (session, seq) == ("chat", 0)
    assert rows(chats.path, "SELECT data ->> '$.message.content' FROM session_entries") == [("grüße",)]
    assert line.encode() == chats.lines()[0]
    assert texts(chats.entries()) == ["grüße"]
