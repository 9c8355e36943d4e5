"""What of a message can be sent: no empty text, no reply that says nothing (R20). And context edits, applied.

Every function takes a message that was made anew for this one context, and may change it.
"""

from __future__ import annotations

from typing import Any, cast

from compaction.wording import NO_OUTPUT, shell_command
from compaction.wording import branch_summary as branch_summary_text
from storage.entries import Replacement
from storage.messages import (
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CustomMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

FAILED = frozenset(("error", "aborted"))
"""Stop reasons of a reply that did not come to its end."""


def is_blank(text: str | None) -> bool:
    """Whether a text says nothing: absent, empty, or white space only. Providers refuse such text."""
    return not text or text.isspace()


def is_text(part: Any) -> bool:
    """Whether a part is a text that says something."""
    return type(part) is TextContent and not is_blank(part.text)


def said(content: Any) -> Any:
    """``content`` without blank texts, or ``None`` if nothing is left. The same object if nothing had to go."""
    if content is None:
        return None
    if isinstance(content, str):
        return None if is_blank(content) else content
    parts = cast("list[Any]", content)
    kept = [part for part in parts if not _says_nothing(part)]
    if not kept:
        return None
    return parts if len(kept) == len(parts) else kept


def _says_nothing(part: Any) -> bool:
    if isinstance(part, TextContent):
        return is_blank(part.text)
    if isinstance(part, ThinkingContent):
        return is_blank(part.thinking) and part.thinking_signature is None and not part.redacted
    return False


def clean_user(message: UserMessage) -> bool | None:
    """Take blank texts out. ``None``: nothing is left of the message. ``True``: it was changed."""
    content = said(message.content)
    if content is None:
        return None
    if content is message.content:
        return False
    message.content = content
    return True


def clean_result(message: ToolResultMessage) -> bool:
    """Take blank texts out, and say so where nothing is left. ``True``: it was changed."""
    content = said(message.content)
    if content is not None and content is message.content:
        return False
    message.content = NO_OUTPUT if content is None else content
    return True


def clean_reply(message: AssistantMessage) -> bool:
    """Take blank texts out. ``True``: it was changed. See ``is_worth_showing`` for what is left."""
    content = said(message.content)
    if content is None:
        content = []
    if content is message.content:
        return False
    message.content = content
    return True


def is_worth_showing(message: AssistantMessage, *, answered: bool) -> bool:
    """Whether a reply that was cleaned may be sent; ``answered``: one of its calls has a result.

    Thinking alone is no reply that a provider takes back. What ended in error or abort counts only if it said
    something or a tool has answered it.
    """
    has_text = has_calls = False
    for part in message.content or ():
        has_text = has_text or isinstance(part, TextContent)
        has_calls = has_calls or isinstance(part, ToolCall)
    if message.stop_reason in FAILED:
        return has_text or (has_calls and answered)
    return has_text or has_calls


def replace_content(message: Message, replacement: Replacement) -> Message:
    """The message with the content of a context edit instead of its own; of a shell command, a user's."""
    content: Any = replacement.content
    if isinstance(message, AssistantMessage):
        parts = [TextContent(text=content)] if isinstance(content, str) else list(content or ())
        message.content = [part for part in parts if not isinstance(part, ImageContent)]
        return message
    if not isinstance(content, str):
        content = [part for part in content or () if isinstance(part, TextContent | ImageContent)]
    if isinstance(message, UserMessage | CustomMessage):
        message.content = content
        return message
    if isinstance(message, ToolResultMessage):
        message.content = [TextContent(text=content)] if isinstance(content, str) else content
        return message
    if isinstance(message, BranchSummaryMessage):
        message.summary = UserMessage(content=content).text
        return message
    return UserMessage(content=content, timestamp=message.timestamp)


def as_user_message(message: CustomMessage | BashExecutionMessage | BranchSummaryMessage) -> UserMessage | None:
    """A message of a role that no provider knows, as a user's. ``None``: it is not to be shown, or says nothing."""
    content: Any
    if isinstance(message, CustomMessage):
        content = said(message.content)
    elif isinstance(message, BranchSummaryMessage):
        content = None if is_blank(message.summary) else branch_summary_text(message.summary or "")
    elif message.exclude_from_context:
        content = None
    else:
        content = shell_command(
            message.command,
            message.output or "",
            exit_code=message.exit_code,
            cancelled=message.cancelled,
            truncated=message.truncated,
            full_output_path=message.full_output_path,
        )
    return None if content is None else UserMessage(content=content, timestamp=message.timestamp)
