"""Random trees through the public session: at every leaf, under every budget, R18 to R22 hold; after reopening too."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import EntryFileStorage, JsonlStorage, MemoryStorage, Session, SessionStorage, SqliteStorage, TextContent
from tests.properties.growing import grow, learn_placeholder, plain_of, raw_entries
from tests.properties.judging import Judge
from tests.properties.profiles import LARGE, MAXIMUM_STEPS, TIMEOUT_SECONDS, examples
from tests.properties.record import before, path_to
from tests.properties.steps import Step, conversations
from tests.properties.wire import Json

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
BUDGETS_FOR = 8 if LARGE else 3
Backend = Literal["memory", "jsonl", "entry files", "sqlite"]


@functools.cache
def placeholder() -> Json:
    """The placeholder, asked for once: it is fixed."""

    async def learn() -> Json:
        async with Session.open(MemoryStorage.create()) as session:
            return await learn_placeholder(session)

    return anyio.run(learn)


async def create(backend: Backend, folder: Path, name: str, **given_: Any) -> SessionStorage:
    if backend == "memory":
        return await MemoryStorage.create(**given_)
    if backend == "jsonl":
        return await JsonlStorage.create(folder / f"{name}.jsonl", durability="os", **given_)
    if backend == "sqlite":  # all of a test in one file, where forks share
        return await SqliteStorage.create(folder / "all.sqlite", session_id=name, durability="os", **given_)
    return await EntryFileStorage.create(folder / name, durability="os", **given_)


async def reopen(backend: Backend, folder: Path, name: str, storage: SessionStorage) -> SessionStorage:
    if backend == "memory":
        assert isinstance(storage, MemoryStorage)
        return await MemoryStorage.open(storage)
    if backend == "jsonl":
        return await JsonlStorage.open(folder / f"{name}.jsonl")
    if backend == "sqlite":
        return await SqliteStorage.open(folder / "all.sqlite", session_id=name)
    return await EntryFileStorage.open(folder / name)


async def judged(session: Session, *, budgets_for: int = BUDGETS_FOR) -> tuple[list[Json], dict[str | None, Any]]:
    """The raw entries, and the context at every leaf, after the checker found nothing in any of them."""
    entries = raw_entries(session.storage)
    judge = Judge(session, entries, placeholder())
    leaves = [None, *(entry["id"] for entry in entries)]
    if session.leaf_id in leaves:  # the current leaf last: it is always tried under all budgets
        leaves.append(leaves.pop(leaves.index(session.leaf_id)))
    contexts = await judge.every_leaf(leaves, budgets_for=budgets_for)
    judge.verdict()
    return entries, contexts


@LOOPS
@pytest.mark.parametrize("backend", ["memory", "jsonl"])
@examples(120)
@given(steps=conversations(max_steps=MAXIMUM_STEPS), together=st.booleans())
def test_every_context_of_every_tree_holds_the_rules(
    loop: str, backend: Backend, steps: list[Step], together: bool
) -> None:
    """R18-R22 at every leaf and under every budget, and the same after reopening; R7: calls in a row form a chain."""

    async def run(folder: Path) -> None:
        storage = await create(backend, folder, "one")
        async with Session.open(storage) as session:
            recorded = await grow(session, steps, together=together)
            entries, contexts = await judged(session)
            leaf = session.leaf_id
        assert [entry["id"] for entry in entries] == [entry["id"] for entry in recorded.entries]
        assert [entry["parentId"] for entry in entries] == [entry["parentId"] for entry in recorded.entries]
        assert [entry["seq"] for entry in entries] == list(range(len(entries)))
        async with Session.open(reopen(backend, folder, "one", storage)) as again:
            assert again.leaf_id == leaf
            for leaf_id, context in contexts.items():
                assert plain_of(await again.build_context(leaf_id=leaf_id)) == context

    placeholder()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)


@LOOPS
@pytest.mark.parametrize(
    ("source", "target"),
    [("memory", "jsonl"), ("jsonl", "memory"), ("jsonl", "entry files"), ("sqlite", "sqlite")],
)
@examples(40)
@given(
    steps=conversations(max_steps=MAXIMUM_STEPS),
    picks=st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=3),
)
def test_a_fork_shows_what_the_original_shows(
    loop: str, source: Backend, target: Backend, steps: list[Step], picks: list[tuple[int, bool]]
) -> None:
    """A fork at or before any entry gives the context that the original gives there; by the checker, and reopened too."""

    async def run(folder: Path) -> None:
        async with Session.open(create(source, folder, "one")) as session:
            await grow(session, steps)
            entries = raw_entries(session.storage)
            labels, name = await session.labels(), await session.name()
            for number, (pick, is_before) in enumerate(picks if entries else []):
                at: str | None = entries[pick % len(entries)]["id"]
                into = functools.partial(create, target, folder, f"fork{number}")
                made = session.fork(at, position="before" if is_before else "at", into=into)
                at = before(path_to(entries, at)) if is_before else at
                path_ids = [entry["id"] for entry in path_to(entries, at)]
                expected = plain_of(await session.build_context(leaf_id=at))
                async with await made as fork:
                    assert fork.leaf_id == at
                    assert fork.header.parent_session == session.id
                    assert [entry.id for entry in await fork.branch()] == path_ids
                    assert plain_of(await fork.build_context()) == expected
                    assert await fork.name() == name
                    found = await fork.labels()
                    for entry_id in path_ids:
                        assert found.get(entry_id) == labels.get(entry_id)
                    forked, _ = await judged(fork, budgets_for=1)
                    storage = fork.storage
                assert [entry["seq"] for entry in forked] == list(range(len(forked)))
                async with Session.open(reopen(target, folder, f"fork{number}", storage)) as again:
                    assert plain_of(await again.build_context()) == expected
            assert raw_entries(session.storage) == entries

    placeholder()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)


@LOOPS
@examples(40)
@given(steps=conversations(max_steps=MAXIMUM_STEPS), pick=st.integers(0, 60))
def test_building_a_context_changes_nothing_and_says_the_same_twice(loop: str, steps: list[Step], pick: int) -> None:
    """R20 deterministically, also through a transform that changes nothing; R11: a context is the caller's own."""

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, steps)
            entries = raw_entries(session.storage)
            leaf = entries[pick % len(entries)]["id"] if entries else None
            first = await session.build_context(leaf_id=leaf)
            before = plain_of(first)
            same = await session.build_context(leaf_id=leaf, transforms=[list], projectors={"app": lambda _: []})
            assert plain_of(same) == before
            for message in first.messages:
                if isinstance(message.content, list):  # pyright: ignore[reportAttributeAccessIssue]
                    message.content.append(TextContent(text="spoiled"))
                else:
                    message.content = "spoiled"  # pyright: ignore[reportAttributeAccessIssue]
            first.entry_ids.clear()
            first.messages.clear()
            assert plain_of(await session.build_context(leaf_id=leaf)) == before
            assert raw_entries(session.storage) == entries

    anyio.run(run, backend=loop)
