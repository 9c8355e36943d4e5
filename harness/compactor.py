"""Making room: when a context has grown too large for its model, the older part of it gets a summary, on record.

Before each request of a turn, so also between its steps, and once more where the provider found a request too long. What
fails changes nothing: the turn goes on with as much as fits, and the summariser is left alone for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compaction.breathing import run_with_pauses
from compaction.compacting import CompactionResult, compact
from compaction.deciding import require_progress, should_compact
from compaction.kept_units import KeptUnits
from compaction.measured_context import ContextFacts, measure_context
from compaction.preparation import CompactionPlan, prepare_compaction
from compaction.refusals import refusal
from compaction.settings import CompactionSettings
from compaction.shortening import LEAST_RESULT_CHARS
from compaction.shortening_plan import plan_shortening, shortening_in_force
from compaction.state import PathState
from compaction.summary_request import Summarizer, SummaryReply, SummaryRequest
from compaction.tokens import TextCounter, UsageAnchoredEstimator, fixed_texts
from harness.calls import Emit
from harness.choices import Choices
from harness.compaction_limits import CompactionLimits
from harness.events import CompactionCause, CompactionFailed, CompactionFinished, CompactionStarted
from harness.hook_chain import HookChain, TurnHooks
from harness.hooks import CompactionFacts, Refusal
from harness.model_summarizer import ModelSummarizer
from harness.models.protocol import ChatModel
from harness.session import Session, SessionTurn
from harness.settings import AgentSettings
from harness.suspension import suspended_turn
from harness.turn_record import TurnRecord
from storage.entries import CompactionEntry, Entry, Shortening
from storage.entry_path import IndexedPath
from storage.errors import BranchlineError, CompactionError, ContextOverflowError, PendingCallError
from storage.messages import Usage

_log = logging.getLogger("branchline.compaction")

_FIRST_REST: Final = 0.1
"""After a failure the context may grow by this part of what is usable before it is tried again, and after each further
one by twice as much, up to all of it."""

StateOf = Callable[[IndexedPath], PathState | None]
"""The state to measure a path with; ``None`` is the path's own."""


class Room(NamedTuple):
    """How a request is to show its context."""

    shorten: Shortening | None
    """Which tool results are shown shortened."""
    max_tokens: int | None
    """The budget of the whole request."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a compaction is made, and for whom: in a turn, or by hand between two of them."""

    model: ChatModel
    """The one that is asked next, and that makes the summary unless there is a summariser."""
    write: Callable[[Entry], Awaitable[str]]
    emit: Emit
    hooks: TurnHooks
    spend: Callable[[Usage | None], None]
    """Told what each summary cost, the refused ones included."""
    turn: int | None = None
    """The turn's number; ``None`` between turns."""
    state_of: StateOf = lambda _: None
    kept: KeptUnits | None = None
    """What the turn's requests are made of, and measured by."""


class _Given:
    """What a hook answered, in the place of a summariser."""

    def __init__(self, reply: SummaryReply) -> None:
        self._reply = reply

    async def summarize(self, request: SummaryRequest) -> SummaryReply:  # noqa: ARG002
        return self._reply


