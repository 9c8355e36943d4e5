"""A typed function is a tool: its schema, its arguments, where it runs."""

from __future__ import annotations

import functools
import json
import threading
import warnings
from enum import Enum
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
import pytest
from pydantic import BaseModel, Field

from harness.tools import Tool, ToolContext, ToolOutput, as_tools, tool
from storage.errors import ToolError

pytestmark = pytest.mark.anyio


class Unit(Enum):
    METRIC = "metric"


class Place(BaseModel):
    city: str
    unit: Unit = Unit.METRIC


def weather(  # noqa: D417
    context: ToolContext, place: Place, days: int = 1, *, schema: Literal["a", "b"] = "a", _odd: str = ""
) -> str:
    """Tell the weather.

    Of the next days.

    Args:
        place: where
        days: how many days
    """
    return f"{place.city} {place.unit.value} {days} {schema} {context.call_id}"


def test_signature_and_docstring_give_the_schema() -> None:
    """Types, defaults and descriptions are in the JSON schema; the context is not."""
    made = tool(weather)
    assert made.name == "weather"
    assert made.description == "Tell the weather.\n\nOf the next days."
    properties = made.parameters["properties"]
    assert list(properties) == ["place", "days", "schema", "_odd"]
    assert properties["days"] == {"default": 1, "description": "how many days", "type": "integer"}
    assert properties["place"]["description"] == "where"
    assert made.parameters["required"] == ["place"]
    assert made.parameters["additionalProperties"] is False
    assert "title" not in json.dumps(properties)


@pytest.mark.parametrize(
    "docstring",
    [
        "Sum.\n\nArgs:\n    number: the number to add\n",
        "Sum.\n\nParameters\n----------\nnumber : int\n    the number to add\n",
        "Sum.\n\n:param number: the number to add\n",
    ],
    ids=["google", "numpy", "rest"],
)
def test_parameter_descriptions_in_each_style(docstring: str) -> None:
    """Google, NumPy and reST docstrings are read."""

    def add(number: int) -> int:
        return number

    add.__doc__ = docstring
    made = tool(add)
    assert made.description == "Sum."
    assert made.parameters["properties"]["number"]["description"] == "the number to add"


def test_annotated_description_wins() -> None:
    """A description in the annotation is taken before the docstring's."""

    def add(number: Annotated[int, Field(description="from the annotation")]) -> int:
        """Sum.

        Args:
            number: from the docstring
        """
        return number

    assert tool(add).parameters["properties"]["number"]["description"] == "from the annotation"


async def test_arguments_are_validated_into_types() -> None:
    """Models, enums and keyword-only parameters arrive as what they are annotated to be."""
    made = tool(weather)
    prepared = made.prepare({"place": {"city": "Bern"}, "days": "3", "schema": "b"})
    assert await made.execute(prepared, ToolContext(call_id="c1")) == "Bern metric 3 b c1"


def test_invalid_arguments_are_told_in_the_validators_words() -> None:
    """Each problem is one line with the place it is about, and nothing runs."""
    with pytest.raises(ToolError) as caught:
        tool(weather).prepare({"place": {"city": 3}, "days": "many", "colour": "red"})
    message = caught.value.message
    assert "place.city: Input should be a valid string (given: 3)" in message
    assert "days: Input should be a valid integer, unable to parse string as an integer (given: 'many')" in message
    assert "colour: Extra inputs are not permitted (given: 'red')" in message
    with pytest.raises(ToolError, match="place: Field required"):
        tool(weather).prepare({})


def test_arguments_with_lone_surrogates_are_replaced() -> None:
    """Half an emoji in the arguments is U+FFFD in the tool, as it is in the record."""

    def say(text: str) -> str:
        return text

    assert tool(say).prepare({"text": "\ud83d"}) == ["\ufffd"]


def _untyped(number) -> int:  # type: ignore[no-untyped-def]
    return number


def _variable(*numbers: int) -> int:
    return sum(numbers)


def _unknown_type(stream: threading.Thread) -> str:
    return str(stream)


def _context_last(number: int, context: ToolContext) -> int:
    return number


def _generator(number: int) -> Any:
    yield number


async def _asynchronous_generator(number: int) -> Any:
    yield number


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_untyped, "'number' needs a type annotation"),
        (_variable, r"\*numbers"),
        (_unknown_type, "no JSON schema"),
        (_context_last, "must be its first parameter"),
        (_generator, "generator"),
        (_asynchronous_generator, "generator"),
        (print, "sep|annotation|signature|fill"),
    ],
)
def test_functions_that_give_no_schema_are_refused(function: Any, says: str) -> None:
    """A function that cannot be a tool is refused when the tool is made, naming the reason."""
    with pytest.raises(ToolError, match=says):
        tool(function)


