"""Reading an answer through a real socket: whatever a server repeats, omits, splits or adds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.models import TextDelta, ThinkingDelta, ToolCallDelta
from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from storage.errors import ModelError
from storage.messages import TextContent, ThinkingContent, ToolCall
from tests.models.asking import asking, call_delta, events, model_at, reply, stream_of

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


async def answered(*pieces: Any, headers: dict[str, str] | None = None) -> Any:
    with ScriptedServer([HttpAnswer(200, list(pieces), headers or {})]) as server:
        return await reply(model_at(server))


async def test_text_comes_in_pieces() -> None:
    """Each piece of text is an event as it comes; the reply is all of them, with provider, model, usage and reason."""
    with ScriptedServer(["Hello, wörld 😀!"], chunk_size=5) as server:
        seen = await events(model_at(server))
    pieces = [event.text for event in seen if isinstance(event, TextDelta)]
    assert pieces == ["Hello", ", wör", "ld 😀!"]
    message: Any = seen[-1]
    assert message.message.text == "".join(pieces)
    assert (message.message.provider, message.message.model, message.message.stop_reason) == ("openai", "m", "stop")
    assert message.message.usage.total_tokens == message.message.usage.input + message.message.usage.output > 0


async def test_order_of_parts_is_kept() -> None:
    """Thinking, text and calls stand in the reply in the order they came, and neighbours of one kind are one part."""
    message = await answered(
        *stream_of(
            {"role": "assistant", "content": ""},
            {"reasoning_content": "h"},
            {"reasoning_content": "m", "reasoning": "m"},
            {"content": "Let me"},
            {"content": " look."},
            call_delta(0, "c1", "read", "{}"),
            {"content": "After."},
            finish="tool_calls",
        )
    )
    assert [type(part) for part in message.content] == [ThinkingContent, TextContent, ToolCall, TextContent]
    assert message.content[0].thinking == "hm"
    assert message.text == "Let me look.After."


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_is_shown_where_it_is_sent(field: str) -> None:
    """Servers send reasoning under several names; each is an event and a part."""
    with ScriptedServer([HttpAnswer(200, stream_of({field: "hm"}, {"content": "Yes."}))]) as server:
        seen = await events(model_at(server))
    assert seen[0] == ThinkingDelta("hm")


async def test_line_separators_stay_whole() -> None:
    """U+2028, U+2029 and U+0085 in a reply end no line of the stream, raw or escaped."""
    text = "a\u2028b\u2029c\x85d\x1ce"
    assert (await answered(*stream_of({"content": text}))).text == text


async def test_an_emoji_cut_in_two_comes_together() -> None:
    """A character that a server cuts into its two halves is whole in the events and in the reply."""
    raw = [
        rb'data: {"choices":[{"delta":{"content":"a\ud83d"}}]}' + b"\n\n",
        rb'data: {"choices":[{"delta":{"content":"\ude00b"}}]}' + b"\n\n",
        rb'data: {"choices":[{"delta":{"content":"\ud83d"},"finish_reason":"stop"}]}' + b"\n\n",
    ]
    with ScriptedServer([HttpAnswer(200, raw)]) as server:
        seen = await events(model_at(server))
    assert [event.text for event in seen if isinstance(event, TextDelta)] == ["a", "\U0001f600b"]
    message: Any = seen[-1]
    assert message.message.text == "a\U0001f600b\ufffd"


async def test_bytes_cut_anywhere() -> None:
    """Chunks of bytes that end in the middle of a character, a line or an event are put together again."""
    data = 'data: {"choices":[{"delta":{"content":"grüß 😀"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'.encode()
    assert (await answered(*[data[place : place + 1] for place in range(len(data))])).text == "grüß 😀"


@pytest.mark.parametrize(
    "deltas",
    [
        # As OpenAI does it: id and name once.
        [call_delta(0, "c1", "read", ""), call_delta(0, None, None, '{"path":'), call_delta(0, None, None, '"a"}')],
        # Id and name in every piece.
        [call_delta(0, "c1", "read", '{"path":'), call_delta(0, "c1", "read", '"a"}')],
        # Empty ones in later pieces.
        [call_delta(0, "c1", "read", '{"path":'), call_delta(0, "", "", '"a"}')],
        # A new id for each piece.
        [call_delta(0, "c1", "read", '{"path":'), call_delta(0, "c7", None, '"a"}'), call_delta(0, "c8", "read", "")],
        # The name in pieces.
        [call_delta(0, "c1", "re"), call_delta(0, "c1", "ad"), call_delta(0, "c1", None, '{"path":"a"}')],
        # No index.
        [call_delta(None, "c1", "read", '{"path":'), call_delta(None, None, None, '"a"}')],
        # All at once, the arguments as an object.
        [call_delta(0, "c1", "read", {"path": "a"})],
    ],
)
async def test_a_call_in_any_pieces(deltas: list[dict[str, Any]]) -> None:
    """Pieces of a call are merged by index, whatever they repeat."""
    message = await answered(*stream_of(*deltas, finish="tool_calls"))
    assert message.content == [ToolCall(id="c1", name="read", arguments={"path": "a"})]
    assert message.stop_reason == "toolUse"


@pytest.mark.parametrize(
    "deltas",
    [
        [
            call_delta(0, "c1", "read", "{"),
            call_delta(1, "c2", "list", "{"),
            call_delta(0, None, None, "}"),
            call_delta(1, None, None, "}"),
        ],
        # Index 0 for all, each whole.
        [call_delta(0, "c1", "read", "{}"), call_delta(0, "c2", "list", "{}")],
        # Neither index nor pieces.
        [call_delta(None, "c1", "read", "{}"), call_delta(None, "c2", "list", "{}")],
        # Both in one delta.
        [
            {
                "tool_calls": [call_delta(0, "c1", "read", "{}")["tool_calls"][0]]
                + call_delta(1, "c2", "list", "{}")["tool_calls"]
            }
        ],
    ],
)
async def test_two_calls_stay_two(deltas: list[dict[str, Any]]) -> None:
    """Two calls are two, also from servers that give both the index 0, or none."""
    calls = (await answered(*stream_of(*deltas, finish="tool_calls"))).tool_calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [("c1", "read", {}), ("c2", "list", {})]


async def test_ids_are_what_the_vendor_sent() -> None:
    """Empty and repeated ids are given on as they are; who stores the reply replaces them."""
    deltas = [call_delta(0, "", "read", "{}"), call_delta(1, "", "read", "{}"), call_delta(2, None, "list", "{}")]
    calls = (await answered(*stream_of(*deltas, finish="tool_calls"))).tool_calls
    assert [call.id for call in calls] == ["", "", ""]
    assert [call.name for call in calls] == ["read", "read", "list"]


async def test_call_events_tell_the_name_and_the_pieces() -> None:
    """A call's events carry its index, its name, and pieces that join to the arguments."""
    with ScriptedServer([[tool_call("read", "c1", path="a"), tool_call("list", "c2", path="b")]]) as server:
        seen = [event for event in await events(model_at(server)) if isinstance(event, ToolCallDelta)]
    assert "".join(event.arguments_piece for event in seen if event.index == 0) == '{"path":"a"}'
    assert {(event.index, event.name) for event in seen} == {(0, "read"), (1, "list")}


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        '{"path": "a',
        "null",
        '["a"]',
        '"a"',
        '{"a": 1}{"b": 2}',
        '{"a": NaN}',
        '{"a": 1e999}',
        "not JSON",
        '{"a": ' + "[" * 200 + "]" * 200 + "}",
        '{"a": ' + "9" * 5000 + "}",
        r'{"\ud83d": 1}',
    ],
)
@pytest.mark.parametrize("finish", ["length", "tool_calls"])
async def test_arguments_that_are_no_object(arguments: str, finish: str) -> None:
    """Arguments that are no JSON object, or none that can be recorded, are kept as they came and never parsed."""
    message = await answered(*stream_of(call_delta(0, "c1", "read", arguments), finish=finish))
    (call,) = message.tool_calls
    assert call.arguments == {}
    assert call.raw_arguments == arguments
    assert message.stop_reason == ("length" if finish == "length" else "toolUse")


