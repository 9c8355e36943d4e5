"""Going to another place: before a message to say it again, with a summary of what is left behind, or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from compaction import BranchSummary, SummaryReply, SummaryRequest
from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.hooks import Hook, NavigationFacts, Refusal
from harness.models.openai_chat import OpenAIChatModel
from harness.navigation import Navigation
from harness.session import Session
from harness.testing import HttpAnswer, ScriptedModel, ScriptedServer, tool_call
from harness.tools import tool
from storage.entries import BranchSummaryEntry, LeafEntry, MessageEntry
from storage.errors import (
    BusyError,
    CompactionError,
    EntryNotFoundError,
    HookError,
    InvalidEntryError,
    NavigationRefusedError,
    PendingCallError,
    TurnAbortedError,
)
from storage.jsonl import JsonlStorage
from storage.messages import ImageContent, TextContent, Usage, UserMessage
from tests.agent.agents import history
from tests.agent.cancelling import StoppedAtStep, run_cancelled
from tests.compaction.summaries import ScriptedSummarizer

pytestmark = pytest.mark.anyio

GOOD = "## Goal\n- port the parser"


async def ids(session: Session) -> dict[str, str]:
    """The entries that hold messages, by text."""
    entries = await session.entries()
    return {entry.message.text: entry.id for entry in entries if isinstance(entry, MessageEntry)}


async def shown(session: Session) -> list[str]:
    return [message.text for message in (await session.build_context()).messages]


async def talk(session: Session, *texts: str, **options: Any) -> AgentHarness:
    """A harness that has had a turn for each text: "u1" is answered "a1"."""
    model = ScriptedModel([*(text.replace("u", "a") for text in texts), *options.pop("more", [])])
    harness = AgentHarness(session, model, **options)
    for text in texts:
        await harness.prompt(text)
    return harness


async def test_before_a_message_with_its_text_and_on_from_there(session: Session) -> None:
    """The session goes on before the turn that the message opened; the message is handed back; what was left stays."""
    harness = await talk(session, "u1", "u2", more=["a3"])
    made = await ids(session)
    left = session.leaf_id
    gone = await harness.navigate(made["u2"])
    entries = await session.entries()
    assert isinstance(entries[-1], LeafEntry)
    assert (gone.text, gone.target_id, gone.left_id, gone.summary_id) == ("u2", made["u2"], left, None)
    assert gone.leaf_id == session.leaf_id == entries[-1].target_id
    assert await shown(session) == ["u1", "a1"]
    await harness.prompt("u3")
    assert await shown(session) == ["u1", "a1", "u3", "a3"]
    assert [message.text for message in (await session.build_context(leaf_id=left)).messages] == [
        "u1",
        "a1",
        "u2",
        "a2",
    ]
    assert (await history(session))[-4:] == ["turn_start 2", "user: u3", "assistant stop: a3", "turn_end 2 completed"]


async def test_an_image_is_handed_back_too(session: Session) -> None:
    """The whole message, not its text alone."""
    harness = AgentHarness(session, ScriptedModel(["a cat"]))
    parts: list[TextContent | ImageContent] = [
        TextContent(text="what?"),
        ImageContent(data="aGk=", mime_type="image/png"),
    ]
    await harness.prompt(parts)
    gone = await harness.navigate((await ids(session))["what?"])
    assert gone.message is not None
    assert gone.message.content == parts
    assert gone.leaf_id is None
    assert await shown(session) == []


async def test_at_anything_else(session: Session) -> None:
    """A reply is gone on from; nothing is handed back."""
    harness = await talk(session, "u1", "u2")
    made = await ids(session)
    gone = await harness.navigate(made["a1"])
    assert (gone.leaf_id, gone.message) == (made["a1"], None)
    assert await shown(session) == ["u1", "a1"]
    gone = await harness.navigate(None)
    assert (gone.leaf_id, gone.left_id) == (None, made["a1"])
    assert await shown(session) == []


async def test_to_where_one_is_writes_nothing(session: Session) -> None:
    """Neither an entry nor a request; a label is given all the same."""
    harness = await talk(session, "u1")
    count = len(session.log.index)
    assert session.leaf_id is not None
    gone = await harness.navigate(session.leaf_id, summarize=True)
    assert gone == Navigation(session.leaf_id, session.leaf_id, session.leaf_id)
    assert len(session.log.index) == count
    here = session.leaf_id
    await harness.navigate(here, label="here")
    assert await session.label(here) == "here"


async def test_the_summary_is_shown_where_one_arrives(session: Session) -> None:
    """The harness's own model is asked about what was left alone, and the entry says where that was, and its cost."""
    harness = await talk(session, "u1", "u2", more=[GOOD, "a3"])
    made, left = await ids(session), session.leaf_id
    gone = await harness.navigate(made["u2"], summarize=True, instructions="Name the files.", label="tried")
    assert gone.summary_id is not None
    entry = await session.entry(gone.summary_id)
    assert isinstance(entry, BranchSummaryEntry)
    assert entry.summary == gone.summary == GOOD
    assert entry.from_id == left
    assert entry.usage is not None and entry.usage.total_tokens
    assert entry.from_hook is None
    assert entry.details == {"readFiles": [], "modifiedFiles": []}
    assert await session.label(gone.summary_id) == "tried"
    first, second, third = await shown(session)
    assert (first, second) == ("u1", "a1")
    assert GOOD in third
    assert isinstance(harness.model, ScriptedModel)
    asked = harness.model.requests[-1]
    assert len(asked.messages) == 1 and asked.tools == ()
    assert "u2" in asked.messages[0].text and "Name the files." in asked.messages[0].text
    assert "u1" not in asked.messages[0].text
    await harness.prompt("u3")
    assert "port the parser" in harness.model.requests[-1].messages[2].text


