"""What the model would be shown: each message with its size, the totals, and what is left out and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio

from harness import Session
from harness.cli.drawn_context import ContextFacts, LeftOut, ShownMessage, draw_context
from harness.cli.screen import plain
from harness.testing import ScriptedServer, tool_call
from storage.jsonl import JsonlStorage
from storage.messages import AssistantMessage, Message, TextContent, ToolResultMessage, UserMessage
from tests.cli.conftest import CORRUPT, Command


def make(command: Command, fill: Callable[[Session], Any]) -> None:
    """A session named ``made``, with what ``fill`` appends."""

    async def write() -> None:
        storage = await JsonlStorage.create(command.root / "made.jsonl", session_id="made")
        async with Session.open(storage) as session:
            await fill(session)

    anyio.run(write)


def reply(text: str) -> Message:
    """A model's reply."""
    return AssistantMessage(content=[TextContent(text=text)], provider="p", model="m")


def test_facts_become_lines() -> None:
    """Every fact has its place: what is in force, sizes, totals against budgets, what is left out and why."""
    facts = ContextFacts(
        session="s",
        leaf="entry-leaf",
        model="p/m",
        thinking_level="off",
        tools=["read"],
        system_prompt="Be brief.",
        shown=[ShownMessage("entry-1", "user", 1234, 56, "hello"), ShownMessage(None, "toolResult", 7, 8, "not run")],
        left_out=[LeftOut("entry-0", "assistant", "over the budget", "old")],
        chars=1241,
        tokens=64,
        max_chars=2000,
        max_tokens=None,
    )
    assert [plain(line) for line in draw_context(facts)] == [
        "session s at entry-leaf",
        "model p/m, thinking off, tools read",
        "system prompt Be brief.",
        "entry      role      characters   tokens  text",
        "entry-1    user           1,234       56  hello",
        "-          tool               7        8  not run",
        "2 messages: 1,241 characters of 2,000, about 64 tokens (system prompt and tools included)",
        "left out: 1 entry of this path",
        "entry-0    assistant (over the budget) old",
    ]


def test_what_is_shown_is_what_is_sent(command: Command) -> None:
    """The messages that ``context`` lists are those that the next request holds, and their sizes add up."""
    (command.folder / "note.txt").write_text("hello")
    with ScriptedServer([tool_call("read", path="note.txt"), "It says hello.", "Yes."]) as server:
        model = ("--base-url", server.base_url)
        command("chat", "What does note.txt say?", *model)
        ran = command("context", "last", "--json")
        command("chat", "-s", "last", "Sure?", *model)
    (facts,) = ran.rows
    roles = {"toolResult": "tool"}
    sent = [message["role"] for message in server.requests[2].messages if message["role"] != "system"]
    assert [roles.get(row["role"], row["role"]) for row in facts["shown"]] == sent[:-1]
    assert sum(row["chars"] for row in facts["shown"]) == facts["chars"]
    assert all(row["tokens"] > 0 for row in facts["shown"]) and facts["tokens"] > 0
    assert facts["tools"] == ["read", "list", "search"]
    assert facts["model"] == f"{urlsplit(server.base_url).netloc}/default"
    assert facts["leftOut"] == []
    assert "note.txt" in command("context").out


def test_over_the_budget_is_told(command: Command) -> None:
    """With --max-chars the oldest are left out, and listed as over the budget."""

    async def fill(session: Session) -> None:
        for number in range(4):
            await session.append_message(UserMessage(content=f"question {number}"))
            await session.append_message(reply(f"answer {number}"))

    make(command, fill)
    ran = command("context", "made", "--max-chars", "500")
    assert ran.code == 0
    assert "question 0" in ran.out.partition("left out")[2] and "(over the budget)" in ran.out
    assert "answer 3" in ran.out.partition("left out")[0]
    (facts,) = command("context", "made", "--max-chars", "500", "--json").rows
    assert facts["chars"] <= 500 == facts["maxChars"]
    assert len(facts["shown"]) + len(facts["leftOut"]) == 8
    too_small = command("context", "made", "--max-chars", "10")
    assert too_small.code == 1 and "--max-chars is 10" in too_small.error


def test_what_a_summary_stands_for_is_told(command: Command) -> None:
    """After a compaction the entries before it are left out as summarised, and a lone result as what it is."""

    async def fill(session: Session) -> None:
        await session.append_message(UserMessage(content="first"))
        await session.append_message(reply("old answer"))
        kept = await session.append_message(UserMessage(content="second"))
        await session.append_compaction("They talked.", first_kept_entry_id=kept, tokens_before=100)
        await session.append_message(ToolResultMessage(tool_call_id="x", tool_name="lost", content="a result"))
        await session.append_message(UserMessage(content="third"))

    make(command, fill)
    (facts,) = command("context", "made", "--json").rows
    assert [(row["text"], row["why"]) for row in facts["leftOut"]] == [
        ("first", "summarised"),
        ("old answer", "summarised"),
        ("lost: a result", "a result without its call"),
    ]
    assert "They talked." in facts["shown"][0]["text"]


def test_at_an_entry_or_a_label(command: Command) -> None:
    """--at shows the context as it was there, by id, by ending and by label, and moves nothing."""

    async def fill(session: Session) -> None:
        await session.append_message(UserMessage(content="first"))
        answer = await session.append_message(reply("one"))
        await session.append_label(answer, "start")
        await session.append_message(UserMessage(content="second"))

    make(command, fill)
    before = command.files()
    whole = command("tree", "made", "--json").rows[1]["id"]
    for name in (whole, whole[-8:], "start"):
        (facts,) = command("context", "made", "--at", name, "--json").rows
        assert [row["text"] for row in facts["shown"]] == ["first", "one"], name
    assert command.files() == before


def test_an_empty_session_has_an_empty_context(command: Command) -> None:
    """A session in which nothing was said shows nothing, without an error."""

    async def fill(session: Session) -> None:
        await session.append_session_name("empty")

    make(command, fill)
    ran = command("context", "made")
    assert ran.code == 0 and "0 messages" in ran.out


def test_what_a_newer_program_wrote_is_refused(command: Command) -> None:
    """A path with an entry of an unknown type is no context, and ``verify`` counts that as a problem."""

    async def fill(session: Session) -> None:
        await session.append_message(UserMessage(content="first"))

    make(command, fill)
    path = command.root / "made.jsonl"
    parent = json.loads(path.read_bytes().splitlines()[-1])["id"]
    line = {
        "seq": 1,
        "type": "from_the_future",
        "id": "f1",
        "parentId": parent,
        "timestamp": "2026-01-01T00:00:00.000Z",
    }
    path.write_bytes(path.read_bytes() + json.dumps(line).encode() + b"\n")
    for name in ("context", "verify"):
        ran = command(name, "made")
        assert ran.code == 1 and "from_the_future" in ran.error, name
    assert "from_the_future" in command("tree", "made", "--all").out


def test_verify_tells_what_a_context_warns_of(command: Command) -> None:
    """Something unusual but sound is a warning, and no reason for exit code 1."""
    command.put(CORRUPT / "39_compaction_firstkept_missing.jsonl")
    ran = command("verify", "--json")
    assert ran.code == 0
    (report,) = ran.rows
    assert (report["branches"], report["contexts"]) == (1, 1)
    assert any("kept" in warning for warning in report["warnings"])
