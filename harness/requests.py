"""What a turn asks the model: the header written where it changed, the context, and the facts for the record (R26)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from compaction.kept_units import KeptUnits
from compaction.projection import PROJECTION_VERSION
from compaction.state import PathState, fold_state
from harness.calls import Emit
from harness.choices import Choices
from harness.compactor import Compactor, Place, Room
from harness.context import SessionContext, build_context
from harness.events import ActiveToolsChanged, ModelChanged, ThinkingLevelChanged
from harness.hook_chain import TurnHooks
from harness.models.protocol import ChatModel, ModelRequest, own_options
from harness.request_headers import header_of, hooked
from harness.settings import AgentSettings
from harness.shown import PathIds, shown_runs
from harness.turn_record import TurnRecord
from storage.entries import (
    ActiveToolsChangeEntry,
    ModelChangeEntry,
    RequestEdit,
    RequestFacts,
    RequestHeaderEntry,
    ThinkingLevelChangeEntry,
)
from storage.entry_path import EntryPath, IndexedPath
from storage.errors import BudgetError, ModelError
from storage.in_force import State
from storage.messages import Usage

_ENVELOPE = {"seq", "id", "parent_id", "timestamp", "type"}


class NextRequest(NamedTuple):
    """A request, whom it goes to, and what its reply's entry says of it."""

    model: ChatModel
    request: ModelRequest
    facts: RequestFacts
    leaf_id: str
    """Where the path ended that it shows."""
    context: SessionContext
    """What it shows of the session."""

    def shows_the_same_as(self, other: NextRequest) -> bool:
        """Whether the two show the same of the session."""
        return (self.facts.shown, self.facts.shortened, self.facts.tail) == (
            other.facts.shown,
            other.facts.shortened,
            other.facts.tail,
        )


