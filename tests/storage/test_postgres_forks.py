"""PostgreSQL: forks that refer to their parent's entries instead of copying them, and what deleting leaves."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from harness import Session
from storage import (
    DamagedSessionError,
    EntryLog,
    JsonlStorage,
    PostgresRepository,
    SessionNotFoundError,
    TextContent,
    ToolResultMessage,
    parse_record,
    postgres_sessions,
)
from storage.event_loops import run_in_worker
from tests.storage.places import said
from tests.storage.postgres_helpers import rows_in, sql

pytestmark = pytest.mark.anyio

LONG = 30


@pytest.fixture
def shelf(dsn: str) -> PostgresRepository:
    return PostgresRepository(dsn, durability="os")


async def new_session(shelf: PostgresRepository, name: str, count: int = LONG) -> Session:
    session = await Session.open(shelf.create(name))
    for number in range(count):
        await session.append_message(said(f"{name} {number}"))
    return session


def own_rows(dsn: str) -> dict[str, int]:
    """How many entries are kept under each session."""
    return dict(
        sql(
            dsn,
            "SELECT s.id, count(e.seq) FROM branchline_sessions s LEFT JOIN branchline_entries e USING (session) "
            "GROUP BY s.id",
        )
    )


async def texts_of(shelf: PostgresRepository, name: str) -> list[str]:
    async with Session.open(shelf.open(name)) as session:
        return [message.text for message in (await session.build_context()).messages]


async def test_a_fork_copies_nothing(dsn: str, shelf: PostgresRepository) -> None:
    """It has a row for the leaf alone; it reads as a copy would, is appended to, and so is its parent, apart."""
    async with await new_session(shelf, "parent") as parent:
        fork = await shelf.fork(parent, session_id="child")
        assert own_rows(dsn) == {"parent": LONG, "child": 1}
        await fork.append_message(said("in the child"))
        await parent.append_message(said("in the parent"))
        await fork.aclose()
    expected = [f"parent {number}" for number in range(LONG)]
    assert await texts_of(shelf, "child") == [*expected, "in the child"]
    assert await texts_of(shelf, "parent") == [*expected, "in the parent"]
    storage = await shelf.open("child", mode="read")
    records = await run_in_worker(storage.read)
    assert [record.seq for record in records] == list(range(LONG + 2))
    page = await run_in_worker(lambda: storage.read(after_seq=LONG - 3, limit=2))
    assert [record.seq for record in page] == [LONG - 2, LONG - 1]
    storage.close()
    summaries = {one.id: one for one in await shelf.list(deep=True)}
    assert summaries["child"].entries == LONG + 2
    assert summaries["child"].first_message == "parent 0"
    assert {one.id: one.size for one in await shelf.list()} == {name: one.size for name, one in summaries.items()}


async def test_a_fork_from_the_middle(dsn: str, shelf: PostgresRepository) -> None:
    """What lies before the target is shared, and nothing behind it is seen."""
    async with await new_session(shelf, "parent") as parent:
        target = (await parent.entries())[9].id
        fork = await shelf.fork(parent, target, session_id="child")
        assert [entry.id for entry in await fork.branch()] == [entry.id for entry in (await parent.entries())[:10]]
        await fork.aclose()
    assert own_rows(dsn)["child"] == 1
    assert await texts_of(shelf, "child") == [f"parent {number}" for number in range(10)]


async def test_a_path_that_is_no_beginning_is_copied_from_there(dsn: str, shelf: PostgresRepository) -> None:
    """A branch leaves the order of the entries: what comes after that point is copied."""
    async with await new_session(shelf, "parent", 10) as parent:
        entries = await parent.entries()
        await parent.move_to(entries[4].id)
        for number in range(3):
            await parent.append_message(said(f"other {number}"))
        fork = await shelf.fork(parent, session_id="child")
        await fork.aclose()
    assert await texts_of(shelf, "child") == [*(f"parent {n}" for n in range(5)), *(f"other {n}" for n in range(3))]
    assert own_rows(dsn)["child"] == 4


async def test_a_deleted_parent_does_not_break_its_forks(dsn: str, shelf: PostgresRepository) -> None:
    """What they share stays until the last of them goes, invisible and under no name; then nothing is left."""
    async with await new_session(shelf, "parent") as parent:
        entries = await parent.entries()
        for name, at in (("first", 9), ("second", 19)):
            await (await shelf.fork(parent, entries[at].id, session_id=name)).aclose()
    await shelf.delete("parent")
    assert rows_in(dsn)["branchline_entries"] == 20 + 2
    assert {one.id for one in await shelf.list()} == {"first", "second"}
    with pytest.raises(SessionNotFoundError):
        await shelf.open("parent")
    (await new_session(shelf, "parent", 3)).storage.close()  # its id is free at once
    assert await texts_of(shelf, "second") == [f"parent {number}" for number in range(20)]
    await shelf.delete("second")
    assert await texts_of(shelf, "first") == [f"parent {number}" for number in range(10)]
    assert rows_in(dsn)["branchline_entries"] == 10 + 1 + 3
    await shelf.delete("first")
    await shelf.delete("parent")
    assert set(rows_in(dsn).values()) == {0}


async def test_forks_of_forks(dsn: str, shelf: PostgresRepository) -> None:
    """A chain of them, deleted from the top: each reads what it is made of, and at the end nothing is left."""
    session = await new_session(shelf, "0", 5)
    expected = [f"0 {number}" for number in range(5)]
    for depth in range(1, 8):
        fork = await shelf.fork(session, session_id=f"{depth}")
        await session.aclose()
        await fork.append_message(said(f"{depth} new"))
        expected.append(f"{depth} new")
        session = fork
    await session.aclose()
    assert all(count <= 3 for name, count in own_rows(dsn).items() if name != "0")
    for depth in range(7):
        await shelf.delete(f"{depth}")
        assert await texts_of(shelf, "7") == expected
    await shelf.delete("7")
    assert set(rows_in(dsn).values()) == {0}


async def test_a_chain_that_is_too_long_is_copied(
    dsn: str, shelf: PostgresRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of sessions to read from, a fork stands on its own."""
    monkeypatch.setattr(postgres_sessions, "_MOST_BASES", 3)
    session = await new_session(shelf, "0", 5)
    expected = [f"0 {number}" for number in range(5)]
    for depth in range(1, 12):
        await session.append_message(said(f"{depth}"))
        expected.append(f"{depth}")
        fork = await shelf.fork(session, session_id=f"{depth}")
        await session.aclose()
        session = fork
    await session.aclose()
    assert sql(dsn, "SELECT max(cardinality(bases)) FROM branchline_sessions") == [(3,)]
    for depth in range(11):
        await shelf.delete(f"{depth}")
    assert await texts_of(shelf, "11") == expected
    await shelf.delete("11")
    assert set(rows_in(dsn).values()) == {0}


