"""pi's files of versions 1 and 2 become new files of version 3, as pi itself would have made them; the old are only read."""

from __future__ import annotations

import json
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness import (
    DamagedSessionError,
    InvalidIdError,
    JsonlRepository,
    JsonlStorage,
    MigrationReport,
    Session,
    SessionContext,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
    ToolResultMessage,
    UnsupportedVersionError,
    UserMessage,
    migrate_pi_file,
)

pytestmark = pytest.mark.anyio

FILES = Path(__file__).parent.parent / "data" / "pi-files"
Json = dict[str, Any]

HEADER_1 = {"type": "session", "id": "old", "timestamp": "2025-11-01T00:00:00.000Z", "cwd": "/w"}
HEADER_2 = {**HEADER_1, "version": 2}


def user(text: str, **more: Any) -> Json:
    stamp = "2025-11-01T00:00:01.000Z"
    return {"type": "message", "timestamp": stamp, "message": {"role": "user", "content": text, "timestamp": 1}, **more}


def compaction(index: Any) -> Json:
    stamp = "2025-11-01T00:00:02.000Z"
    return {"type": "compaction", "timestamp": stamp, "summary": "s", "tokensBefore": 1, "firstKeptEntryIndex": index}


def write(path: Path, *lines: Json | bytes, end: bytes = b"\n") -> Path:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines) + end)
    return path


