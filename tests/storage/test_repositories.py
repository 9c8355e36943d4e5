"""The shelf of sessions (R15, R16, R17): the same rules for every backend."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.session import Session
from storage.entries import CustomEntry, SessionInfoEntry
from storage.entry_file_repository import EntryFileRepository
from storage.entry_log import EntryLog
from storage.errors import (
    InvalidIdError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
)
from storage.jsonl_repository import JsonlRepository
from storage.memory_repository import MemoryRepository
from storage.messages import AssistantMessage, TextContent, UserMessage
from storage.postgres_repository import PostgresRepository
from storage.repository import SessionRepository, SessionSummary
from storage.sqlite_repository import SqliteRepository
from tests.storage.entry_folders import chain

pytestmark = pytest.mark.anyio

BAD_IDS = [
    "../x",
    "/tmp/x",
    "a/b",
    "a\\b",
    ".",
    "..",
    "",
    " ",
    "x\0y",
    "n" * 300,
    "界" * 90,
    "x.",
    ".x",
    "a:b",
    "CON",
    "a..b",
]


@pytest.fixture(params=["jsonl", "entry files", "memory", "sqlite", "postgres"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> SessionRepository:
    made: dict[str, Callable[[], SessionRepository]] = {
        "jsonl": lambda: JsonlRepository(tmp_path / "sessions"),
        "entry files": lambda: EntryFileRepository(tmp_path / "sessions"),
        "memory": MemoryRepository,
        "sqlite": lambda: SqliteRepository(tmp_path / "sessions.sqlite"),
        "postgres": lambda: PostgresRepository(request.getfixturevalue("postgres_server").new_schema()),
    }
    return made[request.param]()


async def write(storage: Any, *contents: Any) -> list[str]:
    """Append messages (or entries) and close; the ids."""
    log = await EntryLog.open(storage)
    ids = [
        await (log.append(item) if isinstance(item, SessionInfoEntry | CustomEntry) else log.append_message(item))
        for item in (UserMessage(content=content) if isinstance(content, str) else content for content in contents)
    ]
    await log.aclose()
    return ids


async def all_pages(repository: SessionRepository, limit: int, *, deep: bool = False) -> list[SessionSummary]:
    page = await repository.list(limit=limit, deep=deep)
    found = list(page)
    while page.after is not None:
        page = await repository.list(after=page.after, limit=limit, deep=deep)
        assert len(page) > 0
        found += page
    return found


async def test_create_and_open(repository: SessionRepository) -> None:
    """A session is found again by its id, which its header has too; without one given, an id is made."""
    storage = await repository.create("mine", cwd="/here", parent_session="old")
    (entry_id,) = await write(storage, "hello")
    storage = await repository.open("mine")
    assert (storage.info.header.id, storage.info.header.cwd, storage.info.header.parent_session) == (
        "mine",
        "/here",
        "old",
    )
    assert [record.id for record in storage.read()] == [entry_id]
    storage.close()
    made = await repository.create()
    made.close()
    reopened = await repository.open(made.info.header.id)
    assert reopened.info.header.id == made.info.header.id
    reopened.close()


async def test_create_with_records(repository: SessionRepository) -> None:
    """What a fork brings along is there from the beginning, numbered anew."""
    records = chain(5)[2:]
    storage = await repository.create("copy", records=records)
    assert [record.id for record in storage.read()] == [record.id for record in records]
    assert [record.seq for record in storage.read()] == [0, 1, 2]
    storage.close()


async def test_create_refuses_what_exists(repository: SessionRepository) -> None:
    """Also an id that differs only in case from one that is there."""
    (await repository.create("Mine")).close()
    for session_id in ("Mine", "mine", "MINE"):
        with pytest.raises(SessionExistsError):
            await repository.create(session_id)
    for session_id in ("mine", "MINE"):
        with pytest.raises(SessionNotFoundError, match="'Mine', which is another id"):
            await repository.open(session_id)
        with pytest.raises(SessionExistsError):
            await repository.open_or_create(session_id)
    assert [summary.id for summary in await repository.list()] == ["Mine"]


async def test_open_or_create(repository: SessionRepository) -> None:
    """The first call makes it, the next opens the same one."""
    await write(await repository.open_or_create("daily", cwd="/here"), "one")
    await write(await repository.open_or_create("daily"), "two")
    storage = await repository.open("daily", mode="read")
    assert len(storage.read()) == 2
    assert storage.info.header.id == "daily"
    assert storage.info.header.cwd == "/here"
    storage.close()


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_bad_ids(repository: SessionRepository, bad: str, tmp_path: Path) -> None:
    """R16: refused by name in every call, before any file is touched, and before a fork's source is read."""

    class Unread:
        async def fork(self, target_id: str | None = None, **_: Any) -> Any:
            raise AssertionError("it was read")

    calls: list[Callable[[], Any]] = [
        lambda: repository.create(bad),
        lambda: repository.open(bad),
        lambda: repository.open_or_create(bad),
        lambda: repository.delete(bad),
        lambda: repository.fork(Unread(), session_id=bad),
    ]
    for call in calls:
        with pytest.raises(InvalidIdError):
            await call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["con", "NUL", "aux.chat", "com1", "Lpt9.a.b"])