async def test_the_last_two_deleted_at_once(dsn: str, shelf: PostgresRepository) -> None:
    """Parent and forks, deleted side by side in any order: nothing is left behind."""
    for _ in range(5):
        async with await new_session(shelf, "parent", 5) as parent:
            for number in range(4):
                await (await shelf.fork(parent, session_id=f"child-{number}")).aclose()
        async with anyio.create_task_group() as group:
            for name in ("child-0", "child-1", "parent", "child-2", "child-3"):
                group.start_soon(shelf.delete, name)
        assert set(rows_in(dsn).values()) == {0}


async def test_forking_beside_deleting(dsn: str, shelf: PostgresRepository) -> None:
    """A session is forked while it is deleted: the fork is whole, or is not made."""
    for turn in range(8):
        reader = await new_session(shelf, "parent", 5)
        await reader.aclose()
        reader = await Session.open(shelf.open("parent", mode="read"))

        async def fork(reader: Session = reader) -> None:
            await (await shelf.fork(reader, session_id="child")).aclose()

        async def delete(turn: int = turn) -> None:
            await anyio.sleep(turn * 0.001)
            await shelf.delete("parent")

        async with anyio.create_task_group() as group:
            group.start_soon(fork)
            group.start_soon(delete)
        await reader.aclose()
        assert await texts_of(shelf, "child") == [f"parent {number}" for number in range(5)]
        await shelf.delete("child")
        assert set(rows_in(dsn).values()) == {0}


