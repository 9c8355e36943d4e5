"""The scripted model keeps the contract of a model, and does what its script says."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from harness.models import ChatModel, ModelRequest, ReplyFinished, TextDelta, ThinkingDelta, ToolCallDelta
from harness.testing import Reply, ScriptedModel, ScriptedServer, tool_call
from storage.errors import ContextOverflowError, ModelError
from storage.messages import AssistantMessage, TextContent, ToolCall, Usage, UserMessage
from tests.models.asking import asking, events, model_at, reply

pytestmark = pytest.mark.anyio

CALL = tool_call("read", path="a.txt")


def test_it_is_a_model() -> None:
    """It has all members of the protocol."""
    model: ChatModel = ScriptedModel([])
    assert isinstance(model, ChatModel)


@pytest.mark.parametrize(
    ("scripted", "text", "calls", "reason"),
    [
        ("Hello.", "Hello.", [], "stop"),
        ("", "", [], "stop"),
        (CALL, "", [CALL], "toolUse"),
        (["Let me look. ", CALL, tool_call("list", "c2")], "Let me look. ", [CALL, tool_call("list", "c2")], "toolUse"),
        (AssistantMessage(content=[CALL, TextContent(text="after")]), "after", [CALL], "toolUse"),
        (Reply("cut of", stop_reason="length"), "cut of", [], "length"),
    ],
)
@pytest.mark.parametrize("real", [False, True], ids=["model", "server"])
async def test_what_may_stand_in_a_script(scripted: Any, text: str, calls: Any, reason: str, real: bool) -> None:
    """Texts, calls, lists, messages and replies come out the same from the model and from the server."""
    if real:
        with ScriptedServer([scripted]) as server:
            message = await reply(model_at(server))
    else:
        message = await reply(ScriptedModel([scripted]))
    assert (message.text, message.tool_calls, message.stop_reason) == (text, calls, reason)


async def test_events_join_to_the_reply() -> None:
    """The pieces, of the chunk size, join to the reply that ends them."""
    scripted = Reply("Hello, world", [CALL], thinking="hm", chunk_size=5)
    seen = await events(ScriptedModel([scripted]))
    assert [event.text for event in seen if isinstance(event, TextDelta)] == ["Hello", ", wor", "ld"]
    assert [event.text for event in seen if isinstance(event, ThinkingDelta)] == ["hm"]
    assert "".join(event.arguments_piece for event in seen if isinstance(event, ToolCallDelta)) == '{"path":"a.txt"}'
    finished = seen[-1]
    assert isinstance(finished, ReplyFinished)
    assert (finished.message.provider, finished.message.model) == ("scripted", "scripted")
    assert finished.message.usage is not None
    assert finished.message.usage.total_tokens > 0


async def test_broken_arguments_stay_broken() -> None:
    """A call with raw arguments is given as it is, and sent by the server as it is."""
    broken = ToolCall(id="c1", name="read", arguments={}, raw_arguments='{"path": "a')
    assert (await reply(ScriptedModel([broken]))).tool_calls == [broken]
    with ScriptedServer([broken]) as server:
        assert (await reply(model_at(server))).tool_calls == [broken]


async def test_requests_are_kept_as_they_were() -> None:
    """What a model got is kept as it was then, whatever becomes of the lists and messages."""
    model = ScriptedModel(["one", "two"])
    messages = [UserMessage(content="first")]
    await reply(model, ModelRequest("system", messages, options={"seed": 1}))
    messages[0].content = "changed"
    messages.append(UserMessage(content="second"))
    await reply(model, ModelRequest(None, messages))
    assert [[message.text for message in request.messages] for request in model.requests] == [
        ["first"],
        ["changed", "second"],
    ]
    assert (model.requests[0].system_prompt, model.requests[0].options) == ("system", {"seed": 1})


async def test_functions_look_at_the_request() -> None:
    """A function in the script gets the request; it may be asynchronous; alone it answers for ever."""

    async def later(request: ModelRequest) -> str:
        await anyio.lowlevel.checkpoint()
        return f"{len(request.messages)} message"

    model = ScriptedModel([later, lambda request: CALL])
    assert (await reply(model)).text == "1 message"
    assert (await reply(model)).tool_calls == [CALL]
    forever = ScriptedModel(lambda request: request.system_prompt or "none")
    assert [(await reply(forever)).text for _ in range(3)] == ["none"] * 3


async def test_errors() -> None:
    """An exception is raised before the first piece; in a ``Reply`` after all of them; and the script goes on."""
    model = ScriptedModel([ModelError("first"), Reply("half", error=ContextOverflowError("second")), "third"])
    with pytest.raises(ModelError, match="first"):
        await reply(model)
    seen: list[Any] = []
    with pytest.raises(ContextOverflowError, match="second"):
        async with model.stream(asking()) as stream:
            async for event in stream:
                seen.append(event)
    assert seen == [TextDelta("half")]
    assert (await reply(model)).text == "third"


async def test_a_cut_stream() -> None:
    """A reply that is cut gives its pieces and then the error of a stream that just ends."""
    with pytest.raises(ModelError, match="ended the stream"):
        await reply(ScriptedModel([Reply("half", cut=True)]))


async def test_the_end_of_the_script() -> None:
    """One request more than replies is an error with both numbers."""
    model = ScriptedModel(["one"])
    await reply(model)
    with pytest.raises(ModelError, match=r"it had 1 to give, and this is request 2"):
        await reply(model)
    with ScriptedServer([]) as server, pytest.raises(ModelError, match="script is over"):
        await reply(model_at(server))


async def test_what_may_not_stand_in_a_script() -> None:
    """Something else in the script is the test author's mistake."""
    wrong: Any = 7
    with pytest.raises(TypeError, match="not int"):
        await reply(ScriptedModel([wrong]))