def test_an_annotation_that_is_nowhere_is_named() -> None:
    """A type that cannot be found is named, with what to do about it."""

    def use(number: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
        return number

    with pytest.raises(ToolError, match="names 'Nowhere'.*define or import it"):
        tool(use)


def test_annotations_may_be_local() -> None:
    """A tool written inside a function may use the types of that function."""

    class Local(BaseModel):
        number: int

    def use(local: Local, place: Place) -> int:
        return local.number

    assert tool(use).prepare({"local": {"number": 3}, "place": {"city": "Ulm"}})[0] == Local(number=3)


def test_names_are_checked() -> None:
    """A vendor takes only letters, digits, '_' and '-' in a name; two tools of one name are refused."""
    with pytest.raises(ToolError, match="invalid tool name 'no way'"):
        tool(name="no way")(weather)
    with pytest.raises(ToolError, match="two tools are named 'weather'"):
        as_tools([weather, tool(weather)])
    with pytest.raises(ToolError, match="timeout"):
        tool(timeout=0)(weather)


def test_a_default_that_json_cannot_hold_is_no_obstacle() -> None:
    """It is left out of the schema, without a warning."""

    def use(number: int | None = None, unit: Unit = Unit.METRIC, odd: Any = object()) -> str:  # noqa: B008
        return f"{number} {unit}"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tool(use).parameters["properties"]["odd"] == {}


async def test_methods_partials_and_objects_are_tools() -> None:
    """Bound methods, partial functions and callable objects work, with their own names."""

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def count_up(self, by: int) -> int:
            self.count += by
            return self.count

    class Doubler:
        async def __call__(self, number: int) -> int:
            """Double it."""
            return number * 2

    counter = tool(Counter().count_up)
    assert counter.name == "count_up"
    assert await counter.execute(counter.prepare({"by": 2}), ToolContext()) == 2
    fixed = tool(name="fixed")(functools.partial(weather, days=9))
    assert "days" in fixed.parameters["properties"]
    assert await fixed.execute(fixed.prepare({"place": {"city": "Ulm"}}), ToolContext()) == "Ulm metric 9 a "
    doubler = tool(Doubler())
    assert (doubler.name, doubler.description) == ("Doubler", "Double it.")
    assert await doubler.execute(doubler.prepare({"number": 2}), ToolContext()) == 4


async def test_synchronous_functions_leave_the_event_loop() -> None:
    """A synchronous tool runs in a thread, an asynchronous one on the loop; a returned awaitable is awaited."""

    def where() -> int:
        return threading.get_ident()

    async def here() -> int:
        return threading.get_ident()

    threaded, looped = tool(where), tool(here)
    assert await threaded.execute(threaded.prepare({}), ToolContext()) != threading.get_ident()
    assert await looped.execute(looped.prepare({}), ToolContext()) == threading.get_ident()
    wrapped = tool(name="wrapped")(lambda: here())
    assert await wrapped.execute(wrapped.prepare({}), ToolContext()) == threading.get_ident()


async def test_tools_have_threads_of_their_own() -> None:
    """An app that uses up anyio's default threads does not stop the tools."""
    release = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()

    def quick() -> str:
        return "done"

    made = tool(quick)
    async with anyio.create_task_group() as group:
        for _ in range(int(limiter.total_tokens)):
            group.start_soon(anyio.to_thread.run_sync, release.wait)
        await anyio.wait_all_tasks_blocked()
        assert limiter.available_tokens == 0
        with anyio.fail_after(60):
            assert await made.execute([], ToolContext()) == "done"
        release.set()


async def test_a_cancelled_thread_is_told() -> None:
    """Cancelling a synchronous tool does not wait for its thread, which can see that nobody waits any more."""
    stopped = threading.Event()
    begun = threading.Event()

    def work(context: ToolContext) -> None:
        begun.set()
        while not context.cancelled:
            threading.Event().wait(0.005)
        stopped.set()

    made = tool(work)

    async def run() -> None:
        await made.execute([], ToolContext())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        assert await anyio.to_thread.run_sync(begun.wait, 60)
        group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(stopped.wait, 60)


def test_tools_made_by_hand_get_a_copy_of_their_arguments() -> None:
    """A ``Tool`` object takes its arguments as they are, and cannot change the record through them."""

    async def echo(arguments: Any, context: ToolContext) -> ToolOutput:
        return ToolOutput(arguments)

    made = Tool("echo", "Echo.", {"type": "object"}, echo)
    arguments = {"list": [1]}
    prepared = made.prepare(arguments)
    prepared["list"].append(2)
    assert arguments == {"list": [1]}
    assert made.schema.name == "echo"
