"""From a plan to what is appended: summaries that are refused change nothing, and say why."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from compaction import CompactionSettings, RoughEstimator, SummaryReply, SummaryRequest, compact
from compaction.file_operations import without_files
from compaction.summary_checks import check_summary
from harness import MemoryStorage, Session
from storage.errors import CompactionError
from storage.messages import Usage
from tests.compaction.conversation import Conversation, reply_message, user_message
from tests.compaction.summaries import WORDS, ScriptedSummarizer, long_conversation, plan_of

pytestmark = pytest.mark.anyio


async def refused(answer: Any) -> CompactionError:
    with pytest.raises(CompactionError) as caught:
        await compact(plan_of(), ScriptedSummarizer(answer))
    return caught.value


async def test_the_summary_with_its_files_and_its_cost() -> None:
    """What ``append_compaction`` takes: the files behind the summary and in the details, the summariser's tokens."""
    usage = Usage(input=900, output=30, total_tokens=930)
    summarizer = ScriptedSummarizer(SummaryReply("## Goal\n- port it", usage, "stop"))
    plan = plan_of()
    result = await compact(plan, summarizer, instructions="Keep names.")
    assert result.summary == (
        "## Goal\n- port it\n\n<read-files>\nparser.py\n</read-files>\n\n<modified-files>\nparser.rs\n</modified-files>"
    )
    assert result.details == {"readFiles": ["parser.py"], "modifiedFiles": ["parser.rs"]}
    assert (result.usage, result.tokens_before) == (usage, plan.tokens_before)
    assert result.first_kept_entry_id == plan.first_kept_entry_id
    [request] = summarizer.requests
    assert request.prompt.endswith("Keep names.")
    assert "| Port the parser to Rust." in request.prompt
    assert request.max_tokens == plan.summary_tokens == 120


async def test_a_split_turn_is_told_and_recorded() -> None:
    """The summariser is told where the turn begins that goes on."""
    conversation = Conversation().user("u", "do it all")
    for number in range(20):
        conversation.reply(f"a{number}", f"c{number}", text=WORDS).result(f"r{number}", f"c{number}", "ok")
    summarizer = ScriptedSummarizer()
    result = await compact(plan_of(conversation), summarizer)
    assert result.details["splitTurn"] is True
    assert "(Here begins the turn that is still going on" in summarizer.requests[0].prompt


@pytest.mark.parametrize(
    "answer, reason",
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("<read-files>\na.py\n</read-files>", "empty"),
        (SummaryReply("half a sum", stop_reason="length"), "cut_off"),
        (SummaryReply("", stop_reason="error", error_message="429 slow down"), "summarizer_failed"),
        (SummaryReply("partly", stop_reason="aborted"), "summarizer_failed"),
        (SummaryReply("I read it first.", stop_reason="toolUse", has_tool_calls=True), "tool_call"),
        ("word " * 400, "too_long"),
    ],
)
async def test_what_is_no_summary_is_refused(answer: str | SummaryReply, reason: str) -> None:
    """Empty, cut off, an error, a tool call, far too long: a typed error that says so."""
    error = await refused(answer)
    assert error.code == "compaction"
    assert error.details["reason"] == reason
    assert "nothing was changed" in str(error)


async def test_a_refused_summary_tells_what_it_cost() -> None:
    """Its tokens were spent."""
    usage = Usage(input=5, output=1, total_tokens=6)
    assert (await refused(SummaryReply("", usage))).details["usage"] == usage


async def test_a_summary_not_smaller_than_what_it_replaces_is_refused() -> None:
    """Measured as it is shown, with the words around it and the files behind it."""
    plan = plan_of(long_conversation(), window=1_000)
    text = "word " * plan.summary_tokens
    assert check_summary(SummaryReply(text), plan)
    small = Conversation().user("u", "word " * 70).user("v", "word " * 800)
    small_plan = plan_of(small, window=1_300)
    assert small_plan.tokens_replaced < 100
    with pytest.raises(CompactionError) as caught:
        check_summary(SummaryReply("word " * 80), small_plan)
    assert caught.value.details["reason"] == "not_smaller"
    assert caught.value.details["size"] >= caught.value.details["replaced"] == small_plan.tokens_replaced


