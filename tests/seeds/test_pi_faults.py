"""What pi gets wrong with state, compactions, branches and forks (observed in its versions), and does not happen here.

Compactions have theirs in ``tests/compaction/test_pi_compactions.py``; here are those that need a session or a harness.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from harness import (
    AgentHarness,
    AgentSettings,
    AssistantMessage,
    ChatModel,
    CompactionError,
    CompactionSettings,
    Hook,
    JsonlStorage,
    MemoryStorage,
    MessageEntry,
    ModelError,
    OpenAIChatModel,
    RetryPolicy,
    Session,
    SummaryReply,
    TextContent,
    TurnAbortedError,
    TurnLimitError,
    UserMessage,
    tool,
)
from harness.hooks import CallFacts, Refusal
from harness.testing import HttpAnswer, Reply, ScriptedModel, ScriptedServer, tool_call
from tests.agent.agents import history, results
from tests.compaction.summaries import ScriptedSummarizer

pytestmark = pytest.mark.anyio

GOOD = "## Goal\n- all of it"


async def talk(session: Session, turns: int, **options: Any) -> AgentHarness:
    """A harness after so many turns of some length."""
    model = ScriptedModel(lambda request: f"answer {len(request.messages)} " + "word " * 60, context_window=4_000)
    harness = AgentHarness(session, model, **options)
    for number in range(turns):
        await harness.prompt(f"question {number} " + "what about this? " * 20)
    return harness


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool
def find() -> str:
    """Find."""
    return "found"


async def test_state_outlives_a_compaction() -> None:
    """pi: thinking level, model and tools set before it became off, null and null."""
    async with Session.open(MemoryStorage.create()) as session:
        options: dict[str, Any] = {"tools": [look, find], "settings": AgentSettings(compaction=False)}
        harness = await talk(session, 1, **options)
        await harness.set_thinking_level("high")
        await harness.set_active_tools(["find"])
        for _ in range(3):
            await harness.prompt("and? " * 50)
        await harness.aclose()
        before = await session.build_context()
        await session.append_compaction("Short.", tokens_before=1)
        await session.append_message(UserMessage(content="tail"))
        await session.append_compaction("Shorter.", retained_tail=[UserMessage(content="tail")], tokens_before=1)
        after = await session.build_context()
        assert (after.model, after.thinking_level, after.active_tools) == (before.model, "high", ["find"])
        assert after.model == ("scripted", "scripted")
        async with AgentHarness(session, harness.model, **options) as again:
            await again.prompt("go on")
            assert (again.thinking_level, again.active_tools) == ("high", ["find"])
            assert isinstance(again.model, ScriptedModel)
            request = again.model.requests[-1]
            assert (request.thinking_level, [one.name for one in request.tools]) == ("high", ["find"])


async def test_a_second_compaction_loses_no_retained_tail() -> None:
    """pi: after the next one its messages were neither summarised nor shown."""
    async with Session.open(MemoryStorage.create()) as session:
        tail = [UserMessage(content=f"tail {number} " + "word " * 60) for number in range(8)]
        await session.append_compaction("Old.", retained_tail=tail, tokens_before=1)
        summarizer = ScriptedSummarizer(GOOD)
        harness = await talk(session, 3, summarizer=summarizer)
        await harness.compact()
        shown = " ".join(message.text for message in (await session.build_context()).messages)
        summarised = " ".join(message.text for message in summarizer.requests[-1].messages)
        for number in range(8):
            assert (f"tail {number} " in shown) != (f"tail {number} " in summarised)


async def test_compact_label_compact_empties_nothing() -> None:
    """pi: the second one summarised an empty conversation, and its summary was all that was left."""
    async with Session.open(MemoryStorage.create()) as session:
        summarizer = ScriptedSummarizer(GOOD)
        harness = await talk(session, 8, summarizer=summarizer)
        await harness.compact()
        before = [message.text for message in (await session.build_context()).messages]
        assert session.leaf_id is not None
        await session.append_label(session.leaf_id, "here")
        asked = len(summarizer.requests)
        with pytest.raises(CompactionError):
            await harness.compact()
        assert len(summarizer.requests) == asked
        assert [message.text for message in (await session.build_context()).messages] == before


async def test_a_branch_summary_across_a_retained_tail_is_of_the_branch() -> None:
    """pi: the whole history to the root, the shared part included, was summarised."""
    async with Session.open(MemoryStorage.create()) as session:
        harness = AgentHarness(session, ScriptedModel(["a0", "a1"]))
        await harness.prompt("shared")
        await session.append_compaction("Old.", retained_tail=[UserMessage(content="kept")], tokens_before=1)
        here = session.leaf_id
        await harness.prompt("left behind")
        summarizer = ScriptedSummarizer(GOOD)
        await harness.navigate(here, summarize=summarizer)
        (request,) = summarizer.requests
        assert [message.text for message in request.messages] == ["left behind", "a1"]
        assert request.previous_summary is None


async def test_a_small_session_costs_no_request_and_no_cut_off_summary_is_kept() -> None:
    """pi: the model was asked about an empty conversation, and half a summary was stored."""
    async with Session.open(MemoryStorage.create()) as session:
        summarizer = ScriptedSummarizer(GOOD)
        harness = AgentHarness(session, ScriptedModel(["hi"]), summarizer=summarizer)
        await harness.prompt("hello")
        with pytest.raises(CompactionError):
            await harness.compact()
        assert summarizer.requests == []
    async with Session.open(MemoryStorage.create()) as session:
        cut = ScriptedSummarizer(SummaryReply("## Goal\n- half of", stop_reason="length"))
        harness = await talk(session, 8, summarizer=cut)
        before = await history(session)
        with pytest.raises(CompactionError) as caught:
            await harness.compact()
        assert caught.value.details["reason"] == "cut_off"
        assert await history(session) == before


async def test_a_long_conversation_compacts_on_its_own() -> None:
    """pi's harness has no automatic compaction: the twelfth question was too long, and so was each one after it."""
    async with Session.open(MemoryStorage.create()) as session:
        model = ScriptedModel(lambda _: "answer " + "word " * 60, context_window=2_000, enforce_window=True)
        harness = AgentHarness(session, model, summarizer=ScriptedSummarizer(GOOD))
        for number in range(25):
            await harness.prompt(f"question {number} " + "what about this? " * 20)
        assert sum(entry.type == "compaction" for entry in await session.entries()) >= 1