def lines_of(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def with_ids_counted(lines: list[Json]) -> list[Json]:
    """The same lines with each entry's id replaced by its place, wherever it stands."""
    places = {line["id"]: f"#{place}" for place, line in enumerate(lines[1:])}
    names = ("id", "parentId", "firstKeptEntryId")
    return [
        lines[0],
        *({key: places.get(item, item) if key in names else item for key, item in line.items()} for line in lines[1:]),
    ]


async def context_of(path: Path) -> SessionContext:
    async with Session.open(JsonlStorage.open(path, mode="read")) as session:
        return await session.build_context()


async def migrated(tmp_path: Path, source: Path, name: str = "new.jsonl") -> MigrationReport:
    return await migrate_pi_file(source, tmp_path / name)


@pytest.mark.parametrize(("name", "version", "entries"), [("legacy-v1", 1, 5), ("legacy-v2", 2, 2)])
async def test_it_is_as_pi_made_it(name: str, version: int, entries: int, tmp_path: Path) -> None:
    """The same structure, member for member, and the same context as what pi 1.6.0 made of the same file."""
    source, theirs = FILES / f"{name}-input.jsonl", FILES / f"{name}-migrated-by-1.6.0.jsonl"
    before = source.read_bytes()
    ours = tmp_path / "new.jsonl"
    report = await migrate_pi_file(source, ours)
    assert report == MigrationReport(str(source), str(ours), version, name.replace("legacy-v", "legacy-"), entries)
    assert with_ids_counted(lines_of(ours)) == with_ids_counted(lines_of(theirs))
    mine, wanted = await context_of(ours), await context_of(theirs)
    assert mine.messages == wanted.messages
    assert (mine.model, mine.thinking_level, mine.chars) == (wanted.model, wanted.thinking_level, wanted.chars)
    assert mine.warnings == []
    assert source.read_bytes() == before
    assert stat.S_IMODE(ours.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.jsonl", "new.jsonl.lock"]


@pytest.mark.parametrize("name", ["28_v1_no_ids", "29_v2_hookMessage"])
async def test_the_other_old_files_become_sessions_that_go_on(name: str, tmp_path: Path) -> None:
    """Every line arrives, the session is writable, and what is appended hangs from the last entry."""
    source = FILES / "corrupt" / f"{name}.jsonl"
    await migrated(tmp_path, source)
    async with Session.open(JsonlStorage.open(tmp_path / "new.jsonl")) as session:
        assert session.writable
        assert session.warnings == ()
        branch = await session.branch()
        assert len(branch) == len(lines_of(source)) - 1
        new = await session.append_message(UserMessage(content="on"))
        assert (await session.entry(new)).parent_id == branch[-1].id


async def test_the_ids_are_the_same_every_time(tmp_path: Path) -> None:
    """Eight hexadecimal digits, as pi's are, all different, and no matter when it is done."""
    source = write(tmp_path / "old.jsonl", HEADER_1, *(user(str(number)) for number in range(3000)))
    await migrated(tmp_path, source, "one.jsonl")
    await migrated(tmp_path, source, "two.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    ids = [line["id"] for line in lines_of(tmp_path / "one.jsonl")[1:]]
    assert len(set(ids)) == 3000
    assert all(len(entry_id) == 8 and int(entry_id, 16) >= 0 for entry_id in ids)


async def test_members_and_texts_stay_as_they_were(tmp_path: Path) -> None:
    """Members nobody knows, escapes, surrogates, separators and old ids that meant nothing: kept, or rightly replaced."""
    odd = user("\u2028 grüße \x00", extra={"deep": [1, None, 0.1]}, id="ignored", parentId="nonsense")
    lone = b'{"type":"message","timestamp":"t","message":{"role":"user","content":"\\ud800 alone","timestamp":1}}'
    hook = {**user("h"), "message": {"role": "hookMessage", "customType": "x", "content": "h", "display": True}}
    unknown = {"type": "from_the_future", "timestamp": "t", "value": 1}
    source = write(tmp_path / "old.jsonl", {**HEADER_1, "branchedFrom": "/x"}, odd, lone, hook, unknown)
    report = await migrated(tmp_path, source)
    header, *entries = lines_of(tmp_path / "new.jsonl")
    assert header == {**HEADER_1, "version": 3, "branchedFrom": "/x"}
    assert entries[0]["extra"] == {"deep": [1, None, 0.1]}
    assert entries[0]["parentId"] is None
    assert entries[0]["id"] != "ignored"
    assert entries[1]["message"]["content"] == "\ud800 alone"
    assert entries[2]["message"]["role"] == "custom"
    assert entries[3]["type"] == "from_the_future"
    assert [entry["parentId"] for entry in entries[1:]] == [entry["id"] for entry in entries[:-1]]
    assert report.entries == 4
    context = await context_of(tmp_path / "new.jsonl")
    assert [message.text for message in context.messages] == ["\u2028 grüße \x00", "\ufffd alone", "h"]


@pytest.mark.parametrize(
    ("index", "kept", "warns"),
    [(1, 0, False), (2, 1, False), (3, 2, False), (0, None, False), (9, None, True), ("2", None, True)],
)
async def test_the_first_kept_entry_is_counted_as_pi_counted(
    index: Any, kept: int | None, warns: bool, tmp_path: Path
) -> None:
    """The header is 0, blank lines do not count; the header itself and what is nowhere keep nothing."""
    source = write(tmp_path / "old.jsonl", HEADER_1, user("a"), b"", user("b"), b" \t", user("c"), compaction(index))
    report = await migrated(tmp_path, source)
    *entries, last = lines_of(tmp_path / "new.jsonl")[1:]
    assert "firstKeptEntryIndex" not in last
    assert last.get("firstKeptEntryId") == (None if kept is None else entries[kept]["id"])
    assert [warning.line for warning in report.warnings] == ([7] if warns else [])
    context = await context_of(tmp_path / "new.jsonl")
    assert [message.text for message in context.messages][1:] == ([] if kept is None else ["a", "b", "c"][kept:])


@pytest.mark.parametrize("version", [1, 2])
async def test_a_last_line_without_a_newline(version: int, tmp_path: Path) -> None:
    """Whole, it is taken; cut off, it is left out; either way that is said, with its line."""
    header = HEADER_1 if version == 1 else HEADER_2
    first, second = user("a", id="a", parentId=None), user("b", id="b", parentId="a")
    whole = await migrated(tmp_path, write(tmp_path / "whole.jsonl", header, first, second, end=b""), "1.jsonl")
    assert (whole.entries, [warning.line for warning in whole.warnings]) == (2, [3])
    cut = await migrated(tmp_path, write(tmp_path / "cut.jsonl", header, first, b'{"type":"mess', end=b""), "2.jsonl")
    assert (cut.entries, [(one.code, one.line) for one in cut.warnings]) == (1, [("unterminated_tail", 3)])
    nul = await migrated(tmp_path, write(tmp_path / "nul.jsonl", header, first, b"\0" * 40, end=b""), "3.jsonl")
    assert (nul.entries, len(nul.warnings)) == (1, 1)


async def test_a_last_line_without_a_newline_was_never_committed_in_version_3(tmp_path: Path) -> None:
    """Even if it is whole (R13): the copy is what opening the file shows."""
    header, first = {**HEADER_1, "version": 3}, user("a", id="a", parentId=None)
    source = write(tmp_path / "old.jsonl", header, first, user("b", id="b", parentId="a"), end=b"")
    report = await migrated(tmp_path, source)
    assert (report.entries, [(one.code, one.line) for one in report.warnings]) == (1, [("unterminated_tail", 3)])
    with pytest.raises(SessionNotFoundError):
        await migrated(tmp_path, write(tmp_path / "header.jsonl", header, end=b""), "other.jsonl")


DAMAGED: dict[str, tuple[list[Json | bytes], int, str]] = {
    "no json": ([HEADER_1, user("a"), b"{nonsense", user("b")], 3, "invalid session JSON at line 3"),
    "no object": ([HEADER_1, b"42", user("b")], 2, "invalid session record at line 2: not a JSON object"),
    "null": ([HEADER_1, b"null"], 2, "invalid session record at line 2: not a JSON object"),
    "no type": ([HEADER_1, {"timestamp": "t"}], 2, "invalid session record at line 2"),
    "no time": ([HEADER_1, {"type": "custom", "customType": "x"}], 2, "timestamp: missing"),
    "no message": ([HEADER_1, {"type": "message", "timestamp": "t"}], 2, "message: Field required"),
    "NaN": ([HEADER_1, b'{"type":"custom","timestamp":"t","customType":"x","data":NaN}'], 2, "line 2"),
    "no UTF-8": (
        [HEADER_1, b'{"type":"custom","timestamp":"t","customType":"\xff"}'],
        2,
        "invalid session JSON at line 2",
    ),
    "a second header": ([HEADER_1, user("a"), HEADER_1], 3, "second session header at line 3"),
    "no header": ([user("a")], 1, "no session header"),
    "a header that is none": ([{**HEADER_2, "id": 7}], 1, "invalid session header at line 1: id"),
    "ids twice (2)": ([HEADER_2, user("a", id="a", parentId=None), user("b", id="a", parentId="a")], 3, "used before"),
    "no id (2)": ([HEADER_2, user("a", parentId=None)], 2, "id: missing"),
    "no parent (2)": (
        [HEADER_2, user("a", id="a", parentId=None), user("b", id="b", parentId="gone")],
        3,
        "'b' points to 'gone'",
    ),
    "a cycle (2)": ([HEADER_2, user("a", id="a", parentId="b"), user("b", id="b", parentId="a")], 2, "points to 'b'"),
}


@pytest.mark.parametrize("name", DAMAGED)
async def test_damage_is_named_and_nothing_is_made(name: str, tmp_path: Path) -> None:
    """The line, and why; no target, and the source as it was."""
    given, line, why = DAMAGED[name]
    source = write(tmp_path / "old.jsonl", *given)
    before = source.read_bytes()
    with pytest.raises(DamagedSessionError) as caught:
        await migrated(tmp_path, source)
    assert caught.value.line == line
    assert why in str(caught.value)
    assert caught.value.path == str(source)
    assert source.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


async def test_what_is_no_file_or_empty_or_newer_is_refused(tmp_path: Path) -> None:
    """Missing, empty, blank, a folder, version 4: typed errors, and nothing is made."""
    with pytest.raises(SessionNotFoundError):
        await migrated(tmp_path, tmp_path / "missing.jsonl")
    for data in (b"", b"\n \t\n"):
        (tmp_path / "old.jsonl").write_bytes(data)
        with pytest.raises(SessionNotFoundError, match="no committed line"):
            await migrated(tmp_path, tmp_path / "old.jsonl")
    with pytest.raises(StorageError):
        await migrated(tmp_path, tmp_path)
    with pytest.raises(UnsupportedVersionError, match="version 4 .*newer branchline"):
        await migrated(tmp_path, write(tmp_path / "old.jsonl", {**HEADER_1, "version": 4}))
    with pytest.raises(InvalidIdError):
        await migrate_pi_file(tmp_path / "old.jsonl", tmp_path / "new.jsonl", session_id="../x")
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


async def test_nothing_is_ever_replaced(tmp_path: Path) -> None:
    """A target that is there stays as it is; so the source itself is no target."""
    source = write(tmp_path / "old.jsonl", HEADER_1, user("a"))
    before = source.read_bytes()
    for target in (source, write(tmp_path / "there.jsonl", b"mine")):
        kept = target.read_bytes()
        with pytest.raises(SessionExistsError):
            await migrate_pi_file(source, target)
        assert target.read_bytes() == kept
    assert source.read_bytes() == before


@pytest.mark.parametrize("version", [1, 2])
async def test_opening_an_old_file_names_the_way(version: int, tmp_path: Path) -> None:
    """It is no damage and no newer program is needed: ``branchline import`` is what it takes."""
    source = write(tmp_path / "old.jsonl", HEADER_1 if version == 1 else HEADER_2)
    with pytest.raises(UnsupportedVersionError, match=rf"version {version} .*'branchline import FILE'"):
        await JsonlStorage.open(source)


async def test_version_3_is_copied_line_by_line(tmp_path: Path) -> None:
    """A file of pi's that needs no change keeps its bytes; one of ours takes its blobs along."""
    theirs = FILES / "harness-0.83.0-tree.jsonl"
    report = await migrated(tmp_path, theirs, "theirs.jsonl")
    assert report.version == 3
    assert lines_of(tmp_path / "theirs.jsonl") == lines_of(theirs)
    assert (tmp_path / "theirs.jsonl").read_bytes().split(b"\n")[1:] == theirs.read_bytes().split(b"\n")[1:]
    async with Session.open(JsonlStorage.create(tmp_path / "ours.jsonl")) as session:
        name = await session.write_blob(b"all of it")
        await session.append_message(ToolResultMessage(tool_call_id="c", tool_name="t", content="cut", blobs=[name]))
    copied = await migrate_pi_file(tmp_path / "ours.jsonl", tmp_path / "copy.jsonl", session_id="copy")
    assert copied.session_id == "copy"
    async with Session.open(JsonlStorage.open(tmp_path / "copy.jsonl")) as copy:
        assert copy.id == "copy"
        assert await copy.read_blob(name) == b"all of it"


async def test_a_repository_takes_a_file_in(tmp_path: Path) -> None:
    """Under its own id, another, or a new one where its own can be none; and once only."""
    repository = JsonlRepository(tmp_path / "shelf")
    source = write(tmp_path / "old.jsonl", HEADER_1, user("a"))
    assert (await repository.take_in(source)).target == str(tmp_path / "shelf" / "old.jsonl")
    with pytest.raises(SessionExistsError):
        await repository.take_in(source)
    with pytest.raises(SessionExistsError, match="differ only in case"):
        await repository.take_in(source, "OLD")
    with pytest.raises(InvalidIdError):
        await repository.take_in(source, "../old")
    other = await repository.take_in(source, "other")
    unsafe = await repository.take_in(write(tmp_path / "unsafe.jsonl", {**HEADER_1, "id": "../../x"}, user("a")))
    page = await repository.list(deep=True)
    assert {summary.id for summary in page} == {"old", "other", unsafe.session_id}
    assert [summary.problem for summary in page] == [None] * 3
    async with Session.open(await repository.open("other")) as session:
        assert session.id == other.session_id == "other"


async def test_numbers_of_another_program_stay_when_they_are_forked(tmp_path: Path) -> None:
    """A line of pi's that says ``seq`` somewhere inside is copied byte for byte, but for its own place."""
    stamp = "2025-11-01T00:00:01.000Z"
    line = (
        f'{{"type":"custom","id":"aaaaaaaa","parentId":null,"timestamp":"{stamp}","customType":"x",'
        '"data":{"seq":7,"price":1.50,"text":"caf\\u00e9"}}'
    ).encode()
    source = write(tmp_path / "pi.jsonl", {**HEADER_1, "version": 3}, line)
    async with Session.open(JsonlStorage.open(source)) as session:
        forked = await session.fork(into=partial(JsonlStorage.create, tmp_path / "forked.jsonl"))
        await forked.aclose()
    copy = (tmp_path / "forked.jsonl").read_bytes().splitlines()[1]
    assert copy == b'{"seq":0,' + line[1:]


async def test_warnings_come_in_the_same_order_every_time(tmp_path: Path) -> None:
    """Kinds of entries that we do not know are told by the alphabet."""
    kinds = ["north", "east", "south", "west", "up", "down"]
    stamp = "2025-11-01T00:00:01.000Z"
    entries = [
        {"type": kind, "id": f"{place:08}", "parentId": None, "timestamp": stamp} for place, kind in enumerate(kinds)
    ]
    source = write(tmp_path / "pi.jsonl", {**HEADER_1, "version": 3}, *entries)
    report = await migrate_pi_file(source, tmp_path / "new.jsonl")
    told = [warning.message.split("'")[1] for warning in report.warnings if warning.code == "unknown_type"]
    assert told == sorted(kinds)
