"""A session, a model and a harness, as one ``branchline chat`` needs them. All of it runs on one event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

import anyio

from compaction.state import ModelChoice
from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.cli.approval_question import ApprovalQuestion
from harness.cli.conversation_settings import ConversationSettings
from harness.cli.failures import naming
from harness.cli.model_choice import choose_model
from harness.cli.places import Place
from harness.cli.plain_text import preview
from harness.cli.reading import all_entries, named_entry, open_to_read, storage_at, told
from harness.continuing import last_summary_on
from harness.events import AgentEvent
from harness.models.protocol import ChatModel
from harness.navigation import Navigation
from harness.session import Session
from harness.suspension import suspended_turn
from harness.turn_stream import TurnStream
from storage.errors import ReadOnlySessionError, StorageError, TurnAbortedError
from storage.jsonl import JsonlStorage
from storage.protocols import SessionStorage

if TYPE_CHECKING:
    from harness.cli.compacting import Compacted

NOBODY_TO_ASK: Final = "there is nobody to ask; go on without it, and say what you would have done"
"""What the model is told where it may not do something and no person is there to say so."""

T = TypeVar("T")

Told = AgentEvent | ApprovalQuestion | None
Tell = Callable[[Told], None]
"""Takes each event of a turn, each question about a call, and ``None`` when there are no more."""


class Conversation:
    """Opens, asks and closes. Entered and left on the loop that its other methods are called on.

    Nothing is made before there is something to record: a model that cannot be chosen, or an entry that is not there,
    leaves no session behind.
    """

    def __init__(self, settings: ConversationSettings) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self._session_stack = AsyncExitStack()
        self._session: Session | None = None
        self._harness: AgentHarness | None = None
        self._model: ChatModel | None = None
        self._created = False
        self._thinking_level = settings.thinking_level
        self._active_tools: list[str] | None = None
        self._approved_tools: set[str] = set()
        self._tell: Tell = lambda _: None
        self._scope: anyio.CancelScope | None = None
        self._recorded: ModelChoice | None = None
        self.asked_from: str | None = None
        """The leaf that the last prompt was asked from; ``None`` at the beginning of a session."""
        self.place = settings.place
        self.handed_back: str | None = None
        """The text of the message that the session was taken to the front of, to be changed and said again."""
        self.used = False
        """Whether something was asked, or changed, in the session."""
        self.remarks: list[str] = []
        """What to tell the person before the first turn: repairs and warnings."""

    # --- what it is

    @property
    def model_name(self) -> str:
        """Provider and model."""
        return f"{self._model.provider}/{self._model.model_id}" if self._model is not None else ""

    @property
    def session(self) -> Session | None:
        """The session, once there is one."""
        return self._session

    @property
    def session_id(self) -> str:
        """The id of the session, once there is one."""
        return self._session.id if self._session is not None else ""

    @property
    def began(self) -> bool:
        """Whether there is a session, and something was done in it."""
        return self.used and self.place is not None

    @property
    def said_again(self) -> list[str]:
        """The options that going on with the session needs once more, also after it was closed."""
        recorded = self._recorded if self._session is None else recorded_model(self._session)
        is_recorded = recorded is not None and f"{recorded.provider}/{recorded.model_id}" == self.model_name
        return self.settings.said_again(is_model_recorded=is_recorded)

    @property
    def thinking_level(self) -> str | None:
        """How much the model is asked to think; ``None``: nothing was said about it."""
        return self._harness.thinking_level if self._harness is not None else self._thinking_level

    @property
    def tool_names(self) -> list[str]:
        """All tools that can be offered."""
        return [tool.name for tool in self.settings.offered_tools()]

    @property
    def active_tools(self) -> list[str]:
        """The tools that are offered."""
        if self._harness is not None:
            return list(self._harness.active_tools)
        return self.tool_names if self._active_tools is None else self._active_tools

    # --- from its beginning to its end

    async def __aenter__(self) -> Self:
        settings = self.settings
        recorded = None
        known = settings.place or settings.continues
        if known is not None and (settings.continues or (settings.model is None and settings.model_file is None)):
            async with open_to_read(known) as session:
                recorded = recorded_model(session)
                if settings.continues is not None:
                    self.remarks.append(await told_of_source(session, wants_summary=settings.with_summary))
        self._model = choose_model(
            name=settings.model, base_url=settings.base_url, model_file=settings.model_file, recorded=recorded
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_model)
            stack.push_async_callback(self._close_session)
            if settings.place is not None:
                await self._go_on(settings.place, settings.at)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._stack:
            if self._created and self._session is not None and not await _has_message(self._session):
                # An error came before the first message. Leave no empty session behind.
                self.place = None
                await self._session.delete()

    async def switch_to(self, place: Place) -> None:
        """Close the session, and go on with the one at ``place``; where that fails, with the old one again."""
        before = self.place
        await self._close_session()
        try:
            await self._go_on(place, None)
        except BaseException:
            if before is not None:
                with anyio.CancelScope(shield=True):
                    await self._go_on(before, None)
            raise
        self._created = False
        self.place = place

    # --- turns

    async def ask(self, prompt: str, tell: Tell) -> None:
        """One turn. Each event is told as it comes, and ``None`` at the end, whatever happens.

        ``stop`` ends the turn as cancelled, recorded; then this returns. Raises what the harness raises.
        """

        async def begin() -> TurnStream:
            if self._harness is None:
                # Some milliseconds, and not to be cancelled half-way: what is made is to be found again at the end.
                with anyio.CancelScope(shield=True):
                    self._session = await self._create(self._session_stack)
                self._harness = await self._begin(_there(self._session), self._session_stack)
            self.used = True
            self.asked_from = self._session.leaf_id if self._session is not None else None
            return self._harness.stream(prompt)

        await self._run(begin, tell)

    async def resume(self, tell: Tell) -> None:
        """Go on with the turn that waits for a person. As ``ask``."""

        async def begin() -> TurnStream:
            self.used = True
            return _there(self._harness).resume_stream()

        await self._run(begin, tell)

    async def steer(self, text: str) -> bool:
        """Say something into the turn that runs; false, and nothing is said, if none runs any more."""
        if self._harness is None or not self._harness.is_running:
            return False
        await self._harness.steer(text)
        return True

    async def stop(self) -> list[str]:
        """End the turn that runs, on record; what was said into it and has not arrived is given back."""
        if self._harness is None or not self._harness.is_running:
            if self._scope is not None:
                self._scope.cancel()
            return []
        return [queued.message.text for queued in await self._harness.abort()]

    async def waiting_calls(self) -> list[str]:
        """The names of the tools that a turn waits to be approved for, since it was left so; each once."""
        suspended = await suspended_turn(self._session.log) if self._session is not None else None
        return [] if suspended is None else [*dict.fromkeys(call.name for call in suspended.waiting)]

    async def take_back(self) -> list[str]:
        """What was said into a turn that ended before it took it. No turn runs."""
        return [queued.message.text for queued in await _there(self._harness).abort()]

    async def stoppable(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something else than a turn; ``stop`` ends it. Raises ``TurnAbortedError`` then, which nobody waits for."""
        try:
            with anyio.CancelScope() as self._scope:
                return await work()
        finally:
            self._scope = None
        raise TurnAbortedError("it was stopped; the session is as it was")

    # --- changes

    async def change_model(self, name: str) -> None:
        """Ask this model from now on. Raises ``CommandLineError`` where there is no way to it."""
        model = choose_model(name=name, base_url=self.settings.base_url, model_file=None, recorded=None)
        unused: ChatModel | None = model
        try:
            if self._harness is not None:
                await self._harness.set_model(model)
        finally:
            # Where only its recording failed, or was cancelled, it is the one that is asked all the same.
            if self._harness is None or self._harness.model is model:
                unused, self._model = self._model, model
            if unused is not None:
                with anyio.CancelScope(shield=True):
                    await unused.aclose()

    async def compact(self, instructions: str | None) -> Compacted:
        """Have all but the last turn summarised. Raises ``CompactionError``, and then nothing was changed."""
        from harness.cli.compacting import compacted

        done = await compacted(_there(self._harness), instructions)
        self.used = True
        return done

    async def change_thinking_level(self, level: str) -> None:
        """Ask for this level from now on."""
        if self._harness is not None:
            await self._harness.set_thinking_level(level)
        self._thinking_level = level

    async def change_tools(self, names: Sequence[str]) -> None:
        """Offer these tools, of those there are, from now on."""
        if self._harness is not None:
            await self._harness.set_active_tools(names)
        self._active_tools = list(names)

    async def go_to(self, entry_id: str, *, summarize: bool) -> Navigation:
        """Go on from another entry of the session, before a user's message."""
        gone = await _there(self._harness).navigate(entry_id, summarize=summarize)
        self.used = self.used or gone.leaf_id != gone.left_id
        return gone

    # --- inside

    async def _run(self, begin: Callable[[], Awaitable[TurnStream]], tell: Tell) -> None:
        self._tell = tell
        try:
            with anyio.CancelScope() as self._scope:
                async with await begin() as events:
                    async for event in events:
                        tell(event)
        finally:
            self._scope = None
            self._tell = lambda _: None
            tell(None)

    async def _approve(self, request: ApprovalRequest) -> Decision:
        if self.settings.approve_all or request.call.name in self._approved_tools:
            return Decision.approve()
        if not self.settings.can_ask:
            return Decision.deny(NOBODY_TO_ASK)
        question = ApprovalQuestion(request)
        self._tell(question)
        decision = await question.decision()
        if question.always:
            self._approved_tools.add(request.call.name)
        return decision

    async def _go_on(self, place: Place, at: str | None) -> None:
        """Open the session at ``place``, branched where the person said so, with a harness on it."""
        async with AsyncExitStack() as stack:
            with naming(place.where):
                session = await self._open(place, stack)
                entry_id = None if at is None else await named_entry(session, at)
                harness = await self._begin(session, stack, entry_id)
            self._session, self._harness, self._session_stack = session, harness, stack.pop_all()

    async def _close_session(self) -> None:
        if self._session is not None:
            self._recorded = recorded_model(self._session)
        self._harness = None
        stack, self._session_stack = self._session_stack, AsyncExitStack()
        await stack.aclose()
        self._session = None

    async def _close_model(self) -> None:
        if self._model is not None:
            await self._model.aclose()

    async def _open(self, place: Place, stack: AsyncExitStack) -> Session:
        storage = storage_at(place, mode="write", on_torn_tail="repair")
        session = await stack.enter_async_context(Session.open(storage))
        self.remarks += [f"warning: {told(warning)}" for warning in session.warnings]
        if not session.writable:
            raise ReadOnlySessionError(session.log.read_only_reason or "it takes no more entries")
        began_in = session.header.cwd
        if began_in and self.settings.tools and began_in != self.settings.folder:
            self.remarks.append(f"the session began in {began_in}; its tools now work in {self.settings.folder}")
        if await session.recover():
            self.remarks.append("the last turn was cut off; that is recorded, and nothing of it is repeated")
        return session

    async def _create(self, stack: AsyncExitStack) -> Session:
        """The session that the first prompt begins."""
        settings = self.settings
        async with AsyncExitStack() as reading:
            source = None
            if settings.continues is not None:
                source = await reading.enter_async_context(open_to_read(settings.continues))
            session = await self._create_empty(stack, None if source is None else source.id)
            if source is not None:
                await session.continue_from(source, last_summary=settings.with_summary)
        return session

    async def _create_empty(self, stack: AsyncExitStack, parent_id: str | None) -> Session:
        settings = self.settings
        try:
            storage: SessionStorage
            if settings.new_file is not None:
                storage = await JsonlStorage.open_or_create(settings.new_file, cwd=self.settings.folder)
            else:
                storage = await settings.shelf.new.repository.create(cwd=self.settings.folder, parent_session=parent_id)
        except StorageError as error:
            error.message += "; choose another place, with --root, BRANCHLINE_HOME or --file"
            raise
        session = await stack.enter_async_context(Session.open(storage))
        self._created = True
        if settings.new_file is None:
            self.place = Place(session.id, settings.shelf.new)
        else:
            self.place = Place(str(settings.new_file), given_path=settings.new_file)
        return session

    async def _begin(self, session: Session, stack: AsyncExitStack, entry_id: str | None = None) -> AgentHarness:
        """A harness on the session, gone to ``entry_id`` where that is given."""
        harness = AgentHarness(
            session,
            _there(self._model),
            tools=self.settings.offered_tools(),
            system_prompt=self.settings.system_prompt(),
            settings=self.settings.agent_settings(self._thinking_level),
            active_tools=self._active_tools,
            approve=self._approve,
        )
        await stack.enter_async_context(harness)
        if entry_id is not None:
            gone = await harness.navigate(entry_id, summarize=self.settings.summarize)
            self.handed_back = gone.text
            if gone.summary is not None:
                self.remarks.append(f"what was left behind: {preview(gone.summary, 2_000)}")
        self.remarks += [f"warning: {told(warning)}" for warning in harness.warnings]
        waiting = [queued.message.text for queued in await harness.waiting_messages()]
        self.remarks += [f"this is said with the next prompt: {preview(text, 200)}" for text in waiting]
        return harness


async def told_of_source(session: Session, *, wants_summary: bool) -> str:
    """What comes along from the session that is continued."""
    keys = ", ".join(await session.working_memory.keys())
    memory = f"the working memory ({preview(keys, 200)})" if keys else "no working memory"
    summary = ""
    if wants_summary:
        has_one = last_summary_on(await session.log.path()) is not None
        summary = " and its last summary" if has_one else "; it has no summary"
    return f"continues session {session.id}: {memory}{summary}"


def recorded_model(session: Session) -> ModelChoice | None:
    """The model that the session's path names last. Also where that path is broken: the reason to stop is another."""
    index = session.log.index
    seq = index.ids.get(session.leaf_id) if session.leaf_id is not None else None
    model = index.model_at(seq) if seq is not None else None
    return ModelChoice(*model) if model is not None else None


def _there(value: T | None) -> T:
    if value is None:
        raise RuntimeError("the conversation was not entered")
    return value


async def _has_message(session: Session) -> bool:
    return any([entry.type == "message" async for entry in all_entries(session)])
