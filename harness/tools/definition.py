"""A tool: a name, a description, a JSON schema, and something to run. Most are made of a typed function by ``tool``."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from harness.models.protocol import ToolSchema
from harness.tools.context import ToolContext
from harness.tools.functions import FunctionBody
from storage.errors import ToolError
from storage.messages import ImageContent, TextContent

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool may return to say more than its text: facts for the record (``details``), or that it failed.

    ``content`` and ``details`` may be anything: ``harness.tools.text`` says what becomes of them.
    """

    content: Any
    details: Any = None
    is_error: bool = False
    blobs: Sequence[str] = ()
    """Names of the blobs that the text points to (``ToolContext.keep`` gave them)."""


def copy_arguments(arguments: Mapping[str, Any]) -> Any:
    """A deep copy: the default of ``Tool.prepare``, for tools that look at their arguments themselves."""
    return json.loads(json.dumps(arguments))


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may call.

    ``execute(prepared, context)`` runs it on the event loop; what it returns becomes the text of the result by one rule
    (``harness.tools.text``), what it raises becomes an error result. It may be cancelled at any await.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of the arguments, an object."""
    execute: Callable[[Any, ToolContext], Awaitable[Any]]
    prepare: Callable[[Mapping[str, Any]], Any] = copy_arguments
    """Checks a call's arguments and gives what ``execute`` takes. Its ``ToolError`` is shown to the model."""
    parallel: bool = True
    """``False``: never beside another call of the same reply."""
    timeout: float | None = None
    """Seconds that a call may take, or ``None``."""
    needs_approval: bool | Callable[[Mapping[str, Any]], bool] = False
    """Whether a person decides before a call runs; or a function that says so for the call's arguments. It gets a copy
    that was checked by ``prepare``; if it raises, the call needs approval."""
    preview: Callable[[Mapping[str, Any]], str | None] | None = None
    """What a person is shown before deciding, such as a diff. Runs in a worker thread, and changes nothing."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ToolError(f"invalid tool name {self.name!r:.80}: use 1 to 64 letters, digits, '_' or '-'")
        timeout: object = self.timeout
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout > 0):  # NaN is not, either
            raise ToolError(
                f"tool {self.name!r}: timeout is {timeout!r:.100}; give a positive number of seconds, or None"
            )

    @property
    def schema(self) -> ToolSchema:
        """What a model is told about it."""
        return ToolSchema(self.name, self.description, self.parameters)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool = True,
    timeout: float | None = None,
    needs_approval: bool | Callable[[Mapping[str, Any]], bool] = False,
    preview: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool = True,
    timeout: float | None = None,
    needs_approval: bool | Callable[[Mapping[str, Any]], bool] = False,
    preview: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function; as ``tool(function)``, ``@tool`` or ``@tool(parallel=False, …)``.

    The signature gives the JSON schema (through pydantic), the docstring the description and those of the parameters
    (Google, NumPy or reST style; ``Annotated[…, Field(description=…)]`` wins). A first parameter annotated
    ``ToolContext`` is left out of the schema and given the call's context. Asynchronous functions run on the event
    loop, others in a worker thread, which cancellation abandons: look at ``context.cancelled`` in long work.

    Raises ``ToolError`` for a function whose signature gives no schema: a parameter without annotation, ``*args``.
    """

    def make(function: Callable[..., Any]) -> Tool:
        body = FunctionBody(function)
        return Tool(
            name=name or body.name,
            description=description or body.description,
            parameters=body.parameters,
            execute=body.execute,
            prepare=body.prepare,
            parallel=parallel,
            timeout=timeout,
            needs_approval=needs_approval,
            preview=preview,
        )

    return make if function is None else make(function)


def as_tools(tools: Sequence[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Tools by name, in order; functions are made into tools. Raises ``ToolError`` for no tool, and for two of one name."""
    if not isinstance(tools, Iterable) or isinstance(tools, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ToolError(f"tools are a list of functions and Tool objects, not {tools!r:.100}; write tools=[…]")
    by_name: dict[str, Tool] = {}
    for item in tools:
        if not callable(item) and not isinstance(item, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolError(f"{item!r:.100} is no tool; give a typed function or a Tool")
        made = item if isinstance(item, Tool) else tool(item)
        if made.name in by_name:
            raise ToolError(f"two tools are named {made.name!r}; give one of them another name")
        by_name[made.name] = made
    return by_name


ToolContent = str | list[TextContent | ImageContent]
"""What the model is shown of a result."""