async def test_summaries_do_not_grow_from_compaction_to_compaction() -> None:
    """A summariser that echoes what it got is refused; one that copies the previous summary nests no files."""

    def echo(request: SummaryRequest) -> str:
        return request.prompt

    assert (await refused(echo)).details["reason"] == "too_long"

    def copy(request: SummaryRequest) -> str:
        return f"{request.previous_summary or '## Goal'}\n- one more"

    conversation = long_conversation()
    for number in range(6):
        result = await compact(plan_of(conversation), ScriptedSummarizer(copy))
        assert result.summary.count("<read-files>") == 1
        assert result.summary.count("- one more") == number + 1
        conversation.compaction(
            f"c{number}", result.summary, first_kept_entry_id=result.first_kept_entry_id, details=result.details
        )
        for step in range(12):
            conversation.user(f"more {number} {step}", WORDS).reply(f"so {number} {step}", text=WORDS)
    assert RoughEstimator().count(conversation.project().messages[0].text) < 200


async def test_a_summariser_that_raises_is_a_typed_error() -> None:
    """Whatever it raised is the cause."""

    class Raises:
        async def summarize(self, request: SummaryRequest) -> SummaryReply:
            raise OSError("the wire is cut")

    with pytest.raises(CompactionError, match="the wire is cut") as caught:
        await compact(plan_of(), Raises())
    assert caught.value.details["reason"] == "summarizer_failed"
    assert isinstance(caught.value.__cause__, OSError)


class Hangs:
    def __init__(self) -> None:
        self.cancelled = False
        self.begun = anyio.Event()

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        except BaseException:
            self.cancelled = True
            raise
        raise AssertionError


async def test_a_summariser_that_hangs_is_given_up() -> None:
    """After ``summary_timeout`` it is cancelled; what it would have said later changes nothing."""
    plan = plan_of()
    settings = CompactionSettings(context_window=1_000, reserve_tokens=0, summary_timeout=0.01)
    summarizer = Hangs()
    with pytest.raises(CompactionError) as caught:
        await compact(_with(plan, settings), summarizer)
    assert caught.value.details["reason"] == "timed_out"
    assert summarizer.cancelled


def _with(plan: Any, settings: CompactionSettings) -> Any:
    from dataclasses import replace

    return replace(plan, settings=settings)


async def test_a_cancelled_compaction_goes_away_at_once() -> None:
    """The cancellation goes on up, it becomes no error of ours."""
    summarizer = Hangs()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await summarizer.begun.wait()
                scope.cancel()

            tasks.start_soon(cancel)
            await compact(plan_of(), summarizer)
    assert scope.cancelled_caught
    assert summarizer.cancelled


async def test_through_a_session() -> None:
    """Planned on its path, summarised, appended: what was said meanwhile stays, and the next context is small."""
    async with Session.open(MemoryStorage.create()) as session:
        for number in range(12):
            session.append_message(user_message(f"question {number} {WORDS}"))
            await session.append_message(reply_message(f"answer {number} {WORDS}"))
        from compaction import prepare_compaction, run_with_pauses

        settings = CompactionSettings(context_window=1_000, reserve_tokens=0)
        plan = await run_with_pauses(prepare_compaction(await session.log.path(), settings))
        assert plan is not None

        class Meanwhile:
            async def summarize(self, request: SummaryRequest) -> SummaryReply:
                await session.append_message(user_message("meanwhile"))
                return SummaryReply("## Done\n- eleven questions")

        result = await compact(plan, Meanwhile())
        await session.append_compaction(
            result.summary,
            first_kept_entry_id=result.first_kept_entry_id,
            tokens_before=result.tokens_before,
            details=result.details,
            usage=result.usage,
        )
        context = await session.build_context()
        starts = [" ".join(message.text.split()[:2]) for message in context.messages[1:]]
        assert "eleven questions" in context.messages[0].text
        assert starts == ["question 11", "answer 11", "meanwhile"]
        assert context.tokens < 300


def test_only_our_own_blocks_are_taken_off() -> None:
    """Both, at the end; what stands elsewhere, or only looks alike, stays."""
    blocks = "<read-files>\na.py\nb c.py\n</read-files>\n\n<modified-files>\nx\n</modified-files>"
    assert without_files(f"sum\n\n{blocks}\n") == "sum"
    assert without_files("sum <read-files>\nx\n</read-files> more") == "sum <read-files>\nx\n</read-files> more"
    assert without_files("<modified-files>") == "<modified-files>"
    assert without_files("") == ""
