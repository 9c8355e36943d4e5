"""What a summariser is asked, and what it answers. The model comes in through ``Summarizer`` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from compaction.breathing import Steps
from compaction.file_operations import FileOperations, without_files
from compaction.rough_tokens import RoughEstimator
from compaction.shortened_text import shorten_text
from compaction.summary_wording import FOCUS, OUTLINE, SYSTEM_PROMPT, instruction
from compaction.tokens import MESSAGE_TOKENS, TextCounter, TokenEstimator
from compaction.transcript import quoted, render_transcript
from storage.messages import AssistantMessage, Message, Usage

SummaryKind = Literal["compaction", "branch"]

_LEAST_ROOM = 64
"""Tokens of the conversation that a request shows at least, however small the window is."""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """One summary to be made. Sizes are in tokens.

    A model is given ``system_prompt`` and, as the only message of a user, ``prompt``: the conversation as quoted text
    between two instructions, cut so that it fits the summariser's window. No tools are offered; at most
    ``max_tokens`` are to be answered.

    A summariser without a model looks at ``messages`` (all of them, oldest first), ``previous_summary`` (to be updated,
    not nested) and ``files``. ``instructions`` are the person's own.
    """

    kind: SummaryKind
    system_prompt: str
    prompt: str = field(repr=False)
    max_tokens: int
    messages: Sequence[Message] = field(repr=False)
    previous_summary: str | None = field(default=None, repr=False)
    files: FileOperations = field(default_factory=FileOperations, repr=False)
    instructions: str | None = None
    left_out: int = 0
    """How many of the older messages did not fit into ``prompt``."""


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """What a summariser answered. It is judged by ``check_summary``; nothing of it is trusted.

    ``stop_reason`` as in ``AssistantMessage``; ``None`` counts as a good end. ``usage`` is what it cost, and is recorded.
    """

    text: str
    usage: Usage | None = None
    stop_reason: str | None = None
    has_tool_calls: bool = False
    error_message: str | None = None

    @classmethod
    def of(cls, message: AssistantMessage) -> Self:
        """The answer of a model."""
        return cls(
            text=message.text,
            usage=message.usage,
            stop_reason=message.stop_reason,
            has_tool_calls=bool(message.tool_calls),
            error_message=message.error_message,
        )


class Summarizer(Protocol):
    """**Protocol:** makes a summary."""

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        """The summary that ``request`` asks for.

        May raise: then nothing is recorded, and ``compact`` raises ``CompactionError`` from it. May be cancelled at any
        await, and is when it takes longer than ``summary_timeout``.
        """
        ...


def summary_request(
    kind: SummaryKind,
    messages: Sequence[Message],
    *,
    window: int,
    max_tokens: int,
    previous_summary: str | None = None,
    files: FileOperations | None = None,
    turn_prefix: int = 0,
    instructions: str | None = None,
    estimator: TokenEstimator | None = None,
) -> Steps[SummaryRequest]:
    """The request for a summary of ``messages``, for a summariser with a context window of ``window`` tokens.

    The newest messages go in as far as they fit, and the first one; of a previous summary that is too long, its beginning
    and its end.
    """
    counter = TextCounter(estimator or RoughEstimator())
    previous = without_files(previous_summary or "") or None
    task = instruction(kind, update=previous is not None, max_tokens=max_tokens)
    focus = f"\n\n{FOCUS}\n{instructions.strip()}" if instructions and instructions.strip() else ""
    fixed = (yield from counter.texts((SYSTEM_PROMPT, OUTLINE, task, focus))) + 4 * MESSAGE_TOKENS + 64
    room = max(_LEAST_ROOM, window - max_tokens - fixed)
    parts: list[str] = []
    if previous is not None:
        shown = previous
        while (yield from counter.texts([quoted(shown)])) > room // 2 and len(shown) > 400:
            shown = shorten_text(shown, max(400, len(shown) // 2))
        block = f"<previous-summary>\n{quoted(shown)}\n</previous-summary>"
        room = max(_LEAST_ROOM, room - (yield from counter.texts([block])))
        parts.append(block)
    transcript = yield from render_transcript(messages, counter, room, turn_prefix=turn_prefix)
    parts += [f"<conversation>\n{transcript.text}\n</conversation>", f"{task}\n\n{OUTLINE}{focus}"]
    return SummaryRequest(
        kind=kind,
        system_prompt=SYSTEM_PROMPT,
        prompt="\n\n".join(parts),
        max_tokens=max_tokens,
        messages=messages,
        previous_summary=previous,
        files=files or FileOperations(),
        instructions=instructions,
        left_out=transcript.left_out,
    )
