"""Going on in a new session, and once more: what was taken over is not taken over again."""

from __future__ import annotations

import pytest

from harness.session import Session
from storage.memory import MemoryStorage
from storage.messages import UserMessage

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("talks", [False, True], ids=["fresh", "with a conversation"])
async def test_a_summary_is_taken_over_once(talks: bool) -> None:
    """Continuing twice changes nothing of what is shown; a newer summary is taken over."""
    async with Session.open(MemoryStorage.create()) as old, Session.open(MemoryStorage.create()) as new:
        await old.append_compaction("Half of it is ported.", tokens_before=900)
        if talks:
            await new.append_message(UserMessage(content="Hello."))
        first = await new.continue_from(old, last_summary=True)
        shown = [message.text for message in (await new.build_context()).messages]
        again = await new.continue_from(old, last_summary=True)
        assert [message.text for message in (await new.build_context()).messages] == shown
        assert again.summary_id == first.summary_id
        await old.append_compaction("All of it is ported.", tokens_before=900)
        newer = await new.continue_from(old, last_summary=True)
        assert newer.summary_id not in (None, first.summary_id)
        assert "All of it is ported." in (await new.build_context()).messages[-1].text


async def test_back_on_a_branch_without_it_it_is_taken_over() -> None:
    """What counts is the path, not the session."""
    async with Session.open(MemoryStorage.create()) as old, Session.open(MemoryStorage.create()) as new:
        await old.append_compaction("Half of it is ported.", tokens_before=900)
        start = await new.append_message(UserMessage(content="Hello."))
        await new.continue_from(old, last_summary=True)
        await new.move_to(start)
        await new.continue_from(old, last_summary=True)
        assert "Half of it is ported." in (await new.build_context()).messages[-1].text
