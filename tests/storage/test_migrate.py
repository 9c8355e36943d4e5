"""Sessions move between any two repositories to the byte, whole or not at all, and the source is only read."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from harness.session import Session
from storage.decode import parse_record
from storage.entry_file_repository import EntryFileRepository
from storage.errors import (
    DamagedSessionError,
    InvalidIdError,
    SessionError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
    UnsupportedEntryError,
)
from storage.header import SessionHeader, parse_header
from storage.jsonl_repository import JsonlRepository
from storage.memory_repository import MemoryRepository
from storage.messages import TextContent, ToolResultMessage, UserMessage
from storage.migrate import SessionMigration, migrate_all, migrate_session, parents_first
from storage.protocols import Record
from storage.session_streams import RecordSpool, SessionStream, StreamsSessions
from storage.sqlite_repository import SqliteRepository
from storage.testing.subject import chain

pytestmark = pytest.mark.anyio

KINDS = ("memory", "jsonl", "entry files", "sqlite", "postgres")
ODD = 'é 界 😀 \u2028 "\\ \x00 \ufeff'
Make = Callable[[str], Any]


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """A repository of a kind, each a place of its own."""
    made: list[str] = []

    def make(kind: str) -> Any:
        made.append(kind)
        place = tmp_path / f"place {len(made)}"
        match kind:
            case "memory":
                return MemoryRepository()
            case "jsonl":
                return JsonlRepository(place)
            case "entry files":
                return EntryFileRepository(place)
            case "sqlite":
                return SqliteRepository(place / "chats.sqlite")
            case _:
                from storage.postgres_repository import PostgresRepository

                return PostgresRepository(request.getfixturevalue("postgres_server").new_schema())

    return make


async def fill(repository: Any, session_id: str = "first", *, count: int = 5) -> str:
    """A session with odd text, two ways and a blob, and a fork of it; the fork's id."""
    async with Session.open(repository.create(session_id, cwd="/proj/é")) as session:
        blob = await session.write_blob(b"\x00\xff" * 500)
        question = await session.append_message(UserMessage(content=ODD))
        for number in range(count):
            session.append_message(UserMessage(content=f"message {number}"))
        result = ToolResultMessage(tool_call_id="c", tool_name="t", content=[TextContent(text="long")], blobs=[blob])
        await session.append_message(result)
        await session.append_label(question, "here")
        await session.append_session_name("odd")
        async with await session.fork(into=repository) as fork:
            fork_id = fork.id
        await session.move_to(question)
        await session.append_message(UserMessage(content="another way"))
        return fork_id


def read(repository: StreamsSessions, session_id: str) -> tuple[bytes, list[bytes], dict[str, bytes]]:
    """Everything of a session."""
    with repository.reading(session_id) as stream:
        lines = [record.data for record in stream.records]
        return stream.header.to_line(), lines, {name: stream.read_blob(name) for name in stream.blob_names()}


def put(repository: JsonlRepository, session_id: str, lines: Sequence[bytes], **header: Any) -> Path:
    """A session's file, written by hand."""
    path = Path(repository.path_of(session_id))
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"type": "session", "version": 3, "id": session_id, "timestamp": "2026-01-01T00:00:00.000Z", "branchline": 1}
    members = {name: value for name, value in {**head, **header}.items() if value is not None}
    path.write_bytes(b"\n".join([json.dumps(members).encode(), *lines, b""]))
    return path


def by_id(results: Sequence[SessionMigration]) -> dict[str, SessionMigration]:
    return {result.session_id: result for result in results}


