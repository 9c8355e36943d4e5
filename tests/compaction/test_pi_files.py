"""pi's own files: the context that pi builds from them, except where our rules say otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compaction.breathing import run_at_once
from compaction.projection import Projection, project
from storage.decode import parse_record
from storage.entry_path import IndexedPath
from storage.index import build_index
from storage.messages import AssistantMessage, Message, ToolResultMessage

FILES = Path(__file__).parent.parent / "data" / "pi-files"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in FILES.glob("*.expected.json"))
EARLIER = "The conversation history before this point was compacted into the following summary:\n\n<summary>\n"
BRANCH = "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n"
RAN = "Ran `"


def expected(name: str) -> dict[str, Any]:
    return json.loads((FILES / f"{name}.expected.json").read_text())


def projected(name: str) -> tuple[Projection, str | None]:
    lines = (FILES / f"{name}.jsonl").read_bytes().split(b"\n")[1:]
    records = [parse_record(line, seq) for seq, line in enumerate(line for line in lines if line)]
    index = build_index(records, foreign=True)
    leaf = index.leaf_id
    return run_at_once(project(IndexedPath(index, index.ids[leaf] if leaf is not None else -1))), leaf


def calls_of(message: Message) -> list[str]:
    return [call.id for call in message.tool_calls] if isinstance(message, AssistantMessage) else []


def pi_text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def says_nothing(message: dict[str, Any]) -> bool:
    """A failed reply without a text, which pi shows and R20 leaves out."""
    return message.get("stopReason") == "error" and not pi_text(message).strip()


@pytest.mark.parametrize("name", NAMES)
def test_the_context_is_that_of_pi(name: str) -> None:
    """The same messages in the same order: roles, texts, call ids. Our sentences lead in; prompts are state."""
    projection, leaf = projected(name)
    theirs = expected(name)
    assert leaf == theirs["leafId"]
    wanted = [one for one in theirs["llmMessages"] if one["role"] != "system" and not says_nothing(one)]
    assert [message.role for message in projection.messages] == [one["role"] for one in wanted]
    for message, one in zip(projection.messages, wanted, strict=True):
        text = pi_text(one)
        if text.startswith((EARLIER, BRANCH)):
            summary = text.removeprefix(EARLIER).removeprefix(BRANCH).removesuffix("</summary>").removesuffix("\n")
            assert message.text.endswith(f":\n\n{summary}")
        elif text.startswith(RAN):
            command, output = text.removeprefix(RAN).removesuffix("\n```").split("`\n```\n")
            assert message.text == f"The user ran a shell command:\n$ {command}\n\n{output}"
        else:
            assert message.text == text
        parts = one["content"] if one["role"] == "assistant" else []
        assert calls_of(message) == [part["id"] for part in parts if part["type"] == "toolCall"]
        if isinstance(message, ToolResultMessage):
            assert message.tool_call_id == one["toolCallId"]
        if one["role"] in ("assistant", "toolResult"):
            assert json.loads(message.model_dump_json(by_alias=True, exclude_unset=True)) == one
    assert projection.warnings == []
    assert projection.dropped == []


def test_there_are_files_of_both_programs() -> None:
    """The list above is not empty, and holds the newest version of each."""
    assert {"harness-0.83.0-tree", "coding-agent-1.6.0-branched"} <= set(NAMES)
    assert len(NAMES) == 7


@pytest.mark.parametrize("name", [name for name in NAMES if "coding-agent" in name or "trailing" in name])
def test_the_state_is_that_of_pi(name: str) -> None:
    """Model and thinking level as pi folds them."""
    state = projected(name)[0].state
    theirs = expected(name)
    assert state.thinking_level == theirs["thinkingLevel"]
    assert state.model == (tuple(theirs["model"].values()) if theirs["model"] else None)


def test_the_state_is_not_forgotten_at_a_compaction() -> None:
    """Where pi's harness forgets level and tools at its compaction, R22 keeps them."""
    state = projected("harness-0.83.0-tree")[0].state
    assert state.model == ("faux", "faux-1")
    assert state.thinking_level == "high"
    assert state.active_tools == ["read", "edit"]


def test_the_prompt_of_pi_is_state() -> None:
    """pi-coding-agent's system messages give the prompt and the tools."""
    state = projected("coding-agent-1.6.0-branched")[0].state
    assert state.system_prompt == "You are pi.\n\n<tools>\n- read\n</tools>"
    assert [tool["name"] for tool in state.tools or ()] == ["read"]
