"""tiny-pi's rules of what is committed: the newline is the mark, a tail is only read, a bad committed line fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import JsonlStorage, Session
from storage import DamagedSessionError, ReadOnlySessionError, UserMessage, recover_jsonl

HEADER = '{"type":"session","version":3,"id":"seed","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/w","branchline":1}'


def entry(seq: int, entry_id: str, parent_id: str | None, text: str = "x") -> str:
    parent = "null" if parent_id is None else f'"{parent_id}"'
    message = f'{{"role":"user","content":"{text}","timestamp":1}}'
    facts = '"timestamp":"2026-01-01T00:00:00.000Z","type":"message"'
    return f'{{"seq":{seq},"id":"{entry_id}","parentId":{parent},{facts},"message":{message}}}'


WHOLE = f"{HEADER}\n{entry(0, 'u-1', None)}\n{entry(1, 'a-read', 'u-1')}\n"
LAST = entry(2, "r-read", "a-read")


def recovered(text: str) -> tuple[list[str], list[tuple[str, int | None]]]:
    found = recover_jsonl(text.encode())
    return [record.id for record in found.records], [(warning.code, warning.line) for warning in found.warnings]


@pytest.mark.parametrize("tail", [LAST[:40], LAST, "}", "\x00\x00"], ids=["half", "whole JSON", "a brace", "NULs"])
def test_what_has_no_newline_is_not_committed(tail: str) -> None:
    """The prefix, and a structured warning with the line; also when the tail happens to be whole JSON."""
    assert recovered(WHOLE + tail) == (["u-1", "a-read"], [("unterminated_tail", 4)])


def test_a_blank_tail_is_nothing() -> None:
    """White space at the end is an empty line, without a warning."""
    assert recovered(WHOLE + " \t ") == (["u-1", "a-read"], [])
    assert recovered(WHOLE) == (["u-1", "a-read"], [])


def test_every_cut_of_the_last_record_gives_the_committed_prefix() -> None:
    """Wherever the process stopped while it wrote r-read, what was committed before is read."""
    line = LAST + "\n"
    for length in range(len(line)):
        expected = [] if length == 0 else [("unterminated_tail", 4)]
        assert recovered(WHOLE + line[:length]) == (["u-1", "a-read"], expected)
    assert recovered(WHOLE + line) == (["u-1", "a-read", "r-read"], [])


def test_a_bad_line_with_a_newline_is_corruption_with_its_physical_line() -> None:
    """It cannot pass for a tail that may be left out; blank lines are skipped, and count."""
    with pytest.raises(DamagedSessionError, match="line 4"):
        recover_jsonl(f'{WHOLE}{{"id":"r-read","parentId":}}\n'.encode())
    with pytest.raises(DamagedSessionError, match="line 6"):
        recover_jsonl(f'{WHOLE}\n  \n{{"id":"r-read","parentId":}}\n'.encode())


def test_separators_of_unicode_and_bytes_above_ascii_do_not_split_lines() -> None:
    """LF and nothing else ends a line."""
    odd = "a\u2028b\u2029c\u0085d\u000be".replace("\u000b", "\\u000b")
    text = f"{HEADER}\n{entry(0, 'u-1', None, odd)}\n"
    assert recovered(text) == (["u-1"], [])


@pytest.mark.anyio
@pytest.mark.parametrize("tail", [LAST[:40], LAST], ids=["half", "whole JSON"])
async def test_a_file_with_a_tail_is_read_and_takes_no_append(tail: str, tmp_path: Path) -> None:
    """needs-repair: the committed prefix and the warning; an append is refused, and the file is byte for byte the same."""
    path = tmp_path / "chat.jsonl"
    path.write_text(WHOLE + tail, encoding="utf-8")
    before = path.read_bytes()
    async with Session.open(JsonlStorage.open(path)) as session:
        assert [entry.id for entry in await session.entries()] == ["u-1", "a-read"]
        assert [(warning.code, warning.line) for warning in session.warnings] == [("unterminated_tail", 4)]
        assert not session.writable
        with pytest.raises(ReadOnlySessionError):
            session.append_message(UserMessage(content="no"))
    assert path.read_bytes() == before
    with pytest.raises(DamagedSessionError, match="line 4"):
        await Session.open(JsonlStorage.open(path, on_torn_tail="raise"))


@pytest.mark.anyio
async def test_repair_is_asked_for_and_keeps_the_bytes_aside(tmp_path: Path) -> None:
    """Amended (R13): on request the tail moves to a side file, it says so, and the next append is a line of its own."""
    path = tmp_path / "chat.jsonl"
    path.write_text(WHOLE + LAST[:40], encoding="utf-8")
    async with Session.open(JsonlStorage.open(path, on_torn_tail="repair")) as session:
        assert session.writable
        assert session.warnings
        added = await session.append_message(UserMessage(content="after"))
    (aside,) = tmp_path.glob("chat.jsonl.torn-*")
    assert aside.read_text(encoding="utf-8") == LAST[:40]
    lines = path.read_text(encoding="utf-8").split("\n")
    assert "\n".join(lines[:3]) + "\n" == WHOLE
    assert added in lines[3]
    assert lines[4:] == [""]


TREE_FAULTS = {
    "duplicate id": (entry(2, "u-1", "a-read"), "u-1"),
    "seq with a gap": (entry(3, "r-read", "a-read"), "3"),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("line", "named"), TREE_FAULTS.values(), ids=TREE_FAULTS.keys())
async def test_a_history_that_makes_no_tree_does_not_open(line: str, named: str, tmp_path: Path) -> None:
    """To be well-formed line for line is not enough: ids are unique, and places have no gap."""
    path = tmp_path / "chat.jsonl"
    path.write_text(f"{WHOLE}{line}\n", encoding="utf-8")
    with pytest.raises(DamagedSessionError, match=named) as caught:
        await Session.open(JsonlStorage.open(path))
    assert caught.value.line == 4


@pytest.mark.anyio
async def test_a_parent_that_is_not_there_opens_for_reading_and_refuses_writing(tmp_path: Path) -> None:
    """Amended (R3): healthy paths work, the path through the break raises, and nothing is appended."""
    path = tmp_path / "chat.jsonl"
    path.write_text(f"{WHOLE}{entry(2, 'lost', 'nowhere')}\n", encoding="utf-8")
    async with Session.open(JsonlStorage.open(path)) as session:
        assert [entry.id for entry in await session.branch("a-read")] == ["u-1", "a-read"]
        with pytest.raises(ValueError, match="nowhere"):
            await session.branch("lost")
        with pytest.raises(ReadOnlySessionError):
            session.append_message(UserMessage(content="no"))
