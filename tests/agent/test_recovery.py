"""After a crash (R24): what is appended, when, and that nothing is run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from compaction.entry_list import ListPath
from harness.agent import AgentHarness
from harness.recovery import NOT_STARTED, OUTCOME_UNKNOWN, ended_turns, plan_recovery
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from storage.entries import (
    ActiveToolsChangeEntry,
    ApprovalRequestedEntry,
    ApprovalResolvedEntry,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    CustomMessageEntry,
    DeliveredEntry,
    Entry,
    LabelEntry,
    MessageEntry,
    MetadataEntry,
    ModelChangeEntry,
    QueuedEntry,
    RequestHeaderEntry,
    SessionInfoEntry,
    ThinkingLevelChangeEntry,
    ToolStartEntry,
    TurnEndEntry,
    TurnStartEntry,
    UnknownEntry,
    WorkingMemoryEntry,
)
from storage.errors import BusyError, SessionClosedError
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage
from storage.testing import FaultyStorage
from tests.agent.agents import check_well_formed, history, short

ROOT = Path(__file__).parents[2]


def user(text: str = "Go") -> MessageEntry:
    return MessageEntry(message=UserMessage(content=text))


def reply(*calls: ToolCall, text: str = "") -> MessageEntry:
    content: list[Any] = [TextContent(text=text)] if text else []
    return MessageEntry(message=AssistantMessage(content=[*content, *calls], stop_reason="toolUse"))


def begin(call_id: str = "c1") -> ToolStartEntry:
    return ToolStartEntry(call_id=call_id, name="add", arguments={})


def result(call_id: str = "c1") -> MessageEntry:
    return MessageEntry(message=ToolResultMessage(tool_call_id=call_id, tool_name="add", content="3"))


def call(call_id: str = "c1") -> ToolCall:
    return tool_call("add", call_id)


def start(turn: int = 1) -> TurnStartEntry:
    return TurnStartEntry(turn=turn)


def end(turn: int = 1, reason: str = "completed") -> TurnEndEntry:
    return TurnEndEntry(turn=turn, reason=reason)


def planned(*entries: Entry, ended: bool = False) -> list[str]:
    """What recovery would append after ``entries``, and again after that: nothing."""
    plan = plan_recovery(ListPath(entries), has_ended=lambda _: ended)
    assert plan_recovery(ListPath([*entries, *plan]), has_ended=lambda _: ended) == []
    return [short(entry) for entry in plan]


INTERRUPTED = "turn_end 1 interrupted"
HEADER = RequestHeaderEntry(model={})


@pytest.mark.parametrize(
    ("entries", "appended"),
    [
        ([], []),
        ([user(), reply(text="Hi")], []),
        ([user(), reply(call())], []),
        ([start(), user(), HEADER, reply(text="Hi"), end()], []),
        ([start()], [INTERRUPTED]),
        ([start(), user()], [INTERRUPTED]),
        ([start(), user(), HEADER], [INTERRUPTED]),
        ([start(), user(), HEADER, reply(text="Hi")], [INTERRUPTED]),
        ([start(), user(), reply(call())], [f"error c1: {NOT_STARTED}", INTERRUPTED]),
        ([start(), user(), reply(call()), begin()], [f"error c1: {OUTCOME_UNKNOWN}", INTERRUPTED]),
        ([start(), user(), reply(call()), begin(), result()], [INTERRUPTED]),
        ([start(), user(), reply(call()), result()], [INTERRUPTED]),
        (
            [start(), user(), reply(call("a"), call("b"), call("c")), begin("a"), begin("b"), result("b")],
            [f"error a: {OUTCOME_UNKNOWN}", f"error c: {NOT_STARTED}", INTERRUPTED],
        ),
        # ids repeat across replies: each tool_start and result belongs to the nearest reply before it
        (
            [start(), user(), reply(call()), begin(), result(), reply(call())],
            [f"error c1: {NOT_STARTED}", INTERRUPTED],
        ),
        (
            [start(), user(), reply(call()), begin(), result(), reply(call()), begin()],
            [f"error c1: {OUTCOME_UNKNOWN}", INTERRUPTED],
        ),
        # ids that repeat in one reply (pi's): the first in call order is answered first
        ([start(), user(), reply(call(), call()), result()], [f"error c1: {NOT_STARTED}", INTERRUPTED]),
        (
            [start(), user(), reply(call(""), call("")), begin("")],
            [f"error : {OUTCOME_UNKNOWN}", f"error : {NOT_STARTED}", INTERRUPTED],
        ),
        # only the last turn of the path
        ([start(), user(), end(), start(2), user()], ["turn_end 2 interrupted"]),
        ([start(), user(), reply(call()), start(2), user(), end(2)], []),
        ([start(), user(), reply(call()), start(2), user()], ["turn_end 2 interrupted"]),
    ],
)
def test_what_is_appended(entries: list[Entry], appended: list[str]) -> None:
    """One error result for each open call of the last turn, in call order, then ``turn_end: interrupted``; once."""
    assert planned(*entries) == appended


OPEN = [start(), user(), reply(call()), begin()]


@pytest.mark.parametrize(
    "entry",
    [
        LabelEntry(target_id="x", label="here"),
        SessionInfoEntry(name="name"),
        MetadataEntry(key="k", value=1),
        CustomEntry(custom_type="app", data=1),
    ],
    ids=lambda entry: entry.type,
)
def test_what_may_follow(entry: Entry) -> None:
    """Labels, names, metadata and custom entries behind an open turn do not keep it from being closed."""
    assert planned(*OPEN, entry, entry.model_copy(update={"id": "other"}))[-1] == INTERRUPTED


@pytest.mark.parametrize(
    "entry",
    [
        ModelChangeEntry(provider="p", model_id="m"),
        ThinkingLevelChangeEntry(thinking_level="high"),
        ActiveToolsChangeEntry(active_tool_names=[]),
        WorkingMemoryEntry(op="clear"),
        QueuedEntry(kind="steer", message=UserMessage(content="more")),
    ],
    ids=lambda entry: entry.type,
)
def test_what_a_turn_itself_writes(entry: Entry) -> None:
    """An open turn whose last entry is one of its own is closed."""
    assert planned(*OPEN, entry)[-1] == INTERRUPTED


@pytest.mark.parametrize(
    "entries",
    [
        [user("and more")],
        [user("and more"), reply(text="Yes")],
        [CustomMessageEntry(custom_type="app", content="note")],
        [BranchSummaryEntry(summary="left", from_id="x")],
        [BranchSummaryEntry(summary="left", from_id="x"), reply(text="on")],
        [CompactionEntry(summary="short", tokens_before=1)],
        [UnknownEntry(type="novelty")],
        [UnknownEntry(type="novelty", ignorable=True)],
        [end(2)],
    ],
    ids=lambda entries: "-".join(entry.type for entry in entries),
)
def test_what_must_not_follow(entries: list[Entry]) -> None:
    """Where somebody went on after an open turn, it is left alone; its calls are answered in the projection."""
    assert planned(*OPEN, *entries) == []


def test_a_custom_message_within_a_turn_does_not_keep_it_open() -> None:
    """A custom message is no custom entry: it must not be what the turn ends with, but may lie within it."""
    note = CustomMessageEntry(custom_type="app", content="note")
    assert planned(start(), user(), note, reply(call()), begin()) == [f"error c1: {OUTCOME_UNKNOWN}", INTERRUPTED]
    assert planned(*OPEN, note, result()) == [INTERRUPTED]
    assert planned(*OPEN, note, MetadataEntry(key="k", value=1)) == []


def test_a_steer_that_was_delivered_is_of_the_turn() -> None:
    """User messages that were queued and delivered do not count as going on; one of somebody's own does."""
    steer = QueuedEntry(kind="steer", message=UserMessage(content="more"))
    message = user("more")
    delivered = DeliveredEntry(entry_id=steer.id, message_id=message.id)
    assert planned(*OPEN, steer, result(), delivered, message) == [INTERRUPTED]
    assert planned(start(), delivered, message, user(), reply(call())) == [f"error c1: {NOT_STARTED}", INTERRUPTED]
    assert planned(*OPEN, steer, result(), delivered, message, user("own")) == []


