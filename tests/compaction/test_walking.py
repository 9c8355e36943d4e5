"""What a context costs: decoded only as far as it is shown, in pieces that let an event loop breathe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from compaction import ListPath, RoughEstimator
from compaction.breathing import PIECE_SECONDS, Steps, run_at_once, run_with_pauses
from compaction.projection import project
from compaction.recorded_message import recorded_message
from storage.entries import ContextEditEntry, Entry
from storage.messages import Message
from tests.compaction.conversation import TIME, Conversation, run, usage

WITHIN = 60.0
"""Seconds: longer than anything here takes on a busy machine, shorter than what must not be waited for."""


class CountingPath(ListPath):
    """Tells which entries were decoded: ``looked_at``."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__(entries)
        self.looked_at: list[int] = []

    def entry(self, position: int) -> Entry:
        self.looked_at.append(position)
        return super().entry(position)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Conversation], CountingPath]:
    """A path whose messages are counted too, where the walk reads them straight out of their lines."""

    def make(conversation: Conversation) -> CountingPath:
        path = CountingPath(conversation.entries)
        places = {path.line(place): place for place in range(len(path))}

        def read(line: bytes) -> tuple[Message, int] | None:
            path.looked_at.append(places[line])
            return recorded_message(line)

        monkeypatch.setattr("compaction.walk.recorded_message", read)
        return path

    return make


Counting = Callable[[Conversation], CountingPath]


def long(turns: int) -> Conversation:
    conversation = Conversation()
    for number in range(turns):
        conversation.user(f"u{number}").reply(f"a{number}", f"x{number}").tool_start(f"s{number}", f"x{number}")
        conversation.result(f"r{number}", f"x{number}")
    return conversation


def test_with_a_budget_about_as_much_is_decoded_as_is_kept(counting: Counting) -> None:
    """A budget for the newest turns of a long path looks at their lines, and at one unit more; each once."""
    conversation = long(300)
    turn = run_at_once(project(ListPath(conversation.entries[-4:]))).chars
    path = counting(conversation)
    shown = run_at_once(project(path, max_chars=10 * turn)).messages
    assert len(shown) == 30
    assert len(path.looked_at) == len(set(path.looked_at)) <= 30 + 3
    assert min(path.looked_at) >= len(conversation.entries) - 11 * 4


def test_a_providers_count_is_followed_only_as_far_as_it_can_be_true(counting: Counting) -> None:
    """Its count of a context that was cut says that everything fits; soon there is more text than it can have held."""
    conversation = Conversation()
    for number in range(400):
        conversation.user(f"u{number}", "word " * 100)
    conversation.reply("a", usage=usage(1_000))
    path = counting(conversation)
    assert len(run_at_once(project(path, max_tokens=1_100)).messages) < 12
    assert len(path.looked_at) < 30


def test_without_a_budget_each_line_is_decoded_once(counting: Counting) -> None:
    """Facts about calls that have their results are never decoded."""
    conversation = long(100)
    path = counting(conversation)
    run_at_once(project(path))
    assert sorted(path.looked_at) == [place for place in range(400) if place % 4 != 2]


def test_what_a_compaction_covers_is_not_looked_at(counting: Counting) -> None:
    """Only the compaction, what it keeps and what came after."""
    conversation = long(50).compaction("c", first_kept_entry_id="u49").user("u")
    path = counting(conversation)
    run_at_once(project(path))
    assert set(path.looked_at) == {196, 197, 199, 200, 201}


def test_edits_are_decoded_only_as_far_back_as_the_walk_goes(counting: Counting) -> None:
    """An edit can be about nothing that comes after it."""
    conversation = Conversation()
    for number in range(100):
        conversation.user(f"u{number}").replace(f"e{number}", f"u{number - 1}", "new")
    path = counting(conversation)
    assert run_at_once(project(path, max_chars=150)).entry_ids == ["u97", "u98", "u99"]
    assert len(path.looked_at) < 10


def test_a_repeated_projection_is_the_same() -> None:
    """R20: deterministic, also under budgets and with tokens."""
    path = long(20).path
    for options in ({}, {"max_chars": 2_000}, {"max_tokens": 300}):
        first, second = (run(path, **options) for _ in range(2))
        assert first.messages == second.messages
        assert (first.entry_ids, first.chars, first.tokens) == (second.entry_ids, second.chars, second.tokens)


