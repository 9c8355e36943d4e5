"""Random conversations: steps for Hypothesis to draw, and what each of them records at the place it comes to.

A step is a small plain value; ``plan`` turns it into raw entries, given what was recorded so far. The same steps can so
be taken through the public ``Session`` and be written into a file by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.properties.items import pair
from tests.properties.record import path_to, waiting
from tests.properties.wire import Json, calls_of

TIME = 1_767_225_600_000
STAMP = "2026-01-01T00:00:00.000Z"


@dataclass
class Recorded:
    """What was recorded so far: enough of each entry to choose the next ones."""

    entries: list[Json] = field(default_factory=list[Json])
    leaf: str | None = None

    def path(self) -> list[Json]:
        return path_to(self.entries, self.leaf)

    def accept(self, entry: Json) -> None:
        """``entry`` was recorded; R's leaf rule: the leaf is its id, or its target."""
        self.entries.append(entry)
        self.leaf = entry["targetId"] if entry["type"] == "leaf" else entry["id"]


@dataclass(frozen=True)
class Step:
    """``kind`` says what to record; ``pick`` chooses among what is there, by remainder."""

    kind: str
    text: str = ""
    pick: int = 0
    calls: tuple[str, ...] = ()
    option: str = ""
    tail: tuple[Step, ...] = ()


def plan(step: Step, recorded: Recorded) -> list[Json]:
    """The raw entries of ``step``; ``parentId`` only where it is not the leaf. ``[]``: nothing to do here.

    Without ids, but for a message that is delivered, whose id was announced.
    """
    entries = recorded.entries
    target = entries[step.pick % len(entries)]["id"] if entries else None
    match step.kind:
        case "user" | "reply" | "result" | "answer" | "bash" | "app":
            message = _message(step, [entry["message"] for entry in recorded.path() if entry["type"] == "message"])
            return [] if message is None else [{"type": "message", "message": message}]
        case "aside":  # the same, but on a branch from any entry, named as the parent
            return [{"type": "message", "message": _user(step.text), "parentId": target}]
        case "custom_message":
            return [{"type": "custom_message", "customType": "note", "content": step.text, "display": True}]
        case "branch_summary":
            return [{"type": "branch_summary", "summary": step.text or "left", "fromId": target}] if target else []
        case "compaction":
            return _compaction(step, recorded)
        case "memory":
            return [_memory(step)]
        case "model":
            return [{"type": "model_change", "provider": "other", "modelId": f"model-{step.pick % 3}"}]
        case "thinking":
            return [{"type": "thinking_level_change", "thinkingLevel": ("off", "low", "high")[step.pick % 3]}]
        case "tools":
            return [{"type": "active_tools_change", "activeToolNames": list(step.calls)}]
        case "header":
            header = {"type": "request_header", "model": {"provider": "p", "modelId": "m"}}
            return [{**header, "systemPrompt": step.text or "You help.", "tools": []}]
        case "turn_start" | "turn_end":
            begun = sum(entry["type"] == "turn_start" for entry in recorded.path())
            reason = {"reason": "completed"} if step.kind == "turn_end" else {}
            opening = (
                [{"type": "message", "message": _user(step.text)}] if step.kind == "turn_start" and step.text else []
            )
            return [{"type": step.kind, "turn": begun + (step.kind == "turn_start"), **reason}, *opening]
        case "tool_start" | "approval_requested" | "approval_resolved":
            call = _open_call(step, recorded)
            if call is None:
                return []
            fields: Json = {"callId": call["id"]}
            if step.kind == "tool_start":
                fields |= {"name": call["name"], "arguments": call["arguments"]}
            elif step.kind == "approval_resolved":
                fields |= {"decision": "allow"}
            ignorable = {} if step.kind == "tool_start" else {"ignorable": True}
            return [{"type": step.kind, **fields, **ignorable}]
        case "queued":
            return [{"type": "queued", "kind": step.option, "message": _user(step.text), "ignorable": True}]
        case "delivered":
            return _delivered(step, recorded)
        case "edit":
            return _edit(step, recorded)
        case "label":
            return [{"type": "label", "targetId": target, "label": step.text or "here"}] if target else []
        case "name":
            return [{"type": "session_info", "name": step.text or "named"}]
        case "metadata":
            return [{"type": "metadata", "key": "k", "value": {"n": step.pick}}]
        case "custom":
            return [{"type": "custom", "customType": "app", "data": {"n": step.pick}}]
        case "move":
            to = None if step.option == "root" else target
            if step.option == "summary":
                summary = {"type": "branch_summary", "summary": step.text or "left", "fromId": recorded.leaf}
                return [{**summary, "parentId": to}] if recorded.leaf is not None else []
            return [{"type": "leaf", "targetId": to, "parentId": to}]
        case other:
            raise AssertionError(other)


