"""From one message of somebody else's JSON to messages of ours: by its parts, and nothing is dropped in silence.

Known are our own JSON, mini-agent's, OpenAI's chat completions and Anthropic's messages. They differ in names, so each
part is known by what it holds; a part that none of them has is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from harness.models.openai_payload import REASONING_FIELDS
from storage.messages import KnownMessage, Message, now_milliseconds
from storage.strict_json import replace_surrogates

_KNOWN: TypeAdapter[Message] = TypeAdapter(cast("type[Message]", KnownMessage))
_Object = dict[str, Any]

UNKNOWN_TOOL = "unknown"
"""The name of a tool in a result that neither names it nor follows its call."""

_FORMAT_ONLY = ("cache_control", "annotations", "audio", "refusal")
"""Members that say nothing of what was said; ``refusal`` and ``audio`` are looked at before."""


class NotAMessage(ValueError):  # noqa: N818 - it is told with its place by who catches it
    """What was given is no message that we know; the text says why."""


class ForeignMessages:
    """Reads the messages of one conversation, in order: results learn the names of their tools from the calls."""

    def __init__(self) -> None:
        """No call was made yet."""
        self._names: dict[str, str] = {}

    def read(self, value: Any) -> list[Message]:
        """The messages that one message of theirs is: mostly one. Raises ``NotAMessage``."""
        if not isinstance(value, Mapping):
            raise NotAMessage("it is no JSON object")
        members: _Object = {str(key): item for key, item in cast("Mapping[Any, Any]", value).items()}
        role: Any = members.get("role")
        match role:
            case "user":
                return self._user(members)
            case "assistant":
                return [self._assistant(members)]
            case "tool" | "toolResult":
                return [self._result(members)]
            case "system" | "developer":
                content: Any = members.get("content")
                text = content if isinstance(content, str | None) else _text_of(content)
                return [_validated({**members, "role": "system", "content": text})]
            case str():
                return [_validated(members)]
            case _:
                raise NotAMessage("it has no role")

    def _user(self, members: _Object) -> list[Message]:
        content: Any = members.get("content")
        if not isinstance(content, list):
            return [_validated(members)]
        results: list[Message] = []
        parts: list[_Object] = []
        for part in _objects(content):
            if part.get("type") == "tool_result":
                results.append(self._result({**part, "timestamp": members.get("timestamp")}))
            else:
                parts.append(_user_part(part))
        if results and not parts:
            return results
        return [*results, _validated({**members, "content": parts})]

    def _assistant(self, members: _Object) -> Message:
        content: Any = members.pop("content", None)
        parts: list[_Object] = []
        for field in REASONING_FIELDS:
            thinking: Any = members.pop(field, None)
            if isinstance(thinking, str) and thinking:
                parts.append({"type": "thinking", "thinking": thinking, "thinkingSignature": field})
        if isinstance(content, str):
            parts += [_text(content)] if content else []
        elif content is not None:
            parts += [_assistant_part(part) for part in _objects(content)]
        if isinstance(members.get("refusal"), str) and members["refusal"]:
            parts.append(_text(members["refusal"]))
        if members.get("function_call") is not None:
            raise NotAMessage("function_call: the old way of calling, without an id; give tool_calls instead")
        members.pop("function_call", None)
        if members.get("audio") is not None:
            raise NotAMessage("audio: sound cannot be kept")
        parts += [
            _call(call) for name in ("tool_calls", "toolCalls") for call in _objects(members.pop(name, None) or [])
        ]
        message = _validated({**members, "content": parts})
        for part in parts:
            if part.get("type") == "toolCall":
                self._names[part["id"]] = part["name"]
        return message

    def _result(self, members: _Object) -> Message:
        call_id: Any = _first(members, "toolCallId", "tool_call_id", "tool_use_id")
        if not isinstance(call_id, str):
            raise NotAMessage("toolCallId: a result names its call")
        name: Any = _first(members, "toolName", "name", "tool_name") or self._names.get(call_id, UNKNOWN_TOOL)
        content: Any = members.get("content")
        if isinstance(content, list):
            content = [_user_part(part) for part in _objects(content)]
        is_error: Any = _first(members, "isError", "is_error")
        taken = ("tool_call_id", "tool_use_id", "tool_name", "name", "is_error", "type", "content")
        rest = {key: item for key, item in members.items() if key not in taken}
        return _validated(
            {
                **rest,
                "role": "toolResult",
                "toolCallId": call_id,
                "toolName": name,
                "content": "" if content is None else content,
                "isError": False if is_error is None else is_error,
            }
        )


def _validated(members: _Object) -> Message:
    """The message of ours with these members; unknown ones are kept, those that only the format has are not."""
    given = {
        key: item
        for key, item in members.items()
        if key not in _FORMAT_ONLY and not (item is None and key not in ("content", "summary", "output"))
    }
    given.setdefault("timestamp", now_milliseconds())  # a record without one would be another message at each reading
    try:
        data = json.dumps(replace_surrogates(given), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotAMessage(f"it is no plain JSON ({error})") from error
    try:
        return _KNOWN.validate_json(data, strict=True, by_name=False)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first = next((one for one in problems if one["loc"][-1:] != ("str",)), problems[0])
        place = ".".join(str(step) for step in first["loc"][1:] if not str(step).startswith("list["))
        if first["type"] == "union_tag_invalid" and not place:
            raise NotAMessage(f"the role {members.get('role')!r:.80} is none that we know") from error
        raise NotAMessage(f"{place}: {first['msg']}" if place else first["msg"]) from error


def _objects(values: Any) -> list[_Object]:
    if not isinstance(values, list) or not all(isinstance(value, Mapping) for value in cast("list[Any]", values)):
        raise NotAMessage("content and calls are lists of objects")
    return [dict(value) for value in cast("list[Mapping[str, Any]]", values)]


def _first(members: Mapping[str, Any], *names: str) -> Any:
    return next((members[name] for name in names if members.get(name) is not None), None)


def _text(text: str) -> _Object:
    return {"type": "text", "text": text}


def _text_of(content: Any) -> str:
    """The text of a system prompt that is given in parts."""
    texts: list[str] = []
    for part in _objects(content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise NotAMessage(f"content: a system prompt holds text, not {part.get('type')!r:.40}")
        texts.append(part["text"])
    return "\n\n".join(texts)


def _user_part(part: _Object) -> _Object:
    part.pop("cache_control", None)
    match part.get("type"):
        case "image" if "source" in part:
            return _anthropic_image(part["source"])
        case "image_url":
            url: Any = part.get("image_url")
            return _image_at(cast("_Object", url).get("url") if isinstance(url, dict) else url)
        case "text" | "image":
            return part
        case other:
            raise NotAMessage(f"content: a part of type {other!r:.40} cannot be kept here")


def _assistant_part(part: _Object) -> _Object:
    part.pop("cache_control", None)
    match part.get("type"):
        case "text" | "toolCall":
            return {name: item for name, item in part.items() if not (name == "citations" and item is None)}
        case "thinking" if "signature" in part:
            signature: Any = part.pop("signature")
            return {**part, "thinkingSignature": signature} if signature else part
        case "thinking":
            return part
        case "redacted_thinking":
            return {"type": "thinking", "thinking": "", "thinkingSignature": part.get("data"), "redacted": True}
        case "refusal":
            return {"type": "text", "text": part.get("refusal")}
        case "tool_use":
            return _call(part)
        case other:
            raise NotAMessage(f"content: a part of type {other!r:.40} cannot be kept here")


def _call(call: _Object) -> _Object:
    """A call, whoever wrote it. What is no JSON object among its arguments is kept as it came, and never executed."""
    function: Any = call.get("function")
    source: _Object = {**call, **cast("_Object", function)} if isinstance(function, dict) else call
    call_id, name = source.get("id"), source.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise NotAMessage("a tool call has an id and a name")
    given: Any = source.get("arguments", source.get("input"))
    if "arguments" not in source and "input" not in source:
        raise NotAMessage("a tool call has arguments (or an input)")
    arguments: Any = given
    raw: Any = source.get("rawArguments")
    if isinstance(given, str):
        try:
            arguments = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        arguments, raw = {}, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    made: _Object = {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}
    return made if raw is None else {**made, "rawArguments": raw}


def _anthropic_image(source: Any) -> _Object:
    members = cast("_Object", source) if isinstance(source, dict) else {}
    if members.get("type") == "base64":
        return {"type": "image", "data": members.get("data"), "mimeType": members.get("media_type")}
    return _image_at(members.get("url"))


def _image_at(url: Any) -> _Object:
    """An image in a data URL is kept; one that lies elsewhere is named in words, for we fetch nothing."""
    if not isinstance(url, str):
        raise NotAMessage("content: an image has data or a URL")
    head, comma, data = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64") and comma:
        return {"type": "image", "data": data, "mimeType": head.removeprefix("data:").removesuffix(";base64")}
    return _text(f"(an image, at {url})")
