"""Taking drawn steps through the public ``Session``, and putting contexts and records into plain data for the checker."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from harness import Session, SessionContext
from storage import Entry, Message, SessionStorage
from storage.entries import KnownEntry
from storage.messages import KnownMessage
from tests.properties.checker import Plain
from tests.properties.steps import TIME, Recorded, Step, plan
from tests.properties.wire import Json

_MESSAGE: TypeAdapter[Message] = TypeAdapter(KnownMessage)
_ENTRY: TypeAdapter[Entry] = TypeAdapter(KnownEntry)


def message_of(raw: Json) -> Message:
    """A message as an app makes it: through its class, by names."""
    return _MESSAGE.validate_python(raw)


async def grow(
    session: Session, steps: list[Step], *, together: bool = False, recorded: Recorded | None = None
) -> Recorded:
    """Record every step through ``session``: awaited one by one, or all called before anything is awaited (R7).

    ``recorded``: what was recorded before, to go on from there.
    """
    recorded = recorded or Recorded()
    for step in steps:
        for raw in plan(step, recorded):
            write = append_raw(session, raw)
            recorded.accept({"id": write.entry_id, "parentId": recorded.leaf, **raw})
            if not together:
                assert await write == write.entry_id
    await session.flush()
    assert session.leaf_id == recorded.leaf
    return recorded


def append_raw(session: Session, raw: Json) -> Any:
    """Record one raw entry by the method of ``Session`` that is meant for it."""
    if "id" in raw or ("parentId" in raw and raw["type"] not in ("leaf", "branch_summary")):
        return session.append_entry(entry_of(raw))
    match raw["type"]:
        case "message":
            return session.append_message(message_of(raw["message"]))
        case "custom_message":
            return session.append_custom_message(raw["customType"], raw["content"], display=raw["display"])
        case "branch_summary" if "parentId" in raw:
            return session.move_to(raw["parentId"], summary=raw["summary"])
        case "branch_summary":
            return session.append_branch_summary(raw["summary"], raw["fromId"])
        case "compaction":
            tail = raw.get("retainedTail")
            return session.append_compaction(
                raw["summary"],
                first_kept_entry_id=raw.get("firstKeptEntryId"),
                retained_tail=None if tail is None else [message_of(message) for message in tail],
                tokens_before=raw["tokensBefore"],
            )
        case "working_memory" if raw["op"] == "set":
            return session.append_working_memory("set", raw["key"], raw["value"])
        case "working_memory":
            return session.append_working_memory(raw["op"], raw.get("key"))
        case "model_change":
            return session.append_model_change(raw["provider"], raw["modelId"])
        case "thinking_level_change":
            return session.append_thinking_level_change(raw["thinkingLevel"])
        case "active_tools_change":
            return session.append_active_tools_change(raw["activeToolNames"])
        case "label":
            return session.append_label(raw["targetId"], raw["label"])
        case "session_info":
            return session.append_session_name(raw["name"])
        case "metadata":
            return session.append_metadata(raw["key"], raw["value"])
        case "custom":
            return session.append_custom_entry(raw["customType"], raw["data"])
        case "leaf":
            return session.move_to(raw["targetId"])
        case _:
            return session.append_entry(entry_of(raw))


def entry_of(raw: Json) -> Entry:
    """An entry as an app makes it: id and time are filled in."""
    return _ENTRY.validate_python(raw)


def raw_entries(storage: SessionStorage) -> list[Json]:
    """The committed lines, read by the standard library."""
    return [json.loads(record.data) for record in storage.read()]


def plain_of(context: SessionContext) -> Plain:
    """A context in plain data."""
    model = context.model
    return Plain(
        messages=[plain_message(message) for message in context.messages],
        entry_ids=list(context.entry_ids),
        chars=context.chars,
        tokens=context.tokens,
        system_prompt=context.system_prompt,
        model=None if model is None else (model.provider, model.model_id),
        thinking_level=context.thinking_level,
        active_tools=None if context.active_tools is None else list(context.active_tools),
        dropped=list(context.dropped),
        compaction_id=context.compaction_id,
        warnings=len(context.warnings),
    )


def plain_message(message: Message) -> Json:
    """A message as shown: its JSON by the rules of the record."""
    return json.loads(message.model_dump_json(by_alias=True, exclude_unset=True))


async def learn_placeholder(session: Session) -> Json:
    """The fixed placeholder: what precedes a reply that nothing came before. ``session`` is a new one."""
    reply = {"role": "assistant", "content": [{"type": "text", "text": "hi"}], "timestamp": TIME}
    await session.append_message(message_of(reply))
    context = await session.build_context()
    assert list(context.entry_ids) == [None, session.leaf_id]
    return plain_message(context.messages[0])
