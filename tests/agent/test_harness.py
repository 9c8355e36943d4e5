"""Who may run turns when, what a harness takes from an old session, and how a turn fails (R25, R22)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.agent import AgentHarness
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import Reply, ScriptedModel, tool_call
from harness.tools import ToolContext
from storage.entries import TurnEndEntry, TurnStartEntry
from storage.errors import (
    BudgetError,
    BusyError,
    InvalidEntryError,
    ModelError,
    QueueFullError,
    SessionClosedError,
    StorageError,
    ToolError,
)
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import AssistantMessage, ImageContent, TextContent, UserMessage
from storage.testing import FaultyStorage
from tests.agent.agents import check_well_formed, history

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    return a + b


async def test_one_turn_at_a_time(session: Session) -> None:
    """A second prompt while one runs is refused and writes nothing; afterwards the next one works."""
    asked, tried = anyio.Event(), anyio.Event()

    async def answer_slowly(_: ModelRequest) -> str:
        asked.set()
        await tried.wait()
        return "slow"

    harness = AgentHarness(session, ScriptedModel([answer_slowly, "Fine."]))
    refused: list[str] = []

    async def again() -> None:
        await asked.wait()
        for attempt in (harness.prompt("second"), harness.aclose()):
            with pytest.raises(BusyError, match="a turn is running") as caught:
                await attempt
            refused.append(caught.value.code)
        tried.set()

    async with anyio.create_task_group() as group:
        group.start_soon(again)
        await harness.prompt("first")
    assert refused == ["busy", "busy"]
    assert (await harness.prompt("third")).text == "Fine."
    assert [line for line in await history(session) if line.startswith("user")] == ["user: first", "user: third"]


async def test_one_harness_at_a_time(session: Session) -> None:
    """A second harness is refused until the first is closed; a closed one runs no turns."""
    first = AgentHarness(session, ScriptedModel(["1"]))
    second = AgentHarness(session, ScriptedModel(["2"]))
    await first.prompt("a")
    with pytest.raises(BusyError, match="another harness holds this session"):
        await second.prompt("b")
    await first.aclose()
    await first.aclose()
    assert (await second.prompt("c")).text == "2"
    with pytest.raises(SessionClosedError, match="this harness is closed"):
        await first.prompt("d")


async def test_async_with_claims_and_gives_up(session: Session) -> None:
    """``async with harness`` claims the session on entering and gives it up on leaving, whatever happens inside."""
    with pytest.raises(LookupError):
        async with AgentHarness(session, ScriptedModel([])):
            with pytest.raises(BusyError):
                await AgentHarness(session, ScriptedModel([])).prompt("x")
            raise LookupError
    async with AgentHarness(session, ScriptedModel(["Hello."])) as harness:
        assert (await harness.prompt("Hi")).text == "Hello."


async def test_making_a_harness_touches_nothing(session: Session) -> None:
    """Nothing is claimed, recovered or written before the first awaited call."""
    for _ in range(2):
        AgentHarness(session, ScriptedModel([]), tools=[add])
    assert await history(session) == []
    with pytest.raises(ToolError, match="two tools"):
        AgentHarness(session, ScriptedModel([]), tools=[add, add])


@pytest.mark.parametrize("prompt", ["", "  \n", [], [TextContent(text=" ")]])
async def test_an_empty_prompt_is_refused(session: Session, prompt: Any) -> None:
    """Nothing is written for a prompt that says nothing."""
    harness = AgentHarness(session, ScriptedModel(["Hello."]))
    with pytest.raises(InvalidEntryError, match="empty prompt"):
        await harness.prompt(prompt)
    assert await history(session) == []


async def test_a_prompt_may_hold_images(session: Session) -> None:
    """Text and image parts are recorded and sent as they are."""
    model = ScriptedModel(["A cat."])
    image = ImageContent(data="AAAA", mime_type="image/png")
    await AgentHarness(session, model).prompt([TextContent(text="What is it?"), image])
    assert model.requests[0].messages[-1] == model.requests[0].messages[0]
    sent = model.requests[0].messages[0]
    assert isinstance(sent, UserMessage)
    assert sent.content == [TextContent(text="What is it?"), image]


async def test_a_prompt_with_half_an_emoji(session: Session) -> None:
    """A lone surrogate in a prompt becomes U+FFFD, and the turn goes on."""
    model = ScriptedModel(["Hello."])
    await AgentHarness(session, model).prompt("half \ud83d")
    assert model.requests[0].messages[0].text == "half \ufffd"


async def test_a_model_that_fails_ends_the_turn_as_failed(session: Session) -> None:
    """``ModelError`` comes after ``turn_end: failed``, which says why; the prompt stays, and the next turn works."""
    harness = AgentHarness(session, ScriptedModel([ModelError("overloaded; try later"), "Fine."]))
    with pytest.raises(ModelError, match="overloaded"):
        await harness.prompt("Hi")
    assert await history(session) == ["turn_start 1", "user: Hi", "request_header", "turn_end 1 failed"]
    end = (await session.entries())[-1]
    assert end.model_extra == {"error": "model: overloaded; try later"}
    assert (await harness.prompt("Again")).text == "Fine."


async def test_a_model_that_fails_half_way_leaves_what_was_heard(session: Session) -> None:
    """Half a reply is recorded as an error, with its reason, and is shown to the model afterwards."""
    model = ScriptedModel([Reply("Half a rep", error=ModelError("connection lost")), "Fine."])
    harness = AgentHarness(session, model)
    with pytest.raises(ModelError, match="connection lost"):
        await harness.prompt("Hi")
    assert (await history(session))[-2:] == ["assistant error: Half a rep", "turn_end 1 failed"]
    await harness.prompt("Again")
    assert [message.text for message in model.requests[1].messages] == ["Hi", "Half a rep", "Again"]


async def test_a_model_that_raises_anything_raises_a_model_error(session: Session) -> None:
    """An error of any other kind from a model is a ``ModelError`` with that as its cause, and no text of it."""
    harness = AgentHarness(session, ScriptedModel([KeyError("secret-key"), "Fine."]))
    with pytest.raises(ModelError, match="failed with a KeyError") as caught:
        await harness.prompt("Hi")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "secret" not in str(caught.value)
    assert "secret" not in str((await session.entries())[-1])
    assert (await history(session))[-1] == "turn_end 1 failed"


async def test_a_reply_that_ended_in_an_error_fails_the_turn(session: Session) -> None:
    """A whole reply with stop reason ``error`` is recorded, its calls are answered, and the turn fails."""
    broken = AssistantMessage(content=[tool_call("add", "c1", a=1, b=1)], stop_reason="error", error_message="filtered")
    harness = AgentHarness(session, ScriptedModel([broken, "Fine."]), tools=[add])
    with pytest.raises(ModelError, match="filtered"):
        await harness.prompt("Hi")
    check_well_formed(await session.entries())
    assert (await history(session))[-1] == "turn_end 1 failed"
    assert (await harness.prompt("Again")).text == "Fine."


async def test_a_turn_that_never_stops_calling_has_a_limit(session: Session) -> None:
    """After ``max_steps`` requests the turn ends as failed, with all results recorded."""
    harness = AgentHarness(
        session,
        ScriptedModel(lambda _: tool_call("add", a=1, b=1)),
        tools=[add],
        settings=AgentSettings(max_steps=3),
    )
    with pytest.raises(ModelError, match="limit of 3 requests"):
        await harness.prompt("Go")
    lines = await history(session)
    assert sum(line.startswith("assistant") for line in lines) == 3
    assert sum(line.startswith("result") for line in lines) == 3
    assert lines[-1] == "turn_end 1 failed"
    check_well_formed(await session.entries())


async def test_what_cannot_be_shown_fails_the_turn(session: Session) -> None:
    """A budget that the prompt itself does not fit raises ``BudgetError`` and asks no model."""
    model = ScriptedModel(["never", "Fine."])
    harness = AgentHarness(session, model, settings=AgentSettings(max_chars=300))
    with pytest.raises(BudgetError):
        await harness.prompt("x" * 1000)
    assert model.requests == []
    assert (await history(session))[-1] == "turn_end 1 failed"


@pytest.mark.parametrize("window", [None, 8_000])
async def test_a_budget_of_characters_is_not_said_to_hold_the_prompt(session: Session, window: int | None) -> None:
    """What a person reads of the budget that is too small names only what it is charged with."""
    settings = AgentSettings(max_chars=300)
    model = ScriptedModel([], context_window=window)
    with pytest.raises(BudgetError, match="max_chars is 300") as caught:
        await AgentHarness(session, model, system_prompt="Be brief.", settings=settings).prompt("x" * 1000)
    assert "prompt and tools" not in str(caught.value)


async def test_the_budget_trims_old_turns(session: Session) -> None:
    """With a character budget, old turns are left out of the request; the record keeps all of it."""
    model = ScriptedModel(lambda request: f"{len(request.messages)} shown")
    harness = AgentHarness(session, model, settings=AgentSettings(max_chars=600))
    for number in range(10):
        await harness.prompt(f"prompt {number} " + "x" * 100)
    assert len(model.requests[-1].messages) < 8
    assert len(await history(session)) == 10 * 4 + 1


async def test_the_window_less_a_reserve_is_the_token_budget() -> None:
    """A known window gives the budget: less a quarter of it, at most 4,096 tokens, or what the settings say."""
    assert AgentSettings().token_budget(2_000) == 1_500
    assert AgentSettings().token_budget(100_000) == 95_904
    assert AgentSettings(reserve_tokens=100).token_budget(2_000) == 1_900
    assert AgentSettings(max_tokens=500).token_budget(2_000) == 500
    assert AgentSettings().token_budget(None) is None


async def test_a_small_window_is_kept(session: Session) -> None:
    """With a model whose window is hard, a long conversation never overflows it, also where nothing is summarised."""
    model = ScriptedModel(lambda _: "y" * 400, context_window=1_200, enforce_window=True)
    harness = AgentHarness(session, model, settings=AgentSettings(compaction=False))
    for number in range(12):
        await harness.prompt(f"{number} " + "x" * 400)
    assert len(model.requests) == 12


async def test_another_model_level_and_tools_are_recorded(session: Session) -> None:
    """What the caller says differs from an old session is recorded, before the first request, and then taken over."""
    await session.append_active_tools_change(["old"])
    await session.append_thinking_level_change("low")
    high = AgentSettings(thinking_level="high")
    first = AgentHarness(session, ScriptedModel(["1", "2"]), settings=high, tools=[add], active_tools=["add"])
    await first.prompt("a")
    await first.prompt("b")
    await first.aclose()
    other = ScriptedModel(["3"], provider="other", model_id="m2")
    second = AgentHarness(session, other, tools=[add])
    await second.prompt("c")
    assert await history(session) == [
        "active_tools_change",
        "thinking_level_change low",
        "turn_start 1",
        "user: a",
        "active_tools_change",
        "thinking_level_change high",
        "request_header",
        "assistant stop: 1",
        "turn_end 1 completed",
        "turn_start 2",
        "user: b",
        "assistant stop: 2",
        "turn_end 2 completed",
        "turn_start 3",
        "user: c",
        "model_change other/m2",
        "request_header",
        "assistant stop: 3",
        "turn_end 3 completed",
    ]
    assert other.requests[0].thinking_level == "high"
    state = await session.build_context()
    assert state.model is not None
    assert (state.model.model_id, state.thinking_level, state.active_tools) == ("m2", "high", ["add"])


async def test_turns_are_counted_on_the_path(session: Session) -> None:
    """Going back to before the second turn, the next one is the second again."""
    harness = AgentHarness(session, ScriptedModel(["1", "2", "3"]))
    await harness.prompt("a")
    after_first = session.leaf_id
    await harness.prompt("b")
    await session.move_to(after_first)
    await harness.prompt("c")
    turns = [entry.turn for entry in await session.entries() if isinstance(entry, TurnStartEntry | TurnEndEntry)]
    assert turns == [1, 1, 2, 2, 2, 2]
    assert [line for line in map(str, await history(session)) if line.startswith("user")] == [
        "user: a",
        "user: b",
        "user: c",
    ]
    branch = [entry.message.text for entry in await session.branch() if entry.type == "message"]  # type: ignore[union-attr]
    assert branch == ["a", "1", "c", "3"]


async def test_a_full_queue_never_shows_in_the_harness(session: Session) -> None:
    """With the log's queue full of other writes, the turn flushes and goes on; nobody sees ``QueueFullError``."""

    def fill() -> None:
        for size in (4_000_000, 100_000, 3_000, 1):  # until not even the smallest entry fits
            try:
                while True:
                    session.append_custom_entry("filler", "x" * size)
            except QueueFullError:
                continue

    def answer(request: ModelRequest) -> Any:
        fill()
        return tool_call("crowd", "a") if len(request.messages) == 1 else "Done."

    async def crowd() -> str:
        fill()
        return "crowded"

    harness = AgentHarness(session, ScriptedModel(answer), tools=[crowd])
    fill()
    assert (await harness.prompt("Go")).text == "Done."
    turn = [line for line in await history(session) if line != "custom"]
    assert turn == [
        "turn_start 1",
        "user: Go",
        "request_header",
        "assistant toolUse: crowd(a)",
        "tool_start a",
        "result a: crowded",
        "assistant stop: Done.",
        "turn_end 1 completed",
    ]


