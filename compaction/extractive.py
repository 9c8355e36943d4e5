"""A summary without a model: sentences taken from the conversation. The fallback that an app may choose.

It understands nothing. It keeps what tends to matter: the first request and the newest, what the person asked to be
remembered, decisions, the last errors, and what was answered. The same conversation gives the same summary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from compaction.breathing import Breath, Steps, run_with_pauses
from compaction.rough_tokens import RoughEstimator
from compaction.summary_request import SummaryReply, SummaryRequest
from compaction.summary_wording import BLOCKED, CONSTRAINTS, CRITICAL, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from compaction.tokens import texts_of
from storage.messages import AssistantMessage, Message, ToolResultMessage, UserMessage

_FACT: Final = re.compile(
    r"\b(?:remember|keep in mind|note that|important|must|never|always|prefer|do not|don't|only|make sure|my name|"
    r"is called|are called)\b|记住|必须|不要|务必|覚えて|기억",
    re.IGNORECASE,
)
_DETAIL: Final = re.compile(r"\d|`[^`]+`|\"[^\"]+\"|\b\w+[._/]\w+\b")
_DECISION: Final = re.compile(
    r"\b(?:decided|decision|chose|choose|will use|we use|instead of|rather than|agreed|switch(?:ed)? to|because)\b|决定",
    re.IGNORECASE,
)
_ERROR: Final = re.compile(r"error|exception|\bfatal|\bfailed|\bdenied|\bnot found|\bcannot", re.IGNORECASE)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|[\r\n\u2028\u2029]+")

_LOOKED_AT: Final = 6_000
"""Characters of one text that are looked at: its beginning and its end."""

_FIRST_MESSAGES: Final = 1_000
_NEWEST_MESSAGES: Final = 4_000
"""How many messages are looked at: a session of days that was never compacted has more."""

_LONGEST: Final = 240
"""Characters of one point."""

_LEAST_TOKENS: Final = 24

_SHORTEST: Final = 40
"""Characters to which a point is cut at the most, to make it fit."""

_ORDER: Final = (
    (GOAL, 0.10, True),
    (IN_PROGRESS, 0.14, False),
    (CONSTRAINTS, 0.44, True),
    (CRITICAL, 0.10, True),
    (BLOCKED, 0.06, False),
    (DECISIONS, 0.08, False),
    (DONE, 0.08, False),
)
"""Each heading, its share of the room, and whether its oldest points are kept where not all fit (else its newest)."""

_SHOWN: Final = (GOAL, CONSTRAINTS, DONE, IN_PROGRESS, BLOCKED, DECISIONS, CRITICAL)


class ExtractiveSummarizer:
    """A ``Summarizer`` that needs no model and no network. 50,000 tokens take it some 30 ms, in pieces."""

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        """The summary, at most ``request.max_tokens`` long by the rough estimate."""
        return SummaryReply(text=await run_with_pauses(_summary(request)), stop_reason="stop")


def _summary(request: SummaryRequest) -> Steps[str]:
    points = _points_of(request.previous_summary or "")
    found = yield from _found(request.messages)
    if not points.get(GOAL):
        points[GOAL] = found.requests[:1]
    if found.requests:
        points[IN_PROGRESS] = found.requests[-3:]
    else:
        points[IN_PROGRESS] = [*points.get(NEXT_STEPS, []), *points.get(IN_PROGRESS, [])]
    points[BLOCKED] = found.errors[-4:] or points.get(BLOCKED, [])
    points[DECISIONS] = [*points.get(DECISIONS, []), *found.decisions]
    points[CONSTRAINTS] = [*points.get(CONSTRAINTS, []), *found.facts]
    points[CRITICAL] = [*points.get(CRITICAL, []), *found.details]
    points[DONE] = [*points.get(DONE, []), *found.answers]
    return _written(points, _room(request))


def _room(request: SummaryRequest) -> int:
    """Tokens to fill: half of what is summarised at most, or little would be gained."""
    count = RoughEstimator().count
    size = count(request.previous_summary or "")
    for message in request.messages:
        size += sum(map(count, texts_of(message)[0]))
        if size > 2 * request.max_tokens:
            return request.max_tokens
    return max(_LEAST_TOKENS, min(request.max_tokens, size // 2))


class _Found:
    """What the messages hold, oldest first."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.facts: list[str] = []
        self.details: list[str] = []
        self.decisions: list[str] = []
        self.errors: list[str] = []
        self.answers: list[str] = []