async def test_delays_can_be_cancelled() -> None:
    """Delays and pauses are ordinary sleeps."""
    for scripted in (Reply("x", delay=60), Reply("hello, world", pause=60)):
        with anyio.fail_after(60), anyio.move_on_after(0.05) as scope:
            await reply(ScriptedModel([scripted]))
        assert scope.cancelled_caught


async def test_every_event_is_a_chance_to_cancel() -> None:
    """A task that reads a long reply lets others run between two events."""
    seen: list[str] = []

    async def other() -> None:
        seen.append("other")

    async with anyio.create_task_group() as tasks, ScriptedModel(["hello, world"], chunk_size=1).stream(asking()) as s:
        tasks.start_soon(other)
        async for _ in s:
            seen.append("event")
    assert seen.index("other") < 2


async def test_usage() -> None:
    """Counts are those of the script, a rough count, or none."""
    given = Usage(input=5, output=2, total_tokens=7)
    assert (await reply(ScriptedModel([Reply("x", usage=given)]))).usage == given
    assert (await reply(ScriptedModel(["x"], report_usage=False))).usage is None
    with ScriptedServer([Reply("x", usage=given), "x"], usage="never") as server:
        assert (await reply(model_at(server))).usage is None
    with ScriptedServer([Reply("x", usage=given)], usage="always") as server:
        assert (await reply(model_at(server, include_usage=False))).usage == given


async def test_a_hard_window() -> None:
    """A hard window refuses what is longer, and uses up none of the script."""
    model = ScriptedModel(["fits"], context_window=100, enforce_window=True)
    with pytest.raises(ContextOverflowError, match="100 fit"):
        await reply(model, asking("long " * 100))
    assert (await reply(model)).text == "fits"


async def test_the_payload_is_checked() -> None:
    """A request that no server could be sent is refused here as well."""
    with pytest.raises(ModelError, match="nothing to send"):
        await reply(ScriptedModel(["x"]), ModelRequest(None, []))


async def test_closing() -> None:
    """Whether it was closed can be seen."""
    async with ScriptedModel([]) as model:
        assert not model.is_closed
    assert model.is_closed