async def test_a_summariser_of_ones_own(session: Session) -> None:
    """It is asked in place of the model."""
    harness = await talk(session, "u1")
    summarizer = ScriptedSummarizer(GOOD)
    gone = await harness.navigate(None, summarize=summarizer)
    assert gone.summary == GOOD
    assert [message.text for message in summarizer.requests[0].messages] == ["u1", "a1"]
    assert summarizer.requests[0].kind == "branch"
    assert GOOD in (await shown(session))[0]


async def test_only_as_much_as_fits_is_asked_about_the_newest_first(session: Session) -> None:
    """A long branch and a small window: the request fits the window, and holds the end of the branch."""
    model = ScriptedModel(lambda _: "word " * 100, context_window=2_000)
    harness = AgentHarness(session, model)
    for number in range(30):
        await harness.prompt(f"question {number} " + "what about this? " * 10)
    summarizer = ScriptedSummarizer(GOOD)
    await harness.navigate(None, summarize=summarizer)
    (request,) = summarizer.requests
    assert "question 29" in request.prompt
    assert "question 3 " not in request.prompt
    assert len(request.prompt) < 4 * 2_000


async def test_nothing_left_behind_needs_no_summary(session: Session) -> None:
    """Between the last reply and the leaf lies only the turn's end: nobody is asked."""
    harness = await talk(session, "u1")
    gone = await harness.navigate((await ids(session))["a1"], summarize=True)
    assert gone.summary_id is None
    assert await shown(session) == ["u1", "a1"]


