"""Answered requests rebuilt from the record: the very bytes that the server got (R26)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent import AgentHarness
from harness.approvals import Decision
from harness.models.anthropic_chat import AnthropicModel
from harness.models.openai_chat import OpenAIChatModel
from harness.models.protocol import ChatModel
from harness.models.recorded import RecordedModel
from harness.rebuilding import rebuild_request
from harness.request_edits import apply_edits, encoded, find_edits
from harness.session import Session
from harness.testing import Reply, ScriptedModel, ScriptedServer, tool_call
from harness.tools import tool
from storage.entries import MessageEntry, RequestFacts, RequestHeaderEntry
from storage.errors import EntryNotFoundError, PendingCallError, SessionError, UnsupportedVersionError
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import AssistantMessage, UserMessage
from tests.agent.sent_sessions import PROGRAMS, Ask, Do, Round, Sent, next_reply, run_program
from tests.properties.profiles import TIMEOUT_SECONDS, examples

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
KINDS = pytest.mark.parametrize("kind", [OpenAIChatModel, AnthropicModel])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


@contextmanager
def served(
    kind: type[OpenAIChatModel | AnthropicModel], **more: Any
) -> Generator[tuple[ScriptedServer, deque[Reply], ChatModel]]:
    """A server, its script, and a model that asks it."""
    script: deque[Reply] = deque()
    with ScriptedServer(next_reply(script)) as server:
        options: dict[str, Any] = {"max_tokens": 321, "stop": ["END"]} if kind is OpenAIChatModel else {"top_p": 0.5}
        place = {"base_url": server.base_url, "api_key": "any"}
        yield server, script, kind("any", options=options, **place, **more)


async def check(session: Session, sent: Sent, model: ChatModel) -> None:
    """Every request, by the model that sent it and by one that knows only the record."""
    for body, reply_id in zip(sent.bodies, sent.replies, strict=True):
        request = await rebuild_request(session, reply_id)
        entry = await session.entry(reply_id)
        assert isinstance(entry, MessageEntry)
        assert isinstance(entry.message, AssistantMessage)
        assert entry.request is not None
        header = await session.entry(entry.request.header_id or "")
        assert isinstance(header, RequestHeaderEntry)
        assert RecordedModel(header, entry.message).payload(request) == body
        assert model.payload(request) == body


@LOOPS
@KINDS
@examples(15)
@given(steps=PROGRAMS)
def test_every_answered_request_comes_back(
    loop: str, kind: type[OpenAIChatModel | AnthropicModel], steps: list[Ask | Do]
) -> None:
    """Whatever happened before, meanwhile and since; also in a fork, which has the path only."""

    async def run() -> None:
        with served(kind) as (server, script, model):
            async with Session.open(MemoryStorage.create()) as session:
                sent = await run_program(session, steps, server, script, model)
                await check(session, sent, model)

    anyio.run(run, backend=loop)


WHOLE: list[Ask | Do] = [
    Ask("word " * 60, [Round("See", [3, 400])], "Three.", thinking="low"),
    Do("remember", "a fact"),
    Ask("Grüße", [Round("", [400, 400])], "Four.", max_chars=2500, hook="both ends"),
    Do("note", "of the app"),
    Do("compact", place=0.6),
    Ask("yes", [Round("Again", [3])], "Five.", hook="header", meanwhile="remember", steer="wait"),
    Do("compact with tail"),
    Ask("yes", [Round("Again", [3])], "Six.", max_chars=900, meanwhile="edit"),
    Do("move with summary", "The other road.", place=0.3),
    Ask("漢字", [], "Seven.", meanwhile="note", hook="in place"),
]


@LOOPS
@KINDS
def test_after_reopening_and_in_a_fork(loop: str, kind: type[OpenAIChatModel | AnthropicModel], tmp_path: Path) -> None:
    """The file alone says it, in another process as well; and a fork of it for the requests on its path."""

    async def run() -> None:
        place = tmp_path / "session.jsonl"
        with served(kind) as (server, script, model):
            async with Session.open(JsonlStorage.create(place)) as session:
                sent = await run_program(session, WHOLE, server, script, model)
        assert len(sent.bodies) >= 8
        async with Session.open(JsonlStorage.open(place, mode="read")) as session:
            await check(session, sent, model)
            async with await session.fork(into=partial(MemoryStorage.create)) as fork:
                on_path = {entry.id for entry in await fork.branch()}
                pairs = [pair for pair in zip(sent.bodies, sent.replies, strict=True) if pair[1] in on_path]
                assert pairs
                await check(fork, Sent([body for body, _ in pairs], [reply for _, reply in pairs]), model)

    anyio.run(run, backend=loop)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (OpenAIChatModel, {"include_usage": False, "return_reasoning": True}),
        (AnthropicModel, {"prompt_caching": False, "max_tokens": 999}),
    ],
)
def test_how_the_model_was_made_is_in_the_record(kind: Any, more: dict[str, Any]) -> None:
    """What shapes the bytes besides the request need not be known later: a model made without it gives the same."""

    async def run() -> None:
        with served(kind, **more) as (server, script, model):
            async with Session.open(MemoryStorage.create()) as session:
                sent = await run_program(session, WHOLE[:3], server, script, model)
                await check(session, sent, kind("any", base_url=server.base_url, api_key="any"))

    anyio.run(run)


async def facts_of(session: Session, reply_id: str) -> RequestFacts:
    """What a reply says of its request."""
    entry = await session.entry(reply_id)
    assert isinstance(entry, MessageEntry)
    assert entry.request is not None
    return entry.request


@pytest.mark.anyio
async def test_what_others_append_while_the_model_speaks_was_not_sent() -> None:
    """The reply then names the leaf at which it was asked for; else it need not."""
    with served(OpenAIChatModel) as (server, script, model):
        async with Session.open(MemoryStorage.create()) as session:
            steps = [Ask("yes", [], "One."), Ask("yes", [], "Two.", meanwhile="remember"), Ask("yes", [], "Three.")]
            sent = await run_program(session, steps, server, script, model)
            await check(session, sent, model)
            leaves = [(await facts_of(session, reply_id)).leaf_id for reply_id in sent.replies]
            assert [leaf is None for leaf in leaves] == [True, False, True]
            assert (await session.entry(leaves[1] or "")).type == "message"
            assert b"meanwhile" not in server.requests[1].raw
            assert b"meanwhile" in server.requests[2].raw


@pytest.mark.anyio
async def test_a_retained_tail_that_a_budget_cut() -> None:
    """Its messages share one entry id, so the reply says which of them were shown."""
    with served(OpenAIChatModel) as (server, script, model):
        async with Session.open(MemoryStorage.create()) as session:
            steps = [
                *[Ask("word " * 20, [], "word " * 20)] * 4,
                Do("compact with tail"),
                Ask("yes", [], "Cut.", max_chars=900),
            ]
            sent = await run_program(session, steps, server, script, model)
            await check(session, sent, model)
            tail = (await facts_of(session, sent.replies[-1])).tail
            assert tail
            assert len(tail) < 8


@pytest.mark.anyio
async def test_after_a_turn_was_resumed() -> None:
    """The request that follows a decision is rebuilt as any other."""

    async def later(_: object) -> Decision:
        return Decision.later()

    async def approve(_: object) -> Decision:
        return Decision.approve()

    @tool(needs_approval=True)
    async def write(text: str) -> str:
        """Write."""
        return text

    with served(OpenAIChatModel) as (server, script, model):
        async with Session.open(MemoryStorage.create()) as session:
            script.extend([Reply(tool_calls=[tool_call("write", text="x")]), Reply("Done.")])
            async with AgentHarness(session, model, tools=[write], approve=later) as harness:
                with pytest.raises(PendingCallError):
                    await harness.prompt("Go")
            await session.append_label(session.leaf_id or "", "waiting")
            async with AgentHarness(session, model, tools=[write], approve=approve) as harness:
                await harness.resume()
            entries = await session.entries()
            replies = [entry.id for entry in entries if isinstance(entry, MessageEntry) and entry.request]
            await check(session, Sent([request.raw for request in server.requests], replies), model)


@pytest.mark.anyio
async def test_what_cannot_be_rebuilt() -> None:
    """Typed errors for what is no reply of a harness, for another projection, and for facts that do not fit."""
    async with Session.open(MemoryStorage.create()) as session:
        await AgentHarness(session, ScriptedModel(["Hello."])).prompt("Hi")
        entries = await session.entries()
        with pytest.raises(EntryNotFoundError):
            await rebuild_request(session, "nowhere")
        with pytest.raises(SessionError, match="no reply that a harness asked for"):
            await rebuild_request(session, entries[1].id)
        lone = await session.append_message(AssistantMessage(content=[]))
        with pytest.raises(SessionError, match="no reply that a harness asked for"):
            await rebuild_request(session, lone)
        header_id = entries[2].id
        for request, error, said in (
            (RequestFacts(header_id=header_id, projection=99, shown=[]), UnsupportedVersionError, "version 99"),
            (RequestFacts(projection=1, shown=[]), SessionError, "names no header"),
            (RequestFacts(header_id=entries[1].id, projection=1, shown=[]), SessionError, "of type 'message'"),
            (RequestFacts(header_id=header_id, projection=1, shown=[["zzz", "zzz"]]), SessionError, "not on its path"),
            (RequestFacts(header_id=header_id, projection=1, shown=[[header_id]]), SessionError, "two ends"),
            (
                RequestFacts.model_validate(
                    {"headerId": header_id, "projection": 1, "shown": [], "edits": [{"at": 7, "removed": 1}]}
                ),
                SessionError,
                "an edit at 7",
            ),
        ):
            message = AssistantMessage(content=[])
            odd = await session.append_entry(MessageEntry(message=message, request=request))
            with pytest.raises(error, match=said):
                await rebuild_request(session, odd)


WORDS = st.lists(st.sampled_from("abcd"), max_size=8)


@pytest.mark.anyio
@examples(150)
@given(before=WORDS, after=WORDS)
async def test_edits_make_the_one_of_the_other(before: list[str], after: list[str]) -> None:
    """``apply_edits`` undoes nothing and forgets nothing, whatever was changed; equal lists have no edits."""
    old = [UserMessage(content=text, timestamp=1) for text in before]
    new = [UserMessage(content=text, timestamp=1) for text in after]
    edits = find_edits(await encoded(old), await encoded(new))
    assert [message.text for message in apply_edits(old, edits)] == after
    assert (edits == []) == (before == after)


@pytest.mark.anyio
async def test_edits_are_small() -> None:
    """A reminder at both ends of a long conversation is two edits, not all of it."""
    old = [UserMessage(content=str(number), timestamp=1) for number in range(1000)]
    reminder = UserMessage(content="(A reminder.)", timestamp=1)
    edits = find_edits(await encoded(old), await encoded([reminder, *old[:500], reminder, *old[501:], reminder]))
    assert [(edit.at, edit.removed, len(edit.inserted or ())) for edit in edits] == [
        (0, 0, 1),
        (500, 1, 1),
        (1000, 0, 1),
    ]
