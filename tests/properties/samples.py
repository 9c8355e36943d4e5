"""Hand-made records and contexts in plain data, to try the checker on."""

from __future__ import annotations

from typing import Any

from tests.properties.checker import Plain
from tests.properties.wire import Json, characters

PLACEHOLDER: Json = {"role": "user", "content": "(the conversation goes on)", "timestamp": 0}


class Raw:
    """Raw entries, each under the last one unless ``parent`` says otherwise."""

    def __init__(self) -> None:
        self.entries: list[Json] = []

    def add(self, entry_id: str, entry_type: str, *, parent: object = ..., **fields: Any) -> str:
        last = self.entries[-1]["id"] if self.entries else None
        self.entries.append(
            {
                "seq": len(self.entries),
                "id": entry_id,
                "parentId": last if parent is ... else parent,
                "timestamp": "2026-01-01T00:00:00.000Z",
                "type": entry_type,
                **fields,
            }
        )
        return entry_id

    def user(self, entry_id: str, text: str, **fields: Any) -> str:
        return self.add(entry_id, "message", message=user(text), **fields)

    def reply(self, entry_id: str, text: str = "", *calls: str, **members: Any) -> str:
        return self.add(entry_id, "message", message=reply(text, *calls, **members))

    def result(self, entry_id: str, call_id: str, text: str) -> str:
        return self.add(entry_id, "message", message=result(call_id, text))


def user(text: str) -> Json:
    return {"role": "user", "content": text, "timestamp": 1}


def reply(text: str = "", *calls: str, **members: Any) -> Json:
    content = [{"type": "text", "text": text}] if text else []
    parts = [{"type": "toolCall", "id": call, "name": "look", "arguments": {"at": call}} for call in calls]
    return {
        "role": "assistant",
        "content": [*content, *parts],
        "provider": "p",
        "model": "m",
        "timestamp": 2,
        **members,
    }


def result(call_id: str, text: str) -> Json:
    content = [{"type": "text", "text": text}]
    return {"role": "toolResult", "toolCallId": call_id, "toolName": "look", "content": content,
            "isError": False, "timestamp": 3}  # fmt: skip


def plain(pairs: list[tuple[str | None, Json]], **members: Any) -> Plain:
    messages = [message for _, message in pairs]
    facts: Json = {"model": ("p", "m"), **members}
    return Plain(messages, [entry_id for entry_id, _ in pairs], characters(messages), **facts)


def rich() -> tuple[Raw, str, list[tuple[str | None, Json]], Json]:
    """A path with nearly everything, its leaf, and the context it must give: messages by entry id, and the state."""
    raw = Raw()
    raw.user("u0", "before everything")
    raw.add("c0", "compaction", summary="old summary", tokensBefore=1)
    raw.add("w0", "working_memory", op="set", key="goal", value={"speed": 3})
    raw.add("w1", "working_memory", op="set", key="gone-key", value="x")
    raw.user("u1", "first question")
    raw.reply("a1", "", "k", "k", "")
    raw.result("r1", "", "empty id")
    raw.result("r2", "k", "one of k")
    raw.user("u2", "a word in between")
    raw.result("r3", "k", "two of k")
    raw.result("r4", "k", "three of k: there is no third call")
    raw.add("c1", "compaction", summary="new summary", firstKeptEntryId="u1", tokensBefore=2)
    raw.add("x1", "branch_summary", summary="the other road", fromId="u0")
    raw.reply("a2", " \n", "n1", "n2", stopReason="aborted")
    raw.add("s1", "tool_start", callId="n1", name="look", arguments={})
    raw.result("r5", "n2", "")
    raw.reply("a3", stopReason="error", errorMessage="overloaded")
    raw.add("w2", "working_memory", op="delete", key="gone-key")
    raw.add("t1", "thinking_level_change", thinkingLevel="high")
    raw.add("t2", "active_tools_change", activeToolNames=["look"])
    raw.add("m1", "custom_message", customType="note", content="a note", display=True)
    raw.reply("a4", "last words")
    raw.user("u9", "another branch", parent="u1")
    raw.add("w9", "working_memory", op="clear")
    words = [{"type": "text", "text": "(no output)"}]
    aborted = reply("", "n1", "n2", stopReason="aborted")
    shown: list[tuple[str | None, Json]] = [
        ("c1", {"role": "user", "content": "Summary of what came before: new summary", "timestamp": 5}),
        ("u1", user("first question")),
        ("a1", reply("", "k", "k", "")),
        ("r2", result("k", "one of k")),
        ("r3", result("k", "two of k")),
        ("r1", result("", "empty id")),
        ("u2", user("a word in between")),
        ("x1", {"role": "user", "content": "A branch was left: the other road", "timestamp": 5}),
        ("a2", aborted),
        ("a2", result("n1", "begun, outcome unknown")),
        ("r5", {**result("n2", ""), "content": words}),
        ("m1", {"role": "user", "content": "a note", "timestamp": 5}),
        ("a4", reply("last words")),
        (None, {"role": "user", "content": 'Working memory: goal = {"speed":3}', "timestamp": 5}),
    ]
    state: Json = {
        "thinking_level": "high",
        "active_tools": ["look"],
        "compaction_id": "c1",
        "dropped": ["r4", "a3"],
    }
    return raw, "a4", shown, state
