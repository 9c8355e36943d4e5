"""tiny-pi's rules of the store: a snapshot at the call, first in first out, one failure alone, and taint."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import TypeAdapter

from harness import JsonlStorage, MemoryStorage, Session
from storage import (
    AssistantMessage,
    InvalidEntryError,
    MessageEntry,
    MetadataEntry,
    Record,
    StorageError,
    StorageInfo,
    TextContent,
    ToolCall,
    UserMessage,
)

pytestmark = pytest.mark.anyio


class Failing:
    """A storage whose ``commit`` fails in a way that leaves it open what was written; it counts how often it is asked."""

    def __init__(self, below: Any) -> None:
        self.below = below
        self.error: Exception | None = None
        self.commits = 0
        self.reads = 0

    @property
    def info(self) -> StorageInfo:
        return self.below.info

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        self.reads += 1
        return self.below.read(after_seq=after_seq, limit=limit)

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        self.commits += 1
        if self.error is not None:
            raise self.error
        return self.below.commit(records)

    def close(self) -> None:
        self.below.close()


def named(entry_id: str, parent_id: str, text: str = "x") -> MessageEntry:
    return MessageEntry(id=entry_id, parent_id=parent_id, message=UserMessage(content=text))


@pytest.fixture(params=["memory", "jsonl"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return await (MemoryStorage.create() if request.param == "memory" else JsonlStorage.create(tmp_path / "s.jsonl"))


async def test_what_is_stored_is_what_was_there_at_the_call(storage: Any) -> None:
    """Both objects are changed right after the calls, before anything was awaited: the store holds the old values."""
    async with Session.open(storage) as session:
        user = UserMessage(content=[TextContent(text="读取 README.md")])
        reads = AssistantMessage(content=[ToolCall(id="call-1", name="read", arguments={"path": ["README.md"]})])
        fact = MetadataEntry(key="k", value={"n": [1]})
        first, second, third = session.append_message(user), session.append_message(reads), session.append_entry(fact)
        assert isinstance(user.content, list)
        user.content.append(TextContent(text="changed"))
        reads.tool_calls[0].arguments["path"].append("/etc/passwd")
        fact.value["n"].append(2)
        fact.id = "changed"
        await first
        await second
        assert await third == third.entry_id != "changed"
        one, two, three = await session.entries()
        assert isinstance(one, MessageEntry)
        assert isinstance(two, MessageEntry)
        assert isinstance(two.message, AssistantMessage)
        assert isinstance(three, MetadataEntry)
        assert one.message.text == "读取 README.md"
        assert two.message.tool_calls[0].arguments == {"path": ["README.md"]}
        assert three.value == {"n": [1]}


async def test_a_child_may_be_appended_before_its_parent_was_awaited(storage: Any) -> None:
    """The parent is looked for when the write's turn comes; calls in order are enough, whoever awaits first."""
    async with Session.open(storage) as session:
        root = session.append_message(UserMessage(content="u-1"))
        child = session.append_entry(named("a-read", root.entry_id))
        grandchild = session.append_entry(named("r-read", "a-read"))
        async with anyio.create_task_group() as group:
            for write in (grandchild, child, root):
                group.start_soon(write.wait)
        assert [entry.id for entry in await session.branch()] == [root.entry_id, "a-read", "r-read"]
        assert [entry.seq for entry in await session.entries()] == [0, 1, 2]


async def test_a_write_that_fails_its_checks_fails_alone(storage: Any) -> None:
    """A missing parent or a doubled id does not poison the queue: the next one is written, and no place is left empty."""
    async with Session.open(storage) as session:
        root = session.append_message(UserMessage(content="root"))
        lost = session.append_entry(named("lost", "nowhere"))
        child_of_lost = session.append_entry(named("child", "lost"))
        doubled = session.append_entry(named(root.entry_id, root.entry_id))
        good = session.append_message(UserMessage(content="good"))
        assert await good == good.entry_id
        for write, word in ((lost, "nowhere"), (child_of_lost, "lost"), (doubled, root.entry_id)):
            for _ in range(2):
                with pytest.raises(InvalidEntryError, match=word):
                    await write
        assert [(entry.seq, entry.id) for entry in await session.branch()] == [(0, root.entry_id), (1, good.entry_id)]


