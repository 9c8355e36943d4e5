"""Many sessions on their way at once, while others write, disks fail and targets refuse: none is missed, each is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.session import Session
from storage.entry_file_repository import EntryFileRepository
from storage.errors import SessionExistsError, StorageError
from storage.file_lock import WriterLock
from storage.header import SessionHeader
from storage.jsonl_repository import JsonlRepository
from storage.listing import all_sessions
from storage.memory import MemoryStorage
from storage.memory_repository import MemoryRepository
from storage.messages import UserMessage
from storage.migrate import SessionMigration, migrate_all, migrate_session
from storage.protocols import Record
from storage.repository import SessionPage
from storage.session_streams import SessionStream
from storage.sqlite_repository import SqliteRepository

pytestmark = pytest.mark.anyio


async def fill(repository: Any, *names: str, blobs: int = 0) -> None:
    """Sessions of two messages."""
    for name in names:
        async with Session.open(repository.create(name)) as session:
            for _ in range(blobs):
                await session.write_blob(b"x" * 10)
            await session.append_message(UserMessage(content="one"))
            await session.append_message(UserMessage(content="two"))


def told(results: Sequence[SessionMigration]) -> dict[str, str]:
    """What became of each."""
    return {
        each.session_id: each.migrated.outcome if each.migrated is not None else str(each.error) for each in results
    }


class Busy(JsonlRepository):
    """Between two pages of its listing, somebody writes to a session of the second one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.touched: list[str] = []

    async def list(self, *, after: str | None = None, limit: int = 50, deep: bool = False) -> SessionPage:
        page = await super().list(after=after, limit=limit, deep=deep)
        if len(self.touched) < 5 and after is None and page.after is not None:
            rest = await super().list(after=page.after, limit=limit)
            self.touched.append(rest[-1].id)
            os.utime(self.path_of(rest[-1].id))
        return page


async def test_what_moves_up_in_the_listing_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is written to while the pages are read comes in one that was read already; it is found all the same."""
    monkeypatch.setattr("storage.listing.PAGE", 10)
    source = Busy(tmp_path / "from")
    names = [f"s{number:02}" for number in range(25)]
    await fill(source, *names)
    assert sorted(summary.id for summary in await all_sessions(source)) == names
    assert len(source.touched) > 1
    source.touched.clear()
    assert told(await migrate_all(source, MemoryRepository())) == dict.fromkeys(names, "migrated")


class Broken(MemoryRepository):
    """A target that is full for all but some."""

    def __init__(self, *room: str) -> None:
        super().__init__()
        self.room = room
        self.asked: list[str] = []

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Any) -> None:
        self.asked.append(header.id)
        if header.id not in self.room:
            raise StorageError(f"no room for {header.id}")
        super().receive(header, records, blobs)


async def test_a_target_that_goes_on_failing_is_not_asked_for_ever() -> None:
    """After three in a row the others are not tried; one that fails alone stops nothing."""
    source, target = MemoryRepository(), Broken("s2", "s3", "s7")
    names = [f"s{number}" for number in range(9)]
    await fill(source, *names)
    results = await migrate_all(source, target)
    assert target.asked == names[:7]
    assert [result.session_id for result in results if not result.tried] == names[7:]
    assert [result.session_id for result in results if result.migrated is not None] == ["s2", "s3"]
    assert all("not tried" in str(result.error) for result in results if not result.tried)


class Failing(JsonlRepository):
    """A source whose disk fails in the middle of one session."""

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        with super().reading(session_id) as stream:

            def records() -> Generator[Record]:
                yield next(stream.records)
                raise OSError(errno.EIO, "Input/output error")

            bad = session_id.startswith("bad")
            yield SessionStream(
                stream.place, stream.header, records() if bad else stream.records, stream.blob_names, stream.read_blob
            )


async def test_a_source_that_cannot_be_read_on(tmp_path: Path) -> None:
    """What the system raises becomes an error of ours that names the place, and the others go on: it is not the target."""
    source, target = Failing(tmp_path / "from"), SqliteRepository(tmp_path / "to.sqlite")
    names = [f"bad-{number}" for number in range(4)]
    await fill(source, *names, "good")
    results = told(await migrate_all(source, target))
    assert results.pop("good") == "migrated"
    assert all(source.path_of(name) in text and "Input/output error" in text for name, text in results.items()), results


class Full(MemoryRepository):
    """A target to which nothing can be added."""

    async def open(self, session_id: str, **options: Any) -> MemoryStorage:
        storage = await super().open(session_id, **options)

        def commit(records: Sequence[Record]) -> Callable[[], None] | None:
            raise OSError(errno.ENOSPC, "No space left on device")

        storage.commit = commit
        return storage


async def test_a_rest_that_cannot_be_added() -> None:
    """It is an error of ours, the others go on, and the target has what it had."""
    source, target = MemoryRepository(), Full()
    await fill(source, "a", "b")
    await migrate_session(source, "a", target)
    async with Session.open(source.open("a")) as session:
        await session.append_message(UserMessage(content="three"))
    results = told(await migrate_all(source, target))
    assert "No space left" in results["a"] and results["b"] == "migrated"
    with target.reading("a") as there:
        assert len(list(there.records)) == 2


class Unreadable(MemoryRepository):
    """A source whose disk gives the large outputs of some sessions no more."""

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        with super().reading(session_id) as stream:

            def read_blob(name: str) -> bytes:
                if session_id != "whole":
                    raise StorageError("the blob cannot be read: Input/output error")
                return stream.read_blob(name)

            yield SessionStream(stream.place, stream.header, stream.records, stream.blob_names, read_blob)


async def test_a_source_that_fails_is_not_taken_for_the_target() -> None:
    """Outputs that cannot be read are those of the sessions they belong to, however many there are; the rest is tried."""
    source = Unreadable()
    names = ["a", "b", "c", "d", "whole"]
    await fill(source, *names, blobs=1)
    results = await migrate_all(source, MemoryRepository(), names)
    assert all(each.tried for each in results)
    found = told(results)
    assert found.pop("whole") == "migrated"
    assert all("Input/output error" in what for what in found.values()) and len(found) == 4


class Raced(MemoryRepository):
    """A target in which somebody else makes the session a moment before."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.other = other

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Any) -> None:
        if self.other == "the same":
            super().receive(header, records, list(blobs))
        elif self.other == "its beginning":
            super().receive(header, records[:1], ())
        else:
            super().receive(header.model_copy(update={"cwd": "/elsewhere"}), records, ())
        super().receive(header, records, ())


