"""The repository's documents, cut into their code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language, its text, and the line of the page where the text begins."""

    page: Path
    language: str
    text: str
    line: int

    @property
    def place(self) -> str:
        """Such as ``docs/context.md:12``."""
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def blocks(language: str) -> list[Block]:
    """All blocks of one language, in all pages, in order."""
    found: list[Block] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            if match[1] == language:
                found.append(Block(page, language, match[2], text.count("\n", 0, match.start(2)) + 1))
    return found