class RequestMaker:
    """Makes the requests of one harness. Remembers of the path that it saw last only the ids, and what is in force there."""

    def __init__(
        self, choices: Choices, system_prompt: str | None, settings: AgentSettings, compactor: Compactor
    ) -> None:
        self._choices = choices
        self._compactor = compactor
        self._system_prompt = system_prompt
        self._settings = settings
        self._ids = PathIds()
        self._folded: tuple[State, PathState] | None = None
        self._said: tuple[RequestHeaderEntry, str] | None = None
        """The header that is in force, as text."""
        self._draft: tuple[RequestHeaderEntry, str] | None = None
        """The newest header before hooks changed it, and the id of what they made of it."""

    async def make(
        self,
        record: TurnRecord,
        emit: Emit,
        hooks: TurnHooks,
        spend: Callable[[Usage | None], None],
        kept: KeptUnits,
    ) -> NextRequest:
        """The next request of a turn. What is chosen while it is made counts from the one after it.

        What differs from the record is recorded first: model, thinking level, tools, then the whole header, as hooks
        left it. Then room is made where the context has grown too large; ``spend`` is told what that cost. ``kept`` is
        what the turn's requests before were made of; the messages are shared with them, unless hooks may change those.
        Raises what ``Compactor.make_room`` does, ``BudgetError`` and ``UnsupportedEntryError`` as ``build_context`` does,
        ``HookError``, and ``ModelError`` where the path has nothing to show.
        """
        log = record.session.log
        path = await log.path()
        state = self._state(path)
        model = self._choices.model
        level = await self._record_changes(record, path, state, emit)
        tools = [*self._choices.offered(state.active_tools).values()]
        request = ModelRequest(
            system_prompt=self._system_prompt,
            messages=(),
            tools=[tool.schema for tool in tools],
            options=self._options(model),
            thinking_level=level,
        )
        header = header_of(model, request)
        header_id = self._id_of_same(path, state, header)
        edits: list[RequestEdit] = []
        place = Place(model, record.write, emit, hooks, spend, record.number, self._state)
        if not hooks.see("before_request"):
            if header_id is None:
                header_id = await record.write(header)
            room = await self._compactor.make_room(replace(place, kept=kept))
            path = await log.path()
            context, room = await self._fitting(path, room, self._state(path), kept)
            request = replace(request, messages=context.messages, passing=context.passing)
        else:
            place = replace(place, state_of=partial(self._expected, draft=header))
            room = await self._compactor.make_room(place)
            path = await log.path()
            context, room = await self._fitting(path, room, self._expected(path, header))
            draft = header
            request = replace(request, messages=context.messages, passing=context.passing)
            header, request, edits = await hooked(model, request, hooks)
            newest = await log.path()
            header_id = self._id_of_same(newest, self._state(newest), header) or await record.write(header)
            self._draft = (draft, header_id)
        await self._ids.follow(path)
        facts = RequestFacts(
            header_id=header_id,
            projection=PROJECTION_VERSION,
            shown=await shown_runs(path, context.entry_ids, self._ids),
            tail=context.tail,
            edits=edits or None,
            shortened=room.shorten,
            cut=None if context.is_whole else True,
        )
        return NextRequest(model, request, facts, path.entry_id(len(path) - 1), context)

    async def _fitting(
        self, path: IndexedPath, room: Room, state: PathState, kept: KeptUnits | None = None
    ) -> tuple[SessionContext, Room]:
        try:
            return await self._context(path, room, state, kept), room
        except BudgetError as error:
            for harder in self._compactor.harder(path, room):
                try:
                    return await self._context(path, harder, state, kept), harder
                except BudgetError as second:
                    error.add_note(f"With the newest tool results shortened: {second.message}")
            raise

    async def _context(self, path: EntryPath, room: Room, state: PathState, kept: KeptUnits | None) -> SessionContext:
        context = await build_context(
            path,
            max_chars=self._settings.max_chars,
            max_tokens=room.max_tokens,
            estimator=self._settings.estimator,
            shorten=room.shorten,
            state=state,
            kept=kept,
        )
        if not context.messages:
            raise ModelError("there is nothing to send: the path shows the model no message; prompt with some text")
        return context

    def _state(self, path: IndexedPath) -> PathState:
        """What is in force at the end of ``path``. Through the steps of a turn that seldom changes."""
        pointers = path.in_force
        if self._folded is None or self._folded[0] != pointers:
            self._folded = pointers, fold_state(path)
        return self._folded[1]

    def _expected(self, path: IndexedPath, draft: RequestHeaderEntry) -> PathState:
        """The state to budget with before hooks have changed the request: what they made of the same draft last time."""
        state = self._state(path)
        position = path.request_header
        if position is not None and self._draft is not None:
            known, header_id = self._draft
            if path.entry_id(position) == header_id and _members(known) == _members(draft):
                return state
        if self._id_of_same(path, state, draft) is not None:
            return state
        tools = draft.tools
        return replace(state, system_prompt=draft.system_prompt, tools=tools, header_position=len(path))

    def _id_of_same(self, path: EntryPath, state: PathState, header: RequestHeaderEntry) -> str | None:
        """The id of the newest header on the path if it says just this, and nothing newer says otherwise."""
        position = path.request_header
        if position is None or state.header is None or state.header_position != position:
            return None
        if self._said is None or self._said[0] is not state.header:
            self._said = state.header, _members(state.header)
        return path.entry_id(position) if self._said[1] == _members(header) else None

    async def _record_changes(self, record: TurnRecord, path: EntryPath, state: PathState, emit: Emit) -> str | None:
        """Record what the caller said where the session has something else. Returns the thinking level in force."""
        choices = self._choices
        model, names, wanted = choices.model, choices.active, choices.level
        if state.model is not None and state.model != choices.choice:
            entry_id = await record.write(ModelChangeEntry(provider=model.provider, model_id=model.model_id))
            await emit(ModelChanged(model.provider, model.model_id, entry_id))
        if names is not None and names != state.active_tools:
            entry_id = await record.write(ActiveToolsChangeEntry(active_tool_names=names))
            await emit(ActiveToolsChanged(tuple(names), entry_id))
        if wanted is None:
            return None if path.thinking_level is None else state.thinking_level
        if wanted != state.thinking_level:
            entry_id = await record.write(ThinkingLevelChangeEntry(thinking_level=wanted))
            await emit(ThinkingLevelChanged(wanted, entry_id))
        return wanted

    def _options(self, model: ChatModel) -> dict[str, Any]:
        """All that go out: the model's own, which the settings' win over."""
        own = own_options(model)
        return {**own, **self._settings.options}


def _members(header: RequestHeaderEntry) -> str:
    """As text: the order of members reaches the wire too."""
    return header.model_dump_json(by_alias=True, exclude_unset=True, exclude=_ENVELOPE)
