"""pi's own version-3 files as sessions: opened where they lie, gone on with, and read by pi's rules afterwards."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness import AssistantMessage, JsonlStorage, Session, TextContent, UserMessage
from tests.properties import pi_reader

pytestmark = pytest.mark.anyio

FILES = Path(__file__).parent.parent / "data" / "pi-files"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in FILES.glob("*.expected.json"))
Json = dict[str, Any]

WORDS = (
    "The conversation history before this point was compacted into the following summary:",
    "The following is a summary of a branch that this conversation came back from:",
    "Ran `",
)
"""How pi leads in what it puts words around."""


def expected(name: str) -> Json:
    return json.loads((FILES / f"{name}.expected.json").read_text())


def copy_of(name: str, folder: Path) -> Path:
    return Path(shutil.copy(FILES / f"{name}.jsonl", folder / "pi.jsonl"))


@pytest.mark.parametrize("name", NAMES)
async def test_the_session_is_the_one_that_pi_opens(name: str, tmp_path: Path) -> None:
    """Leaf, path, name, labels and the entries shown, as the writer itself has them; and not a byte is changed."""
    theirs = expected(name)
    path = copy_of(name, tmp_path)
    before = path.read_bytes()
    async with Session.open(JsonlStorage.open(path)) as session:
        assert session.writable
        assert session.leaf_id == theirs["leafId"]
        branch = [entry.id for entry in await session.branch()]
        # pi's harness cuts the path at a compaction; the coding agent does not.
        assert branch[-len(theirs["branchIds"]) :] == theirs["branchIds"]
        assert "harness" in name or len(branch) == len(theirs["branchIds"])
        assert await session.name() == theirs["sessionName"]
        for target, label in theirs.get("labels", {}).items():
            assert await session.label(target) == label
        context = await session.build_context()
        shown = list(dict.fromkeys(context.entry_ids))
        assert set(shown) <= set(theirs.get("contextEntryIds", shown))
        assert context.dropped == []
        if theirs["model"] is not None:
            assert context.model == tuple(theirs["model"].values())
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_the_little_reader_reads_as_pi_does(name: str) -> None:
    """The reader that judges our own files gives, for pi's files, what pi itself sent to the model."""
    entries = pi_reader.read((FILES / f"{name}.jsonl").read_bytes())
    theirs = expected(name)
    leaf_of = pi_reader.leaf_of_harness if "harness" in name else pi_reader.leaf_of_coding_agent
    assert leaf_of(entries) == theirs["leafId"]
    assert pi_reader.name_of(entries) == theirs["sessionName"]
    messages = pi_reader.context(entries, leaf_of(entries))
    wanted = [message for message in theirs["llmMessages"] if message["role"] != "system"]
    assert [message.role for message in messages] == [one["role"] for one in wanted]
    for message, one in zip(messages, wanted, strict=True):
        content = one["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        assert message.summary == text.startswith(WORDS)
        if message.summary:
            assert all(part in text for part in message.texts)
        else:
            assert "".join(message.texts) == text
        if message.role == "assistant":
            parts: list[Json] = [] if isinstance(content, str) else content
            assert message.calls == tuple(part["id"] for part in parts if part["type"] == "toolCall")
        if message.role == "toolResult":
            assert message.answers == one["toolCallId"]


@pytest.mark.parametrize("name", NAMES)
async def test_pi_goes_on_with_what_we_added(name: str, tmp_path: Path) -> None:
    """Two messages, a label and a way back, added to pi's file: its old bytes stay, and pi finds the same conversation."""
    path = copy_of(name, tmp_path)
    before = path.read_bytes()
    async with Session.open(JsonlStorage.open(path)) as session:
        old = [message.text for message in (await session.build_context()).messages]
        asked = await session.append_message(UserMessage(content="and now?"))
        await session.append_message(AssistantMessage(content=[TextContent(text="another")]))
        await session.move_to(asked)
        last = await session.append_message(AssistantMessage(content=[TextContent(text="this")]))
        await session.append_label(last, "ours")
        ours = [message.text for message in (await session.build_context()).messages]
        assert ours == [*old, "and now?", "this"]
        leaf = session.leaf_id
    data = path.read_bytes()
    assert data.startswith(before)
    entries = pi_reader.read(data)
    assert pi_reader.leaf_of_harness(entries) == pi_reader.leaf_of_coding_agent(entries) == leaf
    assert pi_reader.label_of(entries, last) == "ours"
    theirs = pi_reader.context(entries, leaf)
    assert [message.texts for message in theirs[-2:]] == [("and now?",), ("this",)]
    async with Session.open(JsonlStorage.open(path)) as again:
        assert [message.text for message in (await again.build_context()).messages] == ours
        async with await again.fork(into=partial(JsonlStorage.create, tmp_path / "fork.jsonl")) as fork:
            assert [message.text for message in (await fork.build_context()).messages] == ours


def line(entry_id: str, parent: str | None, entry_type: str, /, **members: Any) -> Json:
    return {"type": entry_type, "id": entry_id, "parentId": parent, "timestamp": "2026-01-01T00:00:00.000Z", **members}


def bash(output: str, **members: Any) -> Json:
    message: Json = {
        "role": "bashExecution",
        "command": "make",
        "output": output,
        "cancelled": False,
        "truncated": False,
    }
    return {**message, "timestamp": 1, **members}


async def test_everything_else_that_pi_writes_is_honoured(tmp_path: Path) -> None:
    """Commands with their outcomes, hidden ones, custom and system messages, usage, edits; types of tomorrow are kept."""
    call: Json = {"type": "toolCall", "id": "c", "name": "look", "arguments": {}}
    reply: Json = {
        "role": "assistant",
        "content": [{"type": "text", "text": "old"}],
        "timestamp": 1,
        "provider": "p",
        "model": "m",
    }
    result: Json = {
        "role": "toolResult",
        "toolCallId": "c",
        "toolName": "look",
        "content": [],
        "isError": False,
        "timestamp": 1,
    }
    entries = [
        line("s1", None, "message", message={"role": "system", "content": "Base.", "sections": {"a": "A", "b": "B"},
                                             "toolsAdded": [{"name": "look"}], "timestamp": 1}),
        line("u1", "s1", "message", message={"role": "user", "content": "go", "timestamp": 1}),
        line("b1", "u1", "message", message=bash("fine", exitCode=0)),
        line("b2", "b1", "message", message=bash("", exitCode=2)),
        line("b3", "b2", "message", message=bash("half", cancelled=True)),
        line("b4", "b3", "message", message=bash("long", truncated=True, fullOutputPath="/tmp/all")),
        line("b5", "b4", "message", message=bash("secret", excludeFromContext=True)),
        line("c1", "b5", "message", message={"role": "custom", "customType": "x", "content": "by an app", "display": True,
                                             "timestamp": 1}),
        line("n1", "c1", "usage", kind="title", provider="p", model="m", usage={"input": 1, "output": 1}),
        line("a1", "n1", "message", message=reply),
        line("a2", "a1", "message", message={**reply, "content": [call]}),
        line("r1", "a2", "message", message=result),
        line("e1", "r1", "context_edit", targetId="a1", replacement={"content": "new"}),
        line("e2", "e1", "context_edit", targetId="u1", replacement=None),
        line("f1", "e2", "from_tomorrow", shines=True),
        line("s2", "f1", "message", message={"role": "system", "content": "", "sections": {"a": None, "b": "BB"},
                                             "toolsAdded": [{"name": "new"}], "toolsRemoved": [{"name": "look"}],
                                             "timestamp": 2}),
    ]  # fmt: skip
    header = {"type": "session", "version": 3, "id": "pi", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"}
    path = tmp_path / "pi.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in [header, *entries]))
    async with Session.open(JsonlStorage.open(path)) as session:
        context = await session.build_context()
        assert list(zip(context.entry_ids, [message.role for message in context.messages], strict=True)) == [
            *((f"b{number}", "user") for number in range(1, 5)),
            ("c1", "user"),
            ("a1", "assistant"),
            ("a2", "assistant"),
            ("r1", "toolResult"),
        ]
        texts = [message.text for message in context.messages]
        assert all("make" in text for text in texts[:4])
        assert "fine" in texts[0] and "exit code" not in texts[0]
        assert "exit code 2" in texts[1]
        assert "half" in texts[2] and "cancelled" in texts[2]
        assert "/tmp/all" in texts[3]
        assert texts[4:6] == ["by an app", "new"]
        assert "secret" not in str(texts)
        assert context.system_prompt == "Base.\n\nBB"
        assert [tool["name"] for tool in context.tools or ()] == ["new"]
        before = await session.build_context(leaf_id="r1")
        assert before.system_prompt == "Base.\n\nA\n\nB"
        assert before.messages[0].text == "go"
        assert before.messages[-3].text == "old"
    theirs = pi_reader.context(pi_reader.read(path.read_bytes()), "s2")
    assert [one.entry_id for one in theirs] == context.entry_ids