class Compactor:
    """Keeps the contexts of one harness within the windows of its models."""

    def __init__(
        self,
        session: Session,
        choices: Choices,
        settings: AgentSettings,
        system_prompt: str | None,
        summarizer: Summarizer | None,
    ) -> None:
        """Without a ``summarizer`` the model that is asked makes the summaries."""
        self._session = session
        self._choices = choices
        self._settings = settings
        self._system_prompt = system_prompt
        self._summarizer = summarizer
        window: object = getattr(summarizer, "context_window", None)
        self.limits = CompactionLimits(settings, window if isinstance(window, int) else None)
        self._overflow: tuple[ContextOverflowError, int] | None = None
        """What the provider said to the last request, until the next one is made."""
        self._in_vain = 0
        self._failures = 0
        self._rests_until = 0
        """Not to be tried again before the messages have so many tokens."""

    def summarizer_for(self, model: ChatModel) -> Summarizer:
        """The app's summariser, or else ``model``."""
        return self._summarizer or ModelSummarizer(model)

    async def check(self) -> None:
        """Raise ``CompactionError`` where system prompt and tools leave no room in the window: nothing can help then."""
        settings = self.limits.of(self._choices.model)
        if settings is None:
            return
        tools = [*self._choices.offered(self._choices.recorded_tools).values()]
        schemas = [{"name": one.name, "description": one.description, "parameters": one.parameters} for one in tools]
        counter = TextCounter(self._settings.estimator or UsageAnchoredEstimator())
        system = await run_with_pauses(counter.texts(fixed_texts(self._system_prompt, None)))
        settings.check(system, await run_with_pauses(counter.texts(fixed_texts(None, schemas))))

    def note_overflow(self, error: ContextOverflowError, tokens: int) -> bool:
        """The provider found the last request too long, which has ``tokens`` by our count.

        Whether the next ``make_room`` can do something about it.
        """
        self._overflow = None if self.limits.is_off else (error, tokens)
        return self._overflow is not None

    async def make_room(self, place: Place) -> Room:
        """Compact the session's path where that is due, and say how the next request is to show it.

        Raises ``CompactionError`` where no request can fit (``settings``), or two compactions in a row did not help and
        the context does not fit (``no_progress``); ``HookError``, and what the session raises. Any other failure is told
        as an event.
        """
        overflow, self._overflow = self._overflow, None
        model = place.model
        path = await self._session.log.path()
        if self.limits.is_off:
            return Room(None, self.limits.token_budget(model, None))
        shorten = shortening_in_force(path)
        if overflow is None and self.limits.of(model) is None:
            return Room(shorten, self.limits.token_budget(model, None))
        facts = await self._measured(path, shorten, place)
        if overflow is not None:
            self.limits.learn(model, *overflow)
        settings = self._limits_of(model, facts, refused=overflow is not None)
        if not _leaves_room(settings, facts) and self.limits.forget(model):
            if self.limits.of(model) is None:
                return Room(shorten, self.limits.token_budget(model, None))
            settings = self._limits_of(model, facts)
        reason: CompactionCause = "size" if overflow is None else "overflow"
        while self._is_due(facts, settings):
            estimator, state = self._settings.estimator, place.state_of(path)
            cheap = await run_with_pauses(
                plan_shortening(path, settings, estimator=estimator, shorten=shorten, state=state)
            )
            if cheap is not None:
                shorten = cheap.shortening
            elif not await self._is_compacted(path, shorten, facts, settings, reason, place):
                break
            path = await self._session.log.path()
            before, facts = facts, await self._measured(path, shorten, place)
            settings = self._limits_of(model, facts)
            if cheap is None and not await self._has_helped(before, facts, settings, place):
                break
        return Room(shorten, self.limits.token_budget(model, settings))

    def harder(self, path: IndexedPath, room: Room) -> Iterator[Room]:
        """How else a request might fit whose newest unit does not: with the newest results shortened as well.

        The last resort, where a summary failed or could not help; more and more is left out.
        """
        settings = self.limits.of(self._choices.model)
        if settings is None or settings.shorten_ratio is None:
            return
        for max_chars in (settings.shortened_chars, LEAST_RESULT_CHARS):
            shorten = Shortening(before=path.entry_id(len(path) - 1), max_chars=max_chars, inclusive=True)
            yield Room(shorten, room.max_tokens)

    async def by_hand(self, hand: SessionTurn, hooks: HookChain, instructions: str | None) -> CompactionResult:
        """Summarise all but the newest turn, however small the context is; ``hand`` holds the session.

        Raises ``CompactionError``, ``PendingCallError`` while a turn waits for a person, ``HookError`` and what the
        session raises; then nothing was changed.
        """
        told = TurnHooks(hooks, 0, None)
        record = TurnRecord(self._session, hand, 0)
        place = Place(self._choices.model, record.write, told.on_event, told, lambda _: None)
        waiting = await suspended_turn(self._session.log)
        if waiting is not None:
            raise waiting.error()
        path = await self._session.log.path()
        shorten = shortening_in_force(path)
        settings = self.limits.by_hand(place.model)
        plan = await run_with_pauses(
            prepare_compaction(path, settings, estimator=self._settings.estimator, shorten=shorten)
        )
        if plan is None:
            raise refusal(
                "nothing_to_summarize",
                "there is nothing to summarise: the context is the last summary and what is kept in any case",
            )
        result = await self._compacted(plan, "by_hand", shorten, place, instructions)
        self._failures = self._in_vain = 0
        told.check()
        return result

    # --- inside

    def _limits_of(self, model: ChatModel, facts: ContextFacts, *, refused: bool = False) -> CompactionSettings:
        settings = self.limits.of(model, is_counted=facts.is_counted and not refused)
        assert settings is not None  # noqa: S101 - what it learnt once, or knew before, it knows
        return settings

    def _is_due(self, facts: ContextFacts, settings: CompactionSettings) -> bool:
        if not should_compact(facts, settings):
            self._in_vain = self._failures = 0
            return False
        return not (self._failures and facts.message_tokens < self._rests_until)

    async def _is_compacted(
        self,
        path: IndexedPath,
        shorten: Shortening | None,
        facts: ContextFacts,
        settings: CompactionSettings,
        reason: CompactionCause,
        place: Place,
    ) -> bool:
        """Whether there is a summary now. A failure is told, and followed by a rest."""
        estimator, state = self._settings.estimator, place.state_of(path)
        try:
            plan = await run_with_pauses(
                prepare_compaction(path, settings, estimator=estimator, shorten=shorten, state=state)
            )
        except (CompactionError, PendingCallError) as error:
            await self._tell_failure(error, reason, place)
            self._rest(facts, settings)
            return False
        if plan is None:
            return False
        try:
            await self._compacted(plan, reason, shorten, place, None)
        except CompactionError:
            self._rest(facts, settings)
            return False
        self._failures = 0
        return True

    async def _compacted(
        self,
        plan: CompactionPlan,
        reason: CompactionCause,
        shorten: Shortening | None,
        place: Place,
        instructions: str | None,
    ) -> CompactionResult:
        """Have the summary made, and record it. That it fails is told, and raised."""
        try:
            await place.emit(CompactionStarted(reason, plan.tokens_before, len(plan.messages)))
            answer = await place.hooks.before_compact(CompactionFacts(reason, plan, instructions))
            if isinstance(answer, Refusal):
                raise refusal("cancelled", f"a hook cancelled the compaction: {answer.reason}")
            if answer is not None:
                result = await compact(plan, _Given(answer), estimator=self._settings.estimator)
            else:
                result = await self._summarised(plan, place.model, instructions)
            place.spend(result.usage)
            details = result.details if place.turn is None else {**result.details, "turn": place.turn}
            entry_id = await place.write(
                CompactionEntry(
                    summary=result.summary,
                    first_kept_entry_id=result.first_kept_entry_id,
                    tokens_before=result.tokens_before,
                    details=details,
                    usage=result.usage,
                )
            )
        except BranchlineError as error:
            await self._tell_failure(error, reason, place)
            raise
        after = await self._measured(await self._session.log.path(), shorten, place)
        await place.emit(
            CompactionFinished(reason, result.summary, plan.tokens_before, after.tokens, result.usage, entry_id)
        )
        return result

    async def _summarised(self, plan: CompactionPlan, model: ChatModel, instructions: str | None) -> CompactionResult:
        summarizer = self.summarizer_for(model)
        estimator = self._settings.estimator
        try:
            return await compact(plan, summarizer, instructions=instructions, estimator=estimator)
        except CompactionError as error:
            if not isinstance(error.__cause__, ContextOverflowError):
                raise
        # The summariser counts more than we do: once more with half as much of the conversation.
        settings = plan.settings
        half = replace(settings, summarizer_window=(settings.summarizer_window or settings.window) // 2)
        return await compact(replace(plan, settings=half), summarizer, instructions=instructions, estimator=estimator)

    async def _has_helped(
        self, before: ContextFacts, after: ContextFacts, settings: CompactionSettings, place: Place
    ) -> bool:
        """Whether another compaction may be tried. Raises ``CompactionError`` where none helps, and nothing fits."""
        try:
            self._in_vain = require_progress(before, after, settings, self._in_vain)
        except CompactionError as error:
            self._in_vain = 0
            self._rest(after, settings)
            if after.message_tokens > settings.check(after.system_tokens, after.tool_tokens):
                raise
            await self._tell_failure(error, "size", place)
            return False
        return True

    def _rest(self, facts: ContextFacts, settings: CompactionSettings) -> None:
        usable = settings.check(facts.system_tokens, facts.tool_tokens)
        share = min(1.0, _FIRST_REST * 2**self._failures)
        self._failures += 1
        self._rests_until = facts.message_tokens + max(1, int(usable * share))

    async def _tell_failure(self, error: BranchlineError, reason: CompactionCause, place: Place) -> None:
        usage = error.details.get("usage")
        if isinstance(usage, Usage):
            place.spend(usage)
        else:
            usage = None
        _log.warning("no compaction: %s", error.message)
        failure = str(error.details.get("reason", error.code))
        await place.emit(CompactionFailed(reason, failure, error.message, usage))

    async def _measured(self, path: IndexedPath, shorten: Shortening | None, place: Place) -> ContextFacts:
        estimator, state = self._settings.estimator, place.state_of(path)
        return await run_with_pauses(
            measure_context(path, estimator=estimator, shorten=shorten, state=state, kept=place.kept)
        )


def _leaves_room(settings: CompactionSettings, facts: ContextFacts) -> bool:
    return settings.window - settings.reserve > facts.system_tokens + facts.tool_tokens