BAD: dict[str, tuple[Any, str]] = {
    "nothing": ("", "empty"),
    "a call": (SummaryReply("x", has_tool_calls=True), "tool_call"),
    "cut off": (SummaryReply("x", stop_reason="length"), "cut_off"),
    "an error": (SummaryReply("", stop_reason="error", error_message="overloaded"), "summarizer_failed"),
    "far too much": ("word " * 50_000, "too_long"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_failing_summary_leaves_you_where_you_were(session: Session, name: str) -> None:
    """A typed error that says why and how to go without one; not a byte was written; and then one goes without."""
    answer, reason = BAD[name]
    harness = await talk(session, "u1", "u2")
    made, count, leaf = await ids(session), len(session.log.index), session.leaf_id
    with pytest.raises(CompactionError, match="summarize=False") as caught:
        await harness.navigate(made["u2"], summarize=ScriptedSummarizer(answer))
    assert caught.value.details["reason"] == reason
    assert (len(session.log.index), session.leaf_id) == (count, leaf)
    assert (await harness.navigate(made["u2"])).text == "u2"


async def test_a_model_that_is_down_leaves_you_where_you_were(session: Session) -> None:
    """Through a real server: the way to the model fails, nothing is recorded, the next try works."""
    down = HttpAnswer(400, {"error": {"message": "no"}})
    with ScriptedServer(["a1", down, GOOD]) as server:
        async with OpenAIChatModel("any", base_url=server.base_url, api_key="any") as model:
            harness = AgentHarness(session, model)
            await harness.prompt("u1")
            leaf = session.leaf_id
            with pytest.raises(CompactionError) as caught:
                await harness.navigate(None, summarize=True)
            assert caught.value.details["reason"] == "summarizer_failed"
            assert session.leaf_id == leaf
            assert (await harness.navigate(None, summarize=True)).summary == GOOD


async def test_what_is_wrong_is_told_before_anything_is_written(session: Session) -> None:
    """An entry that is not there, nothing to label, another harness."""
    harness = await talk(session, "u1")
    count = len(session.log.index)
    with pytest.raises(EntryNotFoundError):
        await harness.navigate("nowhere", summarize=True)
    with pytest.raises(InvalidEntryError):
        await harness.navigate(None, label="start")
    with pytest.raises(BusyError):
        await AgentHarness(session, ScriptedModel([])).navigate(None)
    assert len(session.log.index) == count
    assert not harness.is_running


class Watching(Hook):
    """Answers as told, and keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[NavigationFacts] = []

    async def before_navigate(self, navigation: NavigationFacts) -> Any:
        self.asked.append(navigation)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_a_hook_supplies_the_summary(session: Session) -> None:
    """It sees what is left behind; its summary is recorded as a hook's, the model is not asked, a later hook sees it."""
    harness = await talk(session, "u1", "u2")
    made, left = await ids(session), session.leaf_id
    supplying, seeing = Watching("mine"), Watching(None)
    harness.on(supplying)
    harness.on(seeing)
    gone = await harness.navigate(made["u2"], summarize=True, instructions="short", label="x")
    (facts,) = supplying.asked
    assert facts.branch is not None
    assert [message.text for message in facts.branch.messages] == ["u2", "a2"]
    assert (facts.target_id, facts.left_id, facts.wants_summary) == (made["u2"], left, True)
    assert (facts.instructions, facts.label, facts.summary) == ("short", "x", None)
    assert seeing.asked[0].summary == BranchSummary("mine", left or "", {})
    entry = await session.entry(gone.summary_id or "")
    assert isinstance(entry, BranchSummaryEntry)
    assert (entry.summary, entry.from_hook, entry.from_id) == ("mine", True, left)


async def test_a_hook_may_supply_one_that_nobody_asked_for(session: Session) -> None:
    """With details and a cost of its own."""
    harness = await talk(session, "u1")
    usage = Usage(input=1, output=2, total_tokens=3)
    harness.on(Watching(BranchSummary("mine", "", {"readFiles": ["a"]}, usage)))
    gone = await harness.navigate(None)
    entry = await session.entry(gone.summary_id or "")
    assert isinstance(entry, BranchSummaryEntry)
    assert (entry.details, entry.usage) == ({"readFiles": ["a"]}, usage)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Refusal("not now"), NavigationRefusedError),
        (ValueError("broken"), HookError),
        (7, HookError),
        (" ", HookError),
    ],
)
async def test_a_hook_keeps_one_here(session: Session, answer: Any, error: type[Exception]) -> None:
    """By a refusal, by failing, by an answer that is none: nothing is written, and the first refusal wins."""
    harness = await talk(session, "u1", more=["a2"])
    count = len(session.log.index)
    harness.on(Watching(answer))
    later = Watching(None)
    harness.on(later)
    with pytest.raises(error):
        await harness.navigate(None, summarize=True)
    assert later.asked == []
    assert len(session.log.index) == count
    await harness.prompt("u2")


