"""A model that was changed after it was made: refused, or written so that it can be read again (R5, R6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from storage import (
    AssistantMessage,
    CompactionEntry,
    CustomEntry,
    InvalidEntryError,
    LabelEntry,
    LeafEntry,
    MessageEntry,
    RequestHeaderEntry,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UnknownEntry,
    UnknownMessageEntry,
    Usage,
    UserMessage,
    WorkingMemoryEntry,
)
from tests.storage.places import Place, said

pytestmark = pytest.mark.anyio


def call() -> ToolCall:
    """A tool call."""
    return ToolCall(id="c", name="n", arguments={"x": 1})


CHANGED: list[Callable[[], Any]] = [
    lambda: _changed(CustomEntry(custom_type="x"), id=""),
    lambda: _changed(CustomEntry(custom_type="x"), id=17),
    lambda: _changed(CustomEntry(custom_type="x"), id=None),
    lambda: _changed(CustomEntry(custom_type="x"), timestamp=""),
    lambda: _changed(CustomEntry(custom_type="x"), timestamp=None),
    lambda: _changed(CustomEntry(custom_type="x"), custom_type=None),
    lambda: _changed(CustomEntry(custom_type="x"), parent_id=17),
    lambda: _changed(CustomEntry(custom_type="x"), parent_id=True),
    lambda: _changed(CustomEntry(custom_type="x"), type="message"),
    lambda: _changed(CustomEntry(custom_type="x"), type="custom_message"),
    lambda: _changed(CustomEntry(custom_type="x"), type=""),
    lambda: _changed(CustomEntry(custom_type="x"), type=None),
    lambda: _changed(CustomEntry(custom_type="x"), ignorable="yes"),
    lambda: _changed(LabelEntry(target_id="t"), target_id=None),
    lambda: _changed(LeafEntry(target_id=None), target_id=17),
    lambda: _changed(CompactionEntry(summary="s", tokens_before=1), tokens_before=True),
    lambda: _changed(CompactionEntry(summary="s", tokens_before=1), tokens_before=1.5),
    lambda: _changed(CompactionEntry(summary="s", tokens_before=1), tokens_before="1"),
    lambda: _changed(CompactionEntry(summary="s", tokens_before=1), retained_tail=["text"]),
    lambda: _changed(CompactionEntry(summary="s", tokens_before=1), retained_tail=[{"role": "user"}]),
    lambda: _changed(WorkingMemoryEntry(op="clear"), op="forget"),
    lambda: _changed(WorkingMemoryEntry(op="clear"), op=None),
    lambda: _changed(RequestHeaderEntry(model={}), model=None),
    lambda: _changed(RequestHeaderEntry(model={}), tools={"a": 1}),
    lambda: _changed(RequestHeaderEntry(model={}), tools=[1]),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), timestamp=True)),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), timestamp=1.5)),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), timestamp=None)),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), content=17)),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), content=[17])),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), content=["text"])),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), content=[{"type": "text"}])),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), content=[call()])),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), role="assistant")),
    lambda: MessageEntry(message=_changed(UserMessage(content="x"), role="strange")),
    lambda: MessageEntry(message=UserMessage(content=[_changed(TextContent(text="x"), text=17)])),
    lambda: MessageEntry(message=UserMessage(content=[_changed(TextContent(text="x"), type="image")])),
    lambda: MessageEntry(message=AssistantMessage(content=[_changed(call(), arguments=None)])),
    lambda: MessageEntry(message=AssistantMessage(content=[_changed(call(), arguments=[1])])),
    lambda: MessageEntry(message=AssistantMessage(content=[_changed(call(), id=None)])),
    lambda: MessageEntry(message=AssistantMessage(content=[], usage=_changed(Usage(), input=True))),
    lambda: MessageEntry(message=AssistantMessage(content=[], usage=_changed(Usage(), input=0.5))),
    lambda: MessageEntry(message=AssistantMessage(content=[], usage=_changed(Usage(), cost="much"))),
    lambda: MessageEntry(message=_changed(ToolResultMessage(tool_call_id="c", tool_name="n", content=""), is_error=1)),
    lambda: MessageEntry(
        message=_changed(ToolResultMessage(tool_call_id="c", tool_name="n", content=""), is_error=None)
    ),
    lambda: _changed(MessageEntry(message=said()), message=CustomEntry(custom_type="x")),
    lambda: _changed(MessageEntry(message=said()), message=None),
    lambda: _changed(MessageEntry(message=said()), message={"role": "user"}),
    lambda: UnknownEntry(type="leaf"),
    lambda: UnknownEntry(type="message"),
    lambda: UnknownEntry(type="label", ignorable=True),
    lambda: UnknownEntry(type=""),
    lambda: UnknownMessageEntry(message={"role": "user"}),
    lambda: UnknownMessageEntry(message={"role": "assistant", "content": [{"type": "toolCall"}]}),
    lambda: UnknownMessageEntry(message={"role": "user", "content": "a known one"}),
    lambda: UnknownMessageEntry(message={}),
    lambda: UnknownMessageEntry(message={"role": None}),
    lambda: CustomEntry.model_construct(),
    lambda: CustomEntry.model_construct(custom_type="x", id="made-1", timestamp="t"),
    lambda: MessageEntry.model_construct(message=UserMessage.model_construct(content="x")),
    lambda: MessageEntry.model_construct(id="made-2", message=UserMessage.model_construct(role="user")),
    lambda: CustomEntry.model_validate({"type": "custom", "customType": "x"}),
    lambda: MessageEntry.model_validate({"type": "message", "message": {"role": "user", "content": "x"}}),
    lambda: CustomEntry(custom_type="x", **{"message": 1, "role": "user", "target_id": "t", "customType": "y"}),  # pyright: ignore[reportArgumentType]
]


def _changed(changed: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


@pytest.mark.parametrize("number", range(len(CHANGED)))
async def test_what_is_taken_can_be_read_again(jsonl: Place, number: int) -> None:
    """R5: a field changed to another type is refused; whatever is taken, the session opens again with it."""
    await check_again(jsonl, [number])


async def test_all_that_is_taken_can_be_read_again(where: Place) -> None:
    """R5: the same for all of them in one session, in every backend."""
    await check_again(where, list(range(len(CHANGED))))


async def check_again(place: Place, numbers: list[int]) -> None:
    """Append what ``CHANGED`` makes, reopen, and compare."""
    log = await place.new_log()
    ids = [await log.append_message(said("before"))]
    for number in numbers:
        try:
            ids.append(await log.append(CHANGED[number]()))
        except (InvalidEntryError, ValidationError):
            assert len(log.index) == len(ids)
    ids.append(await log.append(CustomEntry(custom_type="after")))
    shown = [(await log.entry(entry_id)).model_dump(exclude_unset=True) for entry_id in ids]
    leaf = log.leaf_id
    kinds = [log.index.kind(seq) for seq in range(len(log.index))]
    await log.aclose()
    log = await place.log()
    assert [(await log.entry(entry_id)).model_dump(exclude_unset=True) for entry_id in ids] == shown
    assert log.leaf_id == leaf
    assert [log.index.kind(seq) for seq in range(len(log.index))] == kinds
    assert log.writable
    await log.aclose()
