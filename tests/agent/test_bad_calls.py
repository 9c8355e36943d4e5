"""Whatever a model calls and a tool does: each call has one result, the model is told, and the turn goes on.

Through the real adapters, over a real socket, into a real file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness import AgentHarness, AnthropicModel, OpenAIChatModel, Session, tool
from harness.testing import HttpAnswer, ScriptedServer, tool_call
from harness.testing.scripted_server import Answer
from storage.messages import ToolCall
from tests.agent.agents import check_well_formed, results
from tests.agent.bad_input import KINDS, Kind, check, check_next, echo_tool, model_at
from tests.models.asking import call_delta, stream_of
from tests.models.asking_anthropic import begun, ended, used

pytestmark = pytest.mark.anyio


def raises(text: str) -> str:
    """Fail."""
    raise LookupError(f"nothing for {text}")


async def hangs(text: str) -> str:
    """Take for ever."""
    await anyio.sleep_forever()
    return text


LET_GO = threading.Event()


def hangs_in_a_thread(text: str) -> str:
    """Take for ever in a thread."""
    LET_GO.wait(100)
    return text


class Itself:
    """A thing that holds itself."""

    def __init__(self) -> None:
        self.me = self


def returns(value: Any) -> Callable[..., Any]:
    """A tool of the name ``odd`` that returns this."""

    def odd(text: str) -> Any:
        """Return something odd."""
        return value

    return odd


LOOP: list[Any] = []
LOOP.append(LOOP)

TOOLS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raises, "LookupError"),
    "hangs": (hangs, "longer than 1 second"),
    "hangs in a thread": (hangs_in_a_thread, "longer than 1 second"),
    "returns NaN": (returns(float("nan")), "nan"),
    "returns NaN within": (returns({"x": float("nan")}), "nan"),
    "returns bytes": (returns(b"\xff\x00"), ""),
    "returns a datetime": (returns(datetime(2026, 1, 2, tzinfo=UTC)), "2026-01-02"),
    "returns a megabyte": (returns("m" * 1_000_000), "mmm"),
    "returns itself": (returns(Itself()), ""),
    "returns a list in itself": (returns(LOOP), ""),
    "returns nothing": (returns(None), ""),
    "returns half a character": (returns("\ud83d"), "\ufffd"),
    "returns odd keys": (returns({(1, 2): "x", 1: "y", "1": "z"}), ""),
    "returns an exception": (returns(ValueError("a value")), "a value"),
    "returns a function": (returns(returns), ""),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TOOLS)
async def test_tools_that_misbehave(name: str, kind: Kind, chat: Session, place: Path) -> None:
    """Each call has one result, in words; the sibling keeps its own; the model is sent both, and the turn goes on."""
    function, says = TOOLS[name]
    calls = [tool_call(function.__name__, "c1", text="a"), tool_call("echo_tool", "c2", text="fine")]
    LET_GO.clear()
    with ScriptedServer([calls, "I see.", "It works again."]) as server:
        harness = AgentHarness(
            chat,
            model_at(kind, server.base_url),
            tools=[tool(timeout=1)(function) if name.startswith("hangs") else function, echo_tool],
        )
        with anyio.fail_after(60):
            assert (await harness.prompt("Try.")).text == "I see."
        LET_GO.set()
        found = await results(chat)
        assert says.lower() in found["c1"].text.lower()
        assert len(found["c1"].text) < 200_000
        assert found["c2"].text == "fine"
        await check(chat, place)
        await check_next(chat, harness)
        assert len(server.requests) == 3


OPENAI_CALLS: dict[str, Sequence[Any]] = {
    "an id in each piece": [call_delta(0, "a", "echo_tool", '{"te'), call_delta(0, "b", None, 'xt":"hi"}')],
    "no ids": [call_delta(0, "", "echo_tool", '{"text":"hi"}'), call_delta(1, "", "echo_tool", '{"text":"ho"}')],
    "one id": [call_delta(0, "a", "echo_tool", '{"text":"hi"}'), call_delta(1, "a", "echo_tool", '{"text":"ho"}')],
    "one index": [call_delta(0, "a", "echo_tool", '{"text":"hi"}'), call_delta(0, "b", "echo_tool", '{"text":"ho"}')],
    "pieces by turns": [
        call_delta(0, "a", "echo_tool", '{"text'),
        call_delta(1, "b", "echo_tool", '{"te'),
        call_delta(0, None, None, '":"hi"}'),
        call_delta(1, None, None, 'xt":"ho"}'),
    ],
}


ANTHROPIC_CALLS: dict[str, Sequence[Any]] = {
    "no ids": [*used(0, "", "echo_tool", '{"text":"hi"}'), *used(1, "", "echo_tool", '{"text":"ho"}')],
    "one id": [*used(0, "a", "echo_tool", '{"text":"hi"}'), *used(1, "a", "echo_tool", '{"text":"ho"}')],
    "one index": [*used(0, "a", "echo_tool", '{"text":"hi"}'), *used(0, "b", "echo_tool", '{"text":"ho"}')],
    "pieces by turns": [
        *used(0, "a", "echo_tool", '{"text')[:2],
        *used(1, "b", "echo_tool", '{"te')[:2],
        *used(0, "a", "echo_tool", '":"hi"}')[1:],
        *used(1, "b", "echo_tool", 'xt":"ho"}')[1:],
    ],
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((OpenAIChatModel, name) for name in OPENAI_CALLS), *((AnthropicModel, name) for name in ANTHROPIC_CALLS)],
)
async def test_ids_that_change(kind: Kind, name: str, chat: Session, place: Path) -> None:
    """Ids that change from piece to piece, are missing, or come twice: each call runs once and has its own result."""
    if kind is OpenAIChatModel:
        answer = HttpAnswer(200, stream_of(*OPENAI_CALLS[name], finish="tool_calls"))
    else:
        answer = HttpAnswer(200, [begun(), *ANTHROPIC_CALLS[name], *ended("tool_use")])
    with ScriptedServer([answer, "I see.", "It works again."]) as server:
        harness = AgentHarness(chat, model_at(kind, server.base_url), tools=[echo_tool])
        assert (await harness.prompt("Try.")).text == "I see."
        texts = sorted(result.text for result in (await results(chat)).values())
        assert texts == (["hi"] if name == "an id in each piece" else ["hi", "ho"])
        await check(chat, place)
        await check_next(chat, harness)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_ids_in_every_turn(kind: Kind, chat: Session, place: Path) -> None:
    """A server that counts its calls anew each time: results answer the nearest call; ids are unique on the wire."""
    script: list[Answer] = []
    for number in range(3):
        script += [[tool_call("echo_tool", "call_0", text=f"t{number}")], f"Turn {number}."]
    with ScriptedServer([*script, "It works again."]) as server:
        harness = AgentHarness(chat, model_at(kind, server.base_url), tools=[echo_tool])
        for number in range(3):
            assert (await harness.prompt("Again.")).text == f"Turn {number}."
        await check_next(chat, harness)
        messages = server.requests[-1].messages
    ids = [each for message in messages for each in _call_ids(message)]
    assert len(set(ids)) == 3
    check_well_formed(await chat.branch())


def _call_ids(message: dict[str, Any]) -> list[str]:
    if "tool_calls" in message:
        return [call["id"] for call in message["tool_calls"]]
    content = message["content"] if isinstance(message.get("content"), list) else []
    return [block["id"] for block in content if block["type"] == "tool_use"]


ARGUMENTS: dict[str, tuple[str, str, str]] = {
    "cut off": ('{"text": "a', "tool_calls", "not a JSON object"),
    "cut off at the limit": ('{"text": "a', "length", "cut off at its length limit"),
    "null": ("null", "tool_calls", "not a JSON object"),
    "a list": ('["a"]', "tool_calls", "not a JSON object"),
    "two objects": ('{"text":"a"}{"text":"b"}', "tool_calls", "not a JSON object"),
    "NaN": ('{"text": NaN}', "tool_calls", "not a JSON object"),
    "the wrong type": ('{"text": [1]}', "tool_calls", "valid string"),
    "one missing": ('{"other": 1}', "tool_calls", "Field required"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_arguments_that_are_wrong(name: str, kind: Kind, chat: Session, place: Path) -> None:
    """They are never run; the model is told why, in the validator's words; what is sent back is a valid object."""
    text, finish, says = ARGUMENTS[name]
    ran: list[str] = []

    def run(text: str) -> str:
        """Run."""
        ran.append(text)
        return text

    if kind is OpenAIChatModel:
        answer = HttpAnswer(200, stream_of(call_delta(0, "c1", "run", text), finish=finish))
    else:
        reason = {"length": "max_tokens"}.get(finish, "tool_use")
        answer = HttpAnswer(200, [begun(), *used(0, "c1", "run", text), *ended(reason)])
    with ScriptedServer([answer, "I see.", "It works again."]) as server:
        harness = AgentHarness(chat, model_at(kind, server.base_url), tools=[run])
        assert (await harness.prompt("Try.")).text == "I see."
        (result,) = (await results(chat)).values()
        assert says in result.text
        assert result.is_error
        assert ran == []
        await check(chat, place)
        await check_next(chat, harness)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", ["nothing_like_it", "", "functions.echo tool\x1b[31m", "x" * 300])
async def test_a_tool_that_there_is_not(tool: str, kind: Kind, chat: Session, place: Path) -> None:
    """The model is told which tools there are; the name that goes back is one that the vendor takes."""
    with ScriptedServer([ToolCall(id="c1", name=tool, arguments={}), "I see.", "It works again."]) as server:
        harness = AgentHarness(chat, model_at(kind, server.base_url), tools=[echo_tool])
        assert (await harness.prompt("Try.")).text == "I see."
        assert "The tools are: echo_tool" in (await results(chat))["c1"].text
        await check(chat, place)
        await check_next(chat, harness)
