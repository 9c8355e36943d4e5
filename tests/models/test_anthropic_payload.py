"""The body that goes out to Anthropic's API: pure, deterministic, and with nothing that it would refuse."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.models import ModelRequest
from harness.models.anthropic_payload import CONTINUED
from harness.models.payload_parts import EMPTY_MESSAGE, EMPTY_RESULT
from storage.errors import ModelError
from storage.messages import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    UserMessage,
)
from tests.models.anthropic_rules import refused
from tests.models.asking import READ, asking, request_of
from tests.models.asking_anthropic import body_of, call, called, claude, result, text, thought
from tests.models.histories import PNG, histories, is_sendable


def user(content: Any = "Hello?") -> UserMessage:
    return UserMessage(content=content)


def block_types(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def test_whole_body() -> None:
    """A request with everything gives exactly this body: the system prompt beside the messages, results as the user's."""
    request = ModelRequest(
        "Be brief.",
        [user("Read a."), called(text("Yes."), call(path="ä")), result(), user("And?")],
        [READ],
        {"temperature": 0, "max_tokens": 5000},
        "low",
    )
    assert body_of(request) == {
        "model": "claude-opus-4-6",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read a."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Yes."},
                    {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "ä"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "done"}]},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "read", "description": "Read a file.", "input_schema": READ.parameters}],
        "stream": True,
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "low"},
        "max_tokens": 5000,
        "temperature": 0,
    }


def test_bytes_are_the_same_every_time() -> None:
    """Two models, and options in another order, give the same bytes: compact, and non-ASCII raw."""
    first = claude().payload(asking("Grüße \u2028", options={"seed": 1, "top_p": 0.5}))
    again = claude(base_url="http://other", api_key="another").payload(
        asking("Grüße \u2028", options={"top_p": 0.5, "seed": 1})
    )
    assert first == again
    assert "Grüße \u2028".encode() in first
    assert b'": ' not in first


def test_the_request_is_not_changed() -> None:
    """Making a payload leaves the request as it was: made twice it is the same, marks and merges included."""
    request = request_of(user("a"), user("b"), called(call("x y")), result("x y"), user("c"))
    before = [message.model_dump() for message in request.messages]
    assert claude().payload(request) == claude().payload(request)
    assert [message.model_dump() for message in request.messages] == before


def test_the_longest_reply() -> None:
    """``max_tokens`` always goes out: the request's own, else the option of the model, else its setting."""
    assert body_of(asking())["max_tokens"] > 0
    model = claude(max_tokens=7, options={"top_k": 1})
    assert (body_of(asking(), model)["max_tokens"], body_of(asking(), model)["top_k"]) == (7, 1)
    assert body_of(asking(options={"max_tokens": 3}), model)["max_tokens"] == 3


@pytest.mark.parametrize("name", ["model", "messages", "system", "tools", "stream"])
def test_options_that_are_not_the_callers(name: str) -> None:
    """An option cannot replace what the request itself says."""
    with pytest.raises(ModelError, match=name):
        claude().payload(asking(options={name: 1}))


@pytest.mark.parametrize("content", ["", " \n", None, [], [TextContent(text="")], [TextContent(text=" ")]])
def test_no_empty_text(content: Any) -> None:
    """Blank messages and results are sent as a placeholder, blank system prompts not at all."""
    sent = body_of(ModelRequest(" \n", [user(content), called(call()), result("c1", content)], [READ]))
    assert refused(sent) == []
    assert "system" not in sent
    assert sent["messages"][0]["content"][0]["text"] == EMPTY_MESSAGE
    assert sent["messages"][2]["content"][0]["content"][0]["text"] == EMPTY_RESULT


@pytest.mark.parametrize("content", [[], None, [text("")], [text(" \n")], [thought(signature=None)]])
def test_replies_with_nothing_to_send_are_left_out(content: Any) -> None:
    """A reply with nothing in it is not sent, and the users' messages around it become one."""
    sent = body_of(request_of(user("a"), AssistantMessage(content=content), user("b")))
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


def test_neighbours_of_one_role_are_merged() -> None:
    """Two messages of a role become one, their blocks in order."""
    replies = [AssistantMessage(content=[text(value)]) for value in ("b", "c")]
    sent = body_of(request_of(user("a"), *replies, user("d"), user("e")))["messages"]
    assert [(m["role"], [block["text"] for block in m["content"]]) for m in sent] == [
        ("user", ["a"]),
        ("assistant", ["b", "c"]),
        ("user", ["d", "e"]),
    ]


