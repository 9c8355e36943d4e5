"""Changing a running agent, and taking over what an old session had: model, thinking level, active tools (R22)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from harness.agent import AgentHarness
from harness.events import ActiveToolsChanged, AgentEvent, ModelChanged, ThinkingLevelChanged
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import Reply, ScriptedModel, tool_call
from storage.errors import BusyError, InvalidEntryError, ModelError, ToolError, TurnLimitError
from storage.jsonl import JsonlStorage
from storage.messages import AssistantMessage, Usage
from tests.agent.agents import check_well_formed, history, results

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    return a + b


def look() -> str:
    return "seen"


def names(request: ModelRequest) -> list[str]:
    """The tools that a request offers."""
    return [schema.name for schema in request.tools]


def model_named(name: str, *replies: Any, **more: Any) -> ScriptedModel:
    script = cast("Any", replies[0] if len(replies) == 1 and callable(replies[0]) else list(replies))
    return ScriptedModel(script, model_id=name, **more)


async def test_another_model_in_the_middle_of_a_turn(session: Session) -> None:
    """A tool changes it: the next request goes to the new one, under a header of its own; the same session goes on."""

    async def change() -> str:
        await harness.set_model(second)
        return "changed"

    first = model_named("one", tool_call("change", "a"))
    second = model_named("two", "Two.", "Three.")
    harness = AgentHarness(session, first, tools=[change])
    assert (await harness.prompt("Go")).model == "two"
    assert harness.model is second
    assert await history(session) == [
        "turn_start 1",
        "user: Go",
        "request_header",
        "assistant toolUse: change(a)",
        "tool_start a",
        "model_change scripted/two",
        "result a: changed",
        "request_header",
        "assistant stop: Two.",
        "turn_end 1 completed",
    ]
    await harness.prompt("Again")
    assert (len(first.requests), len(second.requests)) == (1, 2)


@pytest.mark.parametrize("fails", [False, True])
async def test_another_model_while_one_answers(session: Session, fails: bool) -> None:
    """The request that is under way goes on with the old one; the record's last word is the one that was chosen."""
    asked, chosen = anyio.Event(), anyio.Event()

    async def answer(_: ModelRequest) -> Any:
        asked.set()
        await chosen.wait()
        return Reply("Old.", error=ModelError("lost")) if fails else "Old."

    harness = AgentHarness(session, model_named("old", answer))
    new = model_named("new", "New.")

    async def change() -> None:
        await asked.wait()
        await harness.set_model(new)
        chosen.set()

    async with anyio.create_task_group() as group:
        group.start_soon(change)
        if fails:
            with pytest.raises(ModelError):
                await harness.prompt("Go")
        else:
            assert (await harness.prompt("Go")).model == "old"
    assert harness.recorded_model is not None
    assert harness.recorded_model.model_id == "new"
    assert (await session.build_context()).model == harness.recorded_model
    await harness.prompt("Again")
    assert len(new.requests) == 1
    changes = [line for line in await history(session) if line.startswith("model_change")]
    assert changes == ["model_change scripted/new"] * 2
    check_well_formed(await session.entries())


async def test_a_model_that_is_the_recorded_one_is_not_recorded_again(session: Session) -> None:
    """Setting what is in force writes nothing, but it is the new object that is asked."""
    harness = AgentHarness(session, model_named("m", "1"))
    await harness.prompt("Go")
    count = len(session.log.index)
    other = model_named("m", "2")
    await harness.set_model(other)
    assert len(session.log.index) == count
    assert (await harness.prompt("Again")).text == "2"


async def test_levels_and_tools_in_the_middle_of_a_turn(session: Session) -> None:
    """From the next request on; calls of the running reply still run with the tools that it was offered."""

    async def change() -> str:
        await harness.set_thinking_level("high")
        await harness.set_active_tools(["look"])
        return "changed"

    script = [[tool_call("change", "a"), tool_call("add", "b", a=1, b=2)], tool_call("add", "c", a=1, b=2), "Done."]
    model = ScriptedModel(script)
    harness = AgentHarness(session, model, tools=[add, look, change])
    seen: list[AgentEvent] = []
    async with harness.stream("Go") as events:
        async for event in events:
            if isinstance(event, ThinkingLevelChanged | ActiveToolsChanged):
                seen.append(event)
    found = await results(session)
    assert found["b"].text == "3"
    assert found["c"].text == "There is no tool 'add'. The tools are: look."
    assert [names(request) for request in model.requests] == [["add", "look", "change"], ["look"], ["look"]]
    assert [request.thinking_level for request in model.requests] == [None, "high", "high"]
    assert [getattr(event, "thinking_level", None) or cast("Any", event).names for event in seen] == ["high", ("look",)]
    assert (await session.entry(cast("Any", seen[0]).entry_id)).type == "thinking_level_change"