def test_a_crash_between_a_delivery_and_its_message() -> None:
    """What was announced and did not come leaves no room for a message of somebody else's."""
    steer = QueuedEntry(kind="steer", message=UserMessage(content="more"))
    delivered = DeliveredEntry(entry_id=steer.id, message_id="not there")
    taken_back = DeliveredEntry(entry_id=steer.id)
    for entry in (delivered, taken_back):
        assert planned(*OPEN, steer, result(), entry) == [INTERRUPTED]
        assert planned(*OPEN, steer, result(), entry, user("own")) == []
        assert planned(start(), entry) == [INTERRUPTED]


@pytest.mark.parametrize(
    "entry",
    [
        QueuedEntry(kind="steer", message=UserMessage(content="more")),
        DeliveredEntry(entry_id="x"),
        ModelChangeEntry(provider="p", model_id="m"),
        ThinkingLevelChangeEntry(thinking_level="high"),
        ActiveToolsChangeEntry(active_tool_names=[]),
    ],
    ids=lambda entry: entry.type,
)
def test_what_says_nothing(entry: Entry) -> None:
    """What one does before one goes on, queueing a message or choosing a model, hides nobody who went on already."""
    assert planned(*OPEN, entry)[-1] == INTERRUPTED
    note = CustomMessageEntry(custom_type="app", content="note")
    assert planned(*OPEN, note, entry) == []
    assert planned(*OPEN, end(), entry) == []