@pytest.mark.parametrize("target_kind", KINDS)
@pytest.mark.parametrize("source_kind", KINDS)
async def test_any_two_kinds(make: Make, source_kind: str, target_kind: str) -> None:
    """Header, lines, blobs, leaf and the fork's parent are the same; a second run finds all there and writes nothing."""
    source, target = make(source_kind), make(target_kind)
    fork_id = await fill(source)
    before = {session_id: read(source, session_id) for session_id in ("first", fork_id)}
    results = by_id(await migrate_all(source, target))
    assert {name: result.error for name, result in results.items()} == {"first": None, fork_id: None}
    assert all(result.migrated is not None and result.migrated.outcome == "migrated" for result in results.values())
    for session_id, whole in before.items():
        assert read(target, session_id) == whole == read(source, session_id)
    async with Session.open(target.open("first")) as session:
        assert await session.name() == "odd"
        await session.append_message(UserMessage(content="and it goes on"))
    fork = results[fork_id].migrated
    assert fork is not None and fork.parent_session == "first"
    again = by_id(await migrate_all(source, target))
    outcomes = {name: (each.migrated.outcome, each.migrated.more) for name, each in again.items() if each.migrated}
    assert outcomes == {"first": ("already_there", 1), fork_id: ("already_there", 0)}


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_added_since_is_added(make: Make, kind: str) -> None:
    """A target that has the beginning of a session gets the rest, blobs too."""
    source, target = make("jsonl"), make(kind)
    await fill(source)
    await migrate_session(source, "first", target)
    async with Session.open(source.open("first")) as session:
        await session.write_blob(b"new")
        for number in range(600):
            session.append_message(UserMessage(content=f"later {number}"))
        await session.flush()
    done = await migrate_session(source, "first", target)
    assert done.outcome == "finished" and done.blobs == 2
    assert read(target, "first") == read(source, "first")


@pytest.mark.parametrize("kind", KINDS)
async def test_another_session_of_that_id_is_refused(make: Make, kind: str) -> None:
    """Under the same id there is something else, or the two went different ways: nothing is written, others go on."""
    source, target = make("jsonl"), make(kind)
    await fill(source, "mine")
    async with Session.open(source.create("parted")) as session:
        await session.append_message(UserMessage(content="common"))
    await migrate_session(source, "parted", target)
    for repository in (source, target):
        async with Session.open(repository.open("parted")) as session:
            await session.append_message(UserMessage(content=f"in {type(repository).__name__}, one way"))
    async with Session.open(target.create("other")) as session, Session.open(source.create("other")) as mine:
        await session.append_message(UserMessage(content="theirs"))
        await mine.append_message(UserMessage(content="ours"))
    before = {name: read(target, name) for name in ("parted", "other")}
    results = by_id(await migrate_all(source, target))
    assert [type(results[name].error) for name in ("parted", "other")] == [SessionExistsError, SessionExistsError]
    assert results["mine"].migrated is not None
    assert {name: read(target, name) for name in before} == before


async def test_an_id_that_differs_in_case_is_refused(make: Make) -> None:
    """As everywhere, two ids differ in more than case."""
    source, target = make("jsonl"), make("sqlite")
    await fill(source, "First")
    async with Session.open(target.create("first")):
        pass
    with pytest.raises(SessionExistsError):
        await migrate_session(source, "First", target)


@pytest.mark.parametrize("target_kind", KINDS)
async def test_what_is_not_whole_or_not_ours_stays(make: Make, target_kind: str) -> None:
    """Damaged sessions and those that pi wrote, or wrote on, are refused with a way out; the others go on."""
    source, target = make("jsonl"), make(target_kind)
    await fill(source, "good")
    lines = [record.data for record in chain(3)]
    put(source, "bad-line", [lines[0], b"{not json}", lines[2]])
    put(source, "lost-parent", [lines[0], chain(3)[1].data])
    put(source, "twice", [lines[0], lines[0].replace(b'"seq":0', b'"seq":1')])
    pis = json.dumps(
        {
            "type": "message",
            "id": "p",
            "parentId": None,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "message": {"role": "user", "content": "hi", "timestamp": 1},
        }
    ).encode()
    put(source, "pis", [pis], branchline=None)
    put(source, "pi-went-on", [lines[0], pis])
    put(source, "newer", [lines[0]], branchline=2)
    before = {path.name: path.read_bytes() for path in Path(source.root).iterdir() if path.is_file()}
    results = by_id(await migrate_all(source, target))
    errors = {name: result.error for name, result in results.items() if result.error is not None}
    assert errors.keys() == {"bad-line", "lost-parent", "twice", "pis", "pi-went-on", "newer"}
    for name in ("bad-line", "lost-parent", "twice"):
        assert isinstance(errors[name], DamagedSessionError)
    for name in ("pis", "pi-went-on"):
        assert isinstance(errors[name], UnsupportedEntryError) and "branchline import" in str(errors[name])
    for name in errors:
        with pytest.raises(SessionNotFoundError), target.reading(name):
            pass
    assert {path.name: path.read_bytes() for path in Path(source.root).iterdir() if path.is_file()} == before