@pytest.mark.parametrize(
    ("finish", "calls", "expected"),
    [
        ("stop", False, "stop"),
        ("stop", True, "toolUse"),
        ("tool_calls", True, "toolUse"),
        ("tool_calls", False, "stop"),
        ("function_call", True, "toolUse"),
        ("length", False, "length"),
        ("length", True, "length"),
        ("max_tokens", False, "length"),
        ("model_context_window_exceeded", False, "length"),
        ("eos", False, "stop"),
    ],
)
async def test_finish_reasons(finish: str, calls: bool, expected: str) -> None:
    """Finish reasons become stop, length and toolUse; calls mean toolUse whatever the server says."""
    deltas = [{"content": "x"}, *([call_delta(0, "c1", "read", "{}")] if calls else [])]
    assert (await answered(*stream_of(*deltas, finish=finish))).stop_reason == expected


@pytest.mark.parametrize("finish", ["content_filter", "error"])
async def test_failed_finish_reasons(finish: str) -> None:
    """A finish reason that says there is no answer is an error that names it."""
    with pytest.raises(ModelError, match=finish):
        await answered(*stream_of({"content": "x"}, finish=finish))


async def test_an_empty_reply_is_a_reply() -> None:
    """A reply that says nothing, and says that it has finished, is no error."""
    message = await answered(*stream_of({"content": ""}, {"content": None}))
    assert (message.content, message.stop_reason) == ([], "stop")


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}, "many", {"prompt_tokens": "x"}]
)
async def test_no_usage(usage: Any) -> None:
    """Servers that send no counts, or none that make sense, give a reply without usage."""
    ending: list[Any] = [{"choices": [], "usage": usage}]
    assert (await answered(*stream_of({"content": "x"}, done=False), *ending)).usage is None