def test_an_open_approval_keeps_the_turn_suspended() -> None:
    """A turn that waits for a person's decision is not closed, until it was decided."""
    asked = [start(), user(), reply(call()), ApprovalRequestedEntry(call_id="c1", ignorable=True)]
    assert planned(*asked) == []
    decided = ApprovalResolvedEntry(call_id="c1", decision="deny", ignorable=True)
    assert planned(*asked, decided) == [f"error c1: {NOT_STARTED}", INTERRUPTED]
    assert planned(*asked, ApprovalResolvedEntry(call_id="c2", decision="allow")) == []


def test_a_turn_that_ended_on_another_branch_is_left_alone() -> None:
    """Going back into a turn that ended elsewhere does not make it an interrupted one."""
    assert planned(*OPEN, ended=True) == []


def test_which_turns_have_ended() -> None:
    """``ended_turns`` sees ends on every branch, and gives an end to the turn it lies in only."""
    first, ask, answer = start(), user(), reply(call())
    here, there = end(), start(2)
    chain: list[tuple[Entry, Entry | None]] = [
        (first, None),
        (ask, first),
        (answer, ask),
        (there, ask),
        (here, answer),
        (end(9), here),
    ]
    for entry, parent in chain:
        entry.parent_id = parent.id if parent else None
    assert ended_turns(entry for entry, _ in chain) == {first.id}


@pytest.mark.anyio
async def test_the_interrupted_turn_of_the_event_log_demo(tmp_path: Path) -> None:
    """Process A stops after the result, without an end; B reads, closes the turn as interrupted, and goes on."""
    place = tmp_path / "demo.jsonl"
    question = user("Check UserService.")
    looking = reply(tool_call("readFile", "c1", path="user.ts"), text="I will inspect the file first.")
    header = RequestHeaderEntry(
        model={"provider": "demo", "modelId": "demo-model"}, system_prompt="You are a coding agent."
    )
    found = ToolResultMessage(tool_call_id="c1", tool_name="readFile", content="class UserService { ... }")
    async with Session.open(JsonlStorage.create(place)) as session:
        for entry in (header, start(), question, looking, begin(), MessageEntry(message=found)):
            await session.append_entry(entry)
    before = place.read_bytes()
    async with Session.open(JsonlStorage.open(place)) as session:
        assert len(await session.recover()) == 1
        assert await session.recover() == []
        assert (await history(session))[6:] == [INTERRUPTED]
        assert place.read_bytes().startswith(before)
        shown = [message.text for message in (await session.build_context()).messages]
        assert shown == ["Check UserService.", "I will inspect the file first.", "class UserService { ... }"]
        model = ScriptedModel(["The previous tool result is still available."], provider="demo", model_id="demo-model")
        harness = AgentHarness(session, model, system_prompt="You are a coding agent.")
        await harness.prompt("Continue from the recovered state.")
        assert [message.text for message in model.requests[0].messages] == [
            *shown,
            "Continue from the recovered state.",
        ]
        assert (await history(session))[7:] == [
            "turn_start 2",
            "user: Continue from the recovered state.",
            "assistant stop: The previous tool result is still available.",
            "turn_end 2 completed",
        ]
    assert [json.loads(line)["seq"] for line in place.read_bytes().splitlines()[1:]] == list(range(11))


@pytest.mark.anyio
async def test_the_harness_recovers_when_it_takes_the_session_over(session: Session) -> None:
    """Its first awaited call closes an open turn, before its own begins; no tool is run."""
    ran: list[str] = []

    def add() -> None:
        ran.append("add")

    for entry in (start(), user(), reply(call("a"), call("b")), begin("a")):
        await session.append_entry(entry)
    harness = AgentHarness(session, ScriptedModel(["Fine."]), tools=[add])
    await harness.prompt("Again")
    assert ran == []
    assert (await history(session))[4:9] == [
        f"error a: {OUTCOME_UNKNOWN}",
        f"error b: {NOT_STARTED}",
        INTERRUPTED,
        "turn_start 2",
        "user: Again",
    ]
    check_well_formed(await session.entries())


