"""``branchline compact`` and ``/compact``: have the older part of a conversation summarised, now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio

from compaction.extractive import ExtractiveSummarizer
from compaction.settings import CompactionSettings
from harness.agent import AgentHarness
from harness.cli.conversation import recorded_model
from harness.cli.failures import DONE
from harness.cli.json_facts import json_facts
from harness.cli.model_choice import choose_model
from harness.cli.places import Place, expanded
from harness.cli.plain_text import given_text
from harness.cli.progress import Progress
from harness.cli.reading import open_to_read, open_to_write
from harness.cli.screen import Screen
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.events import AgentEvent, CompactionFinished
from harness.hooks import Hook
from harness.models.events import ModelEvent
from harness.models.protocol import ChatModel, ModelRequest
from harness.settings import AgentSettings
from storage.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """What was asked for on the command line. ``without_model``: nothing is asked, lines are picked out."""

    session: str
    instructions: str | None
    model: str | None
    base_url: str | None
    model_file: Path | None
    context_window: int | None
    without_model: bool
    root: str | None


@dataclass(frozen=True, slots=True)
class Compacted:
    """A session, the entry that holds the summary, and the context's tokens before and after it."""

    session: str
    entry: str
    tokens_before: int
    tokens_after: int
    summary: str


class _NoModel:
    """In the place of a model where none is asked."""

    provider = model_id = "none"
    context_window = None

    def payload(self, request: ModelRequest) -> bytes:  # noqa: ARG002
        raise self._error

    def stream(
        self,
        request: ModelRequest,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        raise self._error

    async def aclose(self) -> None:
        return

    @property
    def _error(self) -> ModelError:
        return ModelError("no model was chosen, so none can be asked")


class _Watching(Hook):
    """Keeps how it ended."""

    finished: CompactionFinished | None = None

    async def on_event(self, event: AgentEvent) -> None:
        if isinstance(event, CompactionFinished):
            self.finished = event


def run_compact(screen: Screen, options: CompactOptions) -> int:
    """Summarise the session that a person named, all but its newest turn."""
    place = find_session_or_file(options.session, shelf_at(options.root))
    with Progress(screen, "summarising") as progress:
        done = anyio.run(_compact, screen, progress, place, options)
    if screen.as_json:
        screen.show_json(json_facts(done))
    else:
        screen.note(f"session {done.session}: {told(done)}")
    return DONE


async def _compact(screen: Screen, progress: Progress, place: Place, options: CompactOptions) -> Compacted:
    def tell(remark: str) -> None:
        with progress.aside():
            screen.note(remark)

    model = await _model(place, options)
    window = options.context_window
    settings = AgentSettings(compaction=True if window is None else CompactionSettings(context_window=window))
    try:
        async with open_to_write(place, tell) as session:
            summarizer = ExtractiveSummarizer() if options.without_model else None
            async with AgentHarness(session, model, settings=settings, summarizer=summarizer) as harness:
                instructions = options.instructions
                return await compacted(harness, given_text(instructions) if instructions is not None else None)
    finally:
        with anyio.CancelScope(shield=True):
            await model.aclose()


async def _model(place: Place, options: CompactOptions) -> ChatModel:
    if options.without_model:
        return _NoModel()
    recorded = None
    if options.model is None and options.model_file is None:
        async with open_to_read(place) as session:
            recorded = recorded_model(session)
    file = expanded(options.model_file) if options.model_file is not None else None
    return choose_model(name=options.model, base_url=options.base_url, model_file=file, recorded=recorded)


async def compacted(harness: AgentHarness, instructions: str | None) -> Compacted:
    """Have the harness's session compacted. Raises what ``AgentHarness.compact`` does."""
    watching = _Watching()
    take_off = harness.on(watching)
    try:
        result = await harness.compact(instructions)
    finally:
        take_off()
    finished = watching.finished
    assert finished is not None  # noqa: S101 - it is told before ``compact`` returns
    before, after = finished.tokens_before, finished.tokens_after
    return Compacted(harness.session.id, finished.entry_id, before, after, result.summary)


def told(done: Compacted) -> str:
    """What was done, as a line."""
    return f"summarised; {done.tokens_before:,} tokens of context before, {done.tokens_after:,} now"