async def test_an_overflow_is_recovered_from() -> None:
    """pi's harness has no recovery: here the context is compacted, and the same question asked once more."""
    async with Session.open(MemoryStorage.create()) as session:
        model = ScriptedModel(lambda _: "answer " + "word " * 60, context_window=None, enforce_window=False)
        harness = AgentHarness(session, model, summarizer=ScriptedSummarizer(GOOD))
        for number in range(8):
            await harness.prompt(f"question {number} " + "what about this? " * 20)
        hard = ScriptedModel(lambda _: "fits", context_window=1_500, enforce_window=True, model_id="hard")
        settings = AgentSettings(compaction=CompactionSettings(context_window=100_000))
        await harness.aclose()
        again = AgentHarness(
            session, cast("ChatModel", Unknown(hard)), settings=settings, summarizer=ScriptedSummarizer(GOOD)
        )
        assert (await again.prompt("and now?")).text == "fits"


class Unknown:
    """A model that does not say how much it takes."""

    context_window = None

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


async def test_a_request_that_fails_for_a_while_is_made_again() -> None:
    """pi's harness retries no turn."""
    with ScriptedServer([HttpAnswer(503), HttpAnswer(429), "there"]) as server:
        retry = RetryPolicy(retries=3, first_delay=0.01, longest_delay=0.02)
        async with (
            OpenAIChatModel("any", base_url=server.base_url, api_key="any", retry=retry) as model,
            Session.open(MemoryStorage.create()) as session,
        ):
            assert (await AgentHarness(session, model).prompt("hello?")).text == "there"
    assert len(server.requests) == 3


async def test_a_turn_that_never_ends_is_ended() -> None:
    """pi: two hundred and fifty calls in a row ran."""
    async with Session.open(MemoryStorage.create()) as session:
        model = ScriptedModel(lambda _: tool_call("look"))
        harness = AgentHarness(session, model, tools=[look], settings=AgentSettings(max_steps=9))
        with pytest.raises(TurnLimitError):
            await harness.prompt("look")
        assert len(model.requests) == 9
        assert (await history(session))[-1] == "turn_end 1 failed"


async def test_a_failed_reply_does_not_stay_in_the_context() -> None:
    """pi: an error message of the model was sent with all later requests."""
    async with Session.open(MemoryStorage.create()) as session:
        failed = AssistantMessage(content=[], stop_reason="error", error_message="overloaded")
        model = ScriptedModel([failed, "better", Reply("half of", error=ModelError("torn")), "best"])
        harness = AgentHarness(session, model)
        with pytest.raises(ModelError):
            await harness.prompt("one")
        await harness.prompt("two")
        assert [message.text for message in model.requests[-1].messages] == ["one", "two"]
        with pytest.raises(ModelError):
            await harness.prompt("three")
        await harness.prompt("four")
        sent = model.requests[-1].messages
        assert all(message.text for message in sent)
        assert not any(getattr(message, "stop_reason", None) == "error" and not message.text for message in sent)


