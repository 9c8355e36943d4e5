"""Forks in one database: what both have in common is there once, and deleting one breaks no other (R1, R12, R17)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import anyio
import pytest

from harness import Session
from storage import (
    BlobNotFoundError,
    JsonlRepository,
    MessageEntry,
    SqliteRepository,
    SqliteStorage,
    ToolResultMessage,
    UserMessage,
)
from storage.decode import parse_record
from tests.storage.entry_folders import chain
from tests.storage.places import rows

pytestmark = pytest.mark.anyio


@pytest.fixture
def shelf(tmp_path: Path) -> SqliteRepository:
    return SqliteRepository(tmp_path / "chats.sqlite", durability="os")


def counts(shelf: SqliteRepository) -> tuple[int, int]:
    """How many lines and contents of blobs there really are."""
    ((lines,),) = rows(shelf.path, "SELECT count(*) FROM entries")
    ((contents,),) = rows(shelf.path, "SELECT count(*) FROM contents")
    return lines, contents


async def texts(session: Session) -> list[str]:
    return [entry.message.text for entry in await session.branch() if isinstance(entry, MessageEntry)]


async def say(session: Session, *said: str) -> list[str]:
    return [await session.append_message(UserMessage(content=text)) for text in said]


async def test_what_both_have_is_there_once(shelf: SqliteRepository) -> None:
    """A fork at the leaf, or at an entry before it, adds its own lines only; so does a fork of that; all read right."""
    async with Session.open(shelf.create("a")) as first:
        ids = await say(first, *(f"a{number}" for number in range(100)))
        assert counts(shelf) == (100, 0)
        async with await first.fork(into=shelf) as second, await shelf.fork(first, ids[49], session_id="c") as third:
            assert counts(shelf) == (102, 0)  # a leaf for each
            await say(second, "b")
            await say(third, "c")
            async with await shelf.fork(second, session_id="d") as fourth:
                await say(fourth, "d")
                # Its source's leaf, which is on no path, is left out, so what comes behind it has another place.
                assert counts(shelf) == (107, 0)
                own = [f"a{number}" for number in range(100)]
                assert await texts(first) == own
                assert await texts(second) == [*own, "b"]
                assert await texts(third) == [*own[:50], "c"]
                assert await texts(fourth) == [*own, "b", "d"]
                assert fourth.storage.info.header.parent_session == second.id
    for session_id, expected in (("a", [*own]), ("c", [*own[:50], "c"]), ("d", [*own, "b", "d"])):
        for mode in ("write", "read"):
            async with Session.open(shelf.open(session_id, mode=mode)) as session:
                assert await texts(session) == expected
    sizes = {summary.id: summary.size for summary in await shelf.list()}
    assert (sizes["d"] or 0) > (sizes["a"] or 0) > (sizes["c"] or 0)


async def test_from_another_branch_only_the_beginning_is_shared(shelf: SqliteRepository) -> None:
    """After the first entry that is not in its place the rest is copied: places are counted anew."""
    async with Session.open(shelf.create("a")) as session:
        first = (await say(session, "1", "2", "3"))[0]
        await session.move_to(first)
        await say(session, "other", "way")
        before, _ = counts(shelf)
        async with await session.fork(into=shelf) as fork:
            assert await texts(fork) == ["1", "other", "way"]
            assert [entry.seq for entry in await fork.entries()] == [0, 1, 2, 3]
    assert counts(shelf)[0] == before + 3
    assert rows(shelf.path, "SELECT first_seq, end_seq FROM shared") == [(0, 1)]


async def test_the_source_goes_on(shelf: SqliteRepository) -> None:
    """What is appended to the source after the fork is not in the fork, nor the other way round."""
    async with Session.open(shelf.create("a")) as session:
        await say(session, "1")
        async with await session.fork(into=shelf) as fork:
            await say(session, "2")
            await say(fork, "two")
            assert (await texts(session), await texts(fork)) == (["1", "2"], ["1", "two"])
            reader = await Session.open(shelf.open(fork.id, mode="read"))
            await say(fork, "three")
            await reader.refresh()
            assert await texts(reader) == ["1", "two", "three"]
            await reader.aclose()


async def test_a_parent_that_is_deleted_stays_for_its_forks(shelf: SqliteRepository) -> None:
    """It is listed and opened no more, its id is free, and of its lines only those are left that a fork refers to.

    When the last of these goes, nothing is left.
    """
    async with Session.open(shelf.create("a")) as session:
        ids = await say(session, *(f"shared{number}" for number in range(10)))
        async with await shelf.fork(session, ids[3], session_id="b") as fork:
            await say(fork, "b")
        async with await shelf.fork(session, ids[5], session_id="c") as fork:
            await say(fork, "c")
        await say(session, "SECRET")
    await shelf.delete("a")
    data = Path(shelf.path).read_bytes()
    assert (b"SECRET" in data, b"shared6" in data, b"shared5" in data) == (False, False, True)
    assert {summary.id for summary in await shelf.list()} == {"b", "c"}
    await (await Session.open(shelf.create("a"))).aclose()
    async with Session.open(shelf.open("c")) as fork:
        assert await texts(fork) == [*(f"shared{number}" for number in range(6)), "c"]
    await shelf.delete("c")
    assert b"shared4" not in Path(shelf.path).read_bytes()
    async with Session.open(shelf.open("b")) as fork:
        assert await texts(fork) == [*(f"shared{number}" for number in range(4)), "b"]
    await shelf.delete("b")
    await shelf.delete("a")
    assert counts(shelf) == (0, 0)
    assert rows(shelf.path, "SELECT * FROM shared") == []
    assert b"shared" not in Path(shelf.path).read_bytes().replace(b"shared_by_owner", b"").replace(b"shared", b"", 20)


def tool_result(*names: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id="c", tool_name="bash", content="cut", blobs=list(names))


async def test_blobs_are_there_once(shelf: SqliteRepository) -> None:
    """A fork refers to its source's blobs; they stay as long as anybody does."""
    data = b"BLOB" * 5000
    async with Session.open(shelf.create("a")) as session:
        kept, unnamed = await session.write_blob(data), await session.write_blob(b"unnamed")
        await session.append_message(tool_result(kept))
        async with await shelf.fork(session, session_id="b") as fork:
            assert counts(shelf)[1] == 2
            assert await fork.read_blob(kept) == data
            with pytest.raises(BlobNotFoundError):
                await fork.read_blob(unnamed)
            own = await fork.write_blob(b"own")
    await shelf.delete("a")
    assert counts(shelf)[1] == 2
    async with Session.open(shelf.open("b", mode="read")) as fork:
        assert (await fork.read_blob(kept), await fork.read_blob(own)) == (data, b"own")
    await shelf.delete("b")
    assert counts(shelf) == (0, 0)
    assert b"BLOBBLOB" not in Path(shelf.path).read_bytes()