async def test_what_json_would_lose_or_change_is_refused_at_the_call_and_the_store_goes_on(storage: Any) -> None:
    """NaN, a set, a cycle, an object: refused before anything is queued, naming the path to the value."""
    async with Session.open(storage) as session:
        circle: dict[str, Any] = {}
        circle["self"] = circle
        for value in (float("nan"), {1, 2}, (1, 2), object(), b"x", {1: "a"}, circle):
            with pytest.raises(InvalidEntryError, match=r"value\.score"):
                session.append_metadata("k", {"score": value})
        await session.append_metadata("k", {"score": 1})
        assert len(await session.entries()) == 1


async def test_reads_wait_for_the_writes_called_before_and_share_nothing(storage: Any) -> None:
    """``entries`` first settles what was called, then gives copies."""
    async with Session.open(storage) as session:
        session.append_metadata("k", {"n": [1]})
        for _ in range(2):
            (entry,) = await session.entries()
            assert isinstance(entry, MetadataEntry)
            assert entry.value == {"n": [1]}
            entry.value["n"].append(2)


async def test_after_a_failed_write_of_unknown_outcome_nothing_is_tried_again(storage: Any) -> None:
    """Tainted: what was queued fails on the same first error, later appends and reads too, and no I/O is asked for."""
    failing = Failing(storage)
    session = await Session.open(failing)
    await session.append_message(UserMessage(content="good"))
    failing.error = OSError(errno.EIO, "the disk is gone")
    queued = [session.append_message(UserMessage(content=str(number))) for number in range(3)]
    causes: list[BaseException | None] = []
    for write in queued:
        with pytest.raises(StorageError) as caught:
            await write
        causes.append(caught.value.__cause__)
    failing_before = (failing.commits, failing.reads)
    assert failing_before[0] == 2
    with pytest.raises(StorageError) as caught:
        session.append_message(UserMessage(content="later"))
    causes.append(caught.value.__cause__)
    with pytest.raises(StorageError) as caught:
        await session.entries()
    causes.append(caught.value.__cause__)
    assert all(cause is failing.error for cause in causes)
    assert not session.writable
    assert (failing.commits, failing.reads) == failing_before
    await session.aclose()


async def test_opening_anew_starts_from_what_the_disk_holds(tmp_path: Path) -> None:
    """A tainted writer is not the end of the session: the committed prefix is there, and takes the next append."""
    path = tmp_path / "chat.jsonl"
    failing = Failing(await JsonlStorage.create(path))
    session = await Session.open(failing)
    kept = await session.append_message(UserMessage(content="kept"))
    failing.error = OSError(errno.EIO, "the disk is gone")
    with pytest.raises(StorageError):
        await session.append_message(UserMessage(content="lost"))
    await session.aclose()
    async with Session.open(JsonlStorage.open(path)) as again:
        added = await again.append_message(UserMessage(content="after"))
        assert [entry.id for entry in await again.branch()] == [kept, added]


async def test_every_old_byte_is_a_prefix_of_the_new_file(tmp_path: Path) -> None:
    """Appending adds bytes behind the old ones, and changes none."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as session:
        before = path.read_bytes()
        for text in ("one", "two", "drei: ä漢"):
            await session.append_message(UserMessage(content=text))
            after = path.read_bytes()
            assert after.startswith(before)
            assert after.endswith(b"\n")
            assert after.count(b"\n") == before.count(b"\n") + 1
            before = after


async def test_what_was_acknowledged_can_be_read_again_however_it_was_made(tmp_path: Path) -> None:
    """Objects made by validation, not by their class, count only what they were given; their line still has the rest."""
    path = tmp_path / "chat.jsonl"
    part = TextContent.model_validate({"text": "hi"})
    message = UserMessage.model_validate({"content": [part]})
    entry: TypeAdapter[Any] = TypeAdapter(MetadataEntry)
    async with Session.open(JsonlStorage.create(path)) as session:
        made = [
            await session.append_message(message),
            await session.append_message(UserMessage.model_construct(content="constructed")),
            await session.append_entry(MessageEntry.model_validate({"message": message})),
            await session.append_entry(entry.validate_python({"type": "metadata", "key": "k", "value": 1})),
        ]
    async with Session.open(JsonlStorage.open(path)) as again:
        assert [entry.id for entry in await again.branch()] == made
        assert [message.text for message in (await again.build_context()).messages] == ["hi", "constructed", "hi"]
