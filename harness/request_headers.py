"""A request's header, as it is recorded, and the request that it says: two ways of one thing (R26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from harness.hook_chain import TurnHooks
from harness.models.protocol import ChatModel, ModelRequest, ToolSchema, own_options
from harness.request_edits import apply_edits, encoded, find_edits, passing_after
from storage.entries import RequestEdit, RequestHeaderEntry
from storage.errors import HookError, InvalidEntryError
from storage.messages import Message
from storage.strict_json import encode_model


def header_of(model: ChatModel, request: ModelRequest) -> RequestHeaderEntry:
    """All of a request but its messages: with the model's own options, which it adds to every request."""
    own = own_options(model)
    return RequestHeaderEntry(
        model={"provider": model.provider, "modelId": model.model_id},
        system_prompt=request.system_prompt,
        tools=[
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in request.tools
        ]
        or None,
        options={**own, **request.options} or None,
        thinking_level=request.thinking_level,
    )


def request_of(
    header: RequestHeaderEntry,
    messages: Sequence[Message],
    *,
    edits: Sequence[RequestEdit] = (),
    passing: int = 0,
    options: Mapping[str, Any] | None = None,
) -> ModelRequest:
    """The request that a header says, with these messages after ``edits``; ``options`` win over the header's.

    The last ``passing`` of the messages, as they were before, are no part of the conversation. Raises ``ValueError`` for
    edits that do not fit the messages.
    """
    edited = apply_edits(messages, edits)
    return ModelRequest(
        system_prompt=header.system_prompt,
        messages=edited,
        passing=passing_after(len(messages), edits, passing),
        tools=[ToolSchema(**schema) for schema in header.tools or ()],
        options={**(header.options or {}), **(options or {})},
        thinking_level=header.thinking_level,
    )


async def hooked(
    model: ChatModel, request: ModelRequest, hooks: TurnHooks
) -> tuple[RequestHeaderEntry, ModelRequest, list[RequestEdit]]:
    """The request as the hooks leave it, with its header and what they changed in its messages.

    What is sent is made of what is recorded, so that both are the same. Raises ``HookError``, also where the hooks made
    something that cannot be recorded.
    """
    before = await encoded(request.messages)
    changed = await hooks.before_request(request)
    try:
        edits = find_edits(before, await encoded(changed.messages))
        header = RequestHeaderEntry.model_validate_json(encode_model(header_of(model, changed)))
    except (InvalidEntryError, ValidationError, AttributeError, TypeError, ValueError) as error:
        raise HookError(
            f"a hook made a request that cannot be recorded, so it was not sent: {type(error).__name__}: {error}"
        ) from error
    return header, request_of(header, request.messages, edits=edits, passing=request.passing), edits
