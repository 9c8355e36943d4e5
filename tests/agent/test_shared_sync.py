"""A reply and the starts of its calls are written together, where nothing can come between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.agent import AgentHarness
from harness.approvals import Decision
from harness.hooks import Hook
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import tool
from storage.errors import StorageError
from storage.memory import MemoryStorage
from storage.protocols import Record, StorageInfo
from storage.testing import FaultyStorage

pytestmark = pytest.mark.anyio


class NotingStorage:
    """Notes the types of what is committed together, and so synced together."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self.batches: list[list[str]] = []

    @property
    def info(self) -> StorageInfo:
        return self._storage.info

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        return self._storage.read(after_seq=after_seq, limit=limit)

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        self.batches.append([record.type for record in records])
        return self._storage.commit(records)

    def close(self) -> None:
        self._storage.close()


class Looking(Hook):
    """Sees each call before it runs, and lets it."""

    async def before_call(self, call: Any) -> None:
        return


def work() -> str:
    return "done"


CALLS = [tool_call("work", "a"), tool_call("work", "b")]
TOGETHER = ["message", "tool_start", "tool_start"]


async def batches_of(*, approval: bool = False, hook: Hook | None = None) -> list[list[str]]:
    """What was committed together in a turn with two calls side by side."""
    storage = NotingStorage(await MemoryStorage.create())

    async def approve(_request: Any) -> Decision:
        return Decision.approve()

    async with Session.open(storage) as session:
        tools = [tool(needs_approval=approval)(work)]
        harness = AgentHarness(session, ScriptedModel([CALLS, "Fine."]), tools=tools, approve=approve)
        if hook is not None:
            harness.on(hook)
        assert (await harness.prompt("Go")).text == "Fine."
    return storage.batches


async def test_a_reply_and_its_starts_share_a_commit() -> None:
    """R23 holds in the order on disk; the sync is one."""
    assert TOGETHER in await batches_of()


async def test_a_hook_or_a_person_comes_between() -> None:
    """What may refuse a call is asked once its reply is committed, and the call is not noted as begun before."""
    assert TOGETHER not in await batches_of(hook=Looking())
    assert TOGETHER not in await batches_of(approval=True)


@pytest.mark.parametrize("tools", [work, tool(parallel=False)(work)], ids=["parallel", "one by one"])
@pytest.mark.parametrize("place", range(1, 10))
async def test_a_store_that_fails_is_told_once(place: int, tools: Any) -> None:
    """``prompt`` raises it; closing the session does not raise it again for what was handed over with it."""
    storage = FaultyStorage(await MemoryStorage.create())
    storage.fail_commit(OSError("the disk is gone"), at=place)
    told: list[StorageError] = []
    async with Session.open(storage) as session:
        harness = AgentHarness(session, ScriptedModel([CALLS, "Done.", CALLS, "Done."]), tools=[tools])
        for _ in range(2):
            try:
                await harness.prompt("Go")
            except StorageError as error:
                told.append(error)
                break
    assert [str(error.__cause__) for error in told][:1] == ["the disk is gone"]
