"""aptbot: corrupted lines are tolerated on request, session ids are checked before any path is made, memory is inherited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import AgentHarness, Continued, EntryFileStorage, JsonlStorage, MemoryStorage, Session, memory_tool
from harness.testing import ScriptedModel, tool_call
from storage import (
    BrokenPathError,
    BusyError,
    CompactionEntry,
    DamagedSessionError,
    InvalidEntryError,
    InvalidIdError,
    MetadataEntry,
    NotOnPathError,
    ReadOnlySessionError,
    UserMessage,
    WorkingMemoryEntry,
)

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


async def test_the_model_updates_its_card_and_sees_it_in_every_request() -> None:
    """aptbot's tool was there, and what it wrote was never shown: here the next request of the same turn has it."""
    async with Session.open(MemoryStorage.create()) as session:
        model = ScriptedModel([tool_call("memory", operation="set", key="task", value="line 42"), "done", "again"])
        async with AgentHarness(session, model, tools=[memory_tool()]) as harness:
            await harness.prompt("fix the bug")
            await harness.prompt("and now?")
    first, second, third = model.requests
    assert "line 42" not in str(first.messages)
    for request in (second, third):
        assert request.messages[-1].text == 'Working memory, as it stands now:\ntask: "line 42"'


async def filled(**memory: str) -> Session:
    session = await Session.open(MemoryStorage.create())
    for key, value in memory.items():
        await session.working_memory.set(key, value)
    return session


async def test_a_new_session_inherits_the_card() -> None:
    """Every key, each entry naming the session it came from; what comes later in either does not reach the other."""
    async with await filled(task="port", tried="sed") as old, Session.open(MemoryStorage.create()) as new:
        continued = await new.continue_from(old)
        assert continued == Continued(old.id, ("task", "tried"), ())
        assert await new.working_memory.values() == {"task": "port", "tried": "sed"}
        entries = await new.branch()
        inherited = [entry for entry in entries if isinstance(entry, WorkingMemoryEntry)]
        assert [entry.from_session for entry in inherited] == [old.id, old.id]
        assert isinstance(entries[-1], MetadataEntry)
        assert entries[-1].key == "continuedFrom"
        assert entries[-1].value == {"session": old.id, "keys": ["task", "tried"], "entry": old.leaf_id}
        await new.working_memory.set("task", "test")
        assert await old.working_memory.get("task") == "port"
        assert (await new.build_context()).messages[-1].text.startswith("Working memory")


async def test_an_empty_source_hides_nothing() -> None:
    """aptbot wrote an empty card over what the target had."""
    async with await filled() as old, await filled(task="mine") as new:
        await new.continue_from(old, last_summary=True)
        assert await new.working_memory.values() == {"task": "mine"}
        assert [entry.type for entry in await new.branch()] == ["working_memory", "metadata"]


async def test_what_the_target_has_itself_stays() -> None:
    """A key of both keeps the target's value; continuing twice changes nothing more."""
    async with await filled(task="theirs", more="x") as old, await filled(task="mine") as new:
        assert (await new.continue_from(old)).kept == ("task",)
        assert await new.working_memory.values() == {"task": "mine", "more": "x"}
        assert (await new.continue_from(old)).keys == ()
        assert await new.working_memory.values() == {"task": "mine", "more": "x"}


async def test_inheriting_goes_on_through_several_sessions() -> None:
    """aptbot counted the passes in the id, and lost count; here each entry names the session before it."""
    async with await filled(task="port") as first:
        async with Session.open(MemoryStorage.create()) as second:
            await second.continue_from(first)
            await second.working_memory.set("more", "x")
            async with Session.open(MemoryStorage.create()) as third:
                await third.continue_from(second)
                inherited = [entry for entry in await third.branch() if isinstance(entry, WorkingMemoryEntry)]
                assert {entry.from_session for entry in inherited} == {second.id}
                assert await third.working_memory.values() == {"task": "port", "more": "x"}


async def test_the_last_summary_comes_along_when_asked() -> None:
    """At the beginning of a new session it stands for what lies before; its files are carried on."""
    async with await filled(task="port") as old, Session.open(MemoryStorage.create()) as new:
        old.append_compaction("Older.", tokens_before=1)
        details = {"readFiles": ["a.py"], "modifiedFiles": []}
        made = await old.append_compaction("We ported half of it.", tokens_before=900, details=details)
        continued = await new.continue_from(old, last_summary=True)
        entry = await new.entry(continued.summary_id or "")
        assert isinstance(entry, CompactionEntry)
        assert entry.tokens_before == 900
        assert entry.details == {**details, "from": {"session": old.id, "entry": made}}
        await new.append_message(UserMessage(content="go on"))
        shown = [message.text for message in (await new.build_context()).messages]
        assert "We ported half of it." in shown[0]
        assert shown[1] == "go on"
        assert "task" in shown[2]
        assert "Older." not in str(shown)


async def test_a_summary_hides_nothing_of_a_conversation_that_goes_on() -> None:
    """Where the target shows something already, a summary of its own included, the other's is one more message."""
    async with await filled() as old, Session.open(MemoryStorage.create()) as new:
        await old.append_compaction("Theirs.", tokens_before=1)
        await new.append_message(UserMessage(content="before"))
        await new.append_compaction("Mine.", tokens_before=1)
        await new.append_message(UserMessage(content="one"))
        await new.continue_from(old, last_summary=True)
        shown = [message.text for message in (await new.build_context()).messages]
        assert "Mine." in shown[0]
        assert shown[1] == "one"
        assert "Theirs." in shown[2]


async def test_nobody_continues_himself_or_in_the_middle_of_a_turn() -> None:
    """A typed error, and nothing is written."""
    async with await filled(k="v") as session, await filled(k="v") as other:
        count = len(session.log.index)
        with pytest.raises(InvalidEntryError):
            await session.continue_from(session)
        turn = session.begin_turn(object())
        with pytest.raises(BusyError):
            await session.continue_from(other)
        turn.end()
        assert len(session.log.index) == count


async def test_who_appends_meanwhile_is_not_hidden(tmp_path: Path) -> None:
    """The summary would stand before a message that came in between: then nothing is taken over."""
    async with await filled(k="v") as old:
        await old.append_compaction("Theirs.", tokens_before=1)
        async with Session.open(JsonlStorage.create(tmp_path / "new.jsonl")) as new:
            real = new.log.path

            async def path_and_then() -> object:
                path = await real()
                new.append_message(UserMessage(content="in between"))
                return path

            new.log.path = path_and_then  # pyright: ignore[reportAttributeAccessIssue]
            with pytest.raises(NotOnPathError):
                await new.continue_from(old, last_summary=True)
            del new.log.path  # pyright: ignore[reportAttributeAccessIssue]
            assert [message.text for message in (await new.build_context()).messages] == ["in between"]
            assert await new.working_memory.keys() == []
