"""Summarisers for tests, and plans for them."""

from __future__ import annotations

from collections.abc import Callable

from compaction import CompactionPlan, CompactionSettings, SummaryReply, SummaryRequest, prepare_compaction, run_at_once
from tests.compaction.conversation import Conversation, call

WORDS = "word " * 40


class ScriptedSummarizer:
    """Answers what it is told to, and keeps the requests."""

    def __init__(self, answer: str | SummaryReply | Callable[[SummaryRequest], str] = "## Goal\n- all of it") -> None:
        self.answer = answer
        self.requests: list[SummaryRequest] = []

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        self.requests.append(request)
        answer = self.answer(request) if callable(self.answer) else self.answer
        return answer if isinstance(answer, SummaryReply) else SummaryReply(answer, stop_reason="stop")


def long_conversation() -> Conversation:
    """About 1,300 tokens; two files are touched."""
    conversation = Conversation().user("first", "Port the parser to Rust.")
    conversation.reply("look", call("1", "read", path="parser.py"), call("2", "edit", path="parser.rs"))
    conversation.result("r1", "1", "def parse(): ...").result("r2", "2", "edited")
    for number in range(12):
        conversation.user(f"u{number}", f"u{number} {WORDS}").reply(f"a{number}", text=f"a{number} {WORDS}")
    return conversation


def plan_of(conversation: Conversation | None = None, window: int = 1_000) -> CompactionPlan:
    settings = CompactionSettings(context_window=window, reserve_tokens=0)
    plan = run_at_once(prepare_compaction((conversation or long_conversation()).path, settings))
    assert plan is not None
    return plan
