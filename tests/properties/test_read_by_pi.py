"""What we write, read by pi's rules: the same conversation, but for what our own rules say otherwise.

Said otherwise: every call has one result, right behind its reply, and no result is without a call (R20); blank texts and
failed replies without a text are left out (R20); the working memory comes last.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import (
    AgentHarness,
    AssistantMessage,
    JsonlStorage,
    Session,
    SessionContext,
    ToolCall,
    ToolResultMessage,
    tool,
)
from harness.testing import ScriptedModel
from tests.properties import pi_reader
from tests.properties.growing import append_raw, message_of
from tests.properties.pi_reader import PiMessage
from tests.properties.profiles import MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.steps import TIME, Recorded, Step, conversations, plan
from tests.properties.wire import Json

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)

Answer = tuple[str | None, str | None]
"""A result: its entry, and the call that it names."""


def differences(entries: list[Json], leaf: str | None, ours: SessionContext) -> list[str]:
    """Where the two conversations at ``leaf`` differ in what the rules do not say otherwise."""
    theirs = pi_reader.context(entries, leaf)
    without_call = pi_reader.calls_edited_away(entries, leaf)
    shown = [(message, entry_id) for message, entry_id in zip(ours.messages, ours.entry_ids, strict=True)]
    if ours.working_memory:
        shown.pop()
    # A made-up result has the id of its reply.
    replies = {entry_id for message, entry_id in shown if isinstance(message, AssistantMessage)}
    said = [
        (entry_id, message.role, message)
        for message, entry_id in shown
        if entry_id is not None and not isinstance(message, ToolResultMessage)
    ]
    found: list[str] = []
    wanted = [one for one in theirs if one.role != "toolResult"]
    for one in wanted:
        if said and said[0][0] == one.entry_id and said[0][1] == one.role and _same(said[0][2], one):
            said.pop(0)
        elif not _may_be_left_out(one):
            found.append(f"not shown, or not so: {one}")
    found += [f"shown, and not in pi's: {entry_id} {message.text!r}" for entry_id, _, message in said]
    answers = Counter[Answer](
        (entry_id, message.tool_call_id) for message, entry_id in shown if isinstance(message, ToolResultMessage)
    )
    wanted_answers = Counter[Answer]((one.entry_id, one.answers) for one in theirs if one.answers is not None)
    missing = wanted_answers - answers
    found += [
        f"result not shown: {key}" for key in missing if key[0] not in ours.dropped and key[1] not in without_call
    ]
    found += [f"result not in pi's: {key}" for key in answers - wanted_answers if key[0] not in replies]
    texts: dict[Answer, str] = {(one.entry_id, one.answers): _text(one) for one in theirs if one.answers is not None}
    for message, entry_id in shown:
        if not isinstance(message, ToolResultMessage) or entry_id in replies:  # in a retained tail they share one id
            continue
        if wanted_answers[entry_id, message.tool_call_id] == 1:
            text = texts[entry_id, message.tool_call_id]
            if text and message.text != text:
                found.append(f"another text: {entry_id} {message.text!r}, not {text!r}")
    return found


def _text(one: PiMessage) -> str:
    return "".join(text for text in one.texts if text.strip())


def _same(message: Any, one: PiMessage) -> bool:
    calls = tuple(call.id for call in message.tool_calls) if isinstance(message, AssistantMessage) else ()
    if calls != one.calls:
        return False
    if one.summary:  # the words around it are each program's own
        return all(text.strip() in message.text for text in one.texts)
    return message.text == _text(one)


def _may_be_left_out(one: PiMessage) -> bool:
    return not _text(one) and (not one.calls or one.failed)


async def grown(session: Session, steps: list[Step], extras: list[int]) -> None:
    """The steps recorded, and between them what only we write: results with blobs."""
    recorded = Recorded()
    for number, step in enumerate(steps):
        for raw in [*plan(step, recorded), *_extra(extras[number % len(extras)] if extras else 0, recorded)]:
            if raw["type"] == "message" and raw["message"].get("blobs"):
                raw["message"]["blobs"] = [await session.write_blob(b"all of it")]
            write = append_raw(session, raw)
            recorded.accept({"id": await write, "parentId": recorded.leaf, **raw})
    await session.flush()


def _extra(number: int, recorded: Recorded) -> list[Json]:
    if number != 1:
        return []
    result = plan(Step("answer", text="cut", pick=number), recorded)
    for raw in result:
        raw["message"]["blobs"] = ["?"]
    return result


async def read_by_both(path: Path, session: Session) -> None:
    """Both of pi's programs, opening the file, find what we show; and so at each other entry, labels and name too."""
    data = path.read_bytes()
    entries = pi_reader.read(data)
    assert pi_reader.leaf_of_harness(entries) == session.leaf_id
    ours = await session.build_context()
    assert differences(entries, pi_reader.leaf_of_harness(entries), ours) == []
    assert differences(entries, pi_reader.leaf_of_coding_agent(entries), ours) == []
    for entry in entries:
        if entry["type"] != "leaf":
            context = await session.build_context(leaf_id=entry["id"])
            assert differences(entries, entry["id"], context) == []
        assert pi_reader.label_of(entries, entry["id"]) == await session.label(entry["id"])
    assert pi_reader.name_of(entries) == await session.name()


