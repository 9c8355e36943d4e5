"""How the figures are made: floor and subject in turn, several rounds, the median of the ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from storage.messages import AssistantMessage, Message, TextContent, Usage, UserMessage

_PROSE = (
    "The parser reads the file once and keeps an index of where each entry begins. When a line is cut short it says so, "
    "names the line, and leaves the bytes alone.\n\n"
    "```python\n"
    "def read(path: str) -> list[str]:\n"
    '    with open(path, encoding="utf-8") as file:\n'
    "        return [line.rstrip() for line in file if line.strip()]\n"
    "```\n\n"
    'It printed: {"path": "src/a.py", "lines": 412, "changed": true} — naïve, but it works. Then the second test failed '
    "because the folder had been renamed meanwhile; the error names both paths:\n"
    "    /srv/app/data/sessions/old.jsonl\n    /srv/app/data/sessions/new.jsonl\n"
    "What is left is the question of who closes the file when the task is cancelled in the middle of a write, and "
    "whether the lock is given up before or after that.\n"
)
TEXT = _PROSE[:900]
"""About 1 KB as a line: prose, code, JSON and paths, as in a coding session."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``limit`` is what we promise (``None``: shown beside), ``value`` in ``unit``."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the promise is kept; ``None`` where nothing is promised."""
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self) | {"holds": self.holds}


def message(number: int = 0) -> Message:
    """A message of about 1 KB: user and assistant in turn."""
    if number % 2 == 0:
        return UserMessage(content=TEXT)
    return AssistantMessage(
        content=[TextContent(text=TEXT[:700])],
        api="openai-completions",
        provider="openai",
        model="gpt-5-mini",
        usage=Usage(input=1200, output=180, total_tokens=1380),
        stop_reason="stop",
    )


def seconds(action: Callable[[], object]) -> float:
    """How long ``action`` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


async def seconds_of(action: Callable[[], Awaitable[object]]) -> float:
    """The same for a coroutine."""
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


def ratio(subject: list[float], floor: list[float]) -> float:
    """The median of the ratios, round by round, so that a drift of the machine's speed falls out."""
    return statistics.median(one / other for one, other in zip(subject, floor, strict=True))


def percentile(values: list[float], share: float) -> float:
    """The value that ``share`` of all are at most."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