def _found(messages: Sequence[Message]) -> Steps[_Found]:
    breath = Breath()
    found = _Found()
    answer = request = ""
    if len(messages) > _FIRST_MESSAGES + _NEWEST_MESSAGES:
        messages = [*messages[:_FIRST_MESSAGES], *messages[-_NEWEST_MESSAGES:]]
    for message in messages:
        if breath.is_due():
            yield
            breath.taken()
        if isinstance(message, UserMessage):
            if request and answer:
                found.answers.append(f"{request[:100]} → {answer[:140]}")
            answer, request = "", _look_at_user(message, found)
        elif isinstance(message, AssistantMessage):
            sentences = _sentences(message.text)
            answer = sentences[0] if sentences else answer
            found.decisions += [sentence for sentence in sentences if _DECISION.search(sentence)]
        elif isinstance(message, ToolResultMessage) and message.is_error:
            lines = _sentences(message.text)
            worst = next((line for line in reversed(lines) if _ERROR.search(line)), lines[-1] if lines else "")
            if worst:
                found.errors.append(f"{message.tool_name}: {worst}"[:_LONGEST])
    if request and answer:
        found.answers.append(f"{request[:100]} → {answer[:140]}")
    return found


def _look_at_user(message: UserMessage, found: _Found) -> str:
    """Take what a person said apart. Returns its beginning, by which the request is known."""
    sentences = _sentences(message.text)
    if not sentences:
        return ""
    whole = " ".join(message.text[:_LOOKED_AT].split())
    found.requests.append(whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 1]}…")
    for sentence in sentences:
        if _FACT.search(sentence):
            found.facts.append(sentence)
        elif _DETAIL.search(sentence):
            found.details.append(sentence)
    return sentences[0]


def _sentences(text: str) -> list[str]:
    if len(text) > _LOOKED_AT:
        text = f"{text[: _LOOKED_AT * 2 // 3]}\n{text[-_LOOKED_AT // 3 :]}"
    pieces = (" ".join(piece.split())[:_LONGEST] for piece in _SENTENCE_END.split(text))
    return [piece for piece in pieces if any(map(str.isalnum, piece))]


def _points_of(summary: str) -> dict[str, list[str]]:
    """The points of a summary in our outline, by heading. What is in no outline counts as critical context."""
    known = {GOAL, CONSTRAINTS, DONE, IN_PROGRESS, BLOCKED, DECISIONS, NEXT_STEPS, CRITICAL}
    points: dict[str, list[str]] = {}
    heading = CRITICAL
    for line in summary.splitlines():
        text = " ".join(line.split())
        if text.startswith("#"):
            name = text.lstrip("# ").rstrip(":")
            heading = name if name in known else CRITICAL
        elif text := re.sub(r"^(?:[-*•] |\d+[.)] )(?:\[[ xX]\] )?", "", text):
            points.setdefault(heading, []).append(text[: 2 * _LONGEST])
    return points


def _written(points: dict[str, list[str]], room: int) -> str:
    """As many points as fit, under their headings: each heading has its share, what is left over goes by their order."""
    page = _Page(room)
    for is_shared in (True, False):
        for heading, share, oldest in _ORDER:
            of_heading = list(dict.fromkeys(points.get(heading, ())))
            page.add(heading, of_heading if oldest else of_heading[::-1], round(room * share) if is_shared else room)
    oldest_first = {heading for heading, _, oldest in _ORDER if oldest}
    blocks: list[str] = []
    for heading in _SHOWN:
        chosen = page.chosen.get(heading)
        if chosen:
            ordered = chosen if heading in oldest_first else chosen[::-1]
            blocks.append("\n".join((f"## {heading}", *(f"- {point}" for point in ordered))))
    return "\n\n".join(blocks) or "Nothing of note was said."


class _Page:
    """Points under headings, in so many tokens."""

    def __init__(self, room: int) -> None:
        self._left = room
        self._sizes: dict[str, int] = {}
        self._taken: set[tuple[str, str]] = set()
        self._count = RoughEstimator().count
        self.chosen: dict[str, list[str]] = {}

    def add(self, heading: str, points: Sequence[str], share: int) -> None:
        """Add points in this order, as far as there is room; the first one of a heading is cut to fit.

        A point stands under one heading, but for what is in progress: that gives way next time, and must hide nothing.
        """
        for point in points:
            key = (heading if heading == IN_PROGRESS else "", point)
            if key in self._taken:
                continue
            is_first = heading not in self.chosen
            room = min(self._left, share - self._sizes.get(heading, 0))
            fitting = self._fitting(point, room - (self._count(f"\n\n## {heading}") if is_first else 0), cut=is_first)
            if fitting is None:
                return
            size = self._count(f"- {fitting}\n") + (self._count(f"\n\n## {heading}") if is_first else 0)
            self._left -= size
            self._sizes[heading] = self._sizes.get(heading, 0) + size
            self._taken.add(key)
            self.chosen.setdefault(heading, []).append(fitting)

    def _fitting(self, point: str, room: int, *, cut: bool) -> str | None:
        while self._count(f"- {point}\n") > room:
            if not cut or len(point) <= _SHORTEST:
                return None
            point = f"{point[: max(_SHORTEST, len(point) * 2 // 3) - 1].rstrip()}…"
        return point