async def test_nothing_else_happens_meanwhile(session: Session) -> None:
    """While the summary is made no turn begins and nobody moves the leaf; an append stays, on the branch that is left."""
    harness = await talk(session, "u1", more=["a2"])
    notes: list[str] = []

    async def meanwhile(_request: SummaryRequest) -> SummaryReply:
        assert harness.is_running
        for attempt in (harness.prompt("x"), harness.navigate(None)):
            with pytest.raises(BusyError):
                await attempt
        with pytest.raises(BusyError):
            session.move_to(None)
        notes.append(await session.append_custom_message("note", "meanwhile"))
        return SummaryReply(GOOD, stop_reason="stop")

    gone = await harness.navigate(None, summarize=Calling(meanwhile))
    entry = await session.entry(gone.summary_id or "")
    assert isinstance(entry, BranchSummaryEntry)
    assert entry.from_id == notes[0]
    assert not harness.is_running
    await harness.prompt("u2")


class Calling:
    """A summariser that calls a function."""

    def __init__(self, function: Callable[[SummaryRequest], Awaitable[SummaryReply]]) -> None:
        self.function = function

    async def summarize(self, request: SummaryRequest) -> SummaryReply:
        return await self.function(request)


async def slowly(_request: SummaryRequest) -> SummaryReply:
    await anyio.sleep(0)
    await anyio.sleep(0)
    return SummaryReply(GOOD, stop_reason="stop")


async def test_during_a_turn_it_is_refused(session: Session) -> None:
    """A tool cannot move the session that its turn runs in."""
    errors: list[BusyError] = []

    @tool
    async def leave() -> str:
        """Go away."""
        try:
            await harness.navigate(None)
        except BusyError as error:
            errors.append(error)
        return "ok"

    harness = AgentHarness(session, ScriptedModel([tool_call("leave"), "done"]), tools=[leave])
    await harness.prompt("u1")
    assert len(errors) == 1
    assert (await shown(session))[-1] == "done"


async def test_abort_ends_it(session: Session) -> None:
    """The summary is given up, nothing is written, and whoever waited is told; the next prompt goes on from here."""
    harness = await talk(session, "u1", more=["a2"])
    count, begun = len(session.log.index), anyio.Event()

    async def hang(_request: SummaryRequest) -> SummaryReply:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as tasks:

        async def go() -> None:
            with pytest.raises(TurnAbortedError):
                await harness.navigate(None, summarize=Calling(hang))

        tasks.start_soon(go)
        await begun.wait()
        assert await harness.abort() == []
    assert len(session.log.index) == count
    await harness.prompt("u2")
    assert await shown(session) == ["u1", "a1", "u2", "a2"]


@pytest.mark.parametrize("way", ["scope", "native"])
async def test_cancelled_at_each_await(tmp_path: Path, way: str, anyio_backend_name: str) -> None:
    """One is here or there, never between; the harness goes on; and so it is after reopening."""
    if way == "native" and anyio_backend_name == "trio":
        pytest.skip("tasks of trio are cancelled by scopes alone")
    outcomes: set[str] = set()
    for step in range(1, 100):
        path = tmp_path / f"{step}.jsonl"
        async with Session.open(JsonlStorage.create(path)) as session:
            harness = await talk(session, "u1", "u2", more=["a3"])
            made, left = await ids(session), session.leaf_id
            stopped: list[StoppedAtStep] = []

            async def work(
                cancel: Any,
                harness: AgentHarness = harness,
                made: dict[str, str] = made,
                stopped: list[StoppedAtStep] = stopped,
                step: int = step,
            ) -> None:
                navigating = harness.navigate(made["u2"], summarize=Calling(slowly), label="tried")
                stopped.append(StoppedAtStep(navigating, step, cancel))
                await stopped[0]

            outcome = await run_cancelled(way, work)
            await session.flush()
            texts = await shown(session)
            if texts == ["u1", "a1", "u2", "a2"]:
                assert session.leaf_id == left
                outcomes.add("here")
            else:
                assert texts[:2] == ["u1", "a1"] and GOOD in texts[2] and len(texts) == 3
                outcomes.add("there")
            assert not harness.is_running
            await harness.prompt("u3")
            assert await shown(session) == [*texts, "u3", "a3"]
        async with Session.open(JsonlStorage.open(path)) as again:
            assert await shown(again) == [*texts, "u3", "a3"]
        if outcome == "finished" and stopped[0].steps < step:
            break
    else:
        raise AssertionError("it never came to its end")
    assert outcomes == {"here", "there"}


