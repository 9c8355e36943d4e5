"""What JSON would change is refused at the call, by its path, and nothing is queued; the same in every backend (R5)."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from storage import (
    AssistantMessage,
    CompactionEntry,
    CustomEntry,
    Entry,
    InvalidEntryError,
    Message,
    MessageEntry,
    MetadataEntry,
    RequestHeaderEntry,
    SessionInfoEntry,
    TextContent,
    ToolCall,
    ToolResultMessage,
    ToolStartEntry,
    UnknownEntry,
    UnknownMessageEntry,
    UserMessage,
    WorkingMemoryEntry,
)
from storage.entry_log import EntryLog
from tests.storage.places import Place, said

pytestmark = pytest.mark.anyio


class Whole(IntEnum):
    """An integer that is none."""

    ONE = 1


class Word(StrEnum):
    """A text that is none."""

    ONE = "one"


def cycle() -> list[Any]:
    """A list that holds itself."""
    items: list[Any] = []
    items.append({"again": items})
    return items


def nested(levels: int) -> Any:
    """Lists and objects in each other, ``levels`` deep."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


class Point(NamedTuple):
    x: int
    y: int


LOSSY: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "minus infinity": lambda: -float("inf"),
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset((1,)),
    "tuple": lambda: (1, 2),
    "named tuple": lambda: Point(1, 2),
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(b"bytes"),
    "cycle": cycle,
    "101 levels": lambda: nested(101),
    "100,000 levels": lambda: nested(100_000),
    "integer of 4,301 digits": lambda: 10**4300,
    "negative integer of 4,301 digits": lambda: -(10**4300),
    "Decimal": lambda: Decimal("1.5"),
    "Path": lambda: Path("x"),
    "object": object,
    "type": lambda: int,
    "generator": lambda: (each for each in ()),
    "range": lambda: range(3),
    "enum": lambda: Enum("Color", "RED").RED,
    "integer enum": lambda: Whole.ONE,
    "text enum": lambda: Word.ONE,
    "ordered dict": lambda: OrderedDict(a=1),
    "exception": lambda: ValueError("x"),
    "model": lambda: TextContent(text="x"),
    "list of models": lambda: [TextContent(text="x")],
    "complex": lambda: 1j,
}

LOSSY_OBJECTS: dict[str, Callable[[], dict[Any, Any]]] = {
    "integer key": lambda: {1: "x"},
    "None as a key": lambda: {None: "x"},
    "bool key": lambda: {True: "x"},
    "tuple key": lambda: {(1, 2): "x"},
    "1 and '1'": lambda: {1: "x", "1": "y"},
    "surrogate in a key": lambda: {"\ud800": "x"},
    "two surrogates in keys": lambda: {"\ud800": "x", "\ud801": "y"},
}


def entries_with(value: Any) -> Iterator[tuple[str, Entry]]:
    """Entries that carry ``value`` in each place where a value is free, with the path that has to be named."""
    yield "data.score", CustomEntry(custom_type="x", data={"score": value})
    yield "data[1]", CustomEntry(custom_type="x", data=[0, value])
    yield "value", MetadataEntry(key="k", value=value)
    yield "value", WorkingMemoryEntry(op="set", key="k", value=value)
    yield "arguments.deep[0].x", ToolStartEntry(call_id="c", name="n", arguments={"deep": [{"x": value}]})
    yield "options.temperature", RequestHeaderEntry(model={"id": "m"}, options={"temperature": value})
    yield "details", CompactionEntry(summary="s", tokens_before=1, details=value)
    strange = UnknownEntry(type="strange")
    assert strange.__pydantic_extra__ is not None
    strange.__pydantic_extra__["payload"] = {"x": value}
    yield "payload.x", strange
    yield "message.x", UnknownMessageEntry(message={"role": "strange", "x": value})
    for path, message in messages_with(value):
        yield f"message.{path}", MessageEntry(message=message)
    yield (
        "retained_tail[0].content[0].arguments.x",
        CompactionEntry(summary="s", tokens_before=1, retained_tail=[AssistantMessage(content=[call_with(value)])]),
    )


def call_with(value: Any) -> ToolCall:
    """A tool call with ``value`` among its arguments."""
    call = ToolCall(id="c", name="n", arguments={})
    call.arguments["x"] = value
    return call


def messages_with(value: Any) -> Iterator[tuple[str, Message]]:
    """The same for messages."""
    yield "content[0].arguments.x", AssistantMessage(content=[call_with(value)])
    result = ToolResultMessage(tool_call_id="c", tool_name="n", content="")
    result.details = {"score": value}
    yield "details.score", result
    extra = UserMessage(content="hello")
    assert extra.__pydantic_extra__ is not None
    extra.__pydantic_extra__["meta"] = value
    yield "meta", extra


async def refused(log: EntryLog, entry: Entry, path: str) -> None:
    """``entry`` is refused at the call, naming ``path``, and its message as well if it is one."""
    with pytest.raises(InvalidEntryError) as caught:
        log.append(entry)
    assert caught.value.message.startswith(path), caught.value.message
    if isinstance(entry, MessageEntry):
        with pytest.raises(InvalidEntryError) as caught:
            log.append_message(entry.message)
        assert caught.value.message.startswith(path.removeprefix("message.")), caught.value.message


@pytest.mark.parametrize("kind", LOSSY)
async def test_what_json_would_change_is_refused(where: Place, kind: str) -> None:
    """R5: in every place of every entry, at the call, with the path to the value; nothing is queued."""
    log = await where.new_log()
    for path, entry in entries_with(LOSSY[kind]()):
        await refused(log, entry, path)
    await log.aclose()
    assert where.lines() == []


