"""What Anthropic's API and servers like it send: every block, in any pieces, and errors at any place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from harness.models import ModelRequest, TextDelta, ThinkingDelta, Timeouts, ToolCallDelta
from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from storage.errors import ContextOverflowError, ModelError
from storage.messages import AssistantMessage, TextContent, ToolCall, Usage, UserMessage
from tests.models.asking import READ, events, reply, request_of
from tests.models.asking_anthropic import begun, block, claude_at, ended, result, said, text, thought, used

pytestmark = pytest.mark.anyio


async def answered(*pieces: Any, **options: Any) -> AssistantMessage:
    """The reply of a server that sends these pieces."""
    with ScriptedServer([HttpAnswer(200, pieces)]) as server:
        return await reply(claude_at(server, **options))


async def test_a_reply_of_everything() -> None:
    """Text, thinking and calls come as events in order, and stand in the reply as they came."""
    said_this = AssistantMessage(
        content=[
            thought("I think."),
            thought("", "hidden==", redacted=True),
            text("Two files:"),
            tool_call("read", "t1", path="a"),
            tool_call("list", "t2"),
        ]
    )
    with ScriptedServer([said_this], chunk_size=3) as server:
        seen = await events(claude_at(server))
    message: Any = seen.pop()
    assert "".join(event.text for event in seen if isinstance(event, ThinkingDelta)) == "I think."
    assert "".join(event.text for event in seen if isinstance(event, TextDelta)) == "Two files:"
    pieces = [event for event in seen if isinstance(event, ToolCallDelta)]
    assert "".join(event.arguments_piece for event in pieces if event.index == 0) == '{"path":"a"}'
    assert {(event.index, event.name) for event in pieces} == {(0, "read"), (1, "list")}
    assert message.message.content == said_this.content
    made = message.message
    assert (made.api, made.provider, made.model) == ("anthropic-messages", "anthropic", "claude-opus-4-6")
    assert (made.stop_reason, made.model_extra["responseId"]) == ("toolUse", "msg_scripted")


async def test_a_signature_in_pieces() -> None:
    """A signature is put together from its pieces, or read from the block's start; thinking may be hidden."""
    pieces = (
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "ab"},
        {"type": "signature_delta", "signature": "c="},
    )
    message = await answered(
        begun(),
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, *pieces),
        *block(1, {"type": "thinking", "thinking": "", "signature": "hidden"}),
        *block(2, {"type": "redacted_thinking", "data": "secret=="}),
        *said("So.", index=3),
        *ended(),
    )
    assert message.content == [
        thought("hm", "abc="),
        thought("", "hidden"),
        thought("", "secret==", redacted=True),
        text("So."),
    ]


async def test_thinking_comes_back_to_the_server() -> None:
    """What the API signed is sent back to it as it came, over a real socket and through the record's JSON."""
    first = [
        begun(),
        *block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "ü \u2028"}),
    ]
    first[-1:] = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s/+="}}
    ]
    first += [*used(1, "t1", "read", "{}"), *ended("tool_use")]
    with ScriptedServer([HttpAnswer(200, first), "Done."]) as server:
        model = claude_at(server)
        recorded = (await reply(model)).model_dump_json(by_alias=True, exclude_unset=True)
        again = AssistantMessage.model_validate_json(recorded)
        await reply(model, ModelRequest(None, [UserMessage(content="a"), again, result("t1")], [READ]))
    assert server.requests[1].messages[1]["content"][0] == {
        "type": "thinking",
        "thinking": "ü \u2028",
        "signature": "s/+=",
    }


async def test_calls_side_by_side() -> None:
    """Pieces of several calls may come mixed; each goes to its own by index."""

    def piece(index: int, json_text: str) -> dict[str, Any]:
        delta = {"type": "input_json_delta", "partial_json": json_text}
        return {"type": "content_block_delta", "index": index, "delta": delta}

    message = await answered(
        begun(),
        used(1, "t1", "read")[0],
        used(4, "t2", "list")[0],
        piece(4, '{"depth"'),
        piece(1, ""),
        piece(1, '{"path":'),
        piece(4, ":2}"),
        piece(1, '"a"}'),
        *ended("tool_use"),
    )
    assert message.content == [
        ToolCall(id="t1", name="read", arguments={"path": "a"}),
        ToolCall(id="t2", name="list", arguments={"depth": 2}),
    ]


