"""Signed thinking goes back unchanged to the model that made it, or is left out whole: whatever became of the session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.agent import AgentHarness
from harness.models.anthropic_chat import AnthropicModel
from harness.models.openai_chat import OpenAIChatModel
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import ReceivedRequest, Reply, ScriptedServer, tool_call
from harness.tools import tool
from storage.entries import MessageEntry
from storage.jsonl import JsonlStorage
from storage.messages import AssistantMessage, Message, ThinkingContent
from tests.compaction.summaries import ScriptedSummarizer

pytestmark = pytest.mark.anyio


@tool
async def look() -> str:
    """Look."""
    return "there it is"


THOUGHTS = ("Where could it be?", "So there.", "Think again.")


def answer(request: ReceivedRequest) -> Reply:
    """A thought and a call, then a thought and an answer; later an answer."""
    last = str(request.messages[-1]["content"])
    if "first" in last:
        return Reply("Let me look.", [tool_call("look")], THOUGHTS[0])
    if "there it is" in last:
        return Reply("It is there.", thinking=THOUGHTS[1])
    return Reply("Yes.", thinking=THOUGHTS[2])


def thinking_in(request: ReceivedRequest) -> list[dict[str, Any]]:
    blocks = (block for message in request.messages for block in message["content"] if isinstance(block, dict))
    return [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]


@asynccontextmanager
async def thought(path: Path) -> AsyncGenerator[tuple[ScriptedServer, Session, AgentHarness, list[dict[str, Any]]]]:
    """A turn with thinking and a call, and the blocks as the server gave them."""
    with ScriptedServer(answer) as server:
        async with (
            AnthropicModel("claude-a", base_url=server.base_url, api_key="any") as model,
            Session.open(JsonlStorage.create(path)) as session,
            AgentHarness(
                session, model, tools=[look], settings=AgentSettings(thinking_level="low", compaction=False)
            ) as harness,
        ):
            await harness.prompt("the first question")
            given = [
                {"type": "thinking", "thinking": part.thinking, "signature": part.thinking_signature}
                for entry in await session.branch()
                if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage)
                for part in entry.message.content or ()
                if isinstance(part, ThinkingContent)
            ]
            assert [block["thinking"] for block in given] == list(THOUGHTS[:2])
            assert all(block["signature"] for block in given)
            assert thinking_in(server.requests[-1]) == given[:1]
            yield server, session, harness, given


async def test_it_goes_back_after_a_compaction_that_keeps_it(tmp_path: Path) -> None:
    """With a first kept entry, and as a retained tail; what is summarised takes its thinking along."""
    async with thought(tmp_path / "a") as (server, session, harness, given):
        messages = [entry for entry in await session.branch() if isinstance(entry, MessageEntry)]
        await session.append_compaction("Before.", first_kept_entry_id=messages[0].id, tokens_before=1)
        await harness.prompt("more")
        assert thinking_in(server.requests[-1]) == given
        tail: list[Message] = [entry.message for entry in messages]
        await session.append_compaction("Before.", retained_tail=tail, tokens_before=1)
        await harness.prompt("more")
        assert thinking_in(server.requests[-1]) == given
        await session.append_compaction("All of it.", tokens_before=1)
        await harness.prompt("more")
        assert thinking_in(server.requests[-1]) == []


async def test_it_goes_back_on_a_branch(tmp_path: Path) -> None:
    """Back before the next question, and back between a call's result and the answer to it."""
    async with thought(tmp_path / "a") as (server, session, harness, given):
        await harness.prompt("more")
        asked = [entry for entry in await session.branch() if isinstance(entry, MessageEntry)]
        await harness.navigate(asked[4].id, summarize=ScriptedSummarizer())
        await harness.prompt("in other words")
        assert thinking_in(server.requests[-1]) == given
        await harness.navigate(asked[2].id)
        await harness.prompt("and so?")
        assert thinking_in(server.requests[-1]) == given[:1]
        await harness.navigate(asked[0].id)
        await harness.prompt("new")
        assert thinking_in(server.requests[-1]) == []


async def test_another_model_gets_none_of_it_and_the_first_one_its_own_back(tmp_path: Path) -> None:
    """Another Claude, and another vendor, in between."""
    async with thought(tmp_path / "a") as (server, _session, harness, given):
        first = harness.model
        async with AnthropicModel("claude-b", base_url=server.base_url, api_key="any") as second:
            await harness.set_model(second)
            await harness.prompt("more")
            assert thinking_in(server.requests[-1]) == []
            await harness.prompt("more")
            (own,) = thinking_in(server.requests[-1])
            assert own["thinking"] == THOUGHTS[2]
        async with OpenAIChatModel("gpt", base_url=server.base_url, api_key="any") as third:
            await harness.set_model(third)
            await harness.prompt("more")
            assert b"signature" not in server.requests[-1].raw
            assert THOUGHTS[0].encode() not in server.requests[-1].raw
        await harness.set_model(first)
        await harness.prompt("more")
        assert thinking_in(server.requests[-1]) == given


@pytest.mark.parametrize("change", ["no signature", "a blank one", "one of two"])
async def test_what_is_not_whole_is_left_out_whole(tmp_path: Path, change: str) -> None:
    """A stream that was cut left no signature: nothing of that reply's thinking goes back, the reply itself does."""

    def cut(parts: list[Any]) -> None:
        thinking = next(part for part in parts if isinstance(part, ThinkingContent))
        if change == "one of two":
            parts.insert(0, ThinkingContent(thinking="unsigned"))
        else:
            thinking.thinking_signature = None if change == "no signature" else ""

    async with thought(tmp_path / "a") as (server, session, harness, _given):
        messages = [entry.message for entry in await session.branch() if isinstance(entry, MessageEntry)]
        last = messages[-1]
        assert isinstance(last, AssistantMessage)
        cut(last.content or [])
        await session.append_compaction("Before.", retained_tail=messages, tokens_before=1)
        await harness.prompt("more")
        assert [block["thinking"] for block in thinking_in(server.requests[-1])] == [THOUGHTS[0]]
        assert b"It is there." in server.requests[-1].raw


async def test_it_goes_back_in_a_fork_and_after_reopening(tmp_path: Path) -> None:
    """To a character, from the file."""
    async with thought(tmp_path / "a") as (server, session, harness, given):
        model = harness.model
        forked = await session.fork(into=partial(JsonlStorage.create, tmp_path / "b"))
        await forked.aclose()
        async with Session.open(JsonlStorage.open(tmp_path / "b")) as fork, AgentHarness(fork, model) as other:
            await other.prompt("more")
        assert thinking_in(server.requests[-1]) == given
