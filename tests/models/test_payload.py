"""The body that goes out: pure, deterministic, valid, and with nothing that a server would refuse."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.models import ModelRequest, OpenAIChatModel, ToolSchema
from harness.models.openai_payload import EMPTY_MESSAGE, EMPTY_RESULT
from storage.errors import ModelError
from storage.messages import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from tests.models.asking import READ, asking, request_of
from tests.models.histories import histories, is_sendable
from tests.models.openai_rules import refused

MODEL = OpenAIChatModel("m", base_url="http://127.0.0.1:1/v1", api_key="k")


def body(request: ModelRequest, model: OpenAIChatModel = MODEL) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(model.payload(request)))


def called(*calls: ToolCall, text: str = "") -> AssistantMessage:
    return AssistantMessage(content=[*([TextContent(text=text)] if text else []), *calls])


def result(call_id: str, text: Any = "done", name: str = "read") -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name=name, content=text)


def call(call_id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name="read", arguments=arguments)


def test_whole_body() -> None:
    """A request with everything gives exactly this body."""
    request = ModelRequest(
        "Be brief.",
        [
            UserMessage(content="Read a."),
            called(call(path="ä"), text="Yes."),
            result("c1"),
            UserMessage(content="And?"),
        ],
        [READ],
        {"temperature": 0, "max_tokens": 5},
        "low",
    )
    assert body(request) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Read a."},
            {
                "role": "assistant",
                "content": "Yes.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"ä"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "user", "content": "And?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "read", "description": "Read a file.", "parameters": READ.parameters},
            }
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "max_tokens": 5,
        "temperature": 0,
    }


def test_bytes_are_the_same_every_time() -> None:
    """Two models, and options in another order, give the same bytes: compact, and non-ASCII raw."""
    first = MODEL.payload(asking("Grüße \u2028", options={"seed": 1, "top_p": 0.5}))
    again = OpenAIChatModel("m", base_url="http://other/v1").payload(
        asking("Grüße \u2028", options={"top_p": 0.5, "seed": 1})
    )
    assert first == again
    assert "Grüße \u2028".encode() in first
    assert b'": ' not in first


def test_options_of_the_request_win() -> None:
    """What a request sets wins over what the model sets; the rest of both goes out."""
    model = OpenAIChatModel("m", base_url="http://h/v1", options={"seed": 1, "top_p": 0.5})
    sent = body(asking(options={"seed": 2}), model)
    assert (sent["seed"], sent["top_p"]) == (2, 0.5)


@pytest.mark.parametrize("name", ["model", "messages", "tools", "stream", "stream_options"])
def test_options_that_are_not_the_callers(name: str) -> None:
    """An option cannot replace what the request itself says."""
    with pytest.raises(ModelError, match=name):
        MODEL.payload(asking(options={name: 1}))


def test_calls_alone_leave_content_out() -> None:
    """A reply of calls alone has no content at all: one server in use fails on null."""
    sent = body(request_of(UserMessage(content="a"), called(call()), result("c1")))["messages"][1]
    assert "content" not in sent


@pytest.mark.parametrize("content", ["", " \n", None, [], [TextContent(text="")], [TextContent(text=" ")]])
def test_no_empty_text(content: Any) -> None:
    """Blank messages and results are sent as a placeholder, so that no block is empty and the order of roles stays."""
    request = ModelRequest(" \n", [UserMessage(content=content), called(call()), result("c1", content)])
    sent = body(request)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert (sent[0]["content"], sent[2]["content"]) == (EMPTY_MESSAGE, EMPTY_RESULT)


@pytest.mark.parametrize(
    "content", [[], None, [TextContent(text="")], [TextContent(text=" \n")], [ThinkingContent(thinking="hm")]]
)
def test_replies_with_nothing_to_send_are_left_out(content: Any) -> None:
    """A reply of blanks or thinking alone is not sent."""
    sent = body(request_of(UserMessage(content="a"), AssistantMessage(content=content), UserMessage(content="b")))
    assert [message["role"] for message in sent["messages"]] == ["user", "user"]


def test_content_parts_and_images() -> None:
    """Several parts go as a list, images as data URLs; a single text goes as a plain string."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    parts = [TextContent(text="Look:"), TextContent(text=""), image]
    assert body(request_of(UserMessage(content=parts)))["messages"][0]["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]
    assert body(request_of(UserMessage(content=[TextContent(text="a")])))["messages"][0]["content"] == "a"


def test_images_of_results_follow_the_last_result() -> None:
    """A tool's message cannot hold an image: they follow as the user's, after all results of the reply."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    sent = body(
        request_of(
            UserMessage(content="a"),
            called(call("c1"), call("c2")),
            result("c1", [image]),
            result("c2", [TextContent(text="one"), TextContent(text="two")]),
        )
    )["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[2]["content"].strip()
    assert sent[3]["content"] == "one\ntwo"
    assert sent[4]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    ("data", "told", "sent"),
    [
        ("/9j/4AAQ", "image/png", "image/jpeg"),
        ("AAAA", "image/png", "image/png"),
        ("PHN2Zz4=", "image/svg+xml", None),
        ("AAAA", "application/pdf", None),
        ("", "image/png", None),
    ],
)
def test_the_type_of_an_image(data: str, told: str, sent: str | None) -> None:
    """An image is sent as what its bytes are; what no vendor takes is told in words, in messages and in results."""
    image = ImageContent(data=data, mime_type=told)
    messages = body(
        request_of(UserMessage(content=[image]), called(call("c1")), result("c1", [image]), UserMessage(content="b"))
    )["messages"]
    shown = json.dumps(messages)
    assert shown.count(f"data:{sent};base64,{data}") == (2 if sent else 0)
    assert ("cannot be shown" in shown) is (sent is None)


def test_a_model_that_sees_nothing() -> None:
    """With ``images=False`` words stand for every image, so that a history with images goes to a model of text alone."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    request = request_of(
        UserMessage(content=[TextContent(text="Look:"), image]), called(call("c1")), result("c1", [image])
    )
    blind = OpenAIChatModel("m", base_url="http://127.0.0.1:1/v1", api_key="k", images=False)
    sent = body(request, blind)["messages"]
    assert "image_url" not in json.dumps(sent)
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert "image/png" in sent[2]["content"]