async def test_many_large_blobs(shelf: SqliteRepository, tmp_path: Path) -> None:
    """From another backend they are copied, more of them than is held in memory at once; the copy is whole."""
    other = JsonlRepository(tmp_path / "files", durability="os")
    async with Session.open(other.create("a")) as session:
        names = [await session.write_blob(bytes([number]) * 7_000_000) for number in range(4)]
        await session.append_message(tool_result(*names))
        async with await session.fork(into=shelf) as fork:
            for number, name in enumerate(names):
                assert await fork.read_blob(name) == bytes([number]) * 7_000_000
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


async def test_nothing_is_believed(shelf: SqliteRepository) -> None:
    """Whose lines they are is seen by the bytes: a parent's name alone shares nothing, nor does a parent of another file."""
    async with Session.open(shelf.create("a")) as session:
        await say(session, "mine")
    records = chain(3)
    for parent in ("a", "nobody", "../a"):
        storage = await shelf.create(parent_session=parent, records=records)
        assert [record.data for record in storage.read()] == [record.data for record in records]
        storage.close()
    assert counts(shelf)[0] == 1 + 9
    changed = parse_record(records[1].data.replace(b'"content":"', b'"content":"changed '), 1)
    storage = await shelf.create("source", records=records)
    copy = await shelf.create(parent_session="source", records=[records[0], changed, records[2]])
    assert [record.data for record in copy.read()] == [records[0].data, changed.data, records[2].data]
    assert rows(shelf.path, "SELECT end_seq FROM shared") == [(1,)]
    storage.close()
    copy.close()