async def test_names_of_devices(repository: SessionRepository, device: str) -> None:
    """An id that looks right and is a device's name on Windows is refused in words that say so, and what to choose."""
    with pytest.raises(InvalidIdError, match=f"Windows keeps the name '{device.partition('.')[0]}'") as caught:
        await repository.create(device)
    suggested = str(caught.value).rpartition("such as ")[2].strip("'")
    (await repository.create(suggested)).close()
    (await repository.create(f"{device}-notes" if "." not in device else f"a.{device}")).close()


async def test_a_missing_session(repository: SessionRepository, tmp_path: Path) -> None:
    """Not found is said by every call that needs one, and makes nothing; so also for a place that is not there."""
    for call in (lambda: repository.open("gone"), lambda: repository.delete("gone"), lambda: repository.find("gone")):
        with pytest.raises(SessionNotFoundError):
            await call()
    assert list(await repository.list()) == []
    assert list(tmp_path.iterdir()) == []


async def test_one_writer(repository: SessionRepository) -> None:
    """A second writer is refused or waits; a reader may; so does deleting."""
    storage = await repository.create("busy")
    for call in (
        lambda: repository.open("busy"),
        lambda: repository.open("busy", lock_timeout=0.05),
        lambda: repository.open_or_create("busy"),
        lambda: repository.delete("busy"),
        lambda: repository.delete("busy", lock_timeout=0.05),
    ):
        with pytest.raises(SessionLockedError):
            await call()
    (await repository.open("busy", mode="read")).close()
    async with anyio.create_task_group() as group:

        async def let_go() -> None:
            await anyio.sleep(0.1)
            storage.close()

        group.start_soon(let_go)
        (await repository.open("busy", lock_timeout=60)).close()
    storage = await repository.open("busy")
    with anyio.move_on_after(0.1) as scope:
        await repository.open("busy", lock_timeout=math.inf)
    assert scope.cancelled_caught
    storage.close()
    with pytest.raises(ValueError, match="not a number"):
        await repository.open("busy", lock_timeout=math.nan)


async def test_delete(repository: SessionRepository) -> None:
    """Deleted is gone: from the listing, from opening; deleting again says so; the id is free again."""
    await write(await repository.create("old"), "a secret")
    await write(await repository.create("kept"), "public")
    await repository.delete("old")
    assert [summary.id for summary in await repository.list()] == ["kept"]
    for call in (lambda: repository.open("old"), lambda: repository.delete("old")):
        with pytest.raises(SessionNotFoundError):
            await call()
    storage = await repository.create("old")
    assert list(storage.read()) == []
    storage.close()


async def test_deleted_through_its_session(repository: SessionRepository) -> None:
    """Session.delete takes it off the shelf too."""
    session = await Session.open(repository.create("old"))
    await session.append_message(UserMessage(content="hello"))
    await session.delete()
    assert list(await repository.list()) == []
    with pytest.raises(SessionNotFoundError):
        await repository.open("old")


async def test_find(repository: SessionRepository) -> None:
    """A unique beginning is enough; a whole id wins over longer ones; else the matches are listed."""
    for session_id in ("alpha-1", "alpha-2", "beta", "bet"):
        (await repository.create(session_id)).close()
    assert await repository.find("alpha-2") == "alpha-2"
    assert await repository.find("beta") == "beta"
    assert await repository.find("bet") == "bet"
    with pytest.raises(SessionNotFoundError, match="alpha-1, alpha-2") as caught:
        await repository.find("al")
    assert caught.value.details["matches"] == ["alpha-1", "alpha-2"]
    with pytest.raises(SessionNotFoundError) as caught:
        await repository.find("gamma")
    assert caught.value.details["matches"] == []
    for bad in ("", "../", "/", " ", "-a", "a..", "ä", "x\0", "n" * 200):
        with pytest.raises(InvalidIdError):
            await repository.find(bad)
    assert len(await repository.list()) == 4


