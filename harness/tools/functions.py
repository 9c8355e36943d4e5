"""A typed function as the body of a tool: its schema, its arguments checked, and where it runs."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import anyio
import anyio.to_thread
import docstring_parser
from anyio.lowlevel import RunVar
from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import Field
from pydantic.json_schema import GenerateJsonSchema

from harness.tools.context import ToolContext
from storage.errors import ToolError
from storage.strict_json import replace_surrogates

MAX_TOOL_THREADS = 64
"""How many synchronous tools may run at once in one event loop. They share these with nobody."""

Result = TypeVar("Result")

_threads: RunVar[anyio.CapacityLimiter] = RunVar("branchline_tool_threads")


class _PlainSchema(GenerateJsonSchema):
    """JSON schema without the titles that only repeat the names, and without defaults that JSON cannot hold."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as the base class has it

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - as the base class has it
        return False


class FunctionBody:
    """What ``tool`` reads off a function. Raises ``ToolError`` naming the function and the parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        plain = _innermost(function)
        self.name: str = getattr(plain, "__name__", type(plain).__name__)
        self._asynchronous = _is_asynchronous(function)
        if inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain):
            raise ToolError(f"tool {self.name!r} is a generator; return the whole result instead of yielding its parts")
        documented = docstring_parser.parse(_documentation(plain))
        self.description: str = "\n\n".join(filter(None, (documented.short_description, documented.long_description)))
        described = {parameter.arg_name: parameter.description for parameter in documented.params}
        parameters = list(self._signature().parameters.values())
        hints = self._hints(plain)
        self._takes_context = bool(parameters) and hints.get(parameters[0].name) is ToolContext
        self._parameters = parameters[1:] if self._takes_context else parameters
        self._model = self._make_model(hints, described)
        self.parameters: dict[str, Any] = self._schema()

    def _signature(self) -> inspect.Signature:
        try:
            return inspect.signature(self._function)
        except (TypeError, ValueError) as error:
            raise ToolError(f"tool {self.name!r} has no signature to read; wrap it in a typed function") from error

    def _hints(self, plain: Callable[..., Any]) -> dict[str, Any]:
        annotated = plain if inspect.isroutine(plain) else type(plain).__call__
        frame = inspect.currentframe()
        places: Mapping[str, Any] | None = None
        while True:
            try:
                return get_type_hints(annotated, localns=places, include_extras=True)
            except NameError as error:
                # Written inside another function: its names are those of whoever makes the tool, or called that.
                frame = None if frame is None else frame.f_back
                if frame is None:
                    raise ToolError(
                        f"tool {self.name!r}: an annotation names {error.name!r}, which is not to be found; define or "
                        "import it in the function's module, or where the tool is made"
                    ) from error
                places = frame.f_locals

    def _make_model(self, hints: Mapping[str, Any], described: Mapping[str, str | None]) -> type[BaseModel]:
        """A model with one field a parameter, under names of our own, so that no parameter's name clashes."""
        fields: dict[str, Any] = {}
        for position, parameter in enumerate(self._parameters):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ToolError(f"tool {self.name!r}: a model cannot fill {parameter}; name each parameter")
            if parameter.name not in hints:
                raise ToolError(f"tool {self.name!r}: the parameter {parameter.name!r} needs a type annotation")
            annotation = hints[parameter.name]
            if annotation is ToolContext:
                raise ToolError(f"tool {self.name!r}: {parameter.name!r}, the ToolContext, must be its first parameter")
            described_here = described.get(parameter.name)
            if described_here and not _has_description(annotation):
                annotation = Annotated[annotation, Field(description=described_here)]
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"argument_{position}"] = (annotation, Field(default, alias=parameter.name))
        try:
            return create_model(
                self.name,
                __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False, allow_inf_nan=False),
                **fields,
            )
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise ToolError(f"tool {self.name!r}: a parameter's type has no JSON schema: {error}") from error

    def _schema(self) -> dict[str, Any]:
        try:
            schema = self._model.model_json_schema(schema_generator=_PlainSchema)
        except PydanticUserError as error:
            raise ToolError(f"tool {self.name!r}: a parameter's type has no JSON schema: {error}") from error
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def prepare(self, arguments: Mapping[str, Any]) -> list[Any]:
        """The values for the parameters, in order. Raises ``ToolError`` in the validator's own words."""
        try:
            checked = self._model.model_validate_json(json.dumps(replace_surrogates(dict(arguments))))
        except ValidationError as error:
            raise ToolError(_words(error)) from error
        return [getattr(checked, f"argument_{position}") for position in range(len(self._parameters))]

    async def execute(self, prepared: list[Any], context: ToolContext) -> Any:
        """Run the function: on the event loop if it is asynchronous, else in a worker thread of the tools' own."""
        positional: list[Any] = [context] if self._takes_context else []
        keywords: dict[str, Any] = {}
        for parameter, value in zip(self._parameters, prepared, strict=True):
            if parameter.kind is parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            else:
                positional.append(value)
        if self._asynchronous:
            return await self._function(*positional, **keywords)

        def call() -> list[Any]:
            # In a list: trio takes no coroutine out of a thread, and a lambda may well return one.
            return [self._function(*positional, **keywords)]

        try:
            (returned,) = await run_in_tool_thread(call)
        finally:
            context.stopped.set()
        return await returned if inspect.isawaitable(returned) else returned


async def run_in_tool_thread(work: Callable[[], Result]) -> Result:
    """Run blocking work in a thread of the tools' own. Cancelled, it leaves the thread to itself, and returns at once."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_limiter())


def _limiter() -> anyio.CapacityLimiter:
    limiter = _threads.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(MAX_TOOL_THREADS)
        _threads.set(limiter)
    return limiter


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return inspect.unwrap(function)


def _documentation(plain: Callable[..., Any]) -> str:
    if inspect.isroutine(plain):
        return inspect.getdoc(plain) or ""
    return inspect.getdoc(type(plain).__call__) or inspect.getdoc(type(plain)) or ""


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _has_description(annotation: Any) -> bool:
    return any(getattr(mark, "description", None) for mark in getattr(annotation, "__metadata__", ()))


def _words(error: ValidationError) -> str:
    """The validator's own words, one line for each problem, each with the place it is about."""
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        place = ".".join(str(step) for step in problem["loc"]) or "arguments"
        given = "" if problem["type"] == "missing" else f" (given: {problem['input']!r:.200})"
        lines.append(f"{place}: {problem['msg']}{given}")
    return "\n".join(lines)
