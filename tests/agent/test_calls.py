"""Every call has exactly one result, whatever the tool, its arguments or the reply are (R24)."""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from typing import Any

import anyio
import pytest

from harness.agent import AgentHarness
from harness.calls import CANCELLED_WITHIN, CUT_OFF
from harness.replies import fit_for_record
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import Reply, ScriptedModel, tool_call
from harness.tools import Tool, ToolContext, ToolOutput, tool
from storage.entries import MessageEntry, ToolStartEntry
from storage.errors import BusyError, ToolError
from storage.messages import AssistantMessage, ImageContent, TextContent, ToolCall, ToolResultMessage
from tests.agent.agents import check_well_formed, history, results

pytestmark = pytest.mark.anyio


def good(number: int) -> str:
    """Works."""
    return f"good {number}"


class Row:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_error() -> None:
    raise ValueError("no such row")


def raises_tool_error() -> None:
    raise ToolError("ask for another row")


def raises_exit() -> None:
    sys.exit(3)


def raises_stop() -> None:
    raise StopIteration


async def raises_stop_async() -> None:
    raise StopAsyncIteration


def raises_base_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])


async def raises_in_a_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 10)
        raise LookupError("in a group")


FAILURES: list[tuple[Any, ToolCall, str]] = [
    (raises_error, tool_call("raises_error", "bad"), "ValueError: no such row"),
    (raises_tool_error, tool_call("raises_tool_error", "bad"), "ask for another row"),
    (raises_exit, tool_call("raises_exit", "bad"), "SystemExit: 3"),
    (raises_stop, tool_call("raises_stop", "bad"), "StopIteration"),
    (raises_stop_async, tool_call("raises_stop_async", "bad"), "StopAsyncIteration"),
    (
        raises_base_group,
        tool_call("raises_base_group", "bad"),
        "ExceptionGroup: several (2 sub-exceptions): ValueError: one; TypeError: two",
    ),
    (raises_in_a_group, tool_call("raises_in_a_group", "bad"), "(1 sub-exception): LookupError: in a group"),
    (good, tool_call("nowhere", "bad"), "There is no tool 'nowhere'. The tools are: good."),
    (good, tool_call("", "bad"), "There is no tool ''."),
    (good, tool_call("good", "bad"), "number: Field required"),
    (good, tool_call("good", "bad", number="many"), "unable to parse string as an integer (given: 'many')"),
    (good, tool_call("good", "bad", number=1, more=2), "more: Extra inputs are not permitted"),
    (good, ToolCall(id="bad", name="good", arguments={}, raw_arguments='{"number": 1'), "were not a JSON object"),
    (good, ToolCall(id="bad", name="good", arguments={}, raw_arguments=""), "were not a JSON object"),
    (good, ToolCall(id="bad", name="good", arguments={}, raw_arguments="[1]"), "were not a JSON object"),
]


@pytest.mark.parametrize(
    ("function", "call", "says"), FAILURES, ids=[f"{n}-{call.name}" for n, (_, call, _) in enumerate(FAILURES)]
)
@pytest.mark.parametrize("parallel", [True, False])
async def test_a_failing_call_beside_a_good_one(
    session: Session, function: Any, call: ToolCall, says: str, parallel: bool
) -> None:
    """The failing call has an error result, the good one its result, and the turn goes on."""
    model = ScriptedModel(
        [[tool_call("good", "before", number=1), call, tool_call("good", "after", number=2)], "Done."]
    )
    tools = [tool(parallel=parallel)(good)] + ([] if function is good else [tool(function)])
    harness = AgentHarness(session, model, tools=tools)
    assert (await harness.prompt("Go")).text == "Done."
    found = await results(session)
    assert (found["before"].text, found["before"].is_error) == ("good 1", False)
    assert (found["after"].text, found["after"].is_error) == ("good 2", False)
    assert found["bad"].is_error
    assert says in found["bad"].text
    check_well_formed(await session.entries())
    shown = [message for message in model.requests[1].messages if isinstance(message, ToolResultMessage)]
    assert [message.tool_call_id for message in shown] == ["before", "bad", "after"]


