"""The agent: a session, a model and tools, and turns that leave a whole history behind whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import anyio.lowlevel

from compaction.compacting import CompactionResult
from compaction.state import ModelChoice
from compaction.summary_request import Summarizer
from harness.approvals import Approve
from harness.choices import Choices
from harness.claim import Claim
from harness.compactor import Compactor
from harness.events import (
    ActiveToolsChanged,
    AgentEvent,
    MessageQueued,
    ModelChanged,
    QueueKind,
    ThinkingLevelChanged,
)
from harness.harness_parts import check_parts
from harness.hook_chain import HookChain
from harness.hooks import Hook
from harness.message_queue import MessageQueue, Prompt, QueuedMessage, append_in_time, user_message
from harness.model_summarizer import ModelSummarizer
from harness.models.protocol import ChatModel
from harness.navigation import Navigation, SummaryWish, navigate
from harness.requests import RequestMaker
from harness.session import Session
from harness.settings import AgentSettings
from harness.suspension import open_questions
from harness.tools.definition import Tool, as_tools
from harness.turn_runner import TurnRunner
from harness.turn_stream import TurnStream
from storage.entries import (
    ActiveToolsChangeEntry,
    ApprovalRequestedEntry,
    Entry,
    ModelChangeEntry,
    ThinkingLevelChangeEntry,
)
from storage.errors import BusyError
from storage.messages import AssistantMessage, UserMessage
from storage.pending_write import PendingWrite
from storage.protocols import SessionWarning


class AgentHarness:
    """Runs turns of a session: prompts a model, runs the tools it calls, and records each step before the next.

    ::

        async with Session.open(JsonlStorage.open_or_create("chat.jsonl")) as session:
            harness = AgentHarness(session, OpenAIChatModel("gpt-5-mini"), tools=[read_file])
            reply = await harness.prompt("What is this project called?")

    A session has one harness at a time, and one turn at a time. The harness claims it at its first awaited call, closes
    a turn that a crash left open (``Session.recover``), and gives the session up at ``aclose``, on leaving
    ``async with harness``, or when the session closes. It closes neither the session nor the model.
    """

    def __init__(
        self,
        session: Session,
        model: ChatModel,
        *,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        system_prompt: str | None = None,
        settings: AgentSettings | None = None,
        active_tools: Sequence[str] | None = None,
        approve: Approve | None = None,
        summarizer: Summarizer | None = None,
    ) -> None:
        """``tools`` are typed functions (see ``harness.tools.definition``) or ``Tool`` objects.

        ``active_tools`` are the names of those that are offered. Not given, they are what the session's record says, and
        all where it says nothing; so is the thinking level, unless the settings have one. The model is always yours:
        where it is another than the record's, that is recorded.

        ``approve`` asks a person about each call of a tool that needs it; without it such calls are denied.

        ``summarizer`` makes the summaries by which a long conversation fits the model's window
        (``AgentSettings.compaction``); without it, the model that is asked does.

        Raises ``ToolError`` for a function that cannot be a tool, two tools of one name, or an active tool that there is
        not, ``ModelError`` for a model that is none, and ``SettingsError`` for any other argument of the wrong type, and
        for settings that leave no room in the model's window. Touches no session.
        """
        check_parts(session, system_prompt, approve, summarizer)
        self.session = session
        self.tools: dict[str, Tool] = as_tools(tools)
        self._system_prompt = system_prompt
        self._settings = AgentSettings() if settings is None else settings
        self._choices = Choices(session, model, self.tools, self.settings, active_tools)
        self._queue = MessageQueue(session)
        self._hooks = HookChain()
        self._claim = Claim(session, self)
        self._summarizer = summarizer
        self._compactor = Compactor(session, self._choices, self.settings, system_prompt, summarizer)
        self._turns = TurnRunner(
            session,
            self,
            self._claim.take,
            self._choices,
            RequestMaker(self._choices, system_prompt, self.settings, self._compactor),
            self._compactor,
            self._queue,
            self.settings,
            self._hooks,
            approve,
        )

    def on(self, hook: Hook) -> Callable[[], None]:
        """Have ``hook`` at every turn from now on (see ``harness.hooks``). Returns what takes it off again.

        Raises ``HookError`` for what is no object of a class made of ``Hook``.
        """
        return self._hooks.add(hook)

    async def prompt(self, prompt: Prompt | UserMessage) -> AssistantMessage:
        """Run one turn, and return the model's last reply.

        Raises, each after the turn's end is recorded as ``failed``: ``ModelError`` if the model fails for good, or
        still calls tools after ``settings.max_steps`` requests; ``BudgetError`` if what must be shown does not fit; and
        what the session raises. Before anything is recorded: ``BusyError`` if another turn runs or another harness holds
        the session, ``PendingCallError`` if a turn waits for a person, and ``InvalidEntryError`` for an empty prompt.

        Cancelled (by an anyio scope or natively), tools that finished keep their results, the other calls get an error
        result that says so, the turn ends as ``cancelled``, and the cancellation goes on up.
        """
        return await self._turns.alone(user_message(prompt))

    def stream(self, prompt: Prompt | UserMessage) -> TurnStream:
        """Run one turn and tell its events as they happen (``harness.events``)::

            async with harness.stream("Hello") as events:
                async for event in events:
                    ...
            print(events.reply.text)

        The turn begins on entering: from then on another one is refused with ``BusyError``, until the iteration over this
        one has ended, or the stream was left. Leaving before its end cancels it. Entering raises what ``prompt`` raises
        before anything is recorded, the iteration the rest.
        """  # noqa: D415
        return self._turns.watched(lambda: user_message(prompt))

    async def resume(self) -> AssistantMessage:
        """Go on with the turn that waits for a person (``Decision.later``, or a process that ended), to its end.

        What is open is asked again; what was begun and has no result is told the model as of unknown outcome; calls that
        were not begun are run as before. Then the turn goes on as in ``prompt``, and raises what that raises. Before
        anything is recorded: ``NothingToResumeError`` if no turn waits at the leaf, ``PendingCallError`` without
        ``approve``.
        """
        return await self._turns.alone(None)

    def resume_stream(self) -> TurnStream:
        """As ``resume``, with the events as they happen; see ``stream``."""
        return self._turns.watched(lambda: None)

    # --- what it is

    @property
    def model(self) -> ChatModel:
        """The model that the next request goes to."""
        return self._choices.model

    @property
    def system_prompt(self) -> str | None:
        """What each request begins with, as it was given; hooks may send another one."""
        return self._system_prompt

    @property
    def settings(self) -> AgentSettings:
        """The limits, as they were given."""
        return self._settings

    @property
    def thinking_level(self) -> str | None:
        """The thinking level of the next request; ``None`` where neither the caller nor the record has one."""
        return self._choices.level or self._choices.recorded_level

    @property
    def active_tools(self) -> list[str]:
        """The names of the tools that the next request offers."""
        return [*self._choices.offered(self._choices.recorded_tools)]

    @property
    def recorded_model(self) -> ModelChoice | None:
        """The model that the session's record names at the leaf, for an app that wants to go on with that one."""
        return self._choices.recorded_model

    @property
    def warnings(self) -> tuple[SessionWarning, ...]:
        """What the session's record has that this harness could not take over, such as tools that it does not have."""
        return self._choices.warnings()

    @property
    def is_running(self) -> bool:
        """Whether a turn runs (or is about to, or its end is being recorded), or what is done in the place of one."""
        return self._turns.running is not None

    # --- talking to a running agent

    def steer(self, message: Prompt | UserMessage) -> PendingWrite:
        """Say something into the running turn.

        The message is delivered after the results of the calls that run, before the next request; where the model would
        have stopped, the turn goes on with it. If no turn runs, or this one ends before that, it is delivered in the next
        one, right after its prompt. A plain function, as the session's appends are: the message is taken as it is now, and
        waits on record (``queued``) from the moment the write is committed, also through a crash.

        Raises ``InvalidEntryError`` for a message that says nothing or cannot be recorded, ``BusyError`` if another
        harness holds the session, ``SessionClosedError``, and ``QueueFullError``: then flush the session, and say it again.
        """
        return self._say("steer", message)

    def follow_up(self, message: Prompt | UserMessage) -> PendingWrite:
        """Say something when the turn would stop: it then goes on with that. Otherwise as ``steer``."""
        return self._say("follow_up", message)

    def next_turn(self, message: Prompt | UserMessage) -> PendingWrite:
        """Say something together with the next prompt, before it. Otherwise as ``steer``."""
        return self._say("next_turn", message)

    async def waiting_messages(self) -> list[QueuedMessage]:
        """The messages that wait at the leaf, oldest first, those of an earlier process included."""
        return await self._queue.waiting()

    async def waiting_questions(self) -> list[ApprovalRequestedEntry]:
        """What a person has to answer before the turn that waits at the leaf goes on, in call order. Writes nothing."""
        self._claim.check_open()
        return await open_questions(self.session.log)

    def _say(self, kind: QueueKind, prompt: Prompt | UserMessage) -> PendingWrite:
        self._claim.check_open()
        self.session.refuse_others(self)
        message = user_message(prompt).model_copy(deep=True)
        write = self._queue.put(kind, message)
        if self._turns.running is not None:
            self._turns.running.notices.add(write, MessageQueued(kind, message, write.entry_id))
        return write

    # --- stopping it

    async def abort(self) -> list[QueuedMessage]:
        """Cancel the running turn, wait until its end is recorded, and take back the steers and follow-ups that wait.

        They are returned, and recorded as taken back; what waits for the next turn goes on waiting. ``prompt`` raises
        ``TurnAbortedError``; the iteration over ``stream`` ends. Without a running turn, one that waits for a person's
        approval is closed. To be called from anywhere, also while iterating over ``stream``. From inside the turn (one of
        its tools or hooks) it does not return: it is cancelled with the turn, and nothing is taken back; where it is
        shielded from that, it raises ``BusyError``.
        """
        self.session.log.check_loop()
        running = self._turns.running
        if running is not None:
            running.abort()
            if running.is_here:
                await anyio.lowlevel.checkpoint()
                raise BusyError(
                    "the turn is being aborted, and cannot be waited for from inside: let this tool or hook end"
                )
            await running.wait()
        await self._claim.take()
        await self._turns.close_suspended()
        return await self._queue.take_back(("steer", "follow_up"))

    async def wait_for_idle(self) -> None:
        """Wait until no turn runs: the running one, if any, is over and recorded. Raises ``BusyError`` from inside it."""
        self.session.log.check_loop()
        await anyio.lowlevel.checkpoint()
        while self._turns.running is not None:
            if self._turns.running.is_here:
                raise BusyError("a turn cannot wait for its own end: wait from a task that is no tool or hook of it")
            await self._turns.running.wait()

    # --- making room

    async def compact(self, instructions: str | None = None) -> CompactionResult:
        """Have all but the newest turn summarised now, and record that; ``instructions`` are for the summary.

        No turn runs meanwhile: ``prompt`` raises ``BusyError``; what is appended or steered stays, after the summary.
        ``abort`` ends it, and it raises ``TurnAbortedError``. Hooks are asked (``before_compact``) and told (``on_event``).

        Raises, and nothing is changed then: ``CompactionError``, whose ``details["reason"]`` says why there is no good
        summary; ``BusyError`` while a turn runs, which compacts on its own where that is due; ``PendingCallError`` while a
        turn waits for a person; and what hooks and the session raise.
        """
        return await self._turns.instead(lambda hand: self._compactor.by_hand(hand, self._hooks, instructions))

    # --- going elsewhere

    async def navigate(
        self,
        target_id: str | None,
        *,
        summarize: bool | Summarizer = False,
        instructions: str | None = None,
        label: str | None = None,
    ) -> Navigation:
        """Go on from another entry (``None``: from before the first), in the same session; what is left stays on record.

        To a user message means before it, and before the turn that it opened: the message is handed back, to be changed
        and said again. ``summarize`` has what lies between the common ancestor and the leaf summarised, newest first as
        far as it fits the model's window, by the harness's own summariser (else its model) or by the one given; the summary
        is shown where one arrives. ``instructions`` are added to what the summariser is asked. ``label`` names the summary's
        entry, or the target where there is none.

        One entry takes the session there, so a crash leaves it here or there. Until then whatever fails, or is cancelled,
        leaves it where it was: ``EntryNotFoundError``, ``BusyError`` while a turn runs, ``NavigationRefusedError`` and
        ``HookError`` by a hook (``before_navigate``), ``CompactionError`` for a summary that failed or was refused
        (navigate again without one), ``TurnAbortedError`` where ``abort`` ended it. No turn begins meanwhile.
        """
        wish = self._summary_wish(summarize, instructions)
        return await self._turns.instead(lambda hand: navigate(hand, self._hooks, target_id, wish, label))

    def _summary_wish(self, summarize: bool | Summarizer, instructions: str | None) -> SummaryWish:
        usual = self._summarizer or ModelSummarizer(self.model)
        summarizer = None if summarize is False else usual if summarize is True else summarize
        settings = self._compactor.limits.by_hand(self.model)
        return SummaryWish(summarizer, settings, instructions, self.settings.estimator)

    # --- changing it

    async def set_model(self, model: ChatModel) -> None:
        """Ask this model from the next request on; recorded at once. A request that is under way goes on.

        Raises ``SettingsError`` for a model whose window leaves no room, ``BusyError`` if another harness holds the session.
        The model that was there is not closed.
        """
        choices = self._choices
        choices.checked_model(model)
        await self._settle()
        choices.model = model
        if choices.recorded_model != choices.choice:
            provider, model_id = model.provider, model.model_id
            entry = ModelChangeEntry(provider=provider, model_id=model_id)
            await self._note(entry, ModelChanged(provider, model_id, entry.id))

    async def set_thinking_level(self, level: str) -> None:
        """Ask for this thinking level from the next request on; recorded at once, and in force along this path (R22).

        From here on the record counts, not the settings. Raises ``InvalidEntryError`` for a level that is no word.
        """
        choices = self._choices
        choices.checked_level(level)
        await self._settle()
        choices.level = None
        if choices.recorded_level != level:
            entry = ThinkingLevelChangeEntry(thinking_level=level)
            await self._note(entry, ThinkingLevelChanged(level, entry.id))

    async def set_active_tools(self, names: Sequence[str]) -> None:
        """Offer these tools from the next request on; recorded at once, and in force along this path (R22).

        Raises ``ToolError`` for a name that no tool has.
        """
        choices = self._choices
        wanted = choices.checked_names(names)
        await self._settle()
        choices.active = None
        if choices.recorded_tools != wanted:
            entry = ActiveToolsChangeEntry(active_tool_names=wanted)
            await self._note(entry, ActiveToolsChanged(tuple(wanted), entry.id))

    async def _settle(self) -> None:
        await self._claim.take()
        await self.session.log.settled()

    async def _note(self, entry: Entry, event: AgentEvent) -> None:
        write = await append_in_time(self.session, entry)
        if self._turns.running is not None:
            self._turns.running.notices.add(write, event)
        await write

    # --- taking a session over, and giving it up

    async def aclose(self) -> None:
        """Give the session up; another harness may have it. Idempotent. Raises ``BusyError`` while a turn runs."""
        if self._turns.running is not None:
            raise BusyError("a turn is running; let it end, or cancel it, before closing the harness")
        await self._claim.give_up()

    async def __aenter__(self) -> Self:
        await self._claim.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