async def test_a_tail_stays_behind(make: Make) -> None:
    """What was never committed is told, left where it is, and not migrated."""
    source, target = make("jsonl"), make("sqlite")
    records = chain(2)
    path = put(source, "torn", [record.data for record in records])
    path.write_bytes(path.read_bytes() + b'{"seq":2,"half')
    done = await migrate_session(source, "torn", target)
    assert (done.entries, [warning.code for warning in done.warnings]) == (2, ["unterminated_tail"])
    assert path.read_bytes().endswith(b"half")


async def test_odd_lines_keep_their_bytes(make: Make) -> None:
    """Members in another order, escapes, spaces and members that we do not know survive every kind."""
    lines = [
        b'{"seq":0,"id":"e0","parentId":null,"timestamp":"2026-01-01T00:00:00.000Z","type":"custom","customType":"x","q":1e2}',
        b'{"seq":1,"type":"message", "id":"e1","parentId":"e0","timestamp":"2026-01-01T00:00:00.000Z","message":%b}'
        % b'{"role":"user","content":"\\u00e9 \\ud800","timestamp":1}',
        b'{"seq":2,"type":"of-tomorrow","id":"e2","parentId":"e1","timestamp":"2026-01-01T00:00:00.000Z","deep":[{"a":null}]}',
    ]
    places = [make(kind) for kind in KINDS]
    put(places[1], "odd", lines, unknown={"of": "tomorrow"})
    for source, target in [
        (places[1], places[2]),
        (places[2], places[3]),
        (places[3], places[4]),
        (places[4], places[0]),
    ]:
        await migrate_session(source, "odd", target)
        assert read(target, "odd")[1] == lines
        assert json.loads(read(target, "odd")[0])["unknown"] == {"of": "tomorrow"}


async def test_ids_that_are_no_file_names(make: Make) -> None:
    """Entry files need ids that are names of files: refused before anything is made."""
    source, target = make("jsonl"), make("entry files")
    line = chain(1)[0].data
    entry_id = json.loads(line)["id"]
    put(source, "named", [line.replace(entry_id.encode(), b"../x")])
    with pytest.raises(InvalidIdError):
        await migrate_session(source, "named", target)
    assert not Path(target.root).exists()


async def test_forks_share_again(make: Make) -> None:
    """In a database a migrated fork refers to what it has in common with its migrated parent."""
    source = make("jsonl")
    async with Session.open(source.create("parent")) as session:
        for number in range(40):
            session.append_message(UserMessage(content=f"{number} " + "x" * 20_000))
        await session.flush()
        for _ in range(3):
            async with await session.fork(into=source):
                pass
    target = make("sqlite")
    results = await migrate_all(source, target)
    assert results[0].session_id == "parent" and all(result.migrated is not None for result in results)
    assert Path(target.path).stat().st_size < 2_000_000 < sum(each.size or 0 for each in await target.list())


def test_parents_come_first() -> None:
    """Whatever was written to last, and also where parents are missing or name each other."""
    from datetime import UTC, datetime

    from storage.repository import SessionSummary

    def one(session_id: str, minute: int, parent: str | None = None) -> SessionSummary:
        return SessionSummary(session_id, "", datetime(2026, 1, 1, 0, minute, tzinfo=UTC), parent_session=parent)

    summaries = [
        one("c", 1, "b"),
        one("b", 2, "a"),
        one("a", 3),
        one("x", 4, "gone"),
        one("y", 5, "z"),
        one("z", 6, "y"),
    ]
    order = parents_first(summaries)
    assert sorted(order) == list("abcxyz") and order[:4] == list("abcx")


class Lossy(MemoryRepository):
    """A target that stores something else than it was given."""

    def receive(self, header: SessionHeader, records: Sequence[Record], blobs: Any) -> None:
        changed = records[0].data.replace(b'"seq":0,', b'"seq":0,"changed":1,')
        super().receive(header, [parse_record(changed, 0), *records[1:]], blobs)


async def test_what_was_written_is_compared() -> None:
    """A target that changes a byte is found out, and the session is not left there."""
    source, target = MemoryRepository(), Lossy()
    source.receive(
        parse_header(b'{"type":"session","version":3,"id":"s","timestamp":null,"branchline":1}'), chain(2), ()
    )
    with pytest.raises(StorageError, match="entry 0 is not what was written"):
        await migrate_session(source, "s", target)
    assert len(await target.list()) == 0