def test_results_come_first() -> None:
    """All results of a reply are in the one next message, in order, before everything else in it."""
    sent = body_of(
        ModelRequest(
            None, [user(), called(call("c1"), call("c2")), result("c1", [PNG]), user("steer"), result("c2")], [READ]
        )
    )
    assert block_types(sent["messages"][2]) == ["tool_result", "tool_result", "text"]
    assert [block["tool_use_id"] for block in sent["messages"][2]["content"][:2]] == ["c1", "c2"]
    assert refused(sent) == []


@pytest.mark.parametrize("messages", [[AssistantMessage(content=[text("a ")])], [user(), called(text("a"))]])
def test_the_user_has_the_first_word_and_the_last(messages: list[Message]) -> None:
    """Where a reply stands at the beginning or the end, a placeholder of the user's stands before or behind it."""
    sent = body_of(request_of(*messages))
    assert refused(sent) == []
    assert sent["messages"][-1]["content"] == [{"type": "text", "text": CONTINUED}]


def test_images() -> None:
    """Images go as base64, in messages and in results."""
    source = {"type": "base64", "media_type": "image/png", "data": PNG.data}
    sent = body_of(ModelRequest(None, [user([text("Look:"), PNG]), called(call()), result("c1", [PNG])], [READ]))
    assert sent["messages"][0]["content"] == [{"type": "text", "text": "Look:"}, {"type": "image", "source": source}]
    assert sent["messages"][2]["content"][0]["content"] == [{"type": "image", "source": source}]


@pytest.mark.parametrize(
    ("data", "told", "sent"),
    [
        ("/9j/4AAQ", "image/png", "image/jpeg"),
        ("R0lGODlh", "image/jpg", "image/gif"),
        ("UklGRgAA", "", "image/webp"),
        ("AAAA", "image/png", "image/png"),
        ("PHN2Zz4=", "image/svg+xml", None),
        ("", "image/png", None),
    ],
)
def test_the_type_of_an_image(data: str, told: str, sent: str | None) -> None:
    """An image is sent as what its bytes are; one of a kind that the API does not know is told in words."""
    (block,) = body_of(request_of(user([ImageContent(data=data, mime_type=told)])))["messages"][0]["content"]
    assert (block["source"]["media_type"] if block["type"] == "image" else None) == sent
    assert sent or "cannot be shown" in block["text"]


def test_an_error_with_an_image() -> None:
    """An error result may hold text alone: its images follow it."""
    failed = result("c1", [text("no"), PNG], is_error=True)
    sent = body_of(ModelRequest(None, [user(), called(call()), failed], [READ]))
    assert block_types(sent["messages"][2]) == ["tool_result", "text", "image"]
    assert sent["messages"][2]["content"][0]["is_error"] is True
    assert refused(sent) == []


def test_arguments_that_were_no_object_are_not_sent() -> None:
    """What a model sent as broken JSON goes back as an empty object, which is not refused."""
    broken = ToolCall(id="c1", name="read", arguments={}, raw_arguments='{"path": "a')
    sent = body_of(request_of(user(), called(broken), result()))
    assert sent["messages"][1]["content"][0]["input"] == {}


def test_surrogates_are_valid_utf8() -> None:
    """Half a character becomes U+FFFD, a pair of halves the character; also in arguments."""
    request = request_of(user("a\ud83d b\ud83d\ude00"), called(call(path="\udc88")), result("c1", "\ud83d"))
    sent = json.loads(claude().payload(request).decode("utf-8", "strict"))["messages"]
    assert sent[0]["content"][0]["text"] == "a\ufffd b\U0001f600"
    assert sent[1]["content"][0]["input"] == {"path": "\ufffd"}


def test_nan_is_refused() -> None:
    """A NaN anywhere is an error, not the bare word on the wire."""
    with pytest.raises(ModelError, match="JSON"):
        claude().payload(asking(options={"temperature": math.nan}))