@LOOPS
@examples(40)
@given(
    steps=conversations(max_steps=MAXIMUM_STEPS),
    extras=st.lists(st.integers(0, 4), max_size=8),
    fork_at=st.none() | st.integers(0, 60),
)
def test_pi_reads_the_same_conversation(loop: str, steps: list[Step], extras: list[int], fork_at: int | None) -> None:
    """Trees with branches, compactions, edits, labels, leaves, blobs and queued messages; and forks of them."""

    async def run(folder: Path) -> None:
        async with Session.open(JsonlStorage.create(folder / "one.jsonl", durability="os")) as session:
            await grown(session, steps, extras)
            await read_by_both(folder / "one.jsonl", session)
            entries = await session.entries()
            if fork_at is not None and entries:
                target = entries[fork_at % len(entries)].id

                async def create(**given_: Any) -> JsonlStorage:
                    return await JsonlStorage.create(folder / "fork.jsonl", durability="os", **given_)

                async with await session.fork(target, into=create) as fork:
                    await read_by_both(folder / "fork.jsonl", fork)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)


@LOOPS
def test_pi_reads_what_a_harness_recorded(loop: str, tmp_path: Path) -> None:
    """Two turns of a real loop with calls side by side, one of them unknown; then back, and another road."""

    @tool
    def look(place: str) -> str:
        """Look at a place."""
        return f"nothing at {place}"

    async def run() -> None:
        model = ScriptedModel(
            [
                [
                    "I look.",
                    ToolCall(id="a", name="look", arguments={"place": "here"}),
                    ToolCall(id="b", name="listen", arguments={}),
                ],
                "Nothing there.",
                "Still nothing.",
                "Another road.",
            ]
        )
        async with Session.open(JsonlStorage.create(tmp_path / "one.jsonl", durability="os")) as session:
            async with AgentHarness(session, model, tools=[look], system_prompt="You look.") as harness:
                await harness.prompt("What is here?")
                fork = session.leaf_id
                await harness.prompt("And now?")
                await session.move_to(fork)
                await harness.prompt("Elsewhere?")
            await read_by_both(tmp_path / "one.jsonl", session)
            texts = [message.text for message in (await session.build_context()).messages]
            assert texts[0] == "What is here?"
            assert texts[-2:] == ["Elsewhere?", "Another road."]
            assert len(texts) == 7

    anyio.run(run, backend=loop)


def _reply(text: str, *calls: tuple[str, str, Json]) -> Json:
    parts = [{"type": "toolCall", "id": call_id, "name": name, "arguments": given} for call_id, name, given in calls]
    stop = "toolUse" if calls else "stop"
    content = [{"type": "text", "text": text}, *parts]
    return {"role": "assistant", "content": content, "stopReason": stop, "timestamp": TIME}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda entries: entries.pop(1),
        lambda entries: entries[1]["message"].update(content=[{"type": "text", "text": "other"}]),
        lambda entries: entries[2]["message"].update(toolCallId="z"),
        lambda entries: entries[0]["message"].update(role="custom", content="x"),
    ],
    ids=["a message less", "another text", "another call", "another role"],
)
def test_a_difference_is_found(spoil: Any, tmp_path: Path) -> None:
    """The comparison is not blind: what is changed in the file is a difference to what was shown."""

    async def run() -> None:
        async with Session.open(JsonlStorage.create(tmp_path / "one.jsonl", durability="os")) as session:
            for raw in (
                {"role": "user", "content": "go", "timestamp": TIME},
                _reply("looking", ("a", "look", {})),
                {
                    "role": "toolResult",
                    "toolCallId": "a",
                    "toolName": "look",
                    "content": "it",
                    "isError": False,
                    "timestamp": 1,
                },
            ):
                await session.append_message(message_of(raw))
            entries = pi_reader.read((tmp_path / "one.jsonl").read_bytes())
            assert differences(entries, session.leaf_id, await session.build_context()) == []
            spoil(entries)
            if len(entries) == 2:
                entries[1]["parentId"] = entries[0]["id"]
            assert differences(entries, session.leaf_id, await session.build_context())

    anyio.run(run)
