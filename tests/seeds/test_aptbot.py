"""aptbot: corrupted lines are tolerated on request, session ids are checked before any path is made, memory is inherited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import EntryFileStorage, JsonlStorage, MemoryStorage, Session
from storage import BrokenPathError, DamagedSessionError, InvalidIdError, ReadOnlySessionError, UserMessage

pytestmark = pytest.mark.anyio


async def conversation(path: Path, *texts: str) -> list[str]:
    async with Session.open(JsonlStorage.create(path)) as session:
        return [await session.append_message(UserMessage(content=text)) for text in texts]


def spoil(path: Path, line_number: int, text: str) -> bytes:
    """Put ``text`` in the place of a physical line (1-based)."""
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[line_number - 1] = text
    path.write_text("\n".join(lines), encoding="utf-8")
    return path.read_bytes()


BAD = {"half a line": '{"seq":2,"id":"x","par', "no record": '{"seq":2}', "a list": "[1]", "bytes": "\x00\x00"}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_corrupted_line_stops_the_opening_unless_skipping_is_asked_for(bad: str, tmp_path: Path) -> None:
    """Salvage: the rest is read, the bad line is listed with its number, its children are orphans, nothing is written."""
    path = tmp_path / "chat.jsonl"
    one, two, three, four = await conversation(path, "one", "two", "three", "four")
    before = spoil(path, 4, bad)
    with pytest.raises(DamagedSessionError, match="line 4"):
        await Session.open(JsonlStorage.open(path))
    async with Session.open(JsonlStorage.open(path, on_corrupt="skip")) as session:
        assert [entry.id for entry in await session.entries()] == [one, two, four]
        assert [entry.seq for entry in await session.entries()] == [0, 1, 3]
        assert any(warning.line == 4 for warning in session.warnings)
        assert any(warning.entry_id == four for warning in session.warnings)
        context = await session.build_context(leaf_id=two)
        assert [message.text for message in context.messages] == ["one", "two"]
        with pytest.raises(BrokenPathError, match=three):
            await session.build_context(leaf_id=four)
        assert not session.writable
        with pytest.raises(ReadOnlySessionError):
            session.append_message(UserMessage(content="no"))
    assert path.read_bytes() == before


async def test_skipping_a_line_that_is_no_link_still_shows_the_whole_conversation(tmp_path: Path) -> None:
    """A label between two messages of a branch is lost: what hangs from it is said to be an orphan, never silently cut."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as session:
        first = await session.append_message(UserMessage(content="one"))
        await session.append_label(first, "mark")
        await session.move_to(first)
        second = await session.append_message(UserMessage(content="two"))
    spoil(path, 3, "{broken")
    async with Session.open(JsonlStorage.open(path, on_corrupt="skip")) as session:
        context = await session.build_context(leaf_id=second)
        assert [message.text for message in context.messages] == ["one", "two"]
        assert [warning.line for warning in session.warnings] == [3]


async def test_a_good_file_reads_the_same_with_skipping(tmp_path: Path) -> None:
    """Without a bad line there is nothing to list."""
    path = tmp_path / "chat.jsonl"
    made = await conversation(path, "one", "two")
    async with Session.open(JsonlStorage.open(path, on_corrupt="skip", mode="read")) as session:
        assert [entry.id for entry in await session.branch()] == made
        assert session.warnings == ()


BAD_IDS = [
    "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", ".", "..", "", " ", "a..b", "x\0y", "a:b", "*", "?", "x" * 129,
    "漢" * 90, "trailing.", "-leading", "CON", "nul", "aux.json", "line\n", "ok\n", "ｆull",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
async def test_a_session_id_that_is_no_safe_name_is_refused_before_any_file(bad: str, tmp_path: Path) -> None:
    """Amended (R16): not only UUIDs are ids, but what is no safe name everywhere is refused, in every backend alike."""
    with pytest.raises(InvalidIdError):
        await JsonlStorage.create(tmp_path / "s.jsonl", session_id=bad)
    with pytest.raises(InvalidIdError):
        await EntryFileStorage.create(tmp_path / "s", session_id=bad)
    with pytest.raises(InvalidIdError):
        await MemoryStorage.create(session_id=bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("good", ["a", "0", "Session_1.v2-x", "f" * 128, "019b0c3e-0000-7000-8000-000000000000"])
async def test_a_safe_session_id_is_taken(good: str, tmp_path: Path) -> None:
    """Letters, digits, and . _ - inside; up to 128 of them."""
    async with Session.open(JsonlStorage.create(tmp_path / "s.jsonl", session_id=good)) as session:
        assert session.id == good
    assert json.loads((tmp_path / "s.jsonl").read_text(encoding="utf-8").split("\n")[0])["id"] == good


async def test_working_memory_is_a_card_of_keys_that_is_shown_last() -> None:
    """Set, replace, delete, clear: what is in force is shown as the last message, and follows the branch."""
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_message(UserMessage(content="fix the bug"))
        await session.append_working_memory("set", "current task", "null reference on line 42")
        await session.append_working_memory("set", "tried", ["optional chain"])
        before = await session.append_working_memory("set", "to try", "early return")
        await session.append_working_memory("delete", "tried")
        await session.append_working_memory("set", "to try", "nothing more")
        last = (await session.build_context()).messages[-1]
        assert last.role == "user"
        assert "null reference on line 42" in last.text
        assert "nothing more" in last.text
        assert "optional chain" not in last.text
        assert "early return" not in last.text
        earlier = (await session.build_context(leaf_id=before)).messages[-1].text
        assert "optional chain" in earlier
        assert "early return" in earlier
        await session.append_working_memory("clear")
        assert [message.text for message in (await session.build_context()).messages] == ["fix the bug"]
