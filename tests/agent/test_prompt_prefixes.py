"""A provider's prompt cache holds: each request begins with the bytes of the one before, with marks where it looks."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from harness.agent import AgentHarness
from harness.models.anthropic_chat import AnthropicModel
from harness.models.openai_chat import OpenAIChatModel
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import Reply, ScriptedServer, tool_call
from harness.tools import memory_tool, tool
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage

pytestmark = pytest.mark.anyio

TURNS = 6
LOOK_BACK = 20
"""How many blocks before a mark Anthropic looks for what was written earlier."""


@tool
async def look(number: int) -> str:
    """Look at something."""
    return f"{number}: " + "Grüße 漢字 " * number


def script() -> list[Reply]:
    """Turns of four requests: calls side by side (more than a look back in some), a change of the memory, an answer."""
    replies: list[Reply] = []
    for turn in range(TURNS):
        many = 25 if turn % 5 == 4 else 1 + turn % 3
        replies += [
            Reply(f"Let me see {turn}.", [tool_call("look", f"c{n}", number=n % 7) for n in range(many)], "Hm."),
            Reply("", [tool_call("memory", "c0", operation="set", key=f"k{turn % 4}", value=f"fact {turn}")]),
            Reply("", [tool_call("look", "c0", number=turn)]),
            Reply(f"Answer {turn}."),
        ]
    return replies


async def bodies(kind: type[OpenAIChatModel | AnthropicModel], session: Session) -> list[bytes]:
    """What the server got in a long conversation; in its middle another harness goes on."""
    with ScriptedServer(script()) as server:
        async with kind("any", base_url=server.base_url, api_key="any") as model:
            for half in range(2):
                settings = AgentSettings(thinking_level="low" if kind is AnthropicModel else None)
                tools = [look, memory_tool()]
                async with AgentHarness(
                    session, model, tools=tools, system_prompt="Be brief.", settings=settings
                ) as harness:
                    for turn in range(TURNS // 2):
                        await harness.prompt(f"question {half} {turn}")
    assert len(server.requests) == 4 * TURNS
    return [request.raw for request in server.requests]


def is_memory(part: Any) -> bool:
    return str(part.get("content", part.get("text", ""))).startswith("Working memory, as it stands now")


async def test_openai_each_request_begins_with_the_one_before() -> None:
    """Byte for byte, but for the working memory at its end, whatever calls, memory and reopened harness do."""
    async with Session.open(MemoryStorage.create()) as session:
        sent = await bodies(OpenAIChatModel, session)
    with_memory = 0
    for before, after in pairwise(sent):
        parsed = json.loads(before)
        messages = parsed["messages"]
        if is_memory(messages[-1]):
            messages.pop()
            with_memory += 1
        head = json.dumps({"model": parsed["model"], "messages": messages}, ensure_ascii=False, separators=(",", ":"))
        beginning = head.removesuffix("]}").encode()
        assert before.startswith(beginning)
        assert after.startswith(beginning)
    assert with_memory > 3 * TURNS


def blocks_of(body: bytes) -> tuple[list[str], list[int], int]:
    """As Anthropic reads it: tools, system and blocks as texts without marks; the marked ones; those of the memory."""
    parsed = json.loads(body)
    blocks = [("tools", parsed.get("tools")), *(("system", block) for block in parsed["system"])]
    blocks += [(message["role"], block) for message in parsed["messages"] for block in message["content"]]
    marked = [place for place, (_, block) in enumerate(blocks) if isinstance(block, dict) and "cache_control" in block]
    memory = sum(isinstance(block, dict) and is_memory(block) for _, block in blocks)
    for _, block in blocks:
        if isinstance(block, dict):
            block.pop("cache_control", None)
    return [json.dumps(block) for block in blocks], marked, memory


async def test_anthropic_finds_in_its_cache_all_but_the_newest_step() -> None:
    """By the vendor's rules: it writes at marks, and looks at most twenty blocks back from each of them."""
    async with Session.open(MemoryStorage.create()) as session:
        sent = await bodies(AnthropicModel, session)
    written: set[tuple[str, ...]] = set()
    stays: list[str] = []
    with_memory = 0
    for body in sent:
        blocks, marked, memory = blocks_of(body)
        with_memory += memory
        assert blocks[: len(stays)] == stays
        looked_at = {place for mark in marked for place in range(max(0, mark - LOOK_BACK), mark + 1)}
        found = max((place + 1 for place in looked_at if tuple(blocks[: place + 1]) in written), default=0)
        assert found == len(stays)
        written |= {tuple(blocks[: mark + 1]) for mark in marked}
        stays = blocks[: len(blocks) - memory]
        assert marked[-1] == len(stays) - 1
        assert 1 <= len(marked) <= 4
    assert with_memory > 3 * TURNS


async def test_the_bytes_are_the_same_in_another_process(tmp_path: Any) -> None:
    """Reopened from a file, the next request begins with the last one, as if nothing had happened in between."""
    path = tmp_path / "chat.jsonl"
    with ScriptedServer(["one", "two"]) as server:
        for text in ("first", "second"):
            async with (
                OpenAIChatModel("any", base_url=server.base_url, api_key="any") as model,
                Session.open(JsonlStorage.open_or_create(path)) as session,
                AgentHarness(session, model, tools=[look], system_prompt="Be brief.") as harness,
            ):
                await harness.prompt(text)
    first, second = (request.raw for request in server.requests)
    beginning, _, _ = first.partition(b'],"tools"')
    assert second.startswith(beginning)
