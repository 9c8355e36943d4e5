"""Answers that take as long as a test needs, however fast or slow the machine is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from harness.testing import HttpAnswer, Reply
from harness.testing.protocols import OPENAI
from storage.messages import ToolCall
from tests.cli.conftest import Command

PIECE_SECONDS = 0.02


def never() -> bool:
    """The answer lasts until who asked goes away."""
    return False


def lasting(
    text: str, until: Callable[[], object] = never, *, call: ToolCall | None = None, error: str | None = None
) -> HttpAnswer:
    """A reply in pieces of four characters. The last piece, and what follows it, waits ``until`` that is true.

    ``call`` is a tool call at its end; with ``error`` that comes in place of the end.
    """
    chunks = OPENAI.chunks_of(Reply(text, tool_calls=[call] if call else []).message, "m", 4, None)
    ending = [OPENAI.error(error, "error")] if error is not None else [chunks[-1], *OPENAI.ending]

    def pieces() -> Iterator[Any]:
        for chunk in chunks[:-2]:
            yield chunk
            yield PIECE_SECONDS
        while not until():
            yield PIECE_SECONDS
        yield from [chunks[-2], *ending]

    return HttpAnswer(200, cast("list[Any]", pieces()))


def queued(command: Command, text: str) -> Callable[[], bool]:
    """Whether a line that was typed into an answer is on record."""
    return lambda: any(
        '"type":"queued"' in line and text in line
        for path in command.root.glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    )