async def test_calls_that_are_refused_are_not_begun(session: Session) -> None:
    """An unknown tool and invalid arguments have no tool_start."""
    model = ScriptedModel([[tool_call("nowhere", "a"), tool_call("good", "b")], "Done."])
    await AgentHarness(session, model, tools=[good]).prompt("Go")
    assert not any(isinstance(entry, ToolStartEntry) for entry in await session.entries())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "(no output)"),
        (float("nan"), "NaN"),
        (b"\xff", '{"bytes": 1, "base64": "/w=="}'),
        (dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "2024-01-02T00:00:00Z"),
        ({1, 2}, "[1, 2]"),
        ("half \ud83d", "half \ufffd"),
        (Row(), "<Row: cannot be shown (RuntimeError)>"),
        (ValueError("returned"), "ValueError: returned"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_tool_returns_never_breaks_the_session(session: Session, value: object, text: str) -> None:
    """Whatever a tool returns is text in the record and for the model, the same on every backend."""

    async def give() -> Any:
        return value

    model = ScriptedModel([[tool_call("give")], "Done."])
    await AgentHarness(session, model, tools=[give]).prompt("Go")
    assert (await results(session))["call_1"].text == text
    assert model.requests[1].messages[-1].text == text


async def test_a_tool_that_returns_itself_or_a_megabyte(session: Session) -> None:
    """A tool as its own value has a name for text; a megabyte is cut, with its head, its tail and its size kept."""

    async def itself() -> Any:
        return made

    def large() -> str:
        return "begin" + "x" * 1_000_000 + "end"

    made = tool(itself)
    model = ScriptedModel([[tool_call("itself", "a"), tool_call("large", "b")], "Done."])
    await AgentHarness(session, model, tools=[made, large]).prompt("Go")
    found = await results(session)
    assert '"name": "itself"' in found["a"].text
    assert len(found["b"].text) < 50_100
    assert found["b"].text.startswith("beginx")
    assert found["b"].text.endswith("xend")
    assert "of 1,000,008 characters left out" in found["b"].text


async def test_parts_details_and_errors_of_a_tool_are_recorded(session: Session) -> None:
    """A tool may return parts, and ``ToolOutput`` with details and an error of its own."""
    image = ImageContent(data="AAAA", mime_type="image/png")

    def parts() -> Any:
        return [TextContent(text="see"), image]

    def output() -> Any:
        return ToolOutput({"rows": 2}, details={"when": dt.date(2024, 1, 1), 1: float("inf")}, is_error=True)

    model = ScriptedModel([[tool_call("parts", "a"), tool_call("output", "b")], "Done."])
    await AgentHarness(session, model, tools=[parts, output]).prompt("Go")
    found = await results(session)
    assert found["a"].content == [TextContent(text="see"), image]
    assert (found["b"].text, found["b"].is_error) == ('{"rows": 2}', True)
    assert found["b"].details == {"when": "2024-01-01", "1": "Infinity"}


async def test_empty_and_repeated_ids_are_replaced_and_kept_beside(session: Session) -> None:
    """Each call of a reply has an id of its own before it is stored; what the vendor sent stands beside it."""
    calls = [
        tool_call("good", "", number=1),
        tool_call("good", "", number=2),
        tool_call("good", "same", number=3),
        tool_call("good", "same", number=4),
        tool_call("good", "  ", number=5),
    ]
    model = ScriptedModel([calls, "Done."])
    await AgentHarness(session, model, tools=[good]).prompt("Go")
    entries = await session.entries()
    check_well_formed(entries)
    reply = next(e.message for e in entries if isinstance(e, MessageEntry) and isinstance(e.message, AssistantMessage))
    assert [(call.model_extra or {}).get("vendorId") for call in reply.tool_calls] == ["", "", None, "same", "  "]
    assert reply.tool_calls[2].id == "same"
    found = await results(session)
    assert [found[call.id].text for call in reply.tool_calls] == [f"good {number}" for number in range(1, 6)]
    shown = [message.text for message in model.requests[1].messages if isinstance(message, ToolResultMessage)]
    assert shown == [f"good {number}" for number in range(1, 6)]


async def test_ids_that_repeat_across_replies_stay(session: Session) -> None:
    """Servers that count calls anew in each reply are taken as they are: each result answers the nearest call."""
    model = ScriptedModel([[tool_call("good", "call_0", number=n)] for n in range(3)] + ["Done."])  # type: ignore[operator]
    await AgentHarness(session, model, tools=[good]).prompt("Go")
    shown = [message for message in model.requests[3].messages if isinstance(message, ToolResultMessage)]
    assert [(message.tool_call_id, message.text) for message in shown] == [
        ("call_0", "good 0"),
        ("call_0", "good 1"),
        ("call_0", "good 2"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [{"number": float("nan")}, {1: 2}, {"\ud800": 1}, {"number": [[]] * 2 + [float("inf")]}],
    ids=repr,
)
async def test_arguments_that_json_cannot_hold_are_not_run(session: Session, arguments: dict[Any, Any]) -> None:
    """They are kept as raw arguments, the tool is not run, and the session goes on."""
    call = ToolCall.model_construct(type="toolCall", id="c1", name="good", arguments=arguments, raw_arguments=None)
    model = ScriptedModel([AssistantMessage.model_construct(role="assistant", content=[call], timestamp=1), "Done."])
    harness = AgentHarness(session, model, tools=[good])
    assert (await harness.prompt("Go")).text == "Done."
    assert "were not a JSON object" in (await results(session))["c1"].text


def test_a_reply_that_is_fit_for_the_record_shares_nothing() -> None:
    """What the model still holds of its reply may change without changing what is recorded."""
    reply = AssistantMessage(content=[TextContent(text="see"), tool_call("good", "c1", items=[1])])
    fit = fit_for_record(reply, provider="p", model_id="m")
    assert (fit.provider, fit.model) == ("p", "m")
    assert reply.provider is None
    reply.tool_calls[0].arguments["items"].append(2)
    (reply.content or []).clear()
    assert fit.text == "see"
    assert fit.tool_calls[0].arguments == {"items": [1]}


async def test_the_reply_that_an_app_holds_is_not_the_records(session: Session) -> None:
    """A tool that changes its arguments, and an app that changes the reply, change nothing in the session."""

    def spoil(items: list[int]) -> str:
        items.clear()
        return "spoilt"

    original = AssistantMessage(content=[tool_call("spoil", "c1", items=[1, 2])])
    harness = AgentHarness(session, ScriptedModel([original, "Done."]), tools=[spoil])
    async with harness.stream("Go") as events:
        async for event in events:
            message = getattr(event, "message", None)
            if isinstance(message, AssistantMessage):
                message.content = []
    check_well_formed(await session.entries())
    reply = (await session.entries())[3]
    assert isinstance(reply, MessageEntry)
    assert isinstance(reply.message, AssistantMessage)
    assert reply.message.tool_calls[0].arguments == {"items": [1, 2]}


async def test_calls_of_a_reply_that_was_cut_off_are_not_run(session: Session) -> None:
    """A reply cut at its length limit may hold half a call: none is run, each is told why, and the turn goes on."""
    ran: list[int] = []

    def note(number: int) -> None:
        ran.append(number)

    cut = Reply("Now", [tool_call("note", "a", number=1), tool_call("note", "b", number=2)], stop_reason="length")
    await AgentHarness(session, ScriptedModel([cut, "Done."]), tools=[note]).prompt("Go")
    assert ran == []
    assert {result.text for result in (await results(session)).values()} == {CUT_OFF}
    assert (await history(session))[-2:] == ["assistant stop: Done.", "turn_end 1 completed"]


@pytest.mark.parametrize("synchronous", [True, False])
async def test_a_tool_that_hangs_is_stopped_at_its_timeout(session: Session, synchronous: bool) -> None:
    """After its time it has an error result, a sibling keeps its own, and a thread is told to stop."""
    begun, told = threading.Event(), threading.Event()

    def hang_in_thread(context: ToolContext) -> None:
        begun.set()
        while not context.cancelled:
            time.sleep(0.002)
        told.set()

    async def hang(context: ToolContext) -> None:
        begun.set()
        assert context.deadline is not None
        assert (context.remaining() or 0) <= limit
        await anyio.sleep_forever()

    function = hang_in_thread if synchronous else hang
    for limit in (0.05, 1, 20):  # until it is time enough for a thread to begin
        hanging = tool(name="hang", timeout=limit)(function)
        model = ScriptedModel([[tool_call("hang", "a"), tool_call("good", "b", number=1)], "Done."])
        with anyio.fail_after(60):
            async with AgentHarness(session, model, tools=[hanging, good]) as harness:
                await harness.prompt("Go")
        found = await results(session)
        assert f"took longer than {limit} second" in found["a"].text
        assert found["b"].text == "good 1"
        if begun.is_set():
            break
    if synchronous:
        assert told.wait(60)


async def test_the_settings_give_tools_a_timeout(session: Session) -> None:
    """``tool_timeout`` holds for tools without one of their own."""

    async def hang() -> None:
        await anyio.sleep_forever()

    settings = AgentSettings(tool_timeout=0.02)
    await AgentHarness(session, ScriptedModel([[tool_call("hang")], "Done."]), tools=[hang], settings=settings).prompt(
        "Go"
    )
    assert "took longer than 0.02 seconds" in (await results(session))["call_1"].text


async def test_a_tool_that_is_cancelled_by_itself_has_a_result(session: Session, anyio_backend_name: str) -> None:
    """A tool that awaits a task which was cancelled ends alone: its siblings and the turn go on."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but by scopes")
    import asyncio

    async def stray() -> None:
        task = asyncio.ensure_future(asyncio.sleep(10))
        task.cancel()
        await task

    async def slow() -> str:
        await anyio.sleep(0.02)
        return "slow"

    model = ScriptedModel([[tool_call("stray", "a"), tool_call("slow", "b")], "Done."])
    assert (await AgentHarness(session, model, tools=[stray, slow]).prompt("Go")).text == "Done."
    found = await results(session)
    assert found["a"].text == CANCELLED_WITHIN
    assert found["b"].text == "slow"


async def test_a_tool_that_cancels_its_own_task_ends_alone(session: Session, anyio_backend_name: str) -> None:
    """A tool that cancels the task it runs in hits nobody else, whether it waits afterwards or returns."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but by scopes")
    import asyncio

    def cancel_this_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def returns() -> str:
        cancel_this_task()
        return "returned"

    async def waits() -> str:
        cancel_this_task()
        await anyio.sleep(10)
        return "never"

    async def leaves_it_for_later() -> str:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        return "long gone"

    async def slow() -> str:
        await anyio.sleep(0.05)
        return "slow"

    tools = [returns, waits, leaves_it_for_later, slow]
    model = ScriptedModel([[tool_call(each.__name__, each.__name__) for each in tools], "Done."])
    assert (await AgentHarness(session, model, tools=tools).prompt("Go")).text == "Done."
    assert {name: result.text for name, result in (await results(session)).items()} == {
        "returns": "returned",
        "waits": CANCELLED_WITHIN,
        "leaves_it_for_later": "long gone",
        "slow": "slow",
    }
    check_well_formed(await session.entries())


async def test_a_tool_that_cancels_every_task_of_the_calls(session: Session, anyio_backend_name: str) -> None:
    """However many of the tasks that run calls are cancelled from within, each call has one result; the turn goes on."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but by scopes")
    import asyncio

    begun = anyio.Event()

    async def rampage() -> str:
        await begun.wait()
        for task in asyncio.all_tasks():
            if "CallRunner" in task.get_name():
                task.cancel()
        await anyio.sleep(10)
        return "never"

    async def slow() -> str:
        begun.set()
        await anyio.sleep(60)
        return "slow"

    model = ScriptedModel([[tool_call("rampage", "a"), tool_call("slow", "b")], "Done."])
    assert (await AgentHarness(session, model, tools=[rampage, slow]).prompt("Go")).text == "Done."
    found = await results(session)
    assert set(found) == {"a", "b"}
    assert all(result.is_error and "unknown" in result.text for result in found.values())
    check_well_formed(await session.entries())


async def test_a_tool_object_whose_check_fails_oddly(session: Session) -> None:
    """Whatever a hand-made tool's check raises is told to the model, and nothing is run."""

    async def never(arguments: Any, context: ToolContext) -> None:
        raise AssertionError

    def check(arguments: Any) -> Any:
        raise KeyError("odd")

    odd = Tool("odd", "Odd.", {"type": "object"}, never, check)
    await AgentHarness(session, ScriptedModel([[tool_call("odd")], "Done."]), tools=[odd]).prompt("Go")
    assert "could not be checked, so it was not run. KeyError: 'odd'" in (await results(session))["call_1"].text


async def test_a_tool_may_append_and_read_but_not_move(session: Session) -> None:
    """During its turn a tool may append to the session; ``move_to``, ``append_compaction`` and ``recover`` are refused."""

    async def use() -> str:
        await session.append_custom_entry("note", {"from": "tool"})
        refused = 0
        for attempt in (lambda: session.move_to(None), lambda: session.append_compaction("s", tokens_before=1)):
            try:
                attempt()
            except BusyError:
                refused += 1
        try:
            await session.recover()
        except BusyError:
            refused += 1
        return f"{refused} refused, {len(await session.branch())} entries"

    await AgentHarness(session, ScriptedModel([[tool_call("use")], "Done."]), tools=[use]).prompt("Go")
    assert (await results(session))["call_1"].text == "3 refused, 6 entries"
    assert [entry.type for entry in await session.branch()][4:7] == ["tool_start", "custom", "message"]
