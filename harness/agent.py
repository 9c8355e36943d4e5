"""The agent: a session, a model and tools, and turns that leave a whole history behind whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.calls import Emit
from harness.models.protocol import ChatModel
from harness.progress import NobodyWatches, ProgressLine
from harness.requests import RequestMaker
from harness.session import Session, SessionTurn
from harness.settings import AgentSettings
from harness.tools.definition import Tool, as_tools
from harness.turn import Turn, emit_to_nobody
from harness.turn_record import TurnRecord
from harness.turn_stream import HeldTurn, TurnStream
from storage.errors import BusyError, InvalidEntryError, SessionClosedError
from storage.messages import AssistantMessage, ImageContent, TextContent, UserMessage

Prompt = str | Sequence[TextContent | ImageContent]


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
    ) -> None:
        """``tools`` are typed functions (see ``harness.tools.definition``) or ``Tool`` objects.

        Raises ``ToolError`` for a function that cannot be a tool, or two tools of one name. Touches no session.
        """
        self.session = session
        self.model = model
        self.tools: dict[str, Tool] = as_tools(tools)
        self.system_prompt = system_prompt
        self.settings: AgentSettings = settings or AgentSettings()
        self._requests = RequestMaker(model, self.tools, system_prompt, self.settings)
        self._claimed = False
        self._closed = False
        self._running = False

    async def prompt(self, prompt: Prompt) -> AssistantMessage:
        """Run one turn, and return the model's last reply.

        Raises, each after the turn's end is recorded as ``failed``: ``ModelError`` if the model fails for good, or
        still calls tools after ``settings.max_steps`` requests; ``BudgetError`` if what must be shown does not fit; and
        what the session raises. Before anything is recorded: ``BusyError`` if another turn runs or another harness holds
        the session, and ``InvalidEntryError`` for an empty prompt.

        Cancelled (by an anyio scope or natively), tools that finished keep their results, the other calls get an error
        result that says so, the turn ends as ``cancelled``, and the cancellation goes on up.
        """
        message = _user_message(prompt)
        turn = await self._begin_turn()
        try:
            return await self._run_turn(turn, message, emit_to_nobody, emit_to_nobody, NobodyWatches())
        finally:
            self._end_turn(turn)

    def stream(self, prompt: Prompt) -> TurnStream:
        """Run one turn and tell its events as they happen (``harness.events``)::

            async with harness.stream("Hello") as events:
                async for event in events:
                    ...
            print(events.reply.text)

        The turn begins on entering: from then on another one is refused with ``BusyError``, until this one's last event
        was taken. Leaving before its end cancels it. Entering raises what ``prompt`` raises before anything is recorded,
        the iteration the rest.
        """  # noqa: D415

        async def begin() -> HeldTurn:
            message = _user_message(prompt)
            turn = await self._begin_turn()

            async def run(emit: Emit, emit_at_once: Emit, progress: ProgressLine) -> AssistantMessage:
                return await self._run_turn(turn, message, emit, emit_at_once, progress)

            return HeldTurn(run, lambda: self._end_turn(turn))

        return TurnStream(begin)

    async def aclose(self) -> None:
        """Give the session up; another harness may have it. Idempotent. Raises ``BusyError`` while a turn runs."""
        if self._running:
            raise BusyError("a turn is running; let it end, or cancel it, before closing the harness")
        self._closed = True
        self._claimed = False
        self.session.release(self)

    async def __aenter__(self) -> Self:
        await self._take_over()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _take_over(self) -> None:
        if self._closed:
            raise SessionClosedError("this harness is closed; make another one for the session")
        if self._claimed:
            return
        self.session.claim(self)
        try:
            await self.session.recover()
        except BaseException:
            self.session.release(self)
            raise
        self._claimed = True

    async def _begin_turn(self) -> SessionTurn:
        """Hold the session's one turn, until ``_end_turn``. Raises ``BusyError``; cancelled, it holds nothing."""
        if self._running:
            raise BusyError("a turn is running; let it end, or cancel it, before the next one")
        self._running = True
        try:
            await self._take_over()
            return self.session.begin_turn(self)
        except BaseException:
            self._running = False
            raise

    def _end_turn(self, turn: SessionTurn) -> None:
        """Once for each turn that was begun."""
        turn.end()
        self._running = False

    async def _run_turn(
        self, turn: SessionTurn, message: UserMessage, emit: Emit, emit_at_once: Emit, progress: ProgressLine
    ) -> AssistantMessage:
        log = self.session.log
        await log.settled()
        leaf_id = self.session.leaf_id
        turns = 0 if leaf_id is None else log.index.state(log.index.seq_of(leaf_id)).turns
        return await Turn(
            TurnRecord(self.session, turn, turns + 1),
            self.model,
            self._requests,
            self.tools,
            self.settings,
            emit=emit,
            emit_at_once=emit_at_once,
            progress=progress,
            working_directory=self._working_directory(),
        ).run(message)

    def _working_directory(self) -> Path | None:
        if self.settings.working_directory is not None:
            return self.settings.working_directory
        cwd = self.session.header.cwd
        return None if cwd is None else Path(cwd)


def _user_message(prompt: Prompt) -> UserMessage:
    message = UserMessage(content=prompt if isinstance(prompt, str) else list(prompt))
    has_image = not isinstance(prompt, str) and any(isinstance(part, ImageContent) for part in prompt)
    if not has_image and not message.text.strip():
        raise InvalidEntryError("an empty prompt: there is nothing to ask the model; give some text or an image")
    return message