@pytest.mark.anyio
async def test_going_back_into_a_turn_is_not_a_crash(session: Session) -> None:
    """After ``move_to`` into a finished turn nothing is recovered; its open call is answered in the projection."""

    def add() -> str:
        return "3"

    harness = AgentHarness(session, ScriptedModel([call(), "Three.", "Fine."]), tools=[add])
    await harness.prompt("Go")
    into = next(e.id for e in await session.entries() if isinstance(e, MessageEntry) and e.message.role == "assistant")
    await session.move_to(into)
    assert await session.recover() == []
    model = ScriptedModel(["Fine."])
    await harness.aclose()
    await AgentHarness(session, model, tools=[add]).prompt("Again")
    texts = [(message.role, message.text) for message in model.requests[0].messages]
    assert texts[0] == ("user", "Go")
    assert texts[2][0] == "toolResult"
    assert "not run on this branch" in texts[2][1]
    assert texts[3] == ("user", "Again")


CHILD = """
    import os, sys, time
    import anyio
    from harness.agent import AgentHarness
    from harness.session import Session
    from harness.testing import ScriptedModel, tool_call
    from storage.jsonl import JsonlStorage

    place, witness = sys.argv[1:3]

    def note(line):
        with open(witness, "a") as file:
            file.write(line + "\\n")
            file.flush()
            os.fsync(file.fileno())

    async def work(name: str, seconds: float) -> str:
        note(f"begin {name}")
        await anyio.sleep(seconds)
        note(f"end {name}")
        return name

    async def main():
        calls = [tool_call("work", name, name=name, seconds=seconds) for name, seconds in
                 [("a", 0.0), ("b", 0.03), ("c", 30.0)]]
        async with Session.open(JsonlStorage.open_or_create(place)) as session:
            print("ready", flush=True)
            await AgentHarness(session, ScriptedModel([calls, "Done."]), tools=[work]).prompt("Go")

    anyio.run(main)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.2])
async def test_a_killed_process_leaves_the_truth(tmp_path: Path, delay: float) -> None:
    """SIGKILL in a turn with three tools: after recovery each call has one result, and it says what the tools saw."""
    place, witness = tmp_path / "session.jsonl", tmp_path / "witness"
    witness.touch()
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(place), str(witness)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == b"ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
    seen = set(witness.read_text().splitlines())
    async with Session.open(JsonlStorage.open_or_create(place)) as session:
        await session.recover()
        assert await session.recover() == []
        entries = await session.entries()
        check_well_formed(entries)
        for entry in entries:
            if isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage):
                name = entry.message.tool_call_id
                if entry.message.text == NOT_STARTED:
                    assert f"begin {name}" not in seen
                elif entry.message.text != OUTCOME_UNKNOWN:
                    assert f"end {name}" in seen
        assert (await AgentHarness(session, ScriptedModel(["Fine."])).prompt("Again")).text == "Fine."


@pytest.mark.anyio
async def test_a_harness_that_is_closed_while_it_takes_the_session_over() -> None:
    """Closing waits until what a crash left is closed on record; who was waiting for that is told, and records nothing."""
    memory = await MemoryStorage.create()
    async with Session.open(memory) as session:
        await session.append_entry(TurnStartEntry(turn=1))
    storage = FaultyStorage(await MemoryStorage.open(memory))
    gate = storage.hold("commit")
    told: list[str] = []
    early: list[str] = []

    async def change(harness: AgentHarness) -> None:
        try:
            await harness.set_thinking_level("high")
        except (BusyError, SessionClosedError) as error:
            told.append(error.message)

    async with Session.open(storage) as session:
        first, second = (AgentHarness(session, ScriptedModel(["Hi."])) for _ in range(2))
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(change, first)
                await anyio.to_thread.run_sync(gate.reached.wait, 60)
                group.start_soon(first.aclose)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(change, second)
                await anyio.wait_all_tasks_blocked()
                early += told
                gate.open()
            assert "another harness holds this session" in early[0]
            assert "this harness is closed" in told[1]
            await second.set_thinking_level("low")
        found = [entry.type for entry in await session.entries()]
    assert found == ["turn_start", "turn_end", "thinking_level_change"]