async def test_changed_records_are_not_taken_for_the_parents(dsn: str, shelf: PostgresRepository) -> None:
    """Same ids and places, other bytes: they are stored as they were given."""
    parent = await new_session(shelf, "parent", 3)
    records = await run_in_worker(parent.storage.read)
    changed: list[Any] = [parse_record(record.data.replace(b"parent 1", b"edited 1"), record.seq) for record in records]
    storage = await shelf.create("copy", parent_session="parent", records=changed)
    assert [record.data for record in await run_in_worker(storage.read)] == [record.data for record in changed]
    storage.close()
    await parent.aclose()
    assert own_rows(dsn) == {"parent": 3, "copy": 2}


async def test_forks_from_elsewhere_are_copies(dsn: str, shelf: PostgresRepository, tmp_path: Any) -> None:
    """Also of a session whose parent has the name of another one here."""
    (await new_session(shelf, "same", 2)).storage.close()
    session = await Session.open(JsonlStorage.create(tmp_path / "same.jsonl", session_id="same"))
    await session.append_message(said("from a file"))
    await (await shelf.fork(session, session_id="copy")).aclose()
    await session.aclose()
    assert await texts_of(shelf, "copy") == ["from a file"]
    assert own_rows(dsn)["copy"] == 2


@pytest.mark.parametrize("lost", ["seq >= 12", "true", "seq = 19", "seq = 3"])
async def test_shared_entries_that_somebody_removed(dsn: str, shelf: PostgresRepository, lost: str) -> None:
    """R14: a fork that lost some of what it shares is damaged, never a shorter session; the rest can be saved."""
    async with await new_session(shelf, "parent") as parent:
        fork = await shelf.fork(parent, (await parent.entries())[19].id, session_id="child")
        await fork.append_message(said("in the child"))
        await fork.aclose()
    of_parent = "session = (SELECT session FROM branchline_sessions WHERE id = 'parent')"
    sql(dsn, f"DELETE FROM branchline_entries WHERE {lost} AND {of_parent}")
    first = {"seq >= 12": 12, "true": 0, "seq = 19": 19, "seq = 3": 3}[lost]
    for mode in ("write", "read"):
        with pytest.raises(DamagedSessionError, match=f"entry {first} is missing"):
            await Session.open(shelf.open("child", mode=mode))  # pyright: ignore[reportArgumentType]
    storage = await shelf.open("child", on_corrupt="skip")
    log = await EntryLog.open(storage)
    left = {"seq >= 12": 12, "true": 0, "seq = 19": 19, "seq = 3": 19}[lost]
    assert len(await log.entries()) == left + 2
    assert (await log.entries())[-1].seq == 21
    await log.aclose()
    sql(dsn, "DELETE FROM branchline_entries")
    with pytest.raises(DamagedSessionError, match="entry 0 is missing"):
        await Session.open(shelf.open("child"))
    log = await EntryLog.open(await shelf.open("child", on_corrupt="skip"))
    assert await log.entries() == []
    assert len(log.warnings) == 20
    await log.aclose()


async def test_blobs_travel_with_a_fork(dsn: str, shelf: PostgresRepository) -> None:
    """Over a pool of one connection too: reading them does not wait for the one that writes them."""
    narrow = PostgresRepository(dsn, connections=1)
    async with Session.open(narrow.create("parent")) as parent:
        name = await parent.write_blob(b"large" * 1000)
        await parent.append_message(said("x"))
        await parent.append_message(
            ToolResultMessage(tool_call_id="1", tool_name="t", content=[TextContent(text="see")], blobs=[name])
        )
        fork = await narrow.fork(parent, session_id="child")
        assert await fork.read_blob(name) == b"large" * 1000
        await fork.aclose()
    await narrow.delete("parent")
    async with Session.open(shelf.open("child")) as fork:
        assert await fork.read_blob(name) == b"large" * 1000
    await shelf.delete("child")
    assert set(rows_in(dsn).values()) == {0}
