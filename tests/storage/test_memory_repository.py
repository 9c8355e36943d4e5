"""Sessions in memory that are made by several threads at once: of one id, one of them makes it, and nothing is replaced."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from storage.errors import SessionExistsError, SessionNotFoundError
from storage.event_loops import run_in_worker
from storage.header import new_header
from storage.memory_repository import MemoryRepository
from storage.protocols import Record
from tests.storage.entry_folders import chain

pytestmark = pytest.mark.anyio


def in_a_thread(work: Callable[[], object]) -> None:
    """Do it in a thread of its own, and wait for its end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def ids_in(repository: MemoryRepository, session_id: str) -> list[str]:
    """The ids of its entries."""
    with repository.reading(session_id) as stream:
        return [record.id for record in stream.records]


@pytest.mark.parametrize("other", ["same", "SAME"])
async def test_received_while_it_is_created(other: str) -> None:
    """A session that a worker receives while ``create`` still takes its records stays as it is; so does a namesake."""
    repository = MemoryRepository()
    received = chain(3)

    def records() -> Iterator[Record]:
        yield from chain(1)
        in_a_thread(lambda: repository.receive(new_header(session_id="same"), received, ()))

    with pytest.raises(SessionExistsError, match="'same'"):
        await repository.create(other, records=records())
    assert ids_in(repository, "same") == [record.id for record in received]
    assert [one.id for one in await repository.list()] == ["same"]


async def test_received_by_two_at_once() -> None:
    """Of two workers that bring a session of one id at one moment, one is told that it is there."""
    repository = MemoryRepository()
    names = [f"s{number}" for number in range(300)]
    made: list[tuple[str, str]] = []
    both = threading.Barrier(2)

    def bring() -> None:
        for name in names:
            records = chain(1)
            both.wait(60)
            try:
                repository.receive(new_header(session_id=name), records, ())
            except SessionExistsError:
                continue
            made.append((name, records[0].id))

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=bring) for _ in range(2)]
        for thread in threads:
            thread.start()
        await run_in_worker(lambda: [thread.join() for thread in threads])
    finally:
        sys.setswitchinterval(usual)
    assert sorted(name for name, _ in made) == sorted(names)
    assert all(ids_in(repository, name) == [entry_id] for name, entry_id in made)


async def test_made_by_somebody_else_while_it_is_opened_or_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """``open_or_create`` opens what somebody made between its look and its making."""
    repository = MemoryRepository()
    received = chain(2)
    usual = repository.open

    async def late(session_id: str, *, lock_timeout: float = 0) -> object:
        try:
            return await usual(session_id, lock_timeout=lock_timeout)
        except SessionNotFoundError:
            in_a_thread(lambda: repository.receive(new_header(session_id=session_id), received, ()))
            raise

    monkeypatch.setattr(repository, "open", late)
    storage = await repository.open_or_create("same")
    assert [record.id for record in storage.read()] == [record.id for record in received]
    storage.close()


async def test_received_while_it_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody puts under the id of a session that is being deleted is not deleted with it."""
    from storage.memory import MemoryStorage

    repository = MemoryRepository()
    (await repository.create("same")).close()
    received = chain(2)
    usual = MemoryStorage.delete

    def slow(self: MemoryStorage) -> None:
        usual(self)
        in_a_thread(lambda: repository.receive(new_header(session_id="same"), received, ()))

    monkeypatch.setattr(MemoryStorage, "delete", slow)
    await repository.delete("same")
    assert ids_in(repository, "same") == [record.id for record in received]
