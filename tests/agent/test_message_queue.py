"""Talking to a running agent: steers, follow-ups, messages for the next turn; in order, once each, on record (R23)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest

from harness.agent import AgentHarness
from harness.events import AgentEvent, MessageDelivered, MessageQueued, PromptRecorded
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.settings import AgentSettings, QueueMode
from harness.testing import ScriptedModel, tool_call
from storage.entries import DeliveredEntry, MessageEntry, QueuedEntry
from storage.errors import BusyError, InvalidEntryError, ModelError, SessionClosedError, TurnLimitError
from storage.memory import MemoryStorage
from storage.messages import ImageContent, TextContent, UserMessage
from tests.agent.agents import check_well_formed, history

pytestmark = pytest.mark.anyio


def shown(request: ModelRequest) -> list[str]:
    """The user messages of a request."""
    return [message.text for message in request.messages if isinstance(message, UserMessage)]


async def lines(session: Session) -> list[str]:
    """The history, but for the headers."""
    return [line for line in await history(session) if line != "request_header"]


def saying(*said: Callable[[], Any] | Any, then: Any = "Fine.") -> Callable[[ModelRequest], Any]:
    """A script: for each request call what stands there, and answer ``then``."""
    todo = list(said)

    def answer(_: ModelRequest) -> Any:
        if todo:
            act = todo.pop(0)
            if callable(act):
                act()
        return then

    return answer


async def test_a_steer_comes_after_the_results(session: Session) -> None:
    """Said while tools run, it is delivered behind the results of all of them, and before the next request."""

    def one() -> str:
        return "one"

    async def two() -> str:
        await harness.steer("Rather look there.")
        return "two"

    model = ScriptedModel([[tool_call("one", "a"), tool_call("two", "b")], "Done."])
    harness = AgentHarness(session, model, tools=[one, two])
    assert (await harness.prompt("Go")).text == "Done."
    found = await lines(session)
    assert sorted(found[3:8]) == ["queued", "result a: one", "result b: two", "tool_start a", "tool_start b"]
    assert found[8:] == ["delivered", "user: Rather look there.", "assistant stop: Done.", "turn_end 1 completed"]
    assert shown(model.requests[1]) == ["Go", "Rather look there."]
    check_well_formed(await session.entries())


async def test_what_is_on_disk(session: Session) -> None:
    """The queued entry names its kind; the delivery names both; all may be ignored by who does not know them."""
    model = ScriptedModel(saying(lambda: harness.steer("More")))
    harness = AgentHarness(session, model)
    await harness.prompt("Go")
    entries = await session.entries()
    queued = next(entry for entry in entries if isinstance(entry, QueuedEntry))
    delivered = next(entry for entry in entries if isinstance(entry, DeliveredEntry))
    message = entries[entries.index(delivered) + 1]
    assert isinstance(message, MessageEntry)
    assert (queued.kind, queued.ignorable, delivered.ignorable) == ("steer", True, True)
    assert (delivered.entry_id, delivered.message_id) == (queued.id, message.id)
    assert message.message == queued.message
    assert b'"ignorable":true' in session.log.index.line(queued.seq or 0)


async def test_a_steer_where_the_model_would_have_stopped(session: Session) -> None:
    """A steer said while the last reply streams makes the turn go on."""
    model = ScriptedModel(saying(lambda: harness.steer("And then?")))
    harness = AgentHarness(session, model)
    await harness.prompt("Go")
    assert await lines(session) == [
        "turn_start 1",
        "user: Go",
        "queued",
        "assistant stop: Fine.",
        "delivered",
        "user: And then?",
        "assistant stop: Fine.",
        "turn_end 1 completed",
    ]


async def test_follow_ups_are_delivered_when_the_turn_would_stop(session: Session) -> None:
    """Not after tool results, not before a steer; each gets its own reply, and one may bring the next."""
    model = ScriptedModel(
        [
            lambda _: said(harness.follow_up("First"), tool_call("look", "a")),
            lambda _: said(harness.steer("Steer"), "Stop 1."),
            "Stop 2.",
            lambda _: said(harness.follow_up("Second"), "Stop 3."),
            "Stop 4.",
        ]
    )

    def said(_: Any, reply: Any) -> Any:
        return reply

    def look() -> str:
        return "seen"

    harness = AgentHarness(session, model, tools=[look])
    assert (await harness.prompt("Go")).text == "Stop 4."
    assert [line for line in await lines(session) if line.startswith(("user", "assistant"))] == [
        "user: Go",
        "assistant toolUse: look(a)",
        "assistant stop: Stop 1.",
        "user: Steer",
        "assistant stop: Stop 2.",
        "user: First",
        "assistant stop: Stop 3.",
        "user: Second",
        "assistant stop: Stop 4.",
    ]
    assert sum(line.startswith("turn_start") for line in await lines(session)) == 1


async def test_messages_for_the_next_turn_come_before_its_prompt(session: Session) -> None:
    """All of them, in order, after ``turn_start``; the turn that runs when they are said is not concerned."""
    model = ScriptedModel(saying(lambda: (harness.next_turn("A"), harness.next_turn("B"))))
    harness = AgentHarness(session, model)
    await harness.prompt("One")
    assert len(model.requests) == 1
    harness.next_turn("C")
    await harness.prompt("Two")
    assert shown(model.requests[1]) == ["One", "A", "B", "C", "Two"]
    assert (await lines(session))[6:] == [
        "queued",
        "turn_start 2",
        "delivered",
        "user: A",
        "delivered",
        "user: B",
        "delivered",
        "user: C",
        "user: Two",
        "assistant stop: Fine.",
        "turn_end 2 completed",
    ]


async def test_the_prompt_opens_the_turn_not_what_was_delivered_before_it(session: Session) -> None:
    """R19: under a budget the prompt is kept with what came of it; a fork before the prompt goes before the turn."""

    def look() -> str:
        return "x" * 300

    harness = AgentHarness(session, ScriptedModel([tool_call("look", "a"), "Fine."]), tools=[look])
    harness.next_turn("By the way")
    await harness.prompt("Question")
    entries = await session.branch()
    prompt = next(e for e in entries if isinstance(e, MessageEntry) and e.message.text == "Question")
    context = await session.build_context(max_chars=450)
    assert [message.text for message in context.messages] == ["Question", "Fine."]
    fork = await session.fork(prompt.id, position="before", into=MemoryStorage.create)
    async with fork:
        assert [entry.type for entry in await fork.branch()] == ["queued"]
        model = ScriptedModel(["Fine."])
        await AgentHarness(fork, model).prompt("Other question")
        assert shown(model.requests[0]) == ["By the way", "Other question"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("one-at-a-time", [["Go"], ["Go", "A"], ["Go", "A", "B"], ["Go", "A", "B", "C"]]),
        ("all", [["Go"], ["Go", "A", "B", "C"]]),
    ],
)
@pytest.mark.parametrize("kind", ["steer", "follow_up"])
async def test_modes(session: Session, kind: str, mode: QueueMode, expected: list[list[str]]) -> None:
    """One at a time each gets its own request; with "all" they go together."""
    settings = AgentSettings(**cast("Any", {"steering_mode" if kind == "steer" else "follow_up_mode": mode}))
    say: Any = None
    model = ScriptedModel(saying(lambda: [say(text) for text in "ABC"]))
    harness = AgentHarness(session, model, settings=settings)
    say = getattr(harness, kind)
    await harness.prompt("Go")
    assert [shown(request) for request in model.requests] == expected


async def test_said_when_nothing_runs(session: Session) -> None:
    """A steer waits for the next turn and stands right after its prompt; a follow-up comes when that would stop."""
    model = ScriptedModel(lambda _: "Fine.")
    harness = AgentHarness(session, model)
    harness.follow_up("Later")
    await harness.steer("Now")
    assert [queued.kind for queued in await harness.waiting_messages()] == ["follow_up", "steer"]
    await harness.prompt("Go")
    assert [shown(request) for request in model.requests] == [["Go", "Now"], ["Go", "Now", "Later"]]
    assert await harness.waiting_messages() == []


async def test_what_a_failed_turn_leaves_goes_into_the_next(session: Session) -> None:
    """A turn that fails, or is cancelled, loses none of what was said to it."""

    def fail(_: ModelRequest) -> Any:
        harness.steer("S")
        harness.follow_up("F")
        return ModelError("overloaded")

    model = ScriptedModel([fail, "1", "2"])
    harness = AgentHarness(session, model)
    with pytest.raises(ModelError):
        await harness.prompt("Go")
    await harness.prompt("Again")
    assert [shown(request) for request in model.requests] == [
        ["Go"],
        ["Go", "Again", "S"],
        ["Go", "Again", "S", "F"],
    ]


async def test_another_harness_delivers_what_waits(session: Session) -> None:
    """What waits belongs to the session: the next harness has it."""
    async with AgentHarness(session, ScriptedModel([])) as harness:
        harness.steer("S")
        harness.next_turn("N")
    model = ScriptedModel(["Fine."])
    await AgentHarness(session, model).prompt("Go")
    assert shown(model.requests[0]) == ["N", "Go", "S"]


async def test_a_branch_has_the_queue_it_had(session: Session) -> None:
    """Going back to before the delivery, the message waits again; before the ``queued`` entry, it does not."""
    model = ScriptedModel(lambda _: "Fine.")
    harness = AgentHarness(session, model)
    await harness.prompt("One")
    before = session.leaf_id
    queued = await harness.steer("S")
    await harness.prompt("Two")
    await session.move_to(queued)
    assert [message.entry_id for message in await harness.waiting_messages()] == [queued]
    await harness.prompt("Three")
    await session.move_to(before)
    assert await harness.waiting_messages() == []
    await harness.prompt("Four")
    assert [shown(request) for request in model.requests[1:]] == [
        ["One", "Two", "S"],
        ["One", "Three", "S"],
        ["One", "Four"],
    ]


async def test_a_snapshot_at_the_call(session: Session) -> None:
    """R6: what happens to the message afterwards changes nothing, neither the record nor what is delivered or told."""
    message = UserMessage(content=[TextContent(text="said")])
    model = ScriptedModel(lambda _: "Fine.")
    harness = AgentHarness(session, model)
    told: list[AgentEvent] = []
    async with harness.stream("Go") as events:
        async for event in events:
            if isinstance(event, PromptRecorded):
                harness.steer(message)
                cast("Any", message.content)[0].text = "changed"
            told.append(event)
    assert shown(model.requests[-1]) == ["Go", "said"]
    texts = [event.message.text for event in told if isinstance(event, MessageQueued | MessageDelivered)]
    assert texts == ["said", "said"]


@pytest.mark.parametrize("say", ["steer", "follow_up", "next_turn"])
async def test_what_is_refused_at_the_call(session: Session, say: str) -> None:
    """R5: an empty message, and what JSON would alter, is refused before anything is queued; so is a foreign session."""
    harness = AgentHarness(session, ScriptedModel(["Fine."]))
    call = getattr(harness, say)
    odd = UserMessage(content="odd")
    cast("Any", odd).details = {"score": float("nan")}
    for message in ("", " \n", [], odd):
        with pytest.raises(InvalidEntryError):
            call(message)
    assert await history(session) == []
    call([ImageContent(data="AAAA", mime_type="image/png")])
    async with AgentHarness(session, ScriptedModel([])):
        with pytest.raises(BusyError, match="another harness"):
            call("x")
    await harness.aclose()
    with pytest.raises(SessionClosedError):
        call("x")
    assert await history(session) == ["queued"]


async def test_steers_are_told(session: Session) -> None:
    """The stream tells when a message was queued and when it took its place, in the order on disk."""
    model = ScriptedModel(saying(lambda: (harness.steer("S"), harness.next_turn("N"))))
    harness = AgentHarness(session, model)
    await harness.next_turn("Before")
    seen: list[AgentEvent] = []
    async with harness.stream("Go") as events:
        async for event in events:
            if isinstance(event, MessageQueued | MessageDelivered | PromptRecorded):
                seen.append(event)
    kinds = [(type(event).__name__, event.message.text) for event in cast("list[Any]", seen)]
    assert kinds == [
        ("MessageDelivered", "Before"),
        ("PromptRecorded", "Go"),
        ("MessageQueued", "S"),
        ("MessageQueued", "N"),
        ("MessageDelivered", "S"),
    ]
    delivered = cast("MessageDelivered", seen[-1])
    assert delivered.queued_id == cast("MessageQueued", seen[2]).entry_id
    assert (await session.entry(delivered.entry_id)).parent_id is not None


async def test_a_queued_message_is_told_while_a_tool_works(session: Session) -> None:
    """Nobody has to wait for the tool's end to see that the message is on record."""
    told = anyio.Event()

    async def waiting() -> str:
        await told.wait()
        return "told"

    async def say() -> None:
        harness.steer("S")

    harness = AgentHarness(session, ScriptedModel([tool_call("waiting", "a"), "Done."]), tools=[waiting])
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group, harness.stream("Go") as events:
            async for event in events:
                if type(event).__name__ == "ToolStarted":
                    group.start_soon(say)
                if isinstance(event, MessageQueued):
                    told.set()


async def test_a_message_that_this_version_cannot_deliver_goes_on_waiting(session: Session) -> None:
    """A kind of a later version, or a message of another role, is left where it is."""
    await session.append_entry(QueuedEntry(kind="someday", message=UserMessage(content="x"), ignorable=True))
    model = ScriptedModel(["Fine."])
    harness = AgentHarness(session, model)
    await harness.prompt("Go")
    assert shown(model.requests[0]) == ["Go"]
    assert len(session.log.index.waiting(len(session.log.index) - 1)) == 1
    assert await harness.waiting_messages() == []


async def test_at_the_limit_of_requests_what_waits_goes_on_waiting(session: Session) -> None:
    """A follow-up for which there is no request left is not taken out of the queue; the error says how to go on."""
    model = ScriptedModel(saying(lambda: harness.follow_up("F")))
    harness = AgentHarness(session, model, settings=AgentSettings(max_steps=1))
    with pytest.raises(TurnLimitError, match="limit of 1 requests"):
        await harness.prompt("Go")
    assert [queued.message.text for queued in await harness.waiting_messages()] == ["F"]
    assert (await history(session))[-1] == "turn_end 1 failed"