async def test_tools_know_their_call(session: Session, tmp_path: Path) -> None:
    """The context names the call, the tool, and the folder that the session belongs to."""
    seen: list[ToolContext] = []

    def look(context: ToolContext) -> None:
        seen.append(context)

    await AgentHarness(session, ScriptedModel([tool_call("look", "c7"), "Done."]), tools=[look]).prompt("Go")
    assert (seen[0].call_id, seen[0].tool_name, seen[0].deadline) == ("c7", "look", None)
    assert str(seen[0].working_directory) == session.header.cwd


async def test_a_session_that_cannot_be_written_runs_no_turn(tmp_path: Path) -> None:
    """A session opened for reading refuses the turn before anything is asked of the model."""
    place = tmp_path / "session.jsonl"
    async with Session.open(JsonlStorage.create(place)) as session:
        await session.append_message(UserMessage(content="Hi"))
    model = ScriptedModel(["never"])
    async with Session.open(JsonlStorage.open(place, mode="read")) as session:
        with pytest.raises(PermissionError):
            await AgentHarness(session, model).prompt("Go")
    assert model.requests == []


async def test_a_store_that_fails_for_good_stops_the_turn() -> None:
    """The store's error comes up, nothing more is asked of the model, and the note says that the turn stayed open."""
    storage = FaultyStorage(await MemoryStorage.create())
    session = await Session.open(storage)
    model = ScriptedModel([tool_call("break_store"), "never"])

    def break_store() -> str:
        storage.fail_commit(OSError("disk on fire"))
        return "broken"

    harness = AgentHarness(session, model, tools=[break_store])
    with pytest.raises(StorageError, match="disk on fire") as caught:
        await harness.prompt("Go")
    assert len(model.requests) == 1
    assert any("could not be closed" in note for note in getattr(caught.value, "__notes__", []))
    with pytest.raises(StorageError):
        await harness.prompt("Again")
    await session.aclose()


async def test_a_store_that_fails_once_closes_the_turn() -> None:
    """After a full disk that was emptied, the turn is closed as failed with its results, and the next one works."""
    storage = FaultyStorage(await MemoryStorage.create())
    async with Session.open(storage) as session:

        def fill_disk() -> str:
            storage.fail_commit(OSError("no space left"), keep=0)
            return "filled"

        harness = AgentHarness(session, ScriptedModel([tool_call("fill_disk"), "Fine."]), tools=[fill_disk])
        with pytest.raises(StorageError, match="no space left"):
            await harness.prompt("Go")
        assert (await history(session))[-1] == "turn_end 1 failed"
        check_well_formed(await session.entries())
        assert (await harness.prompt("Again")).text == "Fine."
