"""The repository's documents, cut into their code blocks, their headings and the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


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


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def named_in_code() -> set[str]:
    """Every name that stands in a Python block or in backticks, on any page. A word of plain prose names nothing."""
    code = [block.text for block in blocks("python")]
    code += [text for page in PAGES for text in _INLINE_CODE.findall(prose(page))]
    return {name for text in code for name in re.findall(r"\w+", text)}


def anchors(page: Path) -> set[str]:
    """What a link may name behind ``#``: the headings, as GitHub makes anchors of them."""
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {heading.replace(" ", "-") for heading in kept}


def rows_below(page: Path, heading: str) -> list[list[str]]:
    """The cells of the tables between a heading and the next one of its level or above, without their own headings."""
    text = prose(page)
    level = heading.partition(" ")[0]
    section = re.split(rf"^#{{1,{len(level)}}} ", text[text.index(f"\n{heading}\n") + 1 :], flags=re.MULTILINE)[1]
    section = re.sub(r"^\|.*\n\|-", "", section, flags=re.MULTILINE)  # what stands over a table
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