async def test_cancelled_while_what_is_wrong_is_taken_back() -> None:
    """A session that is not what was written is not left in the target, not even by who is cancelled at that moment."""
    scope = anyio.CancelScope()

    class Slow(Lossy):
        async def delete(self, session_id: str, *, lock_timeout: float = 0) -> None:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
            await super().delete(session_id, lock_timeout=lock_timeout)

    source, target = MemoryRepository(), Slow()
    source.receive(
        parse_header(b'{"type":"session","version":3,"id":"s","timestamp":null,"branchline":1}'), chain(2), ()
    )
    with scope:
        await migrate_session(source, "s", target)
    assert scope.cancelled_caught
    assert len(await target.list()) == 0


class Slow(JsonlRepository):
    """A source that waits in the middle of its records until it is told to go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.taken = 0

    @contextmanager
    def reading(self, session_id: str) -> Any:
        with super().reading(session_id) as stream:

            def records() -> Any:
                for record in stream.records:
                    self.begun.set()
                    self.taken += 1
                    yield record
                    self.go_on.wait(0.01)

            yield SessionStream(stream.place, stream.header, records(), stream.blob_names, stream.read_blob)


async def test_cancelled_in_the_middle(tmp_path: Path, make: Make) -> None:
    """A cancellation stops the reading, leaves nothing in the target, and the next run works."""
    source, target = Slow(tmp_path / "slow"), make("sqlite")
    async with Session.open(source.create("s")) as session:
        for number in range(2000):
            session.append_message(UserMessage(content=f"{number}"))
        await session.flush()
    with anyio.CancelScope() as scope:

        async def cancel_when_begun() -> None:
            while not source.begun.is_set():
                await anyio.sleep(0.001)
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel_when_begun)
            await migrate_session(source, "s", target)
    assert scope.cancelled_caught and len(await target.list()) == 0 and source.taken < 2000
    source.go_on.set()
    assert (await migrate_session(source, "s", target)).entries == 2000


@pytest.mark.parametrize("kind", ["jsonl", "sqlite", "postgres"])
async def test_a_large_session_is_not_held_in_memory(make: Make, kind: str) -> None:
    """Sixty megabytes are moved with a part of that in memory."""
    source, target = make("jsonl"), make(kind)
    lines: list[bytes] = []
    text = "x" * 20_000
    for number in range(3000):
        parent = f'"e{number - 1}"' if number else "null"
        lines.append(
            f'{{"seq":{number},"type":"message","id":"e{number}","parentId":{parent},"timestamp":"2026-01-01T00:00:00.000Z",'
            f'"message":{{"role":"user","content":"{text}","timestamp":1}}}}'.encode()
        )
    put(source, "large", lines)
    lines.clear()
    tracemalloc.start()
    try:
        done = await migrate_session(source, "large", target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.bytes > 60_000_000 and peak < 30_000_000, peak


def test_the_spool_is_a_sequence() -> None:
    """Records come back from the file as they were, singly and in parts."""
    records = chain(20)
    with RecordSpool() as spool:
        for record in records:
            spool.append(record)
        plain = [record._replace(facts=None) for record in records]
        assert list(spool) == plain and spool[-1] == plain[-1] and len(spool) == 20
        assert list(spool[5:9]) == plain[5:9] and list(spool[5:9][1:]) == plain[6:9]
        with pytest.raises(IndexError):
            spool[20]


async def test_a_repository_that_cannot(make: Make) -> None:
    """A repository without streams is told apart, by name."""

    class Other:
        """Not one of ours."""

    with pytest.raises(SessionError, match="Other cannot be migrated"):
        await migrate_session(make("memory"), "s", Other())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def test_a_missing_session_is_an_answer(make: Make) -> None:
    """Of several, one that is not there does not stop the others."""
    source, target = make("jsonl"), make("sqlite")
    await fill(source, "here")
    results = by_id(await migrate_all(source, target, ["here", "gone"]))
    assert results["here"].migrated is not None and isinstance(results["gone"].error, SessionNotFoundError)
    assert not os.path.exists(source.path_of("gone"))