async def test_to_another_file(shelf: SqliteRepository, tmp_path: Path) -> None:
    """Into another database it is a copy, which needs nothing of the first."""
    elsewhere = tmp_path / "other.sqlite"
    async with Session.open(shelf.create("a")) as session:
        await say(session, "1", "2")
        async with await session.fork(into=partial(SqliteStorage.create, elsewhere)) as fork:
            assert await texts(fork) == ["1", "2"]
    Path(shelf.path).unlink()
    async with Session.open(SqliteStorage.open(elsewhere)) as fork:
        assert await texts(fork) == ["1", "2"]


async def test_forks_and_deletions_at_once(shelf: SqliteRepository) -> None:
    """Each fork is whole or is not made, whatever is deleted meanwhile; the others lose nothing."""
    async with Session.open(shelf.create("root")) as session:
        await say(session, *(f"{number}" for number in range(50)))

        async def fork_and_delete(number: int) -> None:
            for turn in range(3):
                fork = await shelf.fork(session, session_id=f"f{number}-{turn}")
                child = await shelf.fork(fork, session_id=f"c{number}-{turn}")
                await fork.aclose()
                await shelf.delete(f"f{number}-{turn}")
                await say(child, "on")
                assert len(await texts(child)) == 51
                await child.aclose()

        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(fork_and_delete, number)
    assert len(await shelf.list(deep=True)) == 19
    assert all(summary.problem is None for summary in await shelf.list(deep=True))
    await shelf.delete("root")
    for summary in await shelf.list():
        async with Session.open(shelf.open(summary.id)) as found:
            assert len(await texts(found)) == 51
    for summary in await shelf.list():
        await shelf.delete(summary.id)
    assert counts(shelf) == (0, 0)


@pytest.mark.parametrize("seed", range(6))
async def test_random_families(shelf: SqliteRepository, seed: int) -> None:
    """Random appends, forks and deletions: each session is what a copy would be, and at the end nothing is left."""
    chooser = random.Random(seed)
    expected: dict[str, list[bytes]] = {}
    made = 0

    async def lines(session_id: str) -> list[bytes]:
        storage = await shelf.open(session_id, mode="read")
        found = [record.data for record in storage.read()]
        storage.close()
        return found

    for _ in range(40):
        kind = chooser.choice(["new", "append", "append", "fork", "fork", "delete"]) if expected else "new"
        if kind == "new":
            made += 1
            async with Session.open(shelf.create(f"s{made}")) as session:
                await say(session, "root")
            expected[f"s{made}"] = await lines(f"s{made}")
            continue
        chosen = chooser.choice(sorted(expected))
        if kind == "delete":
            await shelf.delete(chosen)
            del expected[chosen]
            continue
        async with Session.open(shelf.open(chosen)) as session:
            entries = await session.entries()
            if kind == "append":
                if chooser.random() < 0.3:
                    await session.move_to(chooser.choice(entries).id)
                await say(session, *(f"{chosen} {number}" for number in range(chooser.randrange(1, 4))))
            else:
                made += 1
                target = chooser.choice(entries).id
                async with await shelf.fork(session, target, session_id=f"s{made}"):
                    pass
                async with await session.fork(target, into=partial(SqliteStorage.create, f"{shelf.path}-copy{made}")):
                    pass
                expected[f"s{made}"] = await lines(f"s{made}")
                copy = await SqliteStorage.open(f"{shelf.path}-copy{made}", mode="read")
                # The leaf that ends a fork has an id and a time of its own.
                assert [record.data for record in copy.read()][:-1] == expected[f"s{made}"][:-1]
                copy.close()
        if kind == "append":
            before = expected[chosen]
            expected[chosen] = await lines(chosen)
            assert expected[chosen][: len(before)] == before
        for session_id, kept in expected.items():
            assert await lines(session_id) == kept
    for session_id in expected:
        await shelf.delete(session_id)
    assert counts(shelf) == (0, 0)
