"""R21 without serialising: the message and its size straight out of the committed line, exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.characters import decoded_characters
from compaction.recorded_message import recorded_message
from storage.decode import decode_entry
from storage.entries import MessageEntry, RequestFacts
from storage.messages import AssistantMessage, Cost, Message, ThinkingContent, Usage
from storage.strict_json import encode_model
from tests.compaction.conversation import TIME, call, reply_message, result_message, user_message

TEXTS = [
    "plain",
    "",
    "漢字 😀 é",
    'quo"tes \\ back\\slash \\u0041 \\/',
    "line\nbreak\ttab",
    "\x00\x1f\x7f",
    "\u2028\u2029",
    "{}[],:",
]


def line_of(message: Message, seq: int = 7, **more: Any) -> bytes:
    return encode_model(MessageEntry(seq=seq, id="e", parent_id="p", timestamp=TIME, message=message, **more))


def check(line: bytes) -> None:
    entry = decode_entry(line)
    assert isinstance(entry, MessageEntry)
    read = recorded_message(line)
    if read is not None:
        assert read[0] == entry.message
        assert read[0].model_fields_set == entry.message.model_fields_set
        assert read[1] == decoded_characters(entry.message)


def messages(text: str) -> list[Message]:
    nested = {"message": {"role": "user"}, "request": {"a": text}, "n": [1, 2.5, None, True]}
    return [
        user_message(text),
        user_message(text).model_copy(update={"content": None}),
        reply_message(text, call("x", path=text, request={"a": {}}), provider="p", model="m"),
        reply_message(text, usage=Usage(input=1, output=2, total_tokens=3), response_id=text),
        reply_message(text, usage=Usage(input=1, cost=Cost(input=1, output=0.5))),
        AssistantMessage(content=[ThinkingContent(thinking=text, thinking_signature=text)], timestamp=1),
        result_message("c", text, details=nested),
        result_message("c", text, details={"request": {"a": {}}}),
    ]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_our_own_lines_are_read_exactly(text: str) -> None:
    """Same message and same size as by decoding the entry and serialising its message; and none takes the long way."""
    requests = [None, RequestFacts(header_id="h", projection=1, shown=[["a", "b"]]), RequestFacts(header_id=text)]
    for message in messages(text):
        for request in requests if isinstance(message, AssistantMessage) else requests[:1]:
            line = line_of(message, request=request)
            check(line)
            assert recorded_message(line) is not None


@given(
    text=st.text(), key=st.text(), number=st.floats(allow_nan=False, allow_infinity=False), seq=st.integers(0, 10**6)
)
@settings(max_examples=60, deadline=None)
def test_any_text_and_number_is_measured_exactly(text: str, key: str, number: float, seq: int) -> None:
    """Whatever JSON a message holds: the bytes tell the same size as serialising."""
    text, key = (value.encode("utf-8", "replace").decode() for value in (text, key))
    check(line_of(result_message("c", text, details={key: [number, seq, -seq], text: key}), seq=seq))


def spelled(line: bytes, **options: Any) -> bytes:
    return json.dumps(json.loads(line), **options).encode()


OTHERS = {
    "escaped": lambda line: spelled(line, separators=(",", ":")),
    "spaced": lambda line: spelled(line, ensure_ascii=False),
    "without seq": lambda line: b"{" + line.split(b",", 1)[1],
    "without seq, numbers otherwise": lambda line: b"{" + line.split(b",", 1)[1].replace(b"2.5,", b"2.50,"),
    "members behind": lambda line: line[:-1] + b',"more":{"message":{"role":"user","content":"no","timestamp":1}}}',
    "a request of another kind": lambda line: line[:-1] + b',"request":{"message":{"role":"user"}}}',
    "members before": lambda line: line.replace(b'"type"', b'"x":{"message":{"role":"user","content":"no"}},"type"', 1),
    "ignorable": lambda line: line.replace(b'"type"', b'"ignorable":true,"type"', 1),
    "slashes": lambda line: line.replace(b"plain", b"pl\\/ain"),
    "whole costs": lambda line: line.replace(b"1.0", b"1"),
    "surrogate": lambda line: line.replace(b"plain", b"\\ud800"),
    "no message": lambda line: line.replace(b'"role"', b'"r"'),
}


@pytest.mark.parametrize("spell", OTHERS.values(), ids=OTHERS)
def test_lines_that_others_spelled_are_measured_as_we_would_write_them(spell: Any) -> None:
    """Escapes, spaces, members we do not know, numbers written otherwise: exact, or by the long way."""
    for message in messages("plain é"):
        line = spell(line_of(message))
        if b'"role"' not in line:
            assert recorded_message(line) is None
        else:
            check(line)


@pytest.mark.parametrize(
    "line", [b"{}", b"[]", b"", b'{"seq":1}', b'{"seq":1,"message":{}}', b'{"seq":1,"message":{"role":"user"}}', b"{"]
)
def test_what_holds_no_message_is_left_to_the_long_way(line: bytes) -> None:
    """No error of its own: whoever decodes the entry says what is wrong."""
    assert recorded_message(line) is None
