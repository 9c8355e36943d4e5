"""An error about a session says where that session lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.session import Session
from storage.errors import BrokenPathError, BudgetError, EntryNotFoundError, NotOnPathError, UnsupportedEntryError
from storage.jsonl import JsonlStorage
from storage.messages import UserMessage

pytestmark = pytest.mark.anyio

HEADER = (
    '{"type":"session","version":3,"id":"chat","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/here","branchline":1}'
)
MESSAGE = '"timestamp":"2026-01-01T00:00:00.000Z","message":{"role":"user","content":"hello","timestamp":0}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A session with a healthy path to "a", a broken one to "b", and an entry of an unknown type, "c"."""
    lines = [
        HEADER,
        f'{{"seq":0,"type":"message","id":"a","parentId":null,{MESSAGE}',
        f'{{"seq":1,"type":"message","id":"b","parentId":"gone",{MESSAGE}',
        '{"seq":2,"type":"strange","id":"c","parentId":"a","timestamp":"2026-01-01T00:00:00.000Z"}',
    ]
    (tmp_path / "chat.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "chat.jsonl"


async def test_reading_what_is_not_there(path: Path) -> None:
    """An id that is no entry's, and a path that breaks (with the line): the file is named."""
    async with Session.open(JsonlStorage.open(path)) as session:
        with pytest.raises(EntryNotFoundError) as missing:
            await session.entry("nobody")
        with pytest.raises(BrokenPathError) as broken:
            await session.branch("b")
    assert (missing.value.path, missing.value.entry_id) == (str(path), "nobody")
    assert (broken.value.path, broken.value.line, broken.value.entry_id) == (str(path), 3, "b")


async def test_contexts_that_cannot_be_made(path: Path) -> None:
    """A budget that is too small, an unknown entry, a broken path: the file is named, though a path knows no files."""
    async with Session.open(JsonlStorage.open(path)) as session:
        with pytest.raises(BudgetError) as budget:
            await session.build_context(leaf_id="a", max_chars=3)
        with pytest.raises(UnsupportedEntryError) as unknown:
            await session.build_context(leaf_id="c")
        with pytest.raises(BrokenPathError) as broken:
            await session.build_context(leaf_id="b")
    assert [error.value.path for error in (budget, unknown, broken)] == [str(path)] * 3


async def test_writes_that_are_refused(tmp_path: Path) -> None:
    """A compaction whose first kept entry is elsewhere, a label and a move to nowhere: the file is named."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as session:
        first = await session.append_message(UserMessage(content="one"))
        await session.move_to(None)
        compaction = session.append_compaction("summary", first_kept_entry_id=first, tokens_before=1)
        label = session.append_label("nobody", "here")
        move = session.move_to("nobody")
        with pytest.raises(NotOnPathError) as kept:
            await compaction
        with pytest.raises(EntryNotFoundError) as labelled:
            await label
        with pytest.raises(EntryNotFoundError) as moved:
            await move
    assert [error.value.path for error in (kept, labelled, moved)] == [str(path)] * 3