@pytest.mark.parametrize("pieces", [(), ("",), ("", " "), ("{}",)])
async def test_a_call_without_arguments(pieces: tuple[str, ...]) -> None:
    """A tool that takes nothing gets no pieces, or empty ones: an empty object."""
    message = await answered(begun(), *used(0, "t1", "now", *pieces), *ended("tool_use"))
    assert message.content == [ToolCall(id="t1", name="now", arguments={})]


async def test_arguments_in_the_start_of_a_block() -> None:
    """A server that sends the arguments whole, in the block's start, is understood."""
    start = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "ä"}}
    message = await answered(begun(), *block(0, start), *ended("tool_use"))
    assert message.content == [ToolCall(id="t1", name="read", arguments={"path": "ä"})]


@pytest.mark.parametrize("arguments", ['{"path": "a', "null", "[1]", '{"x": NaN}', "{}{}", '"a"', '{"x": 1e999}'])
async def test_arguments_that_are_no_object(arguments: str) -> None:
    """What is no JSON object is kept as it came, and is no arguments."""
    message = await answered(begun(), *used(0, "t1", "read", arguments[:3], arguments[3:]), *ended("max_tokens"))
    assert message.content == [ToolCall(id="t1", name="read", arguments={}, raw_arguments=arguments)]
    assert message.stop_reason == "length"


async def test_ids_are_given_on_as_they_came() -> None:
    """Missing and repeated ids stay for the agent to replace; they merge nothing."""
    start = {"type": "tool_use", "name": "read", "input": {}}
    message = await answered(
        begun(), *block(0, start), *used(1, "t", "read"), *used(2, "t", "read"), *ended("tool_use")
    )
    assert [call.id for call in message.tool_calls] == ["", "t", "t"]


async def test_usage() -> None:
    """The prompt's tokens come first and the reply's last; what was read from and written to the cache is apart."""
    first = {"input_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
    message = await answered(begun(first), *said("a"), *ended(usage={"output_tokens": 9}))
    assert message.usage == Usage(input=7, output=9, cache_read=100, cache_write=20, total_tokens=136)
    later = await answered(
        begun({"input_tokens": 0}), *said("a"), *ended(usage={"input_tokens": 5, "output_tokens": 9})
    )
    assert later.usage == Usage(input=5, output=9, total_tokens=14)
    none = await answered(begun(), *said("a"), *ended())
    assert none.usage is None


@pytest.mark.parametrize(
    ("reason", "stop_reason", "kept"),
    [
        ("end_turn", "stop", None),
        ("stop_sequence", "stop", None),
        ("max_tokens", "length", None),
        ("model_context_window_exceeded", "length", None),
        ("pause_turn", "stop", "pause_turn"),
        ("something_new", "stop", "something_new"),
        (None, "stop", None),
    ],
)
async def test_stop_reasons(reason: str | None, stop_reason: str, kept: str | None) -> None:
    """Each reason has its name in the record; one that has none there is kept beside it."""
    message = await answered(begun(), *said("a"), *ended(reason))
    assert message.stop_reason == stop_reason
    assert (message.model_extra or {}).get("rawStopReason") == kept


async def test_a_refusal() -> None:
    """A reply that the vendor stops is no reply: an error with its explanation."""
    stopped = {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "not about this"}}
    with pytest.raises(ModelError, match="not about this") as caught:
        await answered(begun(), *said("Well, "), {"type": "message_delta", "delta": stopped}, {"type": "message_stop"})
    assert caught.value.details["vendor_code"] == "refusal"


async def test_a_server_that_does_not_stream() -> None:
    """A whole message under 200 is a reply, with all its blocks."""
    whole = {
        "id": "msg_9",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-6-20260205",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Yes."},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    with ScriptedServer([HttpAnswer(200, whole)]) as server:
        message = await reply(claude_at(server))
    assert message.content == [
        thought("hm", "s"),
        text("Yes."),
        ToolCall(id="t1", name="read", arguments={"path": "a"}),
    ]
    assert (message.stop_reason, message.usage) == ("toolUse", Usage(input=3, output=4, total_tokens=7))
    assert message.model_extra == {"responseId": "msg_9", "responseModel": "claude-opus-4-6-20260205"}