@pytest.mark.parametrize(
    ("other", "outcome"),
    [("the same", "already_there"), ("its beginning", "finished"), ("something else", None)],
)
async def test_somebody_else_makes_it_this_moment(other: str, outcome: str | None) -> None:
    """Of two migrations, the second finds what the first has made; something else is refused as ever."""
    source = MemoryRepository()
    await fill(source, "s", blobs=1)
    if outcome is None:
        with pytest.raises(SessionExistsError, match="header differs"):
            await migrate_session(source, "s", Raced(other))
    else:
        assert (await migrate_session(source, "s", Raced(other))).outcome == outcome


class Growing(JsonlRepository):
    """A source that gets another large output whenever the names are asked for."""

    @contextmanager
    def reading(self, session_id: str) -> Generator[SessionStream]:
        with super().reading(session_id) as stream:

            def names() -> Sequence[str]:
                found = stream.blob_names()
                (Path(self.path_of(session_id).replace(".jsonl", ".blobs")) / f"b{len(found)}").write_bytes(b"new")
                return found

            yield SessionStream(stream.place, stream.header, stream.records, names, stream.read_blob)


async def test_outputs_that_come_while_it_is_migrated(tmp_path: Path) -> None:
    """What comes after the entries were read is of a later moment: it fails nothing, and comes the next time."""
    source, target = Growing(tmp_path / "from"), MemoryRepository()
    await fill(source, "live", blobs=1)
    first = await migrate_session(source, "live", target)
    again = await migrate_session(source, "live", target)
    assert (first.outcome, first.blobs, again.outcome, again.blobs) == ("migrated", 1, "finished", 2)


async def test_what_a_killed_one_left_beside_a_folder(tmp_path: Path) -> None:
    """Folders that were being made are removed, however far it came; one that somebody is at work in is not touched."""
    source, target = MemoryRepository(), EntryFileRepository(tmp_path / "to")
    await fill(source, "s")
    begun, left, busy = (tmp_path / "to" / f".s.creating-0000000{number}" for number in (0, 1, 2))
    (left / "entries").mkdir(parents=True)
    for folder in (begun, busy):
        folder.mkdir()
    for folder in (begun, left):
        (folder / ".lock").touch()
    lock = WriterLock.acquire(busy / ".lock")
    assert (await migrate_session(source, "s", target)).outcome == "migrated"
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == [busy.name, "s"]
    lock.release()


async def test_what_a_killed_one_left_beside_a_file(tmp_path: Path) -> None:
    """Half a file and half an output go when the session is made; whole outputs are used, and those of others stay."""
    source, target = MemoryRepository(), JsonlRepository(tmp_path / "to")
    await fill(source, "s", blobs=1)
    await fill(target, "other", blobs=1)
    left = ["s.blobs/.b.0123456789ab.tmp", ".s.jsonl.0123456789ab.tmp"]
    others = ["other.blobs/.b.0123456789ab.tmp", ".s2.jsonl.0123456789ab.tmp"]
    (tmp_path / "to" / "s.blobs").mkdir()
    for name in left + others:
        (tmp_path / "to" / name).write_text("half")
    assert (await migrate_session(source, "s", target)).outcome == "migrated"
    assert [name for name in left if (tmp_path / "to" / name).exists()] == []
    assert all((tmp_path / "to" / name).exists() for name in others)