def test_it_pauses_about_every_half_millisecond() -> None:
    """A long path is projected in pieces; between two of them the event loop breathes."""
    steps = project(long(2_000).path)
    pieces: list[float] = []
    done = object()
    job: object = None
    while job is None:
        begin = time.thread_time()
        job = next(steps, done)
        pieces.append(time.thread_time() - begin)
    assert job is done
    assert len(pieces) >= 5
    assert sorted(pieces)[len(pieces) // 2] < 3 * PIECE_SECONDS


def test_transforms_are_fed_in_pieces_too() -> None:
    """Decoding everything for a transform pauses as well."""
    steps = project(long(1_500).path, transforms=[lambda entries: entries[-3:]])
    assert next(steps) is None
    steps.close()


@pytest.mark.anyio
async def test_others_run_while_a_long_path_is_projected() -> None:
    """Between two pieces every other task gets its turn."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        projection = await run_with_pauses(project(long(2_000).path))
        assert len(projection.messages) == 6_000
        tasks.cancel_scope.cancel()
    assert turns >= 5


@pytest.mark.anyio
async def test_cancelled_it_stops_at_its_next_pause() -> None:
    """The cancellation goes on up, and the steps are closed."""
    closed: list[bool] = []

    def endless() -> Steps[None]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    with anyio.move_on_after(0.01) as scope:
        await run_with_pauses(endless())
    assert scope.cancelled_caught
    assert closed == [True]


@pytest.mark.anyio
async def test_jobs_run_in_a_thread_of_their_own() -> None:
    """Even while every thread of anyio's shared limiter is taken; the result comes back to the steps."""
    release = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1

    def steps() -> Steps[tuple[str, int]]:
        return (yield lambda: (threading.current_thread().name, 42))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, release.wait)
        try:
            await anyio.wait_all_tasks_blocked()
            assert limiter.available_tokens == 0
            with anyio.fail_after(WITHIN):
                name, number = await run_with_pauses(steps())
                assert number == 42
                assert name != threading.main_thread().name
        finally:
            release.set()
            limiter.total_tokens = before


@pytest.mark.anyio
async def test_an_error_in_a_job_or_a_step_comes_out() -> None:
    """Nothing is swallowed."""

    def fails() -> Steps[None]:
        def job() -> None:
            raise ZeroDivisionError

        yield job

    with pytest.raises(ZeroDivisionError):
        await run_with_pauses(fails())
    with pytest.raises(ZeroDivisionError):
        run_at_once(fails())


@pytest.mark.anyio
async def test_a_job_is_not_waited_for_once_cancelled() -> None:
    """A count in a thread ends by itself; whoever cancelled goes on at once."""
    release = threading.Event()

    def steps() -> Steps[object]:
        return (yield lambda: release.wait(600))

    begin = time.monotonic()
    with anyio.move_on_after(0.02):
        await run_with_pauses(steps())
    assert time.monotonic() - begin < WITHIN
    release.set()


def test_an_edit_of_an_opener_further_back_is_seen() -> None:
    """The opener is looked up before the walk gets there: edits between count for it."""
    conversation = Conversation().turn_start("t").user("u", "old " * 30)
    for number in range(20):
        conversation.reply(f"a{number}")
    conversation.entries.insert(
        5,
        ContextEditEntry.model_validate(
            {"id": "e", "timestamp": TIME, "type": "context_edit", "targetId": "u", "replacement": {"content": "new"}}
        ),
    )
    projection = conversation.project(max_chars=400)
    assert projection.entry_ids[0] == "u"
    assert projection.messages[0].text == "new"


@pytest.mark.parametrize("count", [lambda: RoughEstimator()])
def test_an_estimator_without_a_budget_counts_everything(count: Callable[[], RoughEstimator]) -> None:
    """Then tokens are counted while projecting, and asking for them costs nothing."""
    projection = long(3).project(estimator=count())
    assert projection.is_whole
    assert projection.tokens > 0