async def test_what_is_not_known_is_left_alone() -> None:
    """Events, blocks and pieces of a later version of the API, or of a server's own tools, disturb nothing."""
    message = await answered(
        begun(),
        {"type": "news"},
        *block(
            0,
            {"type": "server_tool_use", "id": "s", "name": "web_search"},
            {"type": "input_json_delta", "partial_json": "{}"},
        ),
        *block(1, {"type": "web_search_tool_result", "content": []}),
        *block(
            2,
            {"type": "text", "text": ""},
            {"type": "citations_delta", "citation": {}},
            {"type": "text_delta", "text": "a"},
        ),
        {"type": "content_block_delta", "index": 9, "delta": {"type": "shape_delta", "shape": 1}},
        {"type": "content_block_start"},
        {"type": "content_block_delta", "index": "x", "delta": None},
        *ended(),
    )
    assert message.content == [TextContent(text="a")]


async def test_text_of_any_characters() -> None:
    """Line separators end no line of the stream, half an emoji finds its other half, bytes may be cut anywhere."""
    data = "".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in [begun(), *said("a\u2028b\x85 grüß"), *ended()]
    ).replace("grüß", "\\ud83d")
    more = json.dumps({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "\ude00!"}})
    raw = data.replace("event: content_block_stop", f"data: {more}\n\nevent: content_block_stop").encode()
    assert (await answered(*[raw[place : place + 1] for place in range(len(raw))])).text == "a\u2028b\x85 \U0001f600!"


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize(
    "answer",
    [
        [begun(), *said("Hel"), OVERLOADED],
        [begun(), *said("Hel"), f"event: error\ndata: {json.dumps(OVERLOADED)}\n\n"],
        [begun(), *said("Hel"), ended()[0], OVERLOADED],
    ],
)
async def test_an_error_in_the_middle(answer: Sequence[Any]) -> None:
    """An error behind the first piece is raised with the vendor's words, and not tried again."""
    with ScriptedServer([HttpAnswer(200, answer), "never"]) as server:
        with pytest.raises(ModelError, match="Overloaded") as caught:
            await reply(claude_at(server))
        assert len(server.requests) == 1
    assert caught.value.details["vendor_code"] == "overloaded_error"


async def test_an_overflow_in_a_stream() -> None:
    """A request that turns out too long only in the stream is told as that."""
    told = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 2 > 1"}}
    with pytest.raises(ContextOverflowError):
        await answered(begun(), told)


@pytest.mark.parametrize("body", [{"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}, "{}"])
async def test_an_error_under_200(body: Any) -> None:
    """An error with a status that says otherwise is an error; so is an answer with nothing in it."""
    headers = {"Content-Type": "application/json"}
    with ScriptedServer([HttpAnswer(200, body, headers), "never"]) as server:
        with pytest.raises(ModelError, match="model: x|no event of Anthropic"):
            await reply(claude_at(server))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HttpAnswer(200, [begun(), *said("Hel")]), "in the middle"),
        (HttpAnswer(200, [begun()]), "without saying anything"),
        (HttpAnswer(200, b""), "without saying anything"),
        (HttpAnswer(200, [begun(), {"type": "message_stop"}]), "without saying anything"),
        (Reply("Hello", cut=True), "in the middle"),
        (HttpAnswer(200, ["data: no JSON\n\n"]), "no event of Anthropic"),
        (HttpAnswer(200, "<html>a page</html>"), "without saying anything"),
    ],
)
async def test_streams_that_break_off(answer: HttpAnswer | Reply, words: str) -> None:
    """A stream that ends without an end, or is none, is an error that says so."""
    with ScriptedServer(lambda _: answer) as server:
        with pytest.raises(ModelError, match=words):
            await reply(claude_at(server, timeouts=Timeouts(first_event=60)))


async def test_the_end_need_not_come_after_the_reason() -> None:
    """After the stop reason the reply counts, even if the connection then breaks."""
    with ScriptedServer([HttpAnswer(200, [begun(), *said("Yes."), ended()[0]], cut=True)]) as server:
        assert (await reply(claude_at(server))).text == "Yes."


async def test_nothing_is_waited_for_after_the_end() -> None:
    """A server that leaves the stream open behind its last event does not hold the reply up."""
    with ScriptedServer([HttpAnswer(200, [begun(), *said("Yes."), *ended(), 600.0])]) as server:
        with anyio.fail_after(60):
            assert (await reply(claude_at(server))).text == "Yes."


async def test_an_error_of_the_script() -> None:
    """A script's error comes in this protocol, too."""
    with ScriptedServer([Reply("Hel", error=LookupError("gone"))]) as server:
        with pytest.raises(ModelError, match="LookupError.*gone"):
            await reply(claude_at(server))
    with ScriptedServer([]) as server:
        with pytest.raises(ModelError, match="script is over"):
            await reply(claude_at(server), request_of(UserMessage(content="a")))