def _user(text: str) -> Json:
    return {"role": "user", "content": text, "timestamp": TIME}


def _message(step: Step, before: list[Json]) -> Json | None:
    match step.kind:
        case "user":
            return _user(step.text)
        case "reply":
            return _reply(step)
        case "answer":
            pairs = pair(before)
            answered = {place for place in pairs if place is not None}
            open_calls = [
                call
                for at, message in enumerate(before)
                for number, call in enumerate(calls_of(message))
                if (at, number) not in answered
            ]
            if not open_calls:
                return None
            return _result(step, open_calls[step.pick % len(open_calls)]["id"])
        case "result":
            return _result(step, step.calls[0] if step.calls else "k")
        case "bash":
            excluded = {"excludeFromContext": True} if step.option == "hidden" else {}
            run = {"role": "bashExecution", "command": "ls", "output": step.text, "exitCode": 0}
            return {**run, "cancelled": False, "truncated": False, **excluded, "timestamp": TIME}
        case _:
            return {"role": "custom", "customType": "note", "content": step.text, "display": True, "timestamp": TIME}


def _reply(step: Step) -> Json:
    parts: list[Json] = []
    if step.option == "thinking":
        parts.append({"type": "thinking", "thinking": "hm", "thinkingSignature": "s"})
    if step.text or step.pick % 2:
        parts.append({"type": "text", "text": step.text})
    for number, call_id in enumerate(step.calls):
        parts.append({"type": "toolCall", "id": call_id, "name": "look", "arguments": {"n": number}})
    usage: Json = {}
    if step.option == "usage":
        counts = {"input": 7 * step.pick, "output": 5, "cacheRead": 3, "cacheWrite": 0}
        usage = {"usage": {**counts, "totalTokens": sum(counts.values())}}
    stop = step.option if step.option in ("error", "aborted") else ("toolUse" if step.calls else "stop")
    model = {} if step.option == "unnamed" else {"provider": "p", "model": f"reply-{step.pick % 3}"}
    return {"role": "assistant", "content": parts, **model, **usage, "stopReason": stop, "timestamp": TIME}


def _result(step: Step, call_id: str) -> Json:
    content = [{"type": "text", "text": step.text}]
    if step.option == "image":
        content.append({"type": "image", "data": "aGk=", "mimeType": "image/png"})
    return {"role": "toolResult", "toolCallId": call_id, "toolName": "look", "content": content,
            "isError": step.option == "error", "timestamp": TIME}  # fmt: skip


def _open_call(step: Step, recorded: Recorded) -> Json | None:
    calls = [call for entry in recorded.path() if entry["type"] == "message" for call in calls_of(entry["message"])]
    return calls[step.pick % len(calls)] if calls else None


def _compaction(step: Step, recorded: Recorded) -> list[Json]:
    path = recorded.path()
    entry: Json = {"type": "compaction", "summary": f"sum {step.text or 'x'}", "tokensBefore": 9}
    if step.option in ("kept", "both") and path:
        entry["firstKeptEntryId"] = path[step.pick % len(path)]["id"]
    if step.option in ("tail", "both"):
        tail: list[Json] = []
        for inner in step.tail:
            message = _message(inner, tail)
            if message is not None:
                tail.append(message)
        entry["retainedTail"] = tail
    return [entry]


def _memory(step: Step) -> Json:
    op = step.option or "set"
    entry: Json = {"type": "working_memory", "op": op}
    if op != "clear":
        entry["key"] = f"memory-key-{step.pick % 3}"
    if op == "set":
        values: tuple[Any, ...] = (step.text or "v", 7, {"deep": [True, None, "ä"]}, None)
        entry["value"] = values[step.pick % len(values)]
    return entry


def _delivered(step: Step, recorded: Recorded) -> list[Json]:
    """What waits takes its place, or is taken back, or a crash comes between its announcement and its place."""
    path = recorded.path()
    waits = waiting(path)
    if not waits:
        return []
    queued_id = waits[step.pick % len(waits)]
    entry: Json = {"type": "delivered", "entryId": queued_id, "ignorable": True}
    if step.option == "taken back":
        return [entry]
    message_id = f"delivered-{len(recorded.entries)}"
    message = next(entry["message"] for entry in path if entry["id"] == queued_id)
    place = [] if step.option == "cut off" else [{"type": "message", "id": message_id, "message": message}]
    return [{**entry, "messageId": message_id}, *place]


