"""The tree as a file gives it: duplicate ids, broken parents, unknown types, places, and the leaf (R2–R4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage import (
    AssistantMessage,
    BrokenPathError,
    DamagedSessionError,
    EntryLog,
    EntryNotFoundError,
    InvalidEntryError,
    JsonlStorage,
    LabelEntry,
    LeafEntry,
    MessageEntry,
    ReadOnlySessionError,
    SessionInfoEntry,
    SessionNotFoundError,
    UnknownEntry,
    UnknownMessageEntry,
    UnsupportedVersionError,
)
from tests.storage.lines import TIME, compact, header, line, message, write
from tests.storage.places import JsonlPlace, Place, said

pytestmark = pytest.mark.anyio


async def path_ids(log: EntryLog, leaf: str | None) -> list[str]:
    """The ids from the root to ``leaf``."""
    path = await log.path(leaf)
    return [path.entry_id(position) for position in range(len(path))]


async def open_file(path: Path, *lines: str, **options: object) -> EntryLog:
    """A log over a file of ``lines``."""
    write(path, *lines)
    return await EntryLog.open(await JsonlStorage.open(path, **options))  # pyright: ignore[reportArgumentType]


# --- R3


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "pi's"])
async def test_duplicate_ids_are_an_error(jsonl: JsonlPlace, ours: bool) -> None:
    """R3: two entries of one id are an error at opening, naming id and line; the file is left as it is."""
    data = write(jsonl.path, header(ours=ours), message("a", None), message("b", "a"), message("a", "b"))
    with pytest.raises(DamagedSessionError, match="'a' was used") as caught:
        await jsonl.log()
    assert (caught.value.line, caught.value.entry_id) == (4, "a")
    assert caught.value.message.startswith("invalid session record at line 4: ")
    assert jsonl.path.read_bytes() == data


BROKEN: dict[str, tuple[list[str], str]] = {
    "missing": ([message("a", None), message("b", "gone"), message("c", "b"), message("d", "a")], "b"),
    "later": ([message("a", None), message("b", "d"), message("c", "b"), message("d", "a")], "b"),
    "itself": ([message("a", None), message("b", "b"), message("c", "b"), message("d", "a")], "b"),
    "cycle": ([message("a", None), message("b", "c"), message("c", "b"), message("d", "a")], "b"),
}


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "pi's"])
@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_parent(jsonl: JsonlPlace, kind: str, ours: bool) -> None:
    """R3: a parent missing, later or in a cycle: opens for reading, healthy paths work, the others raise, no writing."""
    lines, broken = BROKEN[kind]
    data = write(jsonl.path, header(ours=ours), *lines)
    log = await jsonl.log()
    assert not log.writable
    assert [warning.entry_id for warning in log.warnings if warning.code == "broken_link"] == [broken]
    assert await path_ids(log, "d") == ["a", "d"]
    assert len(await log.entries()) == 4
    assert (await log.entry("c")).parent_id == "b"
    for leaf in ("b", "c"):
        with pytest.raises(BrokenPathError) as caught:
            await log.path(leaf)
        assert caught.value.entry_id == broken
    with pytest.raises(ReadOnlySessionError, match="'b' at line 3"):
        log.append_message(said())
    await log.aclose()
    assert jsonl.path.read_bytes() == data


async def test_the_first_entry_of_a_fork_of_pi(jsonl: JsonlPlace) -> None:
    """R3: without ``branchline``, a missing parent of the first entry makes it a root, with a warning; one may write."""
    log = await open_file(jsonl.path, header(ours=False), message("a", "elsewhere"), message("b", "a"))
    assert await path_ids(log, "b") == ["a", "b"]
    assert [warning.code for warning in log.warnings] == ["root_with_parent"]
    await log.append_message(said())
    await log.aclose()
    log = await jsonl.log()
    assert len(await log.path()) == 3
    await log.aclose()


async def test_the_first_entry_of_our_own_file(jsonl: JsonlPlace) -> None:
    """R3: with ``branchline`` it is a break like any other."""
    log = await open_file(jsonl.path, header(), message("a", "elsewhere"), message("b", "a"))
    with pytest.raises(BrokenPathError):
        await log.path("b")
    assert not log.writable
    await log.aclose()


@pytest.mark.parametrize("parent", ["a", "b", "c"])
async def test_a_cycle_through_the_first_entry(jsonl: JsonlPlace, parent: str) -> None:
    """R3: in pi's file too, a first entry whose parent comes later, or is itself, is no root."""
    log = await open_file(jsonl.path, header(ours=False), message("a", parent), message("b", "a"), message("c", "b"))
    for leaf in ("a", "b", "c"):
        with pytest.raises(BrokenPathError):
            await log.path(leaf)
    assert not log.writable
    assert "root_with_parent" not in [warning.code for warning in log.warnings]
    await log.aclose()