@pytest.mark.parametrize(
    ("name", "sent"), [("read", "read"), ("my.tool", "my.tool"), ("functions.read", "functions_read"), ("", "_")]
)
def test_names_that_are_refused(name: str, sent: str) -> None:
    """A model can call a tool by any name; what goes back is one that the API takes, or the name of a tool on offer."""
    request = request_of(
        UserMessage(content="a"),
        called(ToolCall(id="c1", name=name, arguments={})),
        result("c1"),
        tools=[ToolSchema("my.tool", "", {})],
    )
    assert body(request)["messages"][1]["tool_calls"][0]["function"]["name"] == sent


def test_roles_that_alternate() -> None:
    """With ``alternate_roles`` neighbours are one message, their texts and images in order; calls and results stay."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    request = request_of(
        UserMessage(content="a"),
        UserMessage(content="b"),
        UserMessage(content=[image]),
        called(text="x"),
        called(call("c1"), text="y"),
        result("c1", [image]),
        UserMessage(content="c"),
        options={"alternate_roles": True},
    )
    sent = body(request)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert [part.get("text") for part in sent[0]["content"]] == ["a\n\nb", None]
    assert sent[1]["content"] == "x\n\ny"
    assert sent[1]["tool_calls"]
    assert [part.get("text") for part in sent[3]["content"]][-1] == "c"


def test_arguments_that_were_no_object_are_not_sent() -> None:
    """What a model sent as broken JSON goes back as an empty object, which no server refuses."""
    broken = ToolCall(id="c1", name="read", arguments={}, raw_arguments='{"path": "a')
    sent = body(request_of(UserMessage(content="a"), called(broken), result("c1")))
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_surrogates_are_valid_utf8() -> None:
    """Half a character becomes U+FFFD, a pair of halves the character; also in arguments."""
    request = request_of(
        UserMessage(content="a\ud83d b\ud83d\ude00"), called(call(path="\udc88")), result("c1", "\ud83d")
    )
    sent = json.loads(MODEL.payload(request).decode("utf-8", "strict"))["messages"]
    assert sent[0]["content"] == "a\ufffd b\U0001f600"
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"path": "\ufffd"}


def test_nan_is_refused() -> None:
    """A NaN anywhere is an error, not the bare word on the wire."""
    with pytest.raises(ModelError, match="JSON"):
        MODEL.payload(asking(options={"temperature": math.nan}))


@pytest.mark.parametrize("ids", [("", ""), ("call_0", "call_0"), ("x" * 60, "x" * 60), ("a b", "ä")])
def test_ids_on_the_wire_are_unique_and_usable(ids: tuple[str, str]) -> None:
    """Ids that are empty, repeated or too long are replaced on the copy that is sent; pairs stay pairs, by place."""
    request = request_of(
        UserMessage(content="a"),
        called(call(ids[0], path="1"), call(ids[1], path="2")),
        result(ids[0], "one"),
        result(ids[1], "two"),
        called(call("call_0", path="3")),
        result("call_0", "three"),
    )
    sent = body(request)["messages"]
    calls = [entry["id"] for message in sent for entry in message.get("tool_calls", ())]
    answers = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert calls == answers
    assert len(set(calls)) == 3
    assert all(0 < len(call_id) <= 40 for call_id in calls)
    assert MODEL.payload(request) == MODEL.payload(request)


def test_good_ids_stay() -> None:
    """An id that is usable and new goes out as it is."""
    sent = body(request_of(UserMessage(content="a"), called(call("call_Ab-1")), result("call_Ab-1")))["messages"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "call_Ab-1"


def test_a_result_without_a_call_is_refused() -> None:
    """The builder of the context pairs calls and results; what is not paired is an error here, before it is sent."""
    with pytest.raises(ModelError, match="c9"):
        MODEL.payload(request_of(UserMessage(content="a"), result("c9")))


def test_other_roles_are_refused() -> None:
    """A message of a role that no model takes is named with its place."""
    with pytest.raises(ModelError, match="1 has the role 'custom'"):
        MODEL.payload(request_of(UserMessage(content="a"), CustomMessage(custom_type="x", content="y")))


def test_nothing_to_send_is_refused() -> None:
    """A request without messages is refused here, whatever the system prompt."""
    with pytest.raises(ModelError, match="nothing to send"):
        MODEL.payload(ModelRequest("Be brief.", []))


def test_thinking_stays_home_unless_it_is_wanted() -> None:
    """Reasoning goes back only where it was asked for, and only to the model that made it."""
    thought = ThinkingContent(thinking="hm", thinking_signature="reasoning_content")
    said = AssistantMessage(content=[thought, TextContent(text="Yes.")], provider="openai", model="m")
    request = request_of(UserMessage(content="a"), said)
    wants = OpenAIChatModel("m", base_url="http://h/v1", return_reasoning=True)
    other = OpenAIChatModel("n", base_url="http://h/v1", return_reasoning=True)
    assert "reasoning_content" not in body(request)["messages"][1]
    assert "reasoning_content" not in body(request, other)["messages"][1]
    assert body(request, wants)["messages"][1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "hm",
    }


@pytest.mark.parametrize(("level", "sent"), [(None, None), ("off", None), ("high", "high")])
def test_thinking_level(level: str | None, sent: str | None) -> None:
    """A thinking level is sent as the reasoning effort; off and none are not sent."""
    assert body(asking(thinking_level=level)).get("reasoning_effort") == sent


@given(histories(), st.booleans(), st.booleans(), st.booleans())
def test_nothing_that_is_refused_goes_out(
    messages: list[Message], has_tools: bool, images: bool, alternate: bool
) -> None:
    """Whatever the history, the vendor's own rules have nothing to say against the body; or there is nothing to send."""
    options = {"images": images, "alternate_roles": alternate}
    request = ModelRequest("Be brief.", messages, [READ] if has_tools else [], options)
    if not any(is_sendable(message) for message in messages):
        with pytest.raises(ModelError, match="nothing to send"):
            MODEL.payload(request)
        return
    sent = body(request)
    assert refused(sent) == []
    if alternate:
        roles = [message["role"] for message in sent["messages"]]
        assert ("user", "user") not in set(pairwise(roles))
    if not images:
        assert "image_url" not in json.dumps(sent)
