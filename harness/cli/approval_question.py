"""A question about one call, from the conversation's loop to the person at the terminal and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

import anyio

from harness.approvals import ApprovalRequest, Decision
from harness.cli.plain_text import neutral, neutral_line
from harness.cli.screen import Screen, Span

SHOWN_LINES: Final = 60
"""Lines of a preview that are shown at once; all of it is one key away."""

SHOWN_CHARACTERS: Final = 6_000

MARGIN: Final = "  | "
"""Before each line of what a model wrote, so that none of it can be taken for a line of ours."""

ANSWERS: Final = "[y]es, [n]o, or [a]lways"

_WORDS: Final = {"y": "yes", "yes": "yes", "n": "no", "no": "no", "a": "always", "always": "always"}
_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


class ApprovalQuestion:
    """One call that waits for a person. Made and waited for on the loop; shown and asked on the main thread."""

    def __init__(self, request: ApprovalRequest) -> None:
        self.request = request
        self._answered = anyio.Event()
        self._decision = Decision.later()
        self.always = False
        """Whether this tool need not be asked about again."""

    async def decision(self) -> Decision:
        """Wait for what the person says."""
        await self._answered.wait()
        return self._decision

    async def settle(self, decision: Decision, always: bool) -> None:
        """What the person said. Called on the loop."""
        self._decision = decision
        self.always = always
        self._answered.set()


def ask_person(screen: Screen, request: ApprovalRequest, answer: Callable[[str], str | None]) -> tuple[Decision, bool]:
    """Show what would run, and ask; the decision, and whether it holds for this tool from now on.

    ``answer`` asks one line; no answer (Ctrl-D) is a no. Whatever it raises goes on up.
    """
    name = neutral_line(request.call.name)
    lines = shown_lines(request)
    cut = _show(screen, name, lines, whole=False)
    choice = f"{ANSWERS} for {name} in this chat{', or [s]how all of it' if cut else ''}?"
    while True:
        said = answer(choice)
        if said is None:
            return Decision.deny(), False
        word, _, reason = said.strip().partition(" ")
        word = word.lower().rstrip(",.:")
        if word in ("s", "show"):
            _show(screen, name, lines, whole=True)
            continue
        meant = _WORDS.get(word)
        if meant == "no":
            reason = reason or answer("why not? (for the model; Enter for no reason)") or ""
            return Decision.deny(reason.strip()), False
        # A yes with more behind it may be meant as anything: it is asked again.
        if meant is not None and not reason.strip():
            return Decision.approve(), meant == "always"
        screen.note('"n" and a reason denies it and tells the model why; Ctrl-C stops the whole turn')


def shown_lines(request: ApprovalRequest) -> list[str]:
    """What would run, neutralised: the tool's preview, or else the arguments as JSON."""
    text = request.preview
    if text is None:
        text = json.dumps(request.call.arguments, ensure_ascii=False, indent=2)
    return [line.expandtabs(4) for line in neutral(text).rstrip("\n").split("\n")]


def _show(screen: Screen, name: str, lines: list[str], *, whole: bool) -> bool:
    """Write the lines under a title; whether some were left out."""
    shown = lines if whole else [*_first(lines)]
    screen.note([Span(name, "bold yellow"), Span(" would like to do this:", "yellow")])
    is_diff = any(re.match(r"@@|--- |\+\+\+ ", line) for line in lines[:4])
    for line in shown:
        style = _STYLES.get(line[:1], "") if is_diff else ""
        for piece in screen.fitting(line, margin=len(MARGIN)):
            screen.note([Span(MARGIN, "dim"), Span(piece, style)])
    left = len(lines) - len(shown)
    cut = left > 0 or shown != lines
    if cut:
        screen.note([Span(f"  ({left} more lines, or parts of lines, are not shown)", "yellow")])
    return cut


def _first(lines: list[str]) -> Iterator[str]:
    room = SHOWN_CHARACTERS
    for line in lines[:SHOWN_LINES]:
        if len(line) > room:
            if room > 0:
                yield line[:room]
            return
        yield line
        room -= len(line)