async def test_a_leaf_whose_target_is_missing(jsonl: JsonlPlace) -> None:
    """R3: a leaf line's target that is missing or comes later: opens for reading, other paths work, writing refuses."""
    for target in ("gone", "b"):
        lines = [message("a", None), line("leaf", "l", "a", targetId=target), message("b", "a")]
        log = await open_file(jsonl.path, header(), *lines)
        assert not log.writable
        assert await path_ids(log, "b") == ["a", "b"]
        with pytest.raises(ReadOnlySessionError):
            log.append_message(said())
        await log.aclose()
    log = await open_file(jsonl.path, header(), message("a", None), line("leaf", "l", "a", targetId="gone"))
    assert await path_ids(log, "a") == ["a"]
    with pytest.raises((BrokenPathError, EntryNotFoundError)):
        await log.path()
    await log.aclose()


async def test_a_long_chain_needs_no_recursion(jsonl: JsonlPlace) -> None:
    """R3: a path of 20,000 entries, and a cycle of as many, are walked without recursion or hanging."""
    lines = [message(f"e{number}", f"e{number - 1}" if number else None, "x") for number in range(20_000)]
    log = await open_file(jsonl.path, header(), *lines)
    assert len(await log.path()) == 20_000
    await log.aclose()
    lines[0] = message("e0", "e19999", "x")
    log = await open_file(jsonl.path, header(), *lines)
    with pytest.raises(BrokenPathError):
        await log.path()
    await log.aclose()


# --- R2


async def test_a_gap_in_seq_is_damage(jsonl: JsonlPlace) -> None:
    """R2: under our header a seq that does not match its place fails opening, naming line, expected and found."""
    write(jsonl.path, header(), message("a", None, seq=0), "", message("b", "a", seq=2))
    with pytest.raises(DamagedSessionError, match="line 4: expected seq 1, found 2") as caught:
        await jsonl.log()
    assert (caught.value.line, caught.value.details["expected"], caught.value.details["found"]) == (4, 1, 2)


@pytest.mark.parametrize("seqs", [(1,), (0, 0), (0, 2), (-1,), (0, 1, 1)])
async def test_other_places_are_damage_too(jsonl: JsonlPlace, seqs: tuple[int, ...]) -> None:
    """R2: wherever it is."""
    write(jsonl.path, header(), *[message(f"e{at}", None, seq=seq) for at, seq in enumerate(seqs)])
    with pytest.raises(DamagedSessionError, match="expected seq"):
        await jsonl.log()


async def test_from_pis_first_line_the_place_counts(jsonl: JsonlPlace) -> None:
    """R2: from the first line without seq on (pi wrote it), the place counts, and a difference is a warning."""
    lines = [message("a", None, seq=0), message("b", "a"), message("c", "b", seq=7), message("d", "c", seq=3)]
    log = await open_file(jsonl.path, header(), *lines)
    assert [warning.code for warning in log.warnings] == ["seq_differs"]
    assert [entry.id for entry in await log.entries()] == ["a", "b", "c", "d"]
    assert [entry.id for entry in await log.entries(after_seq=1)] == ["c", "d"]
    await log.append_message(said())
    await log.aclose()
    assert [entry.get("seq") for entry in jsonl.entries()] == [0, None, 7, 3, 4]


async def test_in_pis_file_the_place_counts(jsonl: JsonlPlace) -> None:
    """R2: the same in pi's file from the start; what we append there carries its place."""
    log = await open_file(jsonl.path, header(ours=False), message("a", None, seq=5), message("b", "a"))
    assert [warning.code for warning in log.warnings] == ["seq_differs"]
    await log.append_message(said())
    await log.aclose()
    assert jsonl.entries()[-1]["seq"] == 2
    log = await jsonl.log()
    assert len(await log.path()) == 3
    await log.aclose()


