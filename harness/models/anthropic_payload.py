"""From a request to the body of Anthropic's Messages API: a pure function, and the same bytes every time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.models.anthropic_blocks import AssistantBlocks, result_blocks, user_blocks
from harness.models.anthropic_thinking import thinking_options
from harness.models.payload_parts import NOTHING_TO_SEND, Part, encode_json, own_option, sent_options, wrong_role
from harness.models.protocol import ModelRequest, ToolSchema
from storage.errors import ModelError
from storage.messages import AssistantMessage, ToolResultMessage, UserMessage

CONTINUED = "(continued)"
"""Stands where a user's message is wanted and there is none: the API wants one at the beginning and at the end."""

PROMPT_CACHING = "prompt_caching"

_OURS = ("model", "messages", "system", "tools", "stream")


def anthropic_payload(
    model_id: str,
    request: ModelRequest,
    *,
    provider: str,
    defaults: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of the request, as compact UTF-8 JSON.

    ``defaults`` are options that the request's own win over; ``max_tokens`` must be in one of them. One of them is not
    sent but shapes the body: ``prompt_caching`` (true unless given) marks the system prompt and the last two user
    messages for the vendor's cache. Thinking of this ``provider`` and model is sent back, other thinking is not.

    Raises:
        ModelError: a message of a role that cannot be sent, an option that is not the caller's to set, a value that is
            no JSON.
    """
    each = [*_messages(request, provider, model_id)]
    stays = len(each) - request.passing
    passing = {id(block) for message in each[stays:] for block in message["content"]}
    messages = _merged(each)
    if not messages:
        raise ModelError(NOTHING_TO_SEND)
    if messages[0]["role"] != "user":
        messages.insert(0, _user(CONTINUED))
    if messages[-1]["role"] != "user":
        messages.append(_user(CONTINUED))
    body: dict[str, Any] = {"model": model_id, "messages": messages}
    if request.system_prompt and request.system_prompt.strip():
        body["system"] = [{"type": "text", "text": request.system_prompt}]
    if tools := [_tool(tool) for tool in request.tools]:
        body["tools"] = tools
    elif names := _called(messages):
        # Calls in the history are refused where no tools are declared.
        body["tools"] = [_tool(ToolSchema(name, "Not available any more.", {"type": "object"})) for name in names]
        body["tool_choice"] = {"type": "none"}
    body["stream"] = True
    options = sent_options(defaults, request.options, _OURS)
    if own_option(options, PROMPT_CACHING, True):
        _mark_for_cache(body, passing)
    return encode_json({**body, **thinking_options(model_id, request.thinking_level, options, messages), **options})


def _tool(tool: ToolSchema) -> Part:
    described = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **described, "input_schema": tool.parameters}


def _called(messages: Sequence[Part]) -> list[str]:
    """The names of all tools called, each once, in order."""
    blocks = (block for message in messages for block in message["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


def _user(text: str) -> Part:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _messages(request: ModelRequest, provider: str, model_id: str) -> Iterator[Part]:
    assistant = AssistantBlocks(provider, model_id)
    for position, message in enumerate(request.messages):
        match message:
            case UserMessage():
                yield {"role": "user", "content": user_blocks(message)}
            case AssistantMessage():
                yield {"role": "assistant", "content": assistant.of_message(message)}
            case ToolResultMessage():
                yield {"role": "user", "content": result_blocks(message, assistant.ids.of_result(message))}
            case _:
                raise wrong_role(position, message)


def _merged(messages: Iterable[Part]) -> list[Part]:
    """The messages with neighbours of one role made one, results before all else in it, and none empty."""
    merged: list[Part] = []
    for message in messages:
        if not message["content"]:
            continue
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        else:
            merged.append(message)
    for message in merged:
        message["content"].sort(key=_is_no_result)  # a stable sort
    return merged


def _is_no_result(block: Part) -> bool:
    return block["type"] != "tool_result"


def _mark_for_cache(body: dict[str, Any], passing: Collection[int]) -> None:
    """Put the cache's marks where the next request will have the same bytes before them.

    The last user message but one is where the mark was in the request before: with many calls side by side the vendor
    would not look back that far by itself. ``passing`` are the ids of blocks that will not be there: a mark goes before
    them, for what is marked behind them is written to the cache and never read.
    """
    users = [message["content"] for message in body["messages"] if message["role"] == "user"]
    staying = [places for blocks in users if (places := _places(blocks, passing))]
    if body.get("system"):
        _mark(body["system"], len(body["system"]) - 1)
    for blocks, place in staying[-2:]:
        _mark(blocks, place)


def _places(blocks: list[Part], passing: Collection[int]) -> tuple[list[Part], int] | None:
    """The blocks, and the last of them that stays."""
    place = max((place for place, block in enumerate(blocks) if id(block) not in passing), default=None)
    return None if place is None else (blocks, place)


def _mark(blocks: list[Part], place: int) -> None:
    blocks[place] = {**blocks[place], "cache_control": {"type": "ephemeral"}}