async def test_the_next_harness_takes_over(tmp_path: Path) -> None:
    """In another process: level and active tools are those of the record, and the recorded model can be asked for."""
    place = tmp_path / "session.jsonl"
    async with Session.open(JsonlStorage.create(place)) as session:
        async with AgentHarness(session, model_named("one", "1"), tools=[add, look]) as harness:
            await harness.set_thinking_level("low")
            await harness.set_active_tools(["look"])
            await harness.prompt("Go")
    async with Session.open(JsonlStorage.open(place)) as session:
        model = model_named("one", "2")
        harness = AgentHarness(session, model, tools=[add, look])
        assert (harness.thinking_level, harness.active_tools, harness.warnings) == ("low", ["look"], ())
        assert tuple(harness.recorded_model or ()) == ("scripted", "one")
        await harness.prompt("Again")
        assert (names(model.requests[0]), model.requests[0].thinking_level) == (["look"], "low")
        assert (await history(session))[-4:] == [
            "turn_start 2",
            "user: Again",
            "assistant stop: 2",
            "turn_end 2 completed",
        ]


async def test_what_the_caller_says_wins_until_it_is_set(session: Session) -> None:
    """The constructor's tools and the settings' level are recorded where they differ; after ``set_…`` the record counts."""
    await session.append_thinking_level_change("low")
    await session.append_active_tools_change(["look"])
    settings = AgentSettings(thinking_level="high")
    model = ScriptedModel(lambda _: "Fine.")
    harness = AgentHarness(session, model, tools=[add, look], settings=settings, active_tools=["add"])
    assert (harness.thinking_level, harness.active_tools) == ("high", ["add"])
    await harness.prompt("One")
    before = session.leaf_id
    await harness.set_thinking_level("off")
    await harness.set_active_tools([])
    await harness.prompt("Two")
    await session.move_to(before)
    assert (harness.thinking_level, harness.active_tools) == ("high", ["add"])
    await harness.prompt("Three")
    assert [(request.thinking_level, names(request)) for request in model.requests] == [
        ("high", ["add"]),
        ("off", []),
        ("high", ["add"]),
    ]


async def test_recorded_tools_that_are_not_here(session: Session) -> None:
    """Those that exist are offered; the others are named in a warning, stay on record, and go with the next change."""
    await session.append_active_tools_change(["gone", "look"])
    model = ScriptedModel(lambda _: "Fine.")
    harness = AgentHarness(session, model, tools=[add, look])
    assert harness.active_tools == ["look"]
    (warning,) = harness.warnings
    assert warning.code == "unknown_active_tools"
    assert "'gone'" in warning.message
    await harness.prompt("Go")
    assert (await session.build_context()).active_tools == ["gone", "look"]
    await harness.set_active_tools(["look"])
    assert (await session.build_context()).active_tools == ["look"]
    assert harness.warnings == ()


async def test_what_is_told_when_a_harness_takes_over(session: Session) -> None:
    """What it records before its first request is told to who watches the turn."""
    await session.append_model_change("other", "model")
    seen: list[AgentEvent] = []
    async with AgentHarness(session, ScriptedModel(["Fine."])).stream("Go") as events:
        async for event in events:
            if isinstance(event, ModelChanged):
                seen.append(event)
    assert [(cast("Any", event).provider, cast("Any", event).model_id) for event in seen] == [("scripted", "scripted")]


async def test_what_cannot_be_set(session: Session) -> None:
    """Unknown tools, no level, a model without room: refused with the names and numbers, nothing recorded."""
    harness = AgentHarness(session, ScriptedModel([]), tools=[add], settings=AgentSettings(reserve_tokens=100))
    with pytest.raises(ToolError, match="no tool 'sub' to be active; the tools are: add"):
        await harness.set_active_tools(["add", "sub"])
    with pytest.raises(ToolError, match="list of names"):
        await harness.set_active_tools("add")
    for level in ("", " ", cast("Any", None)):
        with pytest.raises(InvalidEntryError, match="no word"):
            await harness.set_thinking_level(level)
    with pytest.raises(ValueError, match="window of 100 tokens, and 100 are reserved"):
        await harness.set_model(ScriptedModel([], context_window=100))
    assert await history(session) == []
    with pytest.raises(ToolError, match="'nope'"):
        AgentHarness(session, ScriptedModel([]), tools=[add], active_tools=["nope"])
    with pytest.raises(ValueError, match="window of 50 tokens"):
        AgentHarness(session, ScriptedModel([], context_window=50), settings=AgentSettings(reserve_tokens=60))