async def test_a_summary(repository: SessionRepository) -> None:
    """Id, times, size, folder, parent, the first user message on one line, the newest name."""
    before = datetime.now(UTC)
    storage = await repository.create("told", cwd="/here", parent_session="old")
    first = UserMessage(content=[TextContent(text="What is\nthis   project\x1b"), TextContent(text="called?")])
    reply = AssistantMessage(content=[TextContent(text="It says user in it")], provider="x", model="y")
    await write(
        storage, reply, first, SessionInfoEntry(name="draft"), "second", SessionInfoEntry(name="final"), "third"
    )
    (summary,) = await repository.list()
    assert summary.id == "told"
    assert summary.first_message is not None
    assert summary.first_message.startswith("What is this project")
    assert "called?" in summary.first_message
    assert "\n" not in summary.first_message
    assert (summary.name, summary.cwd, summary.parent_session) == ("final", "/here", "old")
    assert summary.created is not None
    assert abs((summary.created - before).total_seconds()) < 60
    assert abs((summary.modified - before).total_seconds()) < 60
    assert summary.size is not None
    assert summary.size > 500
    assert (summary.problem, summary.problem_code, summary.entries) == (None, None, None)
    (deep,) = await repository.list(deep=True)
    assert deep.entries == 6
    assert (deep.name, deep.first_message) == (summary.name, summary.first_message)


async def test_a_name_taken_away(repository: SessionRepository) -> None:
    """The last session_info counts, also one without a name; a long message is cut; a lone surrogate does no harm."""
    await write(await repository.create("x"), "long " * 1000, SessionInfoEntry(name="draft"), SessionInfoEntry())
    (summary,) = await repository.list()
    assert summary.name is None
    assert summary.first_message is not None
    assert len(summary.first_message) == 200


async def test_pages(repository: SessionRepository) -> None:
    """Newest first, each once, whatever the page's length; a page is a sequence."""
    ids: list[str] = []
    for number in range(7):
        session_id = f"s{(number * 3) % 7}"
        await write(await repository.create(session_id), "hello")
        ids.append(session_id)
        await anyio.sleep(0.012)  # a tick of the coarsest file clock, so that their order is known
    for limit in (1, 2, 3, 7, 50):
        assert [summary.id for summary in await all_pages(repository, limit)] == ids[::-1]
    page = await repository.list(limit=3)
    assert len(page) == 3
    assert page[0].id == ids[-1]
    assert [summary.id for summary in page[1:]] == ids[-2:-4:-1]
    await write(await repository.open(ids[0]), "again")
    assert (await repository.list(limit=1))[0].id == ids[0]
    for bad in ("", "x", "12", "x:y"):
        with pytest.raises(ValueError, match="is no mark"):
            await repository.list(after=bad)
    with pytest.raises(ValueError, match="at least 1"):
        await repository.list(limit=0)


async def test_fork(repository: SessionRepository) -> None:
    """A fork stands on the shelf with its parent's name; the source is untouched; its id may be chosen, and is checked."""
    async with Session.open(repository.create("source", cwd="/here")) as session:
        first = await session.append_message(UserMessage(content="first"))
        await session.append_message(UserMessage(content="second"))
        with pytest.raises(InvalidIdError):
            await repository.fork(session, session_id="../x")
        with pytest.raises(SessionExistsError):
            await repository.fork(session, session_id="SOURCE")
        fork = await repository.fork(session, first, session_id="copy")
        assert [entry.id for entry in await fork.branch()][:1] == [first]
        assert fork.id == "copy"
        await fork.aclose()
        assert len(await session.entries()) == 2
    summaries = {summary.id: summary for summary in await repository.list()}
    assert summaries["copy"].parent_session == "source"
    assert summaries["copy"].cwd == "/here"
    assert summaries["copy"].first_message == "first"
    assert set(summaries) == {"source", "copy"}


async def test_first_openers_at_once(repository: SessionRepository) -> None:
    """Ten tasks that open or create one id: one session, and each gets its turn."""

    async def visit(number: int) -> None:
        await write(await repository.open_or_create("shared", lock_timeout=60), str(number))

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(visit, number)
    storage = await repository.open("shared", mode="read")
    assert len(storage.read()) == 10
    storage.close()


async def test_cancelled_while_it_opens(repository: SessionRepository) -> None:
    """A cancellation at any moment leaves nothing open: the session can be opened at once."""
    (await repository.create("x")).close()
    for steps in range(6):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel(steps: int = steps, scope: anyio.CancelScope = scope) -> None:
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                group.start_soon(cancel)
                storage = await repository.open("x")
                storage.close()
        with anyio.CancelScope(shield=True):
            (await repository.open("x", lock_timeout=60)).close()


def test_the_protocol(tmp_path: Path) -> None:
    """Each repository is one, as the type checker sees it."""
    repositories: list[SessionRepository] = [
        JsonlRepository(tmp_path),
        EntryFileRepository(os.fspath(tmp_path), durability="os"),
        MemoryRepository(),
        SqliteRepository(tmp_path / "sessions.sqlite"),
        PostgresRepository("postgresql://nobody@127.0.0.1/nowhere"),
    ]
    assert len(repositories) == 5
