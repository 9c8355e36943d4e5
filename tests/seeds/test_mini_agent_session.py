"""mini-agent's session file: two stable error texts with the line, and no third way for a bad line to get in."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import JsonlStorage, MessageEntry, Session
from storage import DamagedSessionError, SessionNotFoundError, UnsupportedEntryError, UserMessage

pytestmark = pytest.mark.anyio

HEADER = '{"type":"session","version":3,"id":"seed","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/w","branchline":1}'
USER = '{"role":"user","content":"x","timestamp":1}'


def entry(seq: int, message: str) -> str:
    parent = f'"e{seq - 1}"' if seq else "null"
    stamp = "2026-01-01T00:00:00.000Z"
    return (
        f'{{"seq":{seq},"id":"e{seq}","parentId":{parent},"timestamp":"{stamp}","type":"message","message":{message}}}'
    )


def write(path: Path, *messages: str) -> Path:
    lines = [HEADER, *(entry(seq, message) for seq, message in enumerate(messages))]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


INVALID = {
    "no role": '{"content":"x","timestamp":1}',
    "role is no text": '{"role":7,"content":"x","timestamp":1}',
    "user without content": '{"role":"user","timestamp":1}',
    "content is a number": '{"role":"user","content":7,"timestamp":1}',
    "assistant without content": '{"role":"assistant","timestamp":1}',
    "call without id": '{"role":"assistant","content":[{"type":"toolCall","name":"n","arguments":{}}],"timestamp":1}',
    "call without name": '{"role":"assistant","content":[{"type":"toolCall","id":"a","arguments":{}}],"timestamp":1}',
    "call without arguments": '{"role":"assistant","content":[{"type":"toolCall","id":"a","name":"n"}],"timestamp":1}',
    "arguments are a list": (
        '{"role":"assistant","content":[{"type":"toolCall","id":"a","name":"n","arguments":[]}],"timestamp":1}'
    ),
    "second call is bad": (
        '{"role":"assistant","content":[{"type":"toolCall","id":"a","name":"n","arguments":{}},'
        '{"type":"toolCall","id":7,"name":"n","arguments":{}}],"timestamp":1}'
    ),
    "result without call id": '{"role":"toolResult","toolName":"n","content":[],"isError":false,"timestamp":1}',
    "call id is a number": (
        '{"role":"toolResult","toolCallId":1,"toolName":"n","content":[],"isError":false,"timestamp":1}'
    ),
    "error flag is text": (
        '{"role":"toolResult","toolCallId":"a","toolName":"n","content":[],"isError":"no","timestamp":1}'
    ),
    "message is a list": "[]",
    "message is null": "null",
}


@pytest.mark.parametrize("message", INVALID.values(), ids=INVALID.keys())
async def test_a_record_that_lacks_what_its_role_needs_is_refused_with_its_line(message: str, tmp_path: Path) -> None:
    """``invalid session record at line N``, for every branch of the discrimination; the file is left as it is."""
    path = write(tmp_path / "chat.jsonl", USER, message, USER)
    before = path.read_bytes()
    with pytest.raises(DamagedSessionError, match=r"invalid session record at line 3: ") as caught:
        await Session.open(JsonlStorage.open(path))
    assert caught.value.line == 3
    assert caught.value.path == str(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ['{"seq":1,"id":"e1","parentId":', "{", "nonsense", '{"a":1}{"b":2}', "NaN"])
async def test_a_line_that_is_no_json_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    """``invalid session JSON at line N``; blank lines are skipped, but they count."""
    path = tmp_path / "chat.jsonl"
    path.write_text(f"{HEADER}\n\n{entry(0, USER)}\n \t\n{line}\n{entry(1, USER)}\n", encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(DamagedSessionError, match=r"invalid session JSON at line 5: ") as caught:
        await Session.open(JsonlStorage.open(path))
    assert caught.value.line == 5
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ["[]", '"text"', "7", "null", "true"])
async def test_json_that_is_no_object_is_a_bad_record(line: str, tmp_path: Path) -> None:
    """What parses but is no object is a bad record, not bad JSON."""
    path = tmp_path / "chat.jsonl"
    path.write_text(f"{HEADER}\n{line}\n", encoding="utf-8")
    with pytest.raises(DamagedSessionError, match=r"invalid session record at line 2: "):
        await Session.open(JsonlStorage.open(path))


async def test_valid_messages_make_the_round_trip(tmp_path: Path) -> None:
    """The fourth row of the table: a valid user message comes back as it was."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as session:
        await session.append_message(UserMessage(content="x"))
    async with Session.open(JsonlStorage.open(path)) as session:
        (only,) = await session.entries()
        assert isinstance(only, MessageEntry)
        assert only.message.text == "x"


async def test_an_unknown_role_is_kept_and_stands_in_the_way_of_a_context(tmp_path: Path) -> None:
    """Amended (R4): a role of tomorrow is no damage; the file opens and goes on, and only a context refuses to guess."""
    path = write(tmp_path / "chat.jsonl", USER, '{"role":"nope","content":"x","glow":true}')
    async with Session.open(JsonlStorage.open(path)) as session:
        await session.append_message(UserMessage(content="after"))
        with pytest.raises(UnsupportedEntryError):
            await session.build_context()
        context = await session.build_context(unknown_entries="skip")
        assert [message.text for message in context.messages] == ["x", "after"]
    assert '{"role":"nope","content":"x","glow":true}' in path.read_text(encoding="utf-8")


async def test_a_missing_file_is_no_session_yet_and_other_failures_are_not_swallowed(tmp_path: Path) -> None:
    """Only "there is nothing" means "no session yet"; what cannot be read is another error."""
    with pytest.raises(SessionNotFoundError):
        await Session.open(JsonlStorage.open(tmp_path / "none.jsonl"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(OSError, match=r"folder\.jsonl") as caught:
        await Session.open(JsonlStorage.open(tmp_path / "folder.jsonl"))
    assert not isinstance(caught.value, SessionNotFoundError)
    async with Session.open(JsonlStorage.open_or_create(tmp_path / "none.jsonl")) as session:
        assert await session.entries() == []
