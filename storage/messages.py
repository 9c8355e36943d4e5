"""Messages: what people, models and tools said. Discriminated by ``role``; the JSON is that of the pi family.

Text is text: a field that holds ``null`` in a file stays ``None`` here. Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from storage.models import RecordModel


def now_milliseconds() -> int:
    """The wall clock, for stamps only: order is ``seq`` and ``parent_id``, never a clock."""
    return time.time_ns() // 1_000_000


class TextContent(RecordModel):
    """A piece of text."""

    always_written: ClassVar[tuple[str, ...]] = ("type",)
    type: Literal["text"] = "text"
    text: str | None
    text_signature: str | None = None


class ImageContent(RecordModel):
    """An image: base64 ``data`` and its media type."""

    always_written: ClassVar[tuple[str, ...]] = ("type",)
    type: Literal["image"] = "image"
    data: str
    mime_type: str


class ThinkingContent(RecordModel):
    """A model's reasoning. With a signature it may go back only unchanged, and only to the model that made it."""

    always_written: ClassVar[tuple[str, ...]] = ("type",)
    type: Literal["thinking"] = "thinking"
    thinking: str | None
    thinking_signature: str | None = None
    redacted: bool | None = None


class ToolCall(RecordModel):
    """A model's request to run a tool.

    ``arguments`` is any JSON object. What a model sent that is no JSON object is kept in ``raw_arguments``, never
    executed, and never shown as arguments.
    """

    always_written: ClassVar[tuple[str, ...]] = ("type",)
    type: Literal["toolCall"] = "toolCall"
    id: str
    name: str
    arguments: dict[str, Any]
    raw_arguments: str | None = None


class Cost(RecordModel):
    """What a request cost, in US dollars, as far as the provider's prices are known."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total: float = 0


class Usage(RecordModel):
    """Tokens as the provider counted them. ``input`` excludes what was read from or written to its cache."""

    always_written: ClassVar[tuple[str, ...]] = ("input", "output", "cache_read", "cache_write", "total_tokens")
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost: Cost | None = None


UserContent = Annotated[TextContent | ImageContent, Field(discriminator="type")]
AssistantContent = Annotated[TextContent | ThinkingContent | ToolCall, Field(discriminator="type")]


def _joined(content: str | list[Any] | None) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text or "" for part in content or () if isinstance(part, TextContent))


class UserMessage(RecordModel):
    """What a person, or the app in their name, said."""

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp")
    role: Literal["user"] = "user"
    content: str | list[UserContent] | None
    timestamp: int = Field(default_factory=now_milliseconds)

    if TYPE_CHECKING:  # a list of texts is no list of parts to a type checker, but a sequence of them

        def __init__(
            self, *, role: Literal["user"] = ..., content: str | Sequence[UserContent] | None, timestamp: int = ...
        ) -> None: ...

    @property
    def text(self) -> str:
        """All text parts joined; images leave nothing."""
        return _joined(self.content)


class AssistantMessage(RecordModel):
    """A model's reply: text, thinking and tool calls, in the order they came.

    ``stop_reason`` is ``stop``, ``length``, ``toolUse``, ``error`` or ``aborted``; with the last two,
    ``error_message`` says why.
    """

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp")
    role: Literal["assistant"] = "assistant"
    content: list[AssistantContent] | None
    api: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error_message: str | None = None
    timestamp: int = Field(default_factory=now_milliseconds)

    if TYPE_CHECKING:  # as above

        def __init__(
            self,
            *,
            role: Literal["assistant"] = ...,
            content: Sequence[AssistantContent] | None,
            api: str | None = ...,
            provider: str | None = ...,
            model: str | None = ...,
            usage: Usage | None = ...,
            stop_reason: str | None = ...,
            error_message: str | None = ...,
            timestamp: int = ...,
        ) -> None: ...

    @property
    def text(self) -> str:
        """All text parts joined, without thinking."""
        return _joined(self.content)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls, in the order the model made them."""
        return [part for part in self.content or () if isinstance(part, ToolCall)]


class ToolResultMessage(RecordModel):
    """What a tool answered. It pairs with the nearest earlier open call of ``tool_call_id``, by place, not by id alone.

    ``blobs`` names what the tool kept beside the record (``Session.write_blob``); the text says what it is.
    """

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp", "is_error")
    role: Literal["toolResult"] = "toolResult"
    tool_call_id: str
    tool_name: str
    content: str | list[UserContent] | None
    details: Any = None
    is_error: bool = False
    blobs: list[str] | None = None
    timestamp: int = Field(default_factory=now_milliseconds)

    if TYPE_CHECKING:  # as above

        def __init__(
            self,
            *,
            role: Literal["toolResult"] = ...,
            tool_call_id: str,
            tool_name: str,
            content: str | Sequence[UserContent] | None,
            details: Any = ...,
            is_error: bool = ...,
            blobs: Sequence[str] | None = ...,
            timestamp: int = ...,
        ) -> None: ...

    @property
    def text(self) -> str:
        """All text parts joined; images leave nothing."""
        return _joined(self.content)


class BashExecutionMessage(RecordModel):
    """A shell command that the person ran (pi). Shown to the model as a user message unless it is excluded."""

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp")
    role: Literal["bashExecution"] = "bashExecution"
    command: str
    output: str | None
    exit_code: int | None = None
    cancelled: bool = False
    truncated: bool = False
    full_output_path: str | None = None
    exclude_from_context: bool | None = None
    timestamp: int = Field(default_factory=now_milliseconds)

    @property
    def text(self) -> str:
        """The output."""
        return self.output or ""


class CustomMessage(RecordModel):
    """An app's own message inside a ``message`` entry (pi). Shown to the model as a user message."""

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp")
    role: Literal["custom"] = "custom"
    custom_type: str
    content: str | list[UserContent] | None
    display: bool | str | None = None
    details: Any = None
    timestamp: int = Field(default_factory=now_milliseconds)

    @property
    def text(self) -> str:
        """All text parts joined; images leave nothing."""
        return _joined(self.content)


class SystemMessage(RecordModel):
    """A change of the system prompt and the tools (pi-coding-agent); replayed in order it gives both."""

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp")
    role: Literal["system"] = "system"
    content: str | None = None
    sections: dict[str, str | None] | None = None
    tools_added: list[Any] | None = None
    tools_removed: list[Any] | None = None
    timestamp: int = Field(default_factory=now_milliseconds)

    @property
    def text(self) -> str:
        """The prompt itself, without its named sections."""
        return self.content or ""


class BranchSummaryMessage(RecordModel):
    """A branch summary as pi keeps it among the messages of a retained tail."""

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp")
    role: Literal["branchSummary"] = "branchSummary"
    summary: str | None
    from_id: str | None = None
    timestamp: int = Field(default_factory=now_milliseconds)

    @property
    def text(self) -> str:
        """The summary."""
        return self.summary or ""


class CompactionSummaryMessage(RecordModel):
    """A compaction's summary as pi keeps it among the messages of a retained tail."""

    always_written: ClassVar[tuple[str, ...]] = ("role", "timestamp")
    role: Literal["compactionSummary"] = "compactionSummary"
    summary: str | None
    tokens_before: int | None = None
    timestamp: int = Field(default_factory=now_milliseconds)

    @property
    def text(self) -> str:
        """The summary."""
        return self.summary or ""


Message = (
    UserMessage
    | AssistantMessage
    | ToolResultMessage
    | BashExecutionMessage
    | CustomMessage
    | SystemMessage
    | BranchSummaryMessage
    | CompactionSummaryMessage
)
KnownMessage = Annotated[Message, Field(discriminator="role")]
