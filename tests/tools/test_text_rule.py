"""What a tool returns becomes text by one rule, whatever it is."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import pathlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, Field, SecretStr, field_serializer

from harness.tools.text import cut_text, exception_text, to_content, to_plain, to_text
from storage.entries import MessageEntry
from storage.messages import ImageContent, TextContent, ToolResultMessage
from storage.strict_json import encode_model


class Pair(NamedTuple):
    left: int
    right: int


class Colour(enum.Enum):
    RED = "red"
    NUMBERS = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    y: object


class Account(BaseModel):
    name: str
    password: SecretStr
    shown_as: int = Field(serialization_alias="shownAs")
    hidden: str = Field(default="never", exclude=True)

    @field_serializer("name")
    def _mask(self, name: str) -> str:
        return name.upper()


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Liar:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("who knows")

    @__class__.setter
    def __class__(self, value: object) -> None: ...


class Plain:
    pass


class Spoken:
    def __str__(self) -> str:
        return "spoken"


class Endless(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        count = 0
        while True:
            yield f"key {count}"
            count += 1

    def __len__(self) -> int:
        return 1_000_000_000


class Scalar:
    def tolist(self) -> float:
        return 2.5


class ShoutingText(str):  # noqa: SLOT000
    def __str__(self) -> str:
        return "something else"


def cyclic_list() -> list[object]:
    value: list[object] = [1]
    value.append(value)
    return value


def cyclic_model() -> object:
    class Node(BaseModel):
        next: Any = None

    node = Node()
    node.next = node
    return node


def deep_list(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


MATRIX: list[tuple[object, str]] = [
    ("as it is\r\n\u2028", "as it is\r\n\u2028"),
    ("", ""),
    (ShoutingText("what it holds"), "what it holds"),
    ("half \ud83d and \udc88", "half \ufffd and \ufffd"),
    (None, "(no output)"),
    ([None], "[null]"),
    (True, "true"),
    (7, "7"),
    (0.5, "0.5"),
    (float("nan"), "NaN"),
    ({"a": float("nan"), "b": -float("inf")}, '{"a": "NaN", "b": "-Infinity"}'),
    (10**5000, "<an integer of about 5,000 digits>"),
    (dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC), "2024-02-29T12:30:00Z"),
    (dt.date(2024, 2, 29), "2024-02-29"),
    (dt.time(1, 2, 3), "01:02:03"),
    (dt.timedelta(days=1, seconds=2), "P1DT2S"),
    (decimal.Decimal("1.10"), "1.10"),
    (decimal.Decimal("NaN"), "NaN"),
    (Fraction(1, 3), "1/3"),
    (1 + 2j, "(1+2j)"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (pathlib.PurePosixPath("/a/b"), "/a/b"),
    (Colour.RED, "red"),
    (Colour.NUMBERS, "[1, 2]"),
    (Level.HIGH, "3"),
    (b"plain \xc3\xa9", "plain é"),
    (b"\xff\x00", '{"bytes": 2, "base64": "/wA="}'),
    (bytearray(b"ab"), "ab"),
    (memoryview(b"abcd")[::2], "ac"),
    ({"data": b"\x00"}, '{"data": {"bytes": 1, "base64": "AA=="}}'),
    ({3, 1, 2}, "[1, 2, 3]"),
    (frozenset({"b", "a"}), '["a", "b"]'),
    ((1, "é"), '[1, "é"]'),
    (deque([1, 2]), "[1, 2]"),
    (range(3), "[0, 1, 2]"),
    ({"a": 1}.keys(), '["a"]'),
    ({"a": 1}.items(), '[["a", 1]]'),
    (MappingProxyType({"a": 1}), '{"a": 1}'),
    (Point(1, {2}), '{"x": 1, "y": [2]}'),
    (Pair(1, 2), '{"left": 1, "right": 2}'),
    (
        Account(name="ann", password=SecretStr("hunter2"), shown_as=1),
        '{"name": "ANN", "password": "**********", "shownAs": 1}',
    ),
    ({1: "number", "1": "text"}, '[[1, "number"], ["1", "text"]]'),
    ({(1, 2): 3, None: 4, True: 5, 2.5: 6}, '{"[1, 2]": 3, "null": 4, "true": 5, "2.5": 6}'),
    ({"\ud800": "\ud800"}, '{"\ufffd": "\ufffd"}'),
    (cyclic_list(), '[1, "<cycle>"]'),
    (cyclic_model(), '{"next": {"next": "<cycle>"}}'),
    ([[1], [1]], "[[1], [1]]"),
    (Scalar(), "2.5"),
    (Spoken(), "spoken"),
    (Plain(), f"<{__name__}.Plain>"),
    ([Unprintable(), 1], '["<Unprintable: cannot be shown (RuntimeError)>", 1]'),
    (Liar(), "<Liar: cannot be shown (RuntimeError)>"),
    (Point, "<type Point>"),
    (deep_list, "<function deep_list>"),
    (ValueError("no such row"), "ValueError: no such row"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
]


@pytest.mark.parametrize(
    ("value", "text"), MATRIX, ids=[f"{place}-{type(value).__name__}" for place, (value, _) in enumerate(MATRIX)]
)
def test_each_kind_of_value_has_its_text(value: object, text: str) -> None:
    """The rule of ``harness.tools.text``, line by line; and what it gives can be recorded."""
    content = to_content(value)
    assert content == text
    result = ToolResultMessage(tool_call_id="c", tool_name="t", content=content, details=to_plain(value))
    written = json.loads(encode_model(MessageEntry(message=result)))
    assert written["message"]["content"] == text


def test_a_value_that_holds_itself_as_a_function_does() -> None:
    """A tool that returns itself gives a name, not an address."""

    def itself() -> Callable[..., Any]:
        return itself

    assert to_text(itself()) == "<function test_a_value_that_holds_itself_as_a_function_does.<locals>.itself>"


def test_deep_values_end_in_a_mark() -> None:
    """Below 50 levels the rest is one mark, however deep it goes; no recursion error."""
    assert to_text(deep_list(100_000)).count("[") == 50
    assert "…" in to_text(deep_list(100_000))


@pytest.mark.parametrize(
    "value", [list(range(3_000_000)), Endless(), [["x" * 100] * 1000] * 1000, {"a": "x" * 5_000_000}]
)
def test_work_and_size_are_bounded(value: object) -> None:
    """Huge and endless values are cut to the limit, and in a moment."""
    begun = time.process_time()  # what else runs on this machine does not count
    text = to_text(value, limit=10_000)
    assert time.process_time() - begun < 2
    assert len(text) < 10_100
    assert "left out" in text or "…" in text


def test_cut_text_keeps_head_and_tail() -> None:
    """What is cut out of a text is its middle, and how much that was stands there."""
    text = cut_text("h" * 1000 + "t" * 1000, 100)
    assert text.startswith("h" * 75 + "\n[… 1,900 of 2,000 characters left out …]\n")
    assert text.endswith("\n" + "t" * 25)
    assert cut_text("short", 5) == "short"


def test_parts_stay_parts_and_are_cut_together() -> None:
    """Text and image parts are passed on as copies; their text is cut to one limit."""
    image = ImageContent(data="AAAA", mime_type="image/png")
    parts = [TextContent(text="a" * 80), image, TextContent(text="b" * 80)]
    content = to_content(parts, limit=100)
    assert isinstance(content, list)
    assert [part.type for part in content] == ["text", "image", "text"]
    assert content[1] == image and content[1] is not image
    last = content[2]
    assert isinstance(last, TextContent) and "left out" in (last.text or "")
    single = to_content(image)
    assert single == [image]
    assert to_content([]) == "[]"
    assert isinstance(to_content([image, "not a part"]), str)


def test_the_message_of_an_exception_may_fail_itself() -> None:
    """An exception whose text raises is still named."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Broken" in exception_text(BrokenError())
    assert "RuntimeError" in exception_text(BrokenError())


def test_a_group_tells_what_is_in_it() -> None:
    """Of groups in groups the innermost errors, in order; of many the first few; and however deep they are nested."""
    inner = ExceptionGroup("inner", [TypeError("two"), KeyError("three")])
    text = exception_text(ExceptionGroup("outer", [ValueError("one"), inner, OSError()]))
    assert (
        text == "ExceptionGroup: outer (3 sub-exceptions): ValueError: one; TypeError: two; KeyError: 'three'; OSError"
    )
    many = exception_text(ExceptionGroup("many", [ValueError(str(number)) for number in range(100_000)]))
    assert many.endswith("ValueError: 3; ValueError: 4; …")
    deep: Any = LookupError("at the bottom")
    for _ in range(5_000):
        deep = ExceptionGroup("level", [deep])
    assert exception_text(deep).endswith("LookupError: at the bottom")