async def test_only_the_harness_that_holds_the_session_changes_it(session: Session) -> None:
    """Another one is refused, and its own choice stays as it was."""
    async with AgentHarness(session, ScriptedModel([])):
        mine = ScriptedModel([])
        other = AgentHarness(session, mine, tools=[add])
        for change in (
            lambda: other.set_model(ScriptedModel([])),
            lambda: other.set_thinking_level("low"),
            lambda: other.set_active_tools([]),
        ):
            with pytest.raises(BusyError):
                await change()
        assert (other.model, other.thinking_level, other.active_tools) == (mine, None, ["add"])


async def test_what_is_set_right_after_a_crash(tmp_path: Path) -> None:
    """Setting takes the session over first: the open turn is closed before the change is recorded."""
    place = tmp_path / "session.jsonl"
    async with Session.open(JsonlStorage.create(place)) as session:
        await AgentHarness(session, ScriptedModel([tool_call("look", "a"), "Done."]), tools=[look]).prompt("Go")
    lines = place.read_bytes().splitlines(keepends=True)
    place.write_bytes(b"".join(lines[:6]))
    async with Session.open(JsonlStorage.open(place)) as session:
        harness = AgentHarness(session, ScriptedModel([]), tools=[look])
        session.append_metadata("waiting", "to be written")  # so that all of them find the same record
        async with anyio.create_task_group() as group:
            group.start_soon(harness.set_thinking_level, "low")
            group.start_soon(harness.set_active_tools, ["look"])
            group.start_soon(harness.abort)
        found = await history(session)
        assert [line for line in found if line.startswith("turn_end")] == ["turn_end 1 interrupted"]
        assert sorted(found[found.index("turn_end 1 interrupted") + 1 :]) == [
            "active_tools_change",
            "thinking_level_change low",
        ]


def counted(text: str, tokens: int, *calls: Any) -> Any:
    """A reply for which the provider counted so many tokens."""

    def reply(_: ModelRequest) -> AssistantMessage:
        usage = Usage(input=tokens - 1, output=1, total_tokens=tokens)
        content: list[Any] = [{"type": "text", "text": text}, *calls]
        return AssistantMessage(content=content, usage=usage, stop_reason="toolUse" if calls else "stop")

    return reply


async def test_a_limit_of_tokens(session: Session) -> None:
    """All requests of the turn together; what was called is run, then the turn ends. The last reply may go over it."""
    model = ScriptedModel([counted("1", 60, tool_call("look", "a")), counted("2", 60, tool_call("look", "b"))])
    harness = AgentHarness(session, model, tools=[look], settings=AgentSettings(max_turn_tokens=100))
    with pytest.raises(TurnLimitError, match="used 120 tokens, its limit is 100") as caught:
        await harness.prompt("Go")
    assert caught.value.code == "turn_limit"
    assert caught.value.details == {"max_turn_tokens": 100, "tokens": 120}
    lines = await history(session)
    assert lines[-2:] == ["result b: seen", "turn_end 1 failed"]
    await harness.set_model(ScriptedModel([counted("last", 500)]))
    assert (await harness.prompt("Again")).text == "last"


@pytest.mark.parametrize("in_tool", [True, False])
async def test_a_limit_of_time(session: Session, in_tool: bool) -> None:
    """What runs is stopped, each call has its result, the turn is failed; the next one has its own time."""

    async def hanging() -> str:
        await anyio.sleep(60)
        return "late"

    first: Any = tool_call("hanging", "a") if in_tool else Reply("Half a rep", pause=60)
    model = ScriptedModel(lambda request: "Fine." if request.messages[-1].text == "Again" else first)
    harness = AgentHarness(session, model, tools=[hanging], settings=AgentSettings(max_turn_seconds=0.05))
    with anyio.fail_after(60):
        with pytest.raises(TurnLimitError, match=r"limit of 0\.05 seconds"):
            await harness.prompt("Go")
    assert (await history(session))[-1] == "turn_end 1 failed"
    check_well_formed(await session.entries())
    await harness.aclose()
    assert (await AgentHarness(session, model).prompt("Again")).text == "Fine."
    check_well_formed(await session.entries())
