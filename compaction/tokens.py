"""How many tokens a context has: three levels behind one protocol (R21).

Rough (``RoughEstimator``), anchored to the provider's own count (``UsageAnchoredEstimator``), exact
(``TiktokenEstimator``). All count the text of messages the same way; they differ in how they count a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from compaction.breathing import Breath, Steps, run_with_pauses
from compaction.compact_json import compact_json
from compaction.rough_tokens import RoughEstimator, fewest_of_text
from storage.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
)

MESSAGE_TOKENS = 4
"""What a provider's format adds to each message."""

CALL_TOKENS = 8
"""What it adds to each tool call and each result, for the id that ties them together."""

IMAGE_TOKENS = 1600
"""What an image counts: about the most that a provider charges for one it scales to its own size."""


@runtime_checkable
class TokenEstimator(Protocol):
    """**Protocol:** counts the tokens of a text."""

    def count(self, text: str) -> int:
        """Tokens of ``text`` as plain text, special tokens included. Never raises for a text. May block."""
        ...


def is_estimator(value: object) -> bool:
    """Whether it is a ``TokenEstimator``. A text, such as a model's name, has a ``count`` of another kind, as a list has."""
    return isinstance(value, TokenEstimator) and not isinstance(value, Sequence)


@runtime_checkable
class SlowEstimator(Protocol):
    """**Protocol:** an estimator that may block too long for an event loop."""

    def is_slow(self, characters: int) -> bool:
        """Whether so many characters should be counted in a worker thread."""
        ...


@runtime_checkable
class WarningEstimator(Protocol):
    """**Protocol:** an estimator that may have to fall back to another one."""

    @property
    def warning(self) -> str | None:
        """Why it counts less exactly than asked for, or ``None``."""
        ...


_ROUGH: Final = RoughEstimator()


class UsageAnchoredEstimator:
    """Takes the provider's own count where there is one: that of the newest reply since the last compaction.

    What came after that reply is counted by ``estimator`` (rough, unless another is given), and so is everything where
    no reply tells its usage. Counts of replies that failed, counts of zero, and counts older than the newest compaction
    or context edit are not used.
    """

    def __init__(self, estimator: TokenEstimator | None = None) -> None:
        self.estimator: TokenEstimator = estimator or _ROUGH

    def count(self, text: str) -> int:
        """Tokens of a text that no provider has counted."""
        return self.estimator.count(text)


def texts_of(message: Message) -> tuple[list[str], int]:
    """What of a message goes to the model as text, and how many tokens the rest of it counts."""
    texts: list[str] = []
    if isinstance(message, AssistantMessage):
        rest = MESSAGE_TOKENS
        for part in message.content or ():
            if isinstance(part, ToolCall):
                texts += (part.name, compact_json(part.arguments))
                rest += CALL_TOKENS
            elif isinstance(part, ThinkingContent):
                texts.append(part.thinking or "")
            else:
                texts.append(part.text or "")
        return texts, rest
    rest = MESSAGE_TOKENS + (CALL_TOKENS if isinstance(message, ToolResultMessage) else 0)
    content: Any = getattr(message, "content", None)
    if content is None or isinstance(content, str):
        return [content or message.text], rest
    for part in content:
        if isinstance(part, ImageContent):
            rest += IMAGE_TOKENS
        elif isinstance(part, TextContent):
            texts.append(part.text or "")
    return texts, rest


def fewest_tokens(message: Message) -> int:
    """As few tokens as the text of a message can have: no vocabulary gets by with less, in prose of any language."""
    return sum(map(fewest_of_text, texts_of(message)[0]))


def fixed_texts(system_prompt: str | None, tools: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """What a request holds besides its messages, as text: the system prompt, and each tool's whole schema."""
    texts = [] if not system_prompt else [system_prompt]
    texts.extend(compact_json(tool) for tool in tools or ())
    return texts


class TextCounter:
    """Counts texts with an estimator, in steps: what would block an event loop is yielded as a job."""

    def __init__(self, estimator: TokenEstimator) -> None:
        counting = estimator.estimator if isinstance(estimator, UsageAnchoredEstimator) else estimator
        self.by: TokenEstimator = counting
        """What counts."""
        self._count = counting.count
        # A look-up: asking for the protocol takes ten times as long, for each request.
        self._is_slow: Callable[[int], bool] | None = getattr(counting, "is_slow", None)

    def texts(self, texts: Sequence[str]) -> Steps[int]:
        """Tokens of texts."""
        count = self._count
        if self._is_slow is not None and self._is_slow(sum(map(len, texts))):
            return (yield lambda: sum(map(count, texts)))
        return sum(map(count, texts))

    def messages(self, messages: Sequence[Message]) -> Steps[list[int]]:
        """Tokens of each message."""
        counts: list[int] = []
        for message in messages:
            texts, rest = texts_of(message)
            if self._is_slow is None:
                counts.append(rest + sum(map(self._count, texts)))
            else:
                counts.append(rest + (yield from self.texts(texts)))
        return counts


async def count_tokens(
    messages: Sequence[Message],
    *,
    system_prompt: str | None = None,
    tools: Iterable[Mapping[str, Any]] | None = None,
    estimator: TokenEstimator | None = None,
) -> int:
    """Tokens of a request: messages, system prompt and tool schemas. Rough, unless an ``estimator`` is given.

    Long text is counted in a worker thread where the estimator wants that; cancelling stops waiting for it.
    """

    def steps() -> Steps[int]:
        counter = TextCounter(estimator or RoughEstimator())
        total = yield from counter.texts(fixed_texts(system_prompt, tools))
        breath = Breath()
        for message in messages:
            if breath.is_due():
                yield
                breath.taken()
            total += sum((yield from counter.messages([message])))
        return total

    return await run_with_pauses(steps())


def warning_of(estimator: TokenEstimator) -> str | None:
    """Why the estimator counts less exactly than asked for, if it does."""
    counting = estimator.estimator if isinstance(estimator, UsageAnchoredEstimator) else estimator
    return counting.warning if isinstance(counting, WarningEstimator) else None
