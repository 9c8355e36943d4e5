"""The storage that fails when it is told to: it fails just so, and counts what reached it."""

from __future__ import annotations

import errno
import inspect
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from storage import CommitFailed, MemoryStorage, Record, SessionStorage, SettingsError, StaleSessionError
from storage.protocols import StorageInfo
from storage.testing import FaultyStorage, StorageCall
from storage.testing.subject import chain
from tests.storage.places import JsonlPlace

pytestmark = pytest.mark.anyio


async def made() -> FaultyStorage:
    """Around an empty session in memory."""
    return FaultyStorage(await MemoryStorage.create())


def seqs(storage: SessionStorage) -> list[int]:
    """What it holds."""
    return [record.seq for record in storage.read()]


async def test_it_stands_around_what_is_open() -> None:
    """What a backend's ``create`` gives is to be awaited first, and says so; the session is not begun for nobody."""
    begun: Any = MemoryStorage.create()
    with pytest.raises(SettingsError, match=r"FaultyStorage\(await …\)"):
        FaultyStorage(begun)
    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


async def test_without_a_fault_it_is_the_inner_one() -> None:
    """Nothing is changed: header, records, refusal of a wrong place; every call is listed."""
    storage = await made()
    records = chain(3)
    assert storage.info.header == storage.inner.info.header
    assert storage.commit(records) is None
    with pytest.raises(StaleSessionError):
        storage.commit(records)
    assert storage.read(after_seq=0, limit=1) == [records[1]]
    storage.close()
    assert storage.calls == [
        StorageCall("commit", 3),
        StorageCall("commit", 3),
        StorageCall("read"),
        StorageCall("close"),
    ]
    assert (storage.count("commit"), storage.count("sync"), storage.overlaps) == (2, 0, 0)


@pytest.mark.parametrize("keep", range(4))
async def test_a_known_failure_keeps_k(keep: int) -> None:
    """keep=k: the first k are committed, CommitFailed says so and has the error as its cause; the next commit is fine."""
    storage = await made()
    records = chain(3)
    error = OSError(errno.ENOSPC, "No space left on device")
    storage.fail_commit(error, keep=keep)
    with pytest.raises(CommitFailed, match="No space left") as caught:
        storage.commit(records)
    assert caught.value.committed == keep
    assert caught.value.__cause__ is error
    assert seqs(storage) == list(range(keep))
    if keep < 3:
        storage.commit(records[keep:])
    assert seqs(storage) == [0, 1, 2]


@pytest.mark.parametrize("written", [False, True])
async def test_an_unknown_failure(written: bool) -> None:
    """Without keep the error itself is raised, with nothing or everything written."""
    storage = await made()
    error = RuntimeError("odd")
    storage.fail_commit(error, written=written)
    with pytest.raises(RuntimeError) as caught:
        storage.commit(chain(2))
    assert caught.value is error
    assert seqs(storage) == ([0, 1] if written else [])


async def test_the_nth_call_fails(jsonl: JsonlPlace) -> None:
    """at=n counts commits and syncs from 1; a number that has passed is refused."""
    storage = FaultyStorage(await jsonl.create(durability="fsync"))
    records = chain(4)
    storage.fail_sync(OSError("the second sync"), at=2)
    storage.fail_commit(OSError("the third commit"), at=3)
    for number in range(2):
        sync = storage.commit([records[number]])
        assert sync is not None
        if number == 1:
            with pytest.raises(OSError, match="the second sync"):
                sync()
        else:
            sync()
    with pytest.raises(OSError, match="the third commit"):
        storage.commit([records[2]])
    sync = storage.commit([records[2]])
    assert sync is not None
    sync()
    with pytest.raises(ValueError, match="has been made"):
        storage.fail_commit(OSError(), at=2)
    assert [call.name for call in storage.calls] == ["commit", "sync"] * 2 + ["commit", "commit", "sync"]
    storage.close()


async def test_slow_and_held() -> None:
    """slow_down takes its time; hold stops a commit before it writes, until its gate is opened."""
    storage = await made()
    storage.slow_down("commit", 0.03)
    start = time.perf_counter()
    records = chain(2)
    storage.commit(records[:1])
    assert time.perf_counter() - start >= 0.03
    storage.slow_down("commit", 0)
    gate = storage.hold("commit")
    thread = threading.Thread(target=storage.commit, args=(records[1:],))
    thread.start()
    assert gate.reached.wait(60)
    assert seqs(storage.inner) == [0]
    gate.open()
    thread.join(5)
    assert seqs(storage.inner) == [0, 1]


async def test_it_notices_calls_that_overlap() -> None:
    """overlaps counts calls that began while another was running."""
    storage = await made()
    gate = storage.hold("commit")
    thread = threading.Thread(target=storage.commit, args=(chain(1),))
    thread.start()
    assert gate.reached.wait(60)
    storage.read()
    gate.open()
    thread.join(5)
    assert storage.overlaps == 1


async def test_it_is_not_inline_unless_asked() -> None:
    """Its commits are made in a worker, where they may be slow; inline=True leaves what the inner storage says."""
    inner = await MemoryStorage.create()
    assert inner.info.inline
    assert not FaultyStorage(inner).info.inline
    assert FaultyStorage(inner, inline=True).info.inline
    assert not FaultyStorage(_NeverInline(), inline=True).info.inline


class _NeverInline:
    """A storage that is not to be called on the event loop."""

    @property
    def info(self) -> StorageInfo:
        return StorageInfo(header=None, writable=True)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        return []

    def commit(self, records: Sequence[Record]) -> None:
        return None

    def close(self) -> None:
        return None