async def test_a_label_given_with_a_navigation_is_applied() -> None:
    """pi accepted the option, and did nothing with it."""
    async with Session.open(MemoryStorage.create()) as session:
        harness = AgentHarness(session, ScriptedModel(["a1", "a2"]))
        await harness.prompt("one")
        messages = [entry.id for entry in await session.branch() if isinstance(entry, MessageEntry)]
        gone = await harness.navigate(messages[1], summarize=ScriptedSummarizer(GOOD), label="back")
        assert await session.label(messages[1]) == "back"
        gone = await harness.navigate(messages[0], summarize=ScriptedSummarizer(GOOD), label="begin")
        assert gone.summary_id is not None
        assert await session.label(gone.summary_id) == "begin"


async def test_what_was_chosen_is_there_after_reopening(tmp_path: Path) -> None:
    """pi's harness read neither model nor thinking level nor tools from the session that it was given."""
    path = tmp_path / "chat.jsonl"
    async with Session.open(JsonlStorage.create(path)) as session:
        harness = AgentHarness(session, ScriptedModel(["a1"], model_id="first"), tools=[look, find])
        await harness.set_thinking_level("low")
        await harness.set_active_tools(["look"])
        await harness.prompt("one")
    async with Session.open(JsonlStorage.open(path)) as session:
        again = AgentHarness(session, ScriptedModel(["a2"], model_id="second"), tools=[look, find])
        assert again.recorded_model == ("scripted", "first")
        assert (again.thinking_level, again.active_tools) == ("low", ["look"])
        await again.prompt("two")
        assert again.recorded_model == ("scripted", "second")


async def test_a_compaction_can_be_aborted() -> None:
    """pi's could not."""
    async with Session.open(MemoryStorage.create()) as session:
        begun = anyio.Event()

        class Hanging:
            async def summarize(self, request: object) -> SummaryReply:
                begun.set()
                await anyio.sleep_forever()
                raise AssertionError

        harness = await talk(session, 8, summarizer=Hanging())
        before = await history(session)

        async def compact() -> None:
            with pytest.raises(TurnAbortedError):
                await harness.compact()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            await begun.wait()
            await harness.abort()
        assert await history(session) == before


async def test_an_abort_between_calls_leaves_each_with_a_result() -> None:
    """pi: calls that were run one after another and had not begun got none."""
    async with Session.open(MemoryStorage.create()) as session:
        begun = anyio.Event()

        @tool(parallel=False)
        async def wait() -> str:
            """Wait."""
            begun.set()
            await anyio.sleep_forever()
            raise AssertionError

        model = ScriptedModel([[tool_call("wait", f"c{number}") for number in range(3)]])
        harness = AgentHarness(session, model, tools=[wait])

        async def run() -> None:
            with pytest.raises(TurnAbortedError):
                await harness.prompt("wait")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await begun.wait()
            await harness.abort()
        assert set(await results(session)) == {"c0", "c1", "c2"}


async def test_a_fork_has_what_lies_before_a_compaction(tmp_path: Path) -> None:
    """pi: it was dropped, and the first entry hung from one that was not there."""
    async with Session.open(MemoryStorage.create()) as session:
        for number in range(4):
            session.append_message(UserMessage(content=f"u{number}"))
            session.append_message(AssistantMessage(content=[TextContent(text=f"a{number}")]))
        kept = session.append_message(UserMessage(content="kept"))
        await session.append_compaction("Short.", first_kept_entry_id=await kept, tokens_before=1)
        fork = await session.fork(into=partial(JsonlStorage.create, tmp_path / "fork.jsonl"))
        async with fork:
            branch = await fork.branch()
            assert branch[0].parent_id is None
            assert [entry.id for entry in branch[:10]] == [entry.id for entry in (await session.branch())[:10]]
            assert fork.warnings == ()
            shown = [message.text for message in (await fork.build_context()).messages]
            assert shown[1:] == ["kept"]


async def test_a_later_hook_cannot_undo_a_refusal() -> None:
    """pi: a call that one handler had blocked ran, since another one answered after it."""
    ran: list[str] = []

    @tool
    def danger() -> str:
        """Do it."""
        ran.append("ran")
        return "done"

    class Answering(Hook):
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        async def before_call(self, call: CallFacts) -> Any:
            return self.answer

    async with Session.open(MemoryStorage.create()) as session:
        harness = AgentHarness(session, ScriptedModel([tool_call("danger"), "ok"]), tools=[danger])
        harness.on(Answering(Refusal("no")))
        harness.on(Answering({}))
        harness.on(Answering(None))
        await harness.prompt("go")
        assert ran == []
        assert (await results(session))["call_1"].is_error