async def test_order_is_never_a_clock(jsonl: JsonlPlace) -> None:
    """R2: times that run backwards, or are equal, or are of another zone, change nothing."""
    lines = [
        message("c", None, seq=0).replace(TIME, "2030-01-01T00:00:00.000Z"),
        message("b", "c", seq=1).replace(TIME, "1990-01-01T00:00:00.000+09:00"),
        message("a", "b", seq=2).replace(TIME, "1990-01-01T00:00:00.000Z"),
    ]
    log = await open_file(jsonl.path, header(), *lines)
    assert [entry.id for entry in await log.entries()] == ["c", "b", "a"]
    assert log.leaf_id == "a"
    await log.aclose()


# --- R4


@pytest.mark.parametrize(
    "members",
    [
        {"version": 4},
        {"version": 99},
        {"branchline": 2},
        {"branchline": "1"},
        {"version": "3"},
        {"version": 2},
        {"version": 3.0},
    ],
)
async def test_other_versions_are_refused_by_name(jsonl: JsonlPlace, members: dict[str, Any]) -> None:
    """R4: a newer version, of the format or of our additions, is refused by name; the file is left untouched."""
    data = write(jsonl.path, header(**members), message("a", None, seq=0))
    ((name, value),) = members.items()
    opens = [jsonl.log(), jsonl.log(mode="read"), jsonl.log(on_corrupt="skip", on_torn_tail="repair")]
    for opening in [*opens, JsonlStorage.open_or_create(jsonl.path)]:
        with pytest.raises(UnsupportedVersionError) as caught:
            await opening
        assert name.removesuffix("line") in caught.value.message
        assert repr(value) in caught.value.message
    assert jsonl.path.read_bytes() == data
    assert [path.name for path in jsonl.path.parent.iterdir() if "lock" not in path.name] == ["chat.jsonl"]


async def test_unknown_types_and_roles_are_kept(jsonl: JsonlPlace) -> None:
    """R4: an unknown entry type or role is kept with all its members, in its place in the chain."""
    strange = line("from_the_future", "b", "a", payload={"a": [1, None]}, nothing=None)
    role = line("message", "c", "b", message={"role": "oracle", "content": 17, "extra": {"k": "v"}})
    part = line("message", "d", "c", message={"role": "user", "content": [{"type": "smell", "data": "rose"}]})
    log = await open_file(jsonl.path, header(), message("a", None), strange, role, part, message("e", "d"))
    assert await path_ids(log, "e") == ["a", "b", "c", "d", "e"]
    found = await log.entries()
    assert isinstance(found[1], UnknownEntry)
    assert found[1].model_extra == {"payload": {"a": [1, None]}, "nothing": None}
    assert isinstance(found[2], UnknownMessageEntry)
    assert found[2].message == {"role": "oracle", "content": 17, "extra": {"k": "v"}}
    assert isinstance(found[3], UnknownMessageEntry)
    assert log.writable
    await log.append_message(said())
    await log.aclose()
    assert jsonl.path.read_text(encoding="utf-8").split("\n")[2:5] == [strange, role, part]


async def test_unknown_members_survive_a_round_trip(where: Place) -> None:
    """R4: members of known entries and messages that we do not know are kept and written again, null ones too."""
    log = await where.new_log()
    raw = {
        "type": "message",
        "id": "x",
        "timestamp": TIME,
        "message": {"role": "assistant", "content": [], "timestamp": 1, "newThing": {"x": None}, "gone": None},
        "extraMember": [1],
        "emptyMember": None,
    }
    await log.append(MessageEntry.model_validate(raw))
    await log.aclose()
    (stored,) = where.entries()
    assert {key: value for key, value in stored.items() if key not in ("seq", "parentId")} == raw


async def test_null_stays_null_and_absent_stays_absent(where: Place) -> None:
    """R5: a text field that is null stays null; a member that was left out is left out again."""
    log = await where.new_log()
    null = {"role": "assistant", "content": None, "errorMessage": None, "timestamp": 1}
    await log.append(MessageEntry(message=AssistantMessage.model_validate(null)))
    empty = {"role": "assistant", "content": [], "timestamp": 1}
    await log.append(MessageEntry(message=AssistantMessage.model_validate(empty)))
    await log.aclose()
    first, second = where.entries()
    assert first["message"] == null
    assert second["message"] == {"role": "assistant", "content": [], "timestamp": 1}


# --- the leaf


