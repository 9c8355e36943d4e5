"""What a scripted model, or a scripted server, is told to say."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.models.events import ModelEvent, TextDelta, ThinkingDelta, ToolCallDelta
from harness.models.protocol import ModelRequest
from storage.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall, Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply in full detail, where a string or a list of calls does not say enough.

    ``delay`` is seconds before the first piece, ``pause`` seconds before each later one; ``chunk_size`` is characters a
    piece (None: the model's own). With ``error`` everything is streamed and then, instead of the end, the error comes;
    with ``cut`` the stream just ends there. ``usage`` None: counted roughly. ``stop_reason`` None: ``toolUse`` with
    calls, else ``stop``.
    """

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    thinking: str = ""
    usage: Usage | None = None
    stop_reason: str | None = None
    delay: float = 0.0
    pause: float = 0.0
    chunk_size: int | None = None
    error: Exception | None = None
    cut: bool = False

    @property
    def message(self) -> AssistantMessage:
        """The reply as a message, without who said it."""
        content: list[Any] = []
        if self.thinking:
            content.append(ThinkingContent(thinking=self.thinking))
        if self.text:
            content.append(TextContent(text=self.text))
        return AssistantMessage(
            content=[*content, *self.tool_calls],
            usage=self.usage,
            stop_reason=self.stop_reason or ("toolUse" if self.tool_calls else "stop"),
        )


Scripted = str | ToolCall | Sequence[str | ToolCall] | AssistantMessage | Reply | Exception
"""What may stand in a script: a text, a call, texts and calls, a message, a whole ``Reply``, or a failure to raise."""

ScriptedReply = Scripted | Callable[[ModelRequest], Scripted | Awaitable[Scripted]]
"""The same, or a function that looks at the request first."""


def tool_call(name: str, call_id: str = "call_1", /, **arguments: Any) -> ToolCall:
    """A call, for scripts: ``tool_call("read", path="README.md")``."""
    return ToolCall(id=call_id, name=name, arguments=arguments)


def reply_of(scripted: Scripted) -> tuple[Reply, AssistantMessage]:
    """The script's item as a ``Reply``, and the message that it streams. Not for exceptions.

    Raises:
        TypeError: it is nothing that may stand in a script.
    """
    match scripted:
        case Reply():
            return scripted, scripted.message
        case AssistantMessage():
            return Reply(stop_reason=scripted.stop_reason, usage=scripted.usage), scripted
        case str():
            reply = Reply(scripted)
        case ToolCall():
            reply = Reply(tool_calls=(scripted,))
        case list() | tuple():
            calls = [part for part in scripted if isinstance(part, ToolCall)]
            reply = Reply("".join(part for part in scripted if isinstance(part, str)), calls)
        case _:
            raise TypeError(
                f"A script holds texts, tool calls, lists of them, messages, Reply objects, exceptions and functions;"
                f" not {type(scripted).__name__}."
            )
    return reply, reply.message


def events_of(message: AssistantMessage, chunk_size: int) -> Iterator[ModelEvent]:
    """The message in pieces of ``chunk_size`` characters, without the end."""
    calls = 0
    for part in message.content or ():
        match part:
            case TextContent():
                yield from (TextDelta(piece) for piece in pieces_of(part.text or "", chunk_size))
            case ThinkingContent():
                yield from (ThinkingDelta(piece) for piece in pieces_of(part.thinking or "", chunk_size))
            case ToolCall():
                yield ToolCallDelta(calls, part.name, "")
                yield from (
                    ToolCallDelta(calls, part.name, piece) for piece in pieces_of(arguments_text(part), chunk_size)
                )
                calls += 1


def arguments_text(call: ToolCall) -> str:
    """The arguments as the model wrote them."""
    if call.raw_arguments is not None:
        return call.raw_arguments
    return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))


def pieces_of(text: str, size: int) -> list[str]:
    """The text cut into pieces of ``size`` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def rough_tokens(data: bytes | str) -> int:
    """Tokens as the scripts count them: a quarter of the bytes, rounded up."""
    size = len(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    return -(-size // 4)


def output_tokens(message: AssistantMessage) -> int:
    """Tokens of a whole message, as the scripts count them."""
    return rough_tokens("".join(str(part) for part in message.content or ()))
