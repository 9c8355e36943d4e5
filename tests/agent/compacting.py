"""What the tests of compaction in the harness share: a server that also summarises, and what must hold of every request."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import isawaitable
from itertools import pairwise
from typing import Any

from compaction import SummaryReply, SummaryRequest
from compaction.summary_wording import SYSTEM_PROMPT
from harness import CompactionEntry, MessageEntry, OpenAIChatModel, Session, rebuild_request
from harness.hooks import Hook
from harness.testing import Answer, HttpAnswer, ReceivedRequest, ScriptedServer
from storage.entries import Entry

SUMMARY = "## Goal\n- to see what fits"
WORDS = "What about this one, and what comes of it? " * 6


def is_summary(request: ReceivedRequest) -> bool:
    """Whether the server was asked for a summary."""
    return request.messages[0]["content"] == SYSTEM_PROMPT


def answering(
    answer: Callable[[ReceivedRequest], Answer] = lambda _: "Answered. " + "So it is. " * 12,
    summary: Callable[[ReceivedRequest], Answer] = lambda _: SUMMARY,
) -> Callable[[ReceivedRequest], Answer]:
    """A server's script: ``summary`` where it is asked for one, else ``answer``."""
    return lambda request: summary(request) if is_summary(request) else answer(request)


def model_at(server: ScriptedServer, window: int | None = 2_048, **more: Any) -> OpenAIChatModel:
    return OpenAIChatModel("any", base_url=server.base_url, api_key="any", context_window=window, **more)


def conversation(server: ScriptedServer) -> list[ReceivedRequest]:
    """The requests that were no summaries."""
    return [request for request in server.requests if not is_summary(request)]


def compactions(entries: list[Entry]) -> list[CompactionEntry]:
    return [entry for entry in entries if isinstance(entry, CompactionEntry)]


async def check_rebuilt(session: Session, server: ScriptedServer, model: OpenAIChatModel) -> None:
    """R26: every answered request comes back from the record, to the byte."""
    entries = await session.entries(limit=100_000)
    replies = [entry.id for entry in entries if isinstance(entry, MessageEntry) and entry.request is not None]
    made = [model.payload(await rebuild_request(session, reply)) for reply in replies]
    sent = [request.raw for request in conversation(server)]
    assert [body for body in sent if body in made] == made


def broken_prefixes(requests: list[ReceivedRequest]) -> int:
    """How many requests do not begin with the whole of the one before."""
    texts = [[json.dumps(message) for message in request.messages] for request in requests]
    return sum(after[: len(before)] != before for before, after in pairwise(texts))


class Telling(Hook):
    """Keeps the events of compactions."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def on_event(self, event: Any) -> None:
        if type(event).__name__.startswith("Compaction"):
            self.told.append(event)

    @property
    def names(self) -> list[str]:
        return [type(event).__name__.removeprefix("Compaction") for event in self.told]


class Summarizing:
    """A summariser that answers what it is told to, and keeps the requests."""

    def __init__(self, answer: Any = SUMMARY) -> None:
        self.answer = answer
        self.requests: list[SummaryRequest] = []

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        self.requests.append(request)
        answer: Any = self.answer(request) if callable(self.answer) else self.answer
        if isawaitable(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, SummaryReply) else SummaryReply(answer, stop_reason="stop")


OVERFLOWS = {
    "openai": HttpAnswer(
        400,
        {
            "error": {
                "message": "This model's maximum context length is 2048 tokens. However, your messages resulted in 2500 "
                "tokens. Please reduce the length of the messages.",
                "code": "context_length_exceeded",
            }
        },
    ),
    "no sizes": HttpAnswer(400, {"error": {"message": "prompt is too long", "type": "invalid_request_error"}}),
}
