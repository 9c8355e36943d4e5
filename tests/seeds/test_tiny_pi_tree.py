"""tiny-pi's six entries: one tree, two leaves, and what each of them is a conversation of."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from harness import JsonlStorage, MemoryStorage, Session
from storage import (
    AssistantMessage,
    BrokenPathError,
    DamagedSessionError,
    Entry,
    EntryNotFoundError,
    InvalidEntryError,
    MessageEntry,
    MetadataEntry,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    children,
    common_ancestor,
    messages_on_path,
    path_to,
)


def say(
    entry_id: str, parent_id: str | None, message: UserMessage | AssistantMessage | ToolResultMessage
) -> MessageEntry:
    entry = MessageEntry(id=entry_id, parent_id=parent_id, message=message)
    entry.parent_id = parent_id  # given, also where it is None
    return entry


def six() -> list[Entry]:
    """The tree of the chapter, in the order it was appended."""
    read = ToolCall(id="call-1", name="read", arguments={"path": "README.md"}, raw_arguments='{"path": "README.md"}')
    result = ToolResultMessage(
        tool_call_id="call-1", tool_name="read", content=[TextContent(text="# tiny-pi ...")], details={"n": [1]}
    )
    return [
        say("u-1", None, UserMessage(content="读取 README.md，告诉我项目名")),
        say("a-read", "u-1", AssistantMessage(content=[read])),
        say("r-read", "a-read", result),
        say("a-final", "r-read", AssistantMessage(content=[TextContent(text="项目名是 tiny-pi")])),
        say("a-alt", "u-1", AssistantMessage(content=[TextContent(text="我无法读取该文件")])),
        MetadataEntry(id="meta-cwd", parent_id="a-final", key="cwd", value="/projects/tiny-pi"),
    ]


ACTIVE = ["u-1", "a-read", "r-read", "a-final", "meta-cwd"]


def ids(entries: list[Entry]) -> list[str]:
    return [entry.id for entry in entries]


def test_the_active_path_runs_from_the_root_to_the_chosen_leaf() -> None:
    """``path_to`` of both leaves; the sibling does not mix in, and nothing was overwritten."""
    entries = six()
    assert ids(path_to(entries, "meta-cwd")) == ACTIVE
    assert ids(path_to(entries, "a-alt")) == ["u-1", "a-alt"]
    assert path_to(entries, None) == []
    assert children(entries)["u-1"] == ["a-read", "a-alt"]
    assert common_ancestor(entries, "meta-cwd", "a-alt") == "u-1"


def test_messages_on_the_path_are_whole_and_metadata_is_none_of_them() -> None:
    """user, assistant with call-1, its result, assistant; ids, names, arguments, raw arguments and details are there."""
    user, reads, result, final = messages_on_path(six(), "meta-cwd")
    assert isinstance(user, UserMessage)
    assert isinstance(reads, AssistantMessage)
    assert isinstance(result, ToolResultMessage)
    assert isinstance(final, AssistantMessage)
    (call,) = reads.tool_calls
    assert (call.id, call.name, call.arguments, call.raw_arguments) == (
        "call-1", "read", {"path": "README.md"}, '{"path": "README.md"}',
    )  # fmt: skip
    assert (result.tool_call_id, result.tool_name, result.is_error, result.details) == (
        "call-1",
        "read",
        False,
        {"n": [1]},
    )
    assert final.text == "项目名是 tiny-pi"


def test_what_is_returned_shares_nothing_with_what_was_given() -> None:
    """Rewriting a returned call's arguments or a result's details does not reach the entries."""
    entries = six()
    before = copy.deepcopy(entries)
    for messages in ([entry.message for entry in path_to(entries, "meta-cwd")[1:3] if isinstance(entry, MessageEntry)],
                     messages_on_path(entries, "meta-cwd")[1:3]):  # fmt: skip
        reads, result = messages
        assert isinstance(reads, AssistantMessage)
        assert isinstance(result, ToolResultMessage)
        reads.tool_calls[0].arguments["path"] = "/etc/passwd"
        result.details["n"].append(2)
    assert entries == before


def test_a_duplicate_id_anywhere_is_an_error_and_a_broken_parent_only_on_its_own_path() -> None:
    """Two entries of one id make every path doubtful; a lost or circular parent spoils only the paths through it."""
    entries = six()
    with pytest.raises(DamagedSessionError, match="a-alt"):
        path_to([*entries, say("a-alt", "u-1", UserMessage(content="again"))], "meta-cwd")
    orphan = say("lost", "nowhere", UserMessage(content="?"))
    one, two = say("one", "two", UserMessage(content="1")), say("two", "one", UserMessage(content="2"))
    itself = say("itself", "itself", UserMessage(content="0"))
    broken = [*entries, orphan, one, two, itself]
    assert ids(path_to(broken, "meta-cwd")) == ACTIVE
    with pytest.raises(BrokenPathError, match=r"nowhere.*lost"):
        path_to(broken, "lost")
    for leaf in ("one", "two", "itself"):
        with pytest.raises(BrokenPathError, match="cycle"):
            path_to(broken, leaf)
    with pytest.raises(EntryNotFoundError):
        path_to(entries, "no-such-id")


@pytest.mark.anyio
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "jsonl"])
async def test_the_tree_is_appended_reopened_and_shown_with_its_own_ids(on_disk: bool, tmp_path: Path) -> None:
    """The six entries with the ids given; both leaves, before and after reopening; fields of call-1 survive."""
    place = tmp_path / "tree.jsonl"
    storage = await (JsonlStorage.create(place) if on_disk else MemoryStorage.create())
    entries = six()
    async with Session.open(storage) as session:
        for write in [session.append_entry(entry) for entry in entries]:
            await write
        assert session.leaf_id == "meta-cwd"
        with pytest.raises(InvalidEntryError):
            await session.append_entry(say("u-1", None, UserMessage(content="again")))
    again = JsonlStorage.open(place) if on_disk else MemoryStorage.open(storage)  # pyright: ignore[reportArgumentType]
    async with Session.open(again) as session:
        assert ids(await session.branch()) == ACTIVE
        assert ids(await session.branch("a-alt")) == ["u-1", "a-alt"]
        assert [entry.id for entry in await session.entries()] == ids(entries)
        active = await session.build_context()
        assert active.entry_ids == ["u-1", "a-read", "r-read", "a-final"]
        assert active.messages == messages_on_path(entries, "meta-cwd")
        other = await session.build_context(leaf_id="a-alt")
        assert other.entry_ids == ["u-1", "a-alt"]
        assert other.messages == messages_on_path(entries, "a-alt")