def _edit(step: Step, recorded: Recorded) -> list[Json]:
    targets = [
        entry
        for entry in recorded.path()
        if entry["type"] == "custom_message"
        or (entry["type"] == "message" and entry["message"]["role"] in ("user", "assistant", "toolResult"))
    ]
    if not targets:
        return []
    replacement = None if step.option == "hide" else {"content": step.text}
    return [{"type": "context_edit", "targetId": targets[step.pick % len(targets)]["id"], "replacement": replacement}]


TEXTS = st.one_of(
    st.sampled_from(["", " ", "\n\t", "yes", "ok then", "a longer text, of some words", "ä漢😀\u2028\u0085", '"\\']),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
)
CALL_IDS = st.sampled_from(["", "k", "k", "x", *(f"call_{number}" for number in range(8))])
PICKS = st.integers(0, 40)


def _steps(kind: str, *, options: tuple[str, ...] = ("",), calls: int = 0, **more: Any) -> st.SearchStrategy[Step]:
    some_calls = st.lists(CALL_IDS, max_size=calls).map(tuple)
    return st.builds(Step, st.just(kind), TEXTS, PICKS, some_calls, st.sampled_from(options), **more)


REPLIES = _steps("reply", options=("", "", "usage", "usage", "error", "aborted", "thinking", "unnamed"), calls=4)
ANSWERS = _steps("answer", options=("", "", "error", "image"))
TAIL = st.lists(st.one_of(_steps("user"), REPLIES, ANSWERS, _steps("result", calls=1)), max_size=4).map(tuple)

KINDS: dict[str, tuple[int, st.SearchStrategy[Step]]] = {
    "user": (8, _steps("user")),
    "reply": (14, REPLIES),
    "answer": (22, ANSWERS),
    "result": (2, _steps("result", calls=1)),
    "compaction": (4, _steps("compaction", options=("kept", "kept", "kept", "tail", "both", "none"), tail=TAIL)),
    "memory": (4, _steps("memory", options=("set", "set", "set", "delete", "clear"))),
    "move": (2, _steps("move", options=("", "", "root", "summary"))),
    "aside": (1, _steps("aside")),
    "edit": (2, _steps("edit", options=("hide", ""))),
    "queued": (5, _steps("queued", options=("steer", "follow_up", "next_turn"))),
    "delivered": (7, _steps("delivered", options=("", "", "", "taken back", "cut off"))),
    "turn_start": (3, _steps("turn_start")),
    "turn_end": (2, _steps("turn_end")),
    "tool_start": (4, _steps("tool_start")),
    "approval_requested": (2, _steps("approval_requested")),
    "approval_resolved": (1, _steps("approval_resolved")),
    "branch_summary": (1, _steps("branch_summary")),
    "custom_message": (2, _steps("custom_message")),
    "bash": (1, _steps("bash", options=("", "hidden"))),
    "app": (1, _steps("app")),
    "model": (1, _steps("model")),
    "thinking": (1, _steps("thinking")),
    "tools": (1, _steps("tools", calls=3)),
    "header": (1, _steps("header")),
    "label": (3, _steps("label")),
    "name": (1, _steps("name")),
    "metadata": (1, _steps("metadata")),
    "custom": (1, _steps("custom")),
}
"""How often each kind of step is drawn, and how. (``st.one_of`` would flatten what is nested, and lose the weights.)"""

STEP = st.sampled_from([kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]).flatmap(
    lambda kind: KINDS[kind][1]
)


BURST = st.lists(
    st.sampled_from(["queued", "queued", "delivered", "delivered", "delivered", "turn_start", "user", "reply"]).flatmap(
        lambda kind: KINDS[kind][1]
    ),
    min_size=3,
    max_size=6,
)
"""A turn that is spoken into: drawn step by step, what waits would seldom be delivered where it matters."""


@st.composite
def conversations(draw: st.DrawFn, *, max_steps: int) -> list[Step]:
    """Steps of every kind, up to ``max_steps``; of all lengths alike, where ``st.lists`` would draw mostly short ones."""
    length = draw(st.integers(1, max_steps))
    steps: list[Step] = []
    while len(steps) < length:
        steps += draw(BURST) if draw(st.integers(0, 11)) == 0 else [draw(STEP)]
    return steps[:length]
