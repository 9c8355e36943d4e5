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


@pytest.mark.parametrize("way", ["delete", "clear"])
async def test_what_was_deleted_here_stays_deleted(way: str) -> None:
    """A key that was taken over, or kept, and then deleted is not brought back; new ones are taken over all the same."""
    async with Session.open(MemoryStorage.create()) as old, Session.open(MemoryStorage.create()) as new:
        for key in ("task", "style", "host"):
            await old.working_memory.set(key, f"old {key}")
        await new.working_memory.set("style", "own")
        first = await new.continue_from(old)
        assert (first.keys, first.kept, first.deleted) == (("task", "host"), ("style",), ())
        continued = new.leaf_id
        if way == "delete":
            await new.working_memory.delete("task")
            await new.working_memory.delete("style")
        else:
            await new.working_memory.clear()
            await new.working_memory.set("host", "set again")
        await old.working_memory.set("task", "changed there")
        await old.working_memory.set("plan", "new there")
        again = await new.continue_from(old)
        assert (again.keys, again.kept, again.deleted) == (("plan",), ("host",), ("task", "style"))
        assert sorted(await new.working_memory.keys()) == ["host", "plan"]
        await new.working_memory.set("task", "wanted again")
        third = await new.continue_from(old)
        assert (third.keys, third.kept, third.deleted) == ((), ("task", "host", "plan"), ("style",))

        await new.move_to(continued)  # what counts is the path: here nothing was deleted
        assert (await new.continue_from(old)).deleted == ()


async def test_what_another_session_gave_is_another_thing() -> None:
    """A key deleted before this session was continued from the other one is taken over: nobody knew it was there."""
    async with Session.open(MemoryStorage.create()) as old, Session.open(MemoryStorage.create()) as new:
        await old.working_memory.set("task", "port the parser")
        await new.working_memory.set("task", "own")
        await new.working_memory.delete("task")
        assert (await new.continue_from(old)).keys == ("task",)
