"""The order of a turn on disk (R23): each fact is committed before the next step depends on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.agent import AgentHarness
from harness.models.anthropic_chat import AnthropicModel
from harness.models.openai_chat import OpenAIChatModel
from harness.models.protocol import ModelRequest, ToolSchema
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import ScriptedModel, ScriptedServer, tool_call
from harness.tools import ToolContext, tool
from storage.entries import MessageEntry, RequestHeaderEntry, ToolStartEntry
from storage.jsonl import JsonlStorage
from storage.messages import AssistantMessage, UserMessage
from tests.agent.agents import check_well_formed, history, roles

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_turn_without_calls(session: Session) -> None:
    """turn_start, user, request_header, assistant, turn_end; and the reply is returned."""
    harness = AgentHarness(session, ScriptedModel(["Hello."]))
    reply = await harness.prompt("Hi")
    assert reply.text == "Hello."
    assert await history(session) == [
        "turn_start 1",
        "user: Hi",
        "request_header",
        "assistant stop: Hello.",
        "turn_end 1 completed",
    ]


async def test_turns_with_calls(session: Session) -> None:
    """tool_start before each execution, results after it, then the next reply; the header only once."""
    model = ScriptedModel(
        [
            ["Let me see.", tool_call("add", "c1", a=1, b=2)],
            [tool_call("add", "c1", a=3, b=4)],
            "Three and seven.",
            "You are welcome.",
        ]
    )
    harness = AgentHarness(session, model, tools=[add])
    await harness.prompt("Add")
    await harness.prompt("Thanks")
    assert await history(session) == [
        "turn_start 1",
        "user: Add",
        "request_header",
        "assistant toolUse: Let me see. add(c1)",
        "tool_start c1",
        "result c1: 3",
        "assistant toolUse: add(c1)",
        "tool_start c1",
        "result c1: 7",
        "assistant stop: Three and seven.",
        "turn_end 1 completed",
        "turn_start 2",
        "user: Thanks",
        "assistant stop: You are welcome.",
        "turn_end 2 completed",
    ]
    check_well_formed(await session.entries())
    assert roles(model.requests[2].messages) == ["user", "assistant", "toolResult", "assistant", "toolResult"]
    assert [message.text for message in model.requests[2].messages] == ["Add", "Let me see.", "3", "", "7"]


async def test_parallel_results_are_recorded_as_they_come_and_shown_in_call_order(session: Session) -> None:
    """On disk in the order of completion, in the next request in the order of the calls."""
    second_done = anyio.Event()

    async def first() -> str:
        await second_done.wait()
        return "first"

    async def second() -> str:
        second_done.set()
        return "second"

    model = ScriptedModel([[tool_call("first", "a"), tool_call("second", "b")], "Done."])
    await AgentHarness(session, model, tools=[first, second]).prompt("Go")
    assert (await history(session))[3:9] == [
        "assistant toolUse: first(a) second(b)",
        "tool_start a",
        "tool_start b",
        "result b: second",
        "result a: first",
        "assistant stop: Done.",
    ]
    assert [message.text for message in model.requests[1].messages] == ["Go", "", "first", "second"]


async def test_one_tool_that_is_not_parallel_makes_the_reply_sequential(session: Session) -> None:
    """Marked ``parallel=False``, each call begins after the one before it has its result, in call order."""
    running = 0

    async def shared(name: str) -> str:
        nonlocal running
        running += 1
        assert running == 1
        await anyio.sleep(0.002)
        running -= 1
        return name

    tools = [tool(name="alone", parallel=False)(shared), tool(name="together")(shared)]
    model = ScriptedModel(
        [
            [
                tool_call("together", "a", name="A"),
                tool_call("nowhere", "b"),
                tool_call("alone", "c", name="C"),
                tool_call("together", "d", name="D"),
            ],
            "Done.",
        ]
    )
    await AgentHarness(session, model, tools=tools).prompt("Go")
    assert (await history(session))[4:11] == [
        "tool_start a",
        "result a: A",
        "error b: There is no tool 'nowhere'. The tools are: alone, together.",
        "tool_start c",
        "result c: C",
        "tool_start d",
        "result d: D",
    ]


async def test_each_step_finds_the_one_before_it_in_the_file(tmp_path: Path) -> None:
    """What a model or a tool sees of the file when it is called: everything up to then, committed."""
    place = tmp_path / "session.jsonl"
    seen: list[list[str]] = []

    def look() -> None:
        lines = place.read_bytes().splitlines()[1:]
        seen.append([json.loads(line)["type"] for line in lines])

    def answer(request: ModelRequest) -> object:
        look()
        return [tool_call("peek", "c1")] if len(request.messages) == 1 else "Done."

    def peek() -> str:
        look()
        return "seen"

    async with Session.open(JsonlStorage.create(place)) as session:
        await AgentHarness(session, ScriptedModel(answer), tools=[peek]).prompt("Go")  # type: ignore[arg-type]
    before_request = ["turn_start", "message", "request_header"]
    assert seen == [
        before_request,
        [*before_request, "message", "tool_start"],
        [*before_request, "message", "tool_start", "message"],
    ]


async def test_the_header_holds_the_whole_request_and_is_written_when_it_changed(session: Session) -> None:
    """Model, system prompt, tool schemas and options; another harness with the same writes none, with others one."""
    settings = AgentSettings(options={"temperature": 0.5})
    first = AgentHarness(session, ScriptedModel(["1", "2"]), tools=[add], system_prompt="Be brief.", settings=settings)
    await first.prompt("a")
    await first.aclose()
    second = AgentHarness(session, ScriptedModel(["3"]), tools=[add], system_prompt="Be brief.", settings=settings)
    await second.prompt("b")
    await second.aclose()
    third = AgentHarness(session, ScriptedModel(["4"]), tools=[add], system_prompt="Be long.", settings=settings)
    await third.prompt("c")
    headers = [entry for entry in await session.entries() if isinstance(entry, RequestHeaderEntry)]
    assert [header.system_prompt for header in headers] == ["Be brief.", "Be long."]
    assert headers[0].model == {"provider": "scripted", "modelId": "scripted"}
    assert headers[0].options == {"temperature": 0.5}
    assert headers[0].tools is not None
    assert headers[0].tools[0]["parameters"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}


@pytest.mark.parametrize("kind", [OpenAIChatModel, AnthropicModel])
async def test_the_models_own_options_are_on_record(
    session: Session, kind: type[OpenAIChatModel | AnthropicModel]
) -> None:
    """R26: header and request hold the model's options under the settings', so other options are not needed later."""
    settings = AgentSettings(options={"temperature": 0.5})
    sent: list[bytes] = []
    with ScriptedServer(["One.", "Two."]) as server:
        place: dict[str, Any] = {"base_url": server.base_url, "api_key": "any"}
        model = kind("any", **place, options={"temperature": 0.9, "max_tokens": 77})
        harness = AgentHarness(session, model, tools=[add], system_prompt="Be brief.", settings=settings)
        await harness.prompt("a")
        await harness.prompt("b")
        sent = [json.dumps(request.body, sort_keys=True).encode() for request in server.requests]
        plain = kind("any", **place)
    headers = [entry for entry in await session.entries() if isinstance(entry, RequestHeaderEntry)]
    assert [header.options for header in headers] == [{"max_tokens": 77, "temperature": 0.5}]
    context = await session.build_context(leaf_id=(await session.branch())[1].id)
    rebuilt = ModelRequest(
        system_prompt=headers[0].system_prompt,
        messages=context.messages,
        tools=[ToolSchema(**schema) for schema in headers[0].tools or ()],
        options=headers[0].options or {},
    )
    assert json.dumps(json.loads(plain.payload(rebuilt)), sort_keys=True).encode() == sent[0]


async def test_replies_name_what_they_answered(session: Session) -> None:
    """A reply's entry names its header, the projection's version, and the entries shown, as runs along its path."""
    harness = AgentHarness(session, ScriptedModel([[tool_call("add", "c1", a=1, b=1)], "Two."]), tools=[add])
    await session.append_message(UserMessage(content="before"))
    await harness.prompt("Go")
    entries = await session.entries()
    header = next(entry for entry in entries if isinstance(entry, RequestHeaderEntry))
    replies = [
        entry for entry in entries if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage)
    ]
    ids = [entry.id for entry in entries]
    for reply in replies:
        assert reply.request is not None
        assert reply.request.header_id == header.id
        assert reply.request.projection == 1
        assert reply.request.shown is not None
        assert all(sum(entry_id.startswith(end) for entry_id in ids) == 1 for run in reply.request.shown for end in run)
    shown = [reply.request.shown for reply in replies if reply.request and reply.request.shown]
    assert [len(runs) for runs in shown] == [1, 1]
    assert ids[0].startswith(shown[1][0][0])
    last_result = [entry.id for entry in entries if entry.type == "message"][-2]
    assert last_result.startswith(shown[1][0][1])


async def test_idempotency_keys_are_unique_and_given_to_the_tool(session: Session) -> None:
    """Two calls with the same id in two replies have two keys; the tool sees the one that was recorded."""
    keys: list[str] = []

    def note(context: ToolContext) -> None:
        keys.append(context.idempotency_key)

    model = ScriptedModel([[tool_call("note", "c1")], [tool_call("note", "c1")], "Done."])
    await AgentHarness(session, model, tools=[note]).prompt("Go")
    recorded = [entry.idempotency_key for entry in await session.entries() if isinstance(entry, ToolStartEntry)]
    assert recorded == keys
    assert len(set(keys)) == 2


async def test_a_request_can_be_rebuilt_from_the_record(session: Session) -> None:
    """The header and the entries that a reply names give the very bytes that were sent for it (R26)."""
    model = ScriptedModel(
        [["See", tool_call("add", "", a=1, b=2)], "Three.", [tool_call("add", "x", a=2, b=2)], "Four."]
    )
    settings = AgentSettings(options={"temperature": 0}, thinking_level="low")
    harness = AgentHarness(session, model, tools=[add], system_prompt="Count.", settings=settings)
    await harness.prompt("1 + 2?")
    await session.append_working_memory("set", "sum", 3)
    await harness.prompt("2 + 2?")
    branch = await session.branch()
    ids = [entry.id for entry in branch]
    replies = [
        entry for entry in branch if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage)
    ]
    assert len(replies) == 4
    for reply, sent in zip(replies, model.requests, strict=True):
        assert reply.request is not None
        assert reply.request.shown is not None
        header = branch[ids.index(reply.request.header_id or "")]
        assert isinstance(header, RequestHeaderEntry)
        before = ids[: ids.index(reply.id)]
        shown: set[str] = set()
        for run in reply.request.shown:
            first, last = (next(place for place, name in enumerate(before) if name.startswith(end)) for end in run)
            shown.update(before[first : last + 1])
        context = await session.build_context(
            leaf_id=reply.parent_id,
            transforms=[lambda entries, shown=shown: [entry for entry in entries if entry.id in shown]],
        )
        rebuilt = ModelRequest(
            system_prompt=header.system_prompt,
            messages=context.messages,
            tools=[ToolSchema(**schema) for schema in header.tools or ()],
            options=header.options or {},
            thinking_level=header.thinking_level,
        )
        assert model.payload(rebuilt) == model.payload(sent)
