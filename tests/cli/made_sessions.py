"""Sessions for the tests of the commands: one with branches, calls and a label, a hostile one, and large ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio

from harness.session import Session
from storage.entry_file_repository import EntryFileRepository
from storage.jsonl_repository import JsonlRepository
from storage.messages import (
    AssistantMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e\u2028\x9b31m"
"""What would set a title, clear a screen and turn the reading direction."""

UNSAFE = tuple("\x1b\x07\u202e\u2028\x9b\x7f")


def make_tree(root: Path, session_id: str = "tree-1", *, folder: bool = False) -> dict[str, str]:
    """A question, a call with its result, an answer labelled ``first``, and two ways on; ids by short names."""

    async def make() -> dict[str, str]:
        repository: Any = EntryFileRepository(root) if folder else JsonlRepository(root)
        ids: dict[str, str] = {}
        async with Session.open(repository.create(session_id, cwd="/proj")) as session:
            ids["question"] = await session.append_message(UserMessage(content="What is in a.txt?"))
            call = ToolCall(id="call_1", name="read", arguments={"path": "a.txt"})
            reply = AssistantMessage(
                content=[ThinkingContent(thinking="Let me look."), TextContent(text="I look."), call],
                provider="openai",
                model="m-1",
                usage=Usage(input=11, output=5, total_tokens=16),
                stop_reason="toolUse",
            )
            ids["call"] = await session.append_message(reply)
            result = ToolResultMessage(
                tool_call_id="call_1", tool_name="read", content=[TextContent(text="two\nlines")], details={"lines": 2}
            )
            ids["result"] = await session.append_message(result)
            answer = AssistantMessage(content=[TextContent(text="Two lines.")], provider="openai", model="m-1")
            ids["answer"] = await session.append_message(answer)
            ids["left"] = await session.append_message(UserMessage(content="Left behind?"))
            await session.append_label(ids["answer"], "first")
            await session.append_session_name("about a.txt")
            await session.move_to(ids["answer"])
            ids["leaf"] = await session.append_message(UserMessage(content="And b.txt?"))
        return ids

    return anyio.run(make)


def written(path: Path, lines: list[dict[str, Any]], *, header: dict[str, Any] | None = None) -> Path:
    """A file of pi's format with these entries, one after the other unless they say otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"type": "session", "version": 3, "id": path.stem, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/proj"}
    parent: str | None = None
    rows: list[dict[str, Any]] = [{**head, **(header or {})}]
    for number, line in enumerate(lines):
        entry = {"id": f"e{number:07}", "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z", **line}
        rows.append(entry)
        parent = entry["id"]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    """A message entry's members."""
    return {"type": "message", "message": {"role": role, "content": [{"type": "text", "text": text}], **more}}


def make_hostile(root: Path) -> Path:
    """A session that holds control characters wherever it can."""
    call = {"type": "toolCall", "id": f"call{ESCAPE}", "name": f"tool{ESCAPE}", "arguments": {f"key{ESCAPE}": ESCAPE}}
    return written(
        root / "hostile.jsonl",
        [
            said("user", f"question{ESCAPE}"),
            {
                "type": "message",
                "message": {"role": "assistant", "content": [call], "model": ESCAPE, "provider": ESCAPE},
            },
            {
                "type": "message",
                "message": {
                    "role": "toolResult",
                    "toolCallId": f"call{ESCAPE}",
                    "toolName": f"tool{ESCAPE}",
                    "content": [{"type": "text", "text": ESCAPE}],
                    "details": {ESCAPE: ESCAPE},
                    "isError": False,
                },
            },
            {"type": "message", "id": f"id{ESCAPE}", "message": {"role": "assistant", "content": []}},
            {"type": "label", "targetId": "e0000000", "label": f"label{ESCAPE}"},
            {"type": "session_info", "name": f"name{ESCAPE}"},
            {"type": f"type{ESCAPE}", f"member{ESCAPE}": ESCAPE},
        ],
        header={"cwd": f"/proj{ESCAPE}", "id": f"header{ESCAPE}"},
    )


def make_large(path: Path, entries: int = 20_000, characters: int = 600) -> Path:
    """A session that takes a moment to copy."""
    return written(path, [said("user", f"{number} " + "x" * characters) for number in range(entries)])