@pytest.mark.parametrize("where", ["own chunk", "last chunk", "choice", "every chunk"])
async def test_usage_wherever_it_stands(where: str) -> None:
    """Counts come in a chunk of their own, in the last one, in a choice, or in each; the newest counts."""
    early = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    text: dict[str, Any] = {"choices": [{"delta": {"content": "x"}}]}
    last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    if where == "own chunk":
        pieces: list[Any] = [text, last, {"choices": [], "usage": USAGE}]
    elif where == "last chunk":
        pieces = [text, {**last, "usage": USAGE}]
    elif where == "choice":
        pieces = [text, {"choices": [{"delta": {}, "finish_reason": "stop", "usage": USAGE}]}]
    else:
        pieces = [{**text, "usage": early}, {**last, "usage": USAGE}]
    usage = (await answered(*pieces, "data: [DONE]\n\n")).usage
    assert (usage.input, usage.output, usage.total_tokens) == (10, 3, 13)


async def test_cached_tokens_are_counted_apart() -> None:
    """``input`` excludes what was read from the provider's cache."""
    details = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    usage = (await answered(*stream_of({"content": "x"}, done=False), {"choices": [], "usage": details})).usage
    assert (usage.input, usage.cache_read, usage.output, usage.total_tokens) == (6, 4, 3, 13)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        ["\n\n"],
        [": keep-alive\n\n"],
        stream_of({"role": "assistant"}, finish=None, done=False),
        stream_of({"content": "Hel"}, finish=None, done=False),
        stream_of(call_delta(0, "c1", "read", "{}"), finish=None, done=False),
        ["data: [DONE]\n\n"],
        [*stream_of({"content": "Hel"}, finish=None, done=False), 'data: {"choices":[{"finish_reason":"stop"}]}'],
    ],
)
async def test_a_stream_that_just_ends_is_an_error(pieces: list[Any]) -> None:
    """A stream without finish reason and [DONE], or an empty body under 200, is never taken for a reply."""
    with pytest.raises(ModelError, match="ended the stream"):
        await answered(*pieces)