@pytest.mark.parametrize("ids", [("", ""), ("call_0", "call_0"), ("x" * 70, "x" * 70), ("a b", "ä"), ("a.b", "a:b")])
def test_ids_on_the_wire_are_unique_and_legal(ids: tuple[str, str]) -> None:
    """Ids that are empty, repeated or of another alphabet are replaced on the copy that is sent; pairs stay pairs."""
    request = ModelRequest(
        None,
        [
            user(),
            called(call(ids[0], path="1"), call(ids[1], path="2")),
            result(ids[0], "one"),
            result(ids[1], "two"),
            called(call("call_0", path="3")),
            result("call_0", "three"),
        ],
        [READ],
    )
    sent = body_of(request)
    assert refused(sent) == []
    answers = [block["content"][0]["text"] for m in sent["messages"][2::2] for block in m["content"]]
    assert answers == ["one", "two", "three"]


def test_good_ids_stay() -> None:
    """An id that is legal and new goes out as it is."""
    sent = body_of(request_of(user(), called(call("toolu_01-Ab")), result("toolu_01-Ab")))["messages"]
    assert sent[1]["content"][0]["id"] == sent[2]["content"][0]["tool_use_id"] == "toolu_01-Ab"


@pytest.mark.parametrize("name", ["", "read file", "ä" * 200, "functions.read"])
def test_names_of_tools_are_legal(name: str) -> None:
    """A tool that a model called by a name which cannot be one is sent under one that can."""
    assert refused(body_of(ModelRequest(None, [user(), called(call("c1", name)), result()], [READ]))) == []


def test_calls_of_the_past_need_tools() -> None:
    """Where the history has calls and the request no tools, those are declared, and forbidden."""
    sent = body_of(
        request_of(user(), called(call("c1"), call("c2"), call("c3", "list")), *map(result, ("c1", "c2", "c3")))
    )
    assert [tool["name"] for tool in sent["tools"]] == ["read", "list"]
    assert sent["tool_choice"] == {"type": "none"}
    assert "tools" not in body_of(asking())
    assert "tool_choice" not in body_of(ModelRequest(None, [user(), called(call()), result()], [READ]))


def test_what_is_not_paired_is_refused() -> None:
    """A result without a call, a message of a role that no model takes, and a request without messages are errors."""
    with pytest.raises(ModelError, match="c9"):
        claude().payload(request_of(user(), result("c9")))
    with pytest.raises(ModelError, match="1 has the role 'custom'"):
        claude().payload(request_of(user(), CustomMessage(custom_type="x", content="y")))
    with pytest.raises(ModelError, match="nothing to send"):
        claude().payload(ModelRequest("Be brief.", []))


def marks(sent: dict[str, Any]) -> list[str]:
    """Where the cache's marks are."""
    found = ["system"] if "cache_control" in str(sent.get("system")) else []
    for place, message in enumerate(sent["messages"]):
        found += [f"{place}.{i}" for i, block in enumerate(message["content"]) if "cache_control" in block]
    return found


def test_marks_for_the_cache() -> None:
    """The system prompt and the last two user messages are marked: each request finds the bytes of the one before."""
    turns: list[Message] = [user("a"), called(call("c1"), call("c2")), result("c1"), result("c2")]
    first = json.loads(claude().payload(ModelRequest("Be brief.", turns, [READ])))
    turns += [AssistantMessage(content=[text("b")]), user("c")]
    second = json.loads(claude().payload(ModelRequest("Be brief.", turns, [READ])))
    assert (marks(first), marks(second)) == (["system", "0.0", "2.1"], ["system", "2.1", "4.0"])
    assert b"cache_control" not in claude(prompt_caching=False).payload(ModelRequest("Be brief.", turns, [READ]))


@given(
    histories(), st.booleans(), st.sampled_from([None, "low"]), st.sampled_from(["claude-opus-4-6", "claude-opus-4-5"])
)
def test_nothing_that_is_refused_goes_out(
    messages: list[Message], has_tools: bool, level: str | None, model_id: str
) -> None:
    """Whatever the history, the vendor's own rules have nothing to say against the body; or there is nothing to send."""
    request = ModelRequest("Be brief.", messages, [READ] if has_tools else [], thinking_level=level)
    if not any(is_sendable(message) for message in messages):
        with pytest.raises(ModelError, match="nothing to send"):
            claude(model_id).payload(request)
        return
    assert refused(json.loads(claude(model_id).payload(request))) == []