async def test_cut_off_at_any_byte_it_is_here_or_there(tmp_path: Path) -> None:
    """A crash between the entry that goes there and the label: one is there, without it."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as session:
        harness = await talk(session, "u1", "u2")
        before = len(path.read_bytes())
        await harness.navigate((await ids(session))["u2"], summarize=ScriptedSummarizer(GOOD), label="tried")
    data = path.read_bytes()
    seen: set[int] = set()
    for end in range(before, len(data) + 1, 7):
        path.write_bytes(data[:end])
        async with Session.open(JsonlStorage.open(path, mode="read")) as session:
            texts = await shown(session)
            seen.add(len(texts))
            assert texts[:2] == ["u1", "a1"]
            assert texts == ["u1", "a1", "u2", "a2"] or GOOD in texts[2]
    assert seen == {3, 4}


async def test_before_a_steer_it_waits_no_longer(session: Session) -> None:
    """A message that was said into a turn is handed back, and not delivered once more in the turn that follows."""

    @tool
    async def look() -> str:
        """Look."""
        harness.steer("in the garden")
        return "nothing"

    harness = AgentHarness(session, ScriptedModel([tool_call("look"), "found", "a2"]), tools=[look])
    await harness.prompt("u1")
    gone = await harness.navigate((await ids(session))["in the garden"])
    assert gone.text == "in the garden"
    assert await harness.waiting_messages() == []
    await harness.prompt("in the house")
    assert await shown(session) == ["u1", "", "nothing", "in the house", "a2"]


async def test_before_what_was_said_with_a_prompt_is_before_the_turn(session: Session) -> None:
    """``next_turn`` messages come before the prompt: back before the second, the first waits again."""
    harness = AgentHarness(session, ScriptedModel(["a1", "a2"]))
    await harness.next_turn("first")
    await harness.next_turn("second")
    await harness.prompt("u1")
    gone = await harness.navigate((await ids(session))["second"])
    assert gone.text == "second"
    assert [waiting.message.text for waiting in await harness.waiting_messages()] == ["first"]
    await harness.prompt("u2")
    assert await shown(session) == ["first", "u2", "a2"]


async def test_state_is_that_of_the_place(session: Session) -> None:
    """Thinking level and tools are those that were in force there (R22)."""
    harness = await talk(session, "u1", more=["a2", "a3"], tools=[])
    await harness.set_thinking_level("low")
    await harness.prompt("u2")
    made = await ids(session)
    await harness.set_thinking_level("high")
    await harness.navigate(made["a2"])
    assert harness.thinking_level == "low"
    await harness.navigate(made["a1"])
    assert harness.thinking_level is None
    message = UserMessage(content="u3")
    await session.append_message(message)
    assert await shown(session) == ["u1", "a1", "u3"]


async def test_away_from_a_turn_that_waits_and_back(session: Session) -> None:
    """Who leaves a turn that waits for approval can talk elsewhere; back at it, it still waits, and goes on."""
    decisions = [Decision.later(), Decision.approve()]

    async def approve(_request: ApprovalRequest) -> Decision:
        return decisions.pop(0)

    @tool(needs_approval=True)
    async def danger() -> str:
        """Do it."""
        return "done"

    model = ScriptedModel([tool_call("danger"), GOOD, "elsewhere", "finished"])
    harness = AgentHarness(session, model, tools=[danger], approve=approve)
    with pytest.raises(PendingCallError):
        await harness.prompt("u1")
    waiting = session.leaf_id
    await harness.navigate(None, summarize=True)
    assert (await harness.prompt("u2")).text == "elsewhere"
    await harness.navigate(waiting)
    with pytest.raises(PendingCallError):
        await harness.prompt("u3")
    assert (await harness.resume()).text == "finished"
    assert await shown(session) == ["u1", "", "done", "finished"]