async def test_done_alone_ends_a_reply() -> None:
    """[DONE] ends a reply also where the server names no finish reason."""
    assert (await answered(*stream_of({"content": "x"}, finish=None))).text == "x"


@pytest.mark.parametrize("cut", [False, True])
async def test_a_finish_reason_alone_ends_a_reply(cut: bool) -> None:
    """A finish reason ends a reply also where no [DONE] follows, even if the connection is torn after it."""
    answer = HttpAnswer(200, stream_of({"content": "x"}, done=False), cut=cut)
    with ScriptedServer([answer]) as server:
        assert (await reply(model_at(server))).text == "x"


async def test_a_torn_connection_is_an_error_after_its_pieces() -> None:
    """A connection torn in the middle gives the pieces that came, and then an error; it is not tried again."""
    seen: list[Any] = []
    with ScriptedServer([Reply("Hello, world", cut=True)]) as server, pytest.raises(ModelError, match="broke"):
        async with model_at(server).stream(asking()) as stream:
            async for event in stream:
                seen.append(event)
    assert "".join(event.text for event in seen) == "Hello, world"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "it burns", "code": 500}},
        {"error": "it burns"},
        {"object": "error", "message": "it burns", "code": 500},
        {"type": "error", "error": {"type": "api_error", "message": "it burns"}},
        'event: error\ndata: {"message": "it burns"}\n\n',
    ],
)
async def test_an_error_in_the_middle_of_a_stream(error: Any) -> None:
    """An error that comes as an event, in any shape, is raised with its text, and not tried again."""
    pieces = [*stream_of({"content": "Hel"}, finish=None, done=False), error]
    with ScriptedServer([HttpAnswer(200, pieces), "never"]) as server, pytest.raises(ModelError, match="it burns"):
        await reply(model_at(server))
        assert len(server.requests) == 1


async def test_something_else_in_the_middle_of_a_stream() -> None:
    """A line that is no JSON is an error that shows it."""
    with pytest.raises(ModelError, match="<html>oops"):
        await answered(*stream_of({"content": "Hel"}, finish=None, done=False), "data: <html>oops\n\n")


@pytest.mark.parametrize("kind", ["text/event-stream; charset=latin-1", "text/plain", "application/octet-stream", ""])
async def test_whatever_a_stream_is_called(kind: str) -> None:
    """An event stream under another name, or another character set, is read as what it is: UTF-8."""
    message = await answered(*stream_of({"content": "grüß"}), headers={"Content-Type": kind})
    assert message.text == "grüß"


async def test_a_server_that_does_not_stream() -> None:
    """A whole completion under 200, from a server that ignores ``stream``, is a reply."""
    whole = {
        "choices": [
            {
                "message": {"role": "assistant", "content": "Yes.", **call_delta(None, "c1", "read", "{}")},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": USAGE,
    }
    with ScriptedServer([HttpAnswer(200, whole)]) as server:
        message = await reply(model_at(server))
    assert (message.text, len(message.tool_calls), message.stop_reason) == ("Yes.", 1, "toolUse")
    assert message.usage is not None


@pytest.mark.parametrize(
    "body",
    [{"error": {"message": "no such model"}}, '{"error": "no such model"}', "<html>no such model</html>"],
)
async def test_an_error_under_200(body: Any) -> None:
    """An error that comes with the status 200 is an error."""
    kind = "text/html" if isinstance(body, str) and body.startswith("<") else "application/json"
    with (
        ScriptedServer([HttpAnswer(200, body, {"Content-Type": kind})]) as server,
        pytest.raises(ModelError, match="no such model"),
    ):
        await reply(model_at(server))


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json", "text/plain"])
async def test_an_empty_body_under_200(kind: str) -> None:
    """One server answers a too long request so: 200, and nothing."""
    with (
        ScriptedServer([HttpAnswer(200, b"", {"Content-Type": kind})]) as server,
        pytest.raises(ModelError, match="without saying anything"),
    ):
        await reply(model_at(server))