@pytest.mark.parametrize("kind", LOSSY_OBJECTS)
async def test_keys_that_are_no_text_are_refused(where: Place, kind: str) -> None:
    """R5: so are keys that are no text, or text that JSON would not give back."""
    log = await where.new_log()
    for path, entry in entries_with(LOSSY_OBJECTS[kind]()):
        await refused(log, entry, path)
    await log.aclose()
    assert where.lines() == []


FAITHFUL: dict[str, Any] = {
    "nothing": None,
    "bools": [True, False],
    "integers": [0, -1, 2**53 + 1, 2**64, 10**4300 - 1, -(10**4300) + 1],
    "floats": [0.1, -0.0, 1e308, 5e-324, 1e22, 1.0, 123456789012345.67],
    "texts": ["", "a\u2028b\u0085c\x0bd\x1ce", "\x00\x1f\x7f", "漢字 🦊 \u202e", '"\\/\n\r\t', "\ufeff", "\uffff"],
    "empty": [[], {}, ""],
    "keys": {"": 1, "snake_case": 2, "camelCase": 3, "\u2028": 4, "seq": 5, "id": 6, "__proto__": 7},
}


@pytest.mark.parametrize("kind", FAITHFUL)
async def test_what_json_can_carry_comes_back(where: Place, kind: str) -> None:
    """R5: every other value comes back equal and of the same type, before and after reopening."""
    value = FAITHFUL[kind]
    log = await where.new_log()
    one = await log.append(CustomEntry(custom_type="x", data=value))
    two = await log.append_message(AssistantMessage(content=[ToolCall(id="c", name="n", arguments={"x": value})]))
    for _ in range(2):
        custom, message = await log.entry(one), await log.entry(two)
        assert isinstance(custom, CustomEntry)
        assert repr(custom.data) == repr(value)
        assert isinstance(message, MessageEntry)
        assert isinstance(message.message, AssistantMessage)
        assert repr(message.message.tool_calls[0].arguments) == repr({"x": value})
        await log.aclose()
        log = await where.log()
    await log.aclose()


async def test_a_hundred_levels_come_back(where: Place) -> None:
    """R5: a value may have 100 levels."""
    log = await where.new_log()
    entry_id = await log.append(CustomEntry(custom_type="x", data=nested(100)))
    await log.aclose()
    log = await where.log()
    entry = await log.entry(entry_id)
    assert isinstance(entry, CustomEntry)
    assert entry.data == nested(100)
    await log.aclose()


async def test_lone_surrogates_in_text_are_replaced(where: Place) -> None:
    """R5: half an emoji becomes U+FFFD, in every field, the same in every backend; nothing is lost, nothing raises."""
    log = await where.new_log()
    half, mended = "a\ud83d b\udc88", "a\ufffd b\ufffd"
    ids = [
        await log.append_message(UserMessage(content=half)),
        await log.append_message(UserMessage(content=[TextContent(text=half)])),
        await log.append_message(AssistantMessage(content=[call_with({"deep": [half]})])),
        await log.append(CustomEntry(custom_type=half, data=half)),
        await log.append(SessionInfoEntry(name=half)),
    ]
    for _ in range(2):
        for entry_id in ids:
            text = (await log.entry(entry_id)).model_dump_json()
            assert mended in text or r"a\ufffd b\ufffd" in text
        await log.aclose()
        log = await where.log()
    await log.aclose()
    for line in where.lines():
        assert mended in line.decode("utf-8")


async def test_a_surrogate_pair_is_one_character(where: Place) -> None:
    """R5: what is no lone surrogate is left alone."""
    log = await where.new_log()
    entry_id = await log.append_message(said("🦊"))
    await log.aclose()
    log = await where.log()
    entry = await log.entry(entry_id)
    assert isinstance(entry, MessageEntry)
    assert entry.message.text == "🦊"
    await log.aclose()


async def test_a_refused_entry_stands_in_nobodys_way(where: Place) -> None:
    """R5, R7: what is refused at the call leaves the queue, and its neighbours, as they were."""
    log = await where.new_log()
    before = log.append_message(said("before"))
    with pytest.raises(InvalidEntryError):
        log.append(CustomEntry(custom_type="x", data=float("nan")))
    after = log.append_message(said("after"))
    await after
    assert before.is_done()
    await log.aclose()
    assert len(where.lines()) == 2


async def test_a_subclass_counts_as_what_it_is(where: Place) -> None:
    """An app's subclass of a message or an entry is known by the log as well before reopening as after it."""

    class OwnReply(AssistantMessage):
        pass

    class OwnEntry(MessageEntry):
        pass

    log = await where.new_log()
    await log.append_message(OwnReply(content=[], provider="p", model="m"))
    await log.append(OwnEntry(message=said()))
    await log.append(OwnEntry(message=OwnReply(content=[], provider="p", model="n")))
    found = [(log.index.kind(seq), log.index.model_at(seq)) for seq in range(3)]
    assert found == [
        (("message", "assistant"), ("p", "m")),
        (("message", "user"), ("p", "m")),
        (("message", "assistant"), ("p", "n")),
    ]
    await log.aclose()
    log = await where.log()
    assert [(log.index.kind(seq), log.index.model_at(seq)) for seq in range(3)] == found
    await log.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
async def test_a_working_directory_that_is_no_unicode(
    on_disk: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: a session can be begun in a folder whose name is no UTF-8; its header stays valid UTF-8."""
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    log = await on_disk.new_log()
    await log.append_message(said())
    await log.aclose()
    log = await on_disk.log()
    assert log.storage.info.header.cwd is not None
    assert log.storage.info.header.cwd.endswith("caf\ufffd")
    await log.aclose()
