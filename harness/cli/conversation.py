"""A session, a model and a harness, as one ``branchline chat`` needs them. All of it runs on one event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio

from compaction.state import ModelChoice
from harness.agent import AgentHarness
from harness.cli.failures import naming
from harness.cli.model_choice import choose_model
from harness.cli.plain_text import given_text
from harness.cli.reading import all_entries, named_entry, open_to_read, storage_at, told
from harness.cli.shelf import Place
from harness.events import AgentEvent
from harness.models.protocol import ChatModel
from harness.session import Session
from harness.settings import AgentSettings
from harness.tools import workspace_tools
from storage.errors import ReadOnlySessionError, StorageError
from storage.jsonl import JsonlStorage
from storage.jsonl_repository import JsonlRepository

SYSTEM_PROMPT: Final = "You are a helpful assistant. Answer briefly and exactly."
WITH_TOOLS: Final = " With your tools you can read the files below the folder {cwd}; look there before you guess."

T = TypeVar("T")

Tell = Callable[[AgentEvent | None], None]
"""Takes each event of a turn, and ``None`` when there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """What to talk to, and where to keep it.

    ``place`` is the session to go on with; without one a session begins with the first prompt, in ``new_file`` or else
    under a new id in ``root``. ``at`` is the entry (or label) to branch from.
    """

    place: Place | None
    root: Path
    new_file: Path | None
    at: str | None
    model: str | None
    base_url: str | None
    model_file: Path | None
    cwd: Path
    tools: bool
    max_chars: int | None
    max_tokens: int | None


class Conversation:
    """Opens, asks and closes. Entered and left on the loop that its other methods are called on.

    Nothing is made before there is something to record: a model that cannot be chosen, or an entry that is not there,
    leaves no session behind.
    """

    def __init__(self, settings: ConversationSettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._session: Session | None = None
        self._harness: AgentHarness | None = None
        self._model: ChatModel | None = None
        self._created = False
        self._asked = False
        self._cwd = given_text(str(settings.cwd))
        self.asked_from: str | None = None
        """The leaf that the last prompt was asked from; ``None`` at the beginning of a session."""
        self.place = settings.place
        self.remarks: list[str] = []
        """What to tell the person before the first turn: repairs and warnings."""

    @property
    def model_name(self) -> str:
        """Provider and model."""
        return f"{self._model.provider}/{self._model.model_id}" if self._model is not None else ""

    @property
    def session_id(self) -> str:
        """The id of the session, once there is one."""
        return self._session.id if self._session is not None else ""

    @property
    def began(self) -> bool:
        """Whether there is a session that something was said in."""
        return self._asked and self.place is not None

    async def __aenter__(self) -> Self:
        settings = self._settings
        recorded = None
        if settings.place is not None and settings.model is None and settings.model_file is None:
            async with open_to_read(settings.place) as session:
                recorded = recorded_model(session)
        self._model = choose_model(
            name=settings.model, base_url=settings.base_url, model_file=settings.model_file, recorded=recorded
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._model.aclose)
            if settings.place is not None:
                with naming(settings.place.path):
                    self._session = await self._open(settings.place, stack)
                    self._harness = await self._begin(self._session, self._model, stack)
                    await self._branch(self._session)
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

    async def ask(self, prompt: str, tell: Tell, scope: anyio.CancelScope) -> None:
        """One turn. Each event is told as it comes, and ``None`` at the end, whatever happens.

        Cancelling ``scope`` ends the turn as cancelled, recorded; then this returns. Raises what the harness raises.
        """
        try:
            with scope:
                if self._harness is None:
                    # Some milliseconds, and not to be cancelled half-way: what is made is to be found again below.
                    with anyio.CancelScope(shield=True):
                        self._session = await self._create(self._stack)
                    self._harness = await self._begin(_there(self._session), _there(self._model), self._stack)
                self._asked = True
                self.asked_from = self._session.leaf_id if self._session is not None else None
                async with self._harness.stream(prompt) as events:
                    async for event in events:
                        tell(event)
        finally:
            tell(None)

    async def _open(self, place: Place, stack: AsyncExitStack) -> Session:
        storage = storage_at(place, mode="write", on_torn_tail="repair")
        session = await stack.enter_async_context(Session.open(storage))
        self.remarks += [f"warning: {told(warning)}" for warning in session.warnings]
        if not session.writable:
            raise ReadOnlySessionError(session.log.read_only_reason or "it takes no more entries")
        began_in = session.header.cwd
        if began_in and self._settings.tools and began_in != self._cwd:
            self.remarks.append(f"the session began in {began_in}; its tools now work in {self._cwd}")
        if await session.recover():
            self.remarks.append("the last turn was cut off; that is recorded, and nothing of it is repeated")
        return session

    async def _branch(self, session: Session) -> None:
        """Go to the entry that the person named, if they named one and are not there."""
        if self._settings.at is None:
            return
        entry_id = await named_entry(session, self._settings.at)
        if entry_id != session.leaf_id:
            await session.move_to(entry_id)

    async def _create(self, stack: AsyncExitStack) -> Session:
        """The session that the first prompt begins."""
        settings = self._settings
        try:
            if settings.new_file is not None:
                storage = await JsonlStorage.open_or_create(settings.new_file, cwd=self._cwd)
            else:
                storage = await JsonlRepository(settings.root).create(cwd=self._cwd)
        except StorageError as error:
            error.message += "; choose another place, with --root, BRANCHLINE_HOME or --file"
            raise
        session = await stack.enter_async_context(Session.open(storage))
        self._created = True
        name, root = (session.id, settings.root) if settings.new_file is None else (str(settings.new_file), None)
        self.place = Place(name, Path(storage.path), root)
        return session

    async def _begin(self, session: Session, model: ChatModel, stack: AsyncExitStack) -> AgentHarness:
        settings = self._settings
        harness = AgentHarness(
            session,
            model,
            tools=workspace_tools(settings.cwd) if settings.tools else (),
            system_prompt=SYSTEM_PROMPT + (WITH_TOOLS.format(cwd=self._cwd) if settings.tools else ""),
            settings=AgentSettings(
                max_chars=settings.max_chars, max_tokens=settings.max_tokens, working_directory=settings.cwd
            ),
        )
        return await stack.enter_async_context(harness)


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