async def test_the_leaf_is_the_last_entry(where: Place) -> None:
    """The leaf: after each entry it is that entry, labels and names included; after a leaf entry its target."""
    log = await where.new_log()
    assert log.leaf_id is None
    first = await log.append_message(said("first"))
    assert log.leaf_id == first
    label = await log.append(LabelEntry(target_id=first, label="x"))
    assert log.leaf_id == label
    name = await log.append(SessionInfoEntry(name="n"))
    assert log.leaf_id == name
    await log.append(LeafEntry(target_id=first))
    assert log.leaf_id == first
    await log.append(LeafEntry(target_id=None))
    assert log.leaf_id is None
    root = await log.append_message(said("root"))
    await log.aclose()
    log = await where.log()
    assert log.leaf_id == root
    assert await path_ids(log, root) == [root]
    await log.aclose()


async def test_our_leaf_lines_hang_from_their_target(where: Place) -> None:
    """A leaf that we write has its target as its parent, so that pi goes on from the right place."""
    log = await where.new_log()
    first = await log.append_message(said("first"))
    await log.append_message(said("second"))
    await log.append(LeafEntry(target_id=first))
    await log.append(LeafEntry(target_id=None))
    await log.append(LeafEntry(target_id=first, parent_id="ignored"))
    await log.aclose()
    leaves = [entry for entry in where.entries() if entry["type"] == "leaf"]
    assert [(entry["parentId"], entry["targetId"]) for entry in leaves] == [
        (first, first),
        (None, None),
        (first, first),
    ]


async def test_the_leaf_moves_inside_a_batch(where: Place) -> None:
    """R7: the leaf is followed through a batch: an append behind a leaf in the queue goes on from its target."""
    log = await where.new_log()
    first = await log.append_message(said("first"))
    log.append_message(said("left"))
    log.append(LeafEntry(target_id=first))
    branch = log.append_message(said("branch"))
    log.append(LeafEntry(target_id=None))
    root = log.append_message(said("root"))
    await root
    await log.aclose()
    parents = {entry["id"]: entry["parentId"] for entry in where.entries()}
    assert parents[branch.entry_id] == first
    assert parents[root.entry_id] is None


async def test_a_leaf_may_be_a_parent(jsonl: JsonlPlace) -> None:
    """pi-coding-agent hangs the next entry from the leaf line itself: the path goes through it."""
    lines = [message("a", None), message("b", "a"), line("leaf", "l", "b", targetId="a"), message("c", "l")]
    log = await open_file(jsonl.path, header(ours=False), *lines)
    assert await path_ids(log, "c") == ["a", "b", "l", "c"]
    assert log.leaf_id == "c"
    child = await log.append_message(said())
    assert (await log.entry(child)).parent_id == "c"
    await log.aclose()


async def test_a_leaf_to_nowhere_is_refused(where: Place) -> None:
    """A leaf whose target is not there fails alone, and the leaf is where it was."""
    log = await where.new_log()
    first = await log.append_message(said())
    with pytest.raises(InvalidEntryError):
        await log.append(LeafEntry(target_id="nobody"))
    assert log.leaf_id == first
    await log.aclose()


async def test_labels_and_the_name_are_session_wide(jsonl: JsonlPlace) -> None:
    """The last label of an entry, and the last name, count, on whatever branch they were given."""
    lines = [
        message("a", None),
        line("label", "l1", "a", targetId="a", label="one"),
        line("session_info", "n1", "l1", name="first name"),
        line("leaf", "f", "a", targetId="a"),
        line("label", "l2", "a", targetId="a", label="two"),
        message("b", "l1"),
    ]
    log = await open_file(jsonl.path, header(), *lines)
    assert log.index.labels == {"a": 4}
    assert log.index.name_seq == 2
    await log.aclose()


async def test_the_header_keeps_what_we_do_not_know(jsonl: JsonlPlace) -> None:
    """R4: unknown members of the header are kept, and shown."""
    log = await open_file(jsonl.path, header(metadata={"x": [1]}), message("a", None, seq=0))
    assert log.storage.info.header.model_extra == {"metadata": {"x": [1]}}
    await log.aclose()
    assert compact({"x": [1]}) in jsonl.path.read_text(encoding="utf-8")


async def test_no_session_is_not_damage(jsonl: JsonlPlace) -> None:
    """R15: a missing file is no session yet, and opening makes none."""
    with pytest.raises(SessionNotFoundError):
        await jsonl.log()
    assert list(jsonl.path.parent.iterdir()) == []
