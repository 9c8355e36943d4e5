"""What a turn asks the model: the header written where it changed, the context, and the facts for the record (R26)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compaction.projection import PROJECTION_VERSION
from compaction.state import ModelChoice, PathState, fold_state
from harness.context import SessionContext, build_context
from harness.models.protocol import ChatModel, HasOptions, ModelRequest
from harness.settings import AgentSettings
from harness.shown import PathIds, shown_runs
from harness.tools.definition import Tool
from harness.turn_record import TurnRecord
from storage.entries import (
    ActiveToolsChangeEntry,
    ModelChangeEntry,
    RequestFacts,
    RequestHeaderEntry,
    ThinkingLevelChangeEntry,
)
from storage.entry_path import EntryPath
from storage.errors import ModelError

_ENVELOPE = {"seq", "id", "parent_id", "timestamp", "type"}


class RequestMaker:
    """Makes the requests of one harness. Remembers only the ids of the path that it saw last."""

    def __init__(
        self, model: ChatModel, tools: Mapping[str, Tool], system_prompt: str | None, settings: AgentSettings
    ) -> None:
        self._model = model
        self._tools = tools
        self._system_prompt = system_prompt
        self._settings = settings
        self._ids = PathIds()

    async def make(self, record: TurnRecord) -> tuple[ModelRequest, RequestFacts]:
        """The next request of a turn, and what its reply's entry says of it.

        What differs from the record is recorded first: model, thinking level, tools, then the whole header. Raises
        ``BudgetError`` and ``UnsupportedEntryError`` as ``build_context`` does, and ``ModelError`` where the path has
        nothing to show.
        """
        log = record.session.log
        path = await log.path()
        state = fold_state(path)
        level = await self._record_changes(record, path, state)
        header = self._header(level)
        header_id = _id_of_same(path, state, header)
        if header_id is None:
            header_id = await record.write(header)
        path = await log.path()
        context = await self._context(path)
        if not context.messages:
            raise ModelError("there is nothing to send: the path shows the model no message; prompt with some text")
        request = ModelRequest(
            system_prompt=self._system_prompt,
            messages=context.messages,
            tools=[tool.schema for tool in self._tools.values()],
            options=self._options(),
            thinking_level=level,
        )
        await self._ids.follow(path)
        runs = await shown_runs(path, context.entry_ids, self._ids)
        return request, RequestFacts(header_id=header_id, projection=PROJECTION_VERSION, shown=runs)

    async def _context(self, path: EntryPath) -> SessionContext:
        return await build_context(
            path,
            max_chars=self._settings.max_chars,
            max_tokens=self._settings.token_budget(self._model.context_window),
            estimator=self._settings.estimator,
        )

    async def _record_changes(self, record: TurnRecord, path: EntryPath, state: PathState) -> str | None:
        """Record the model, the level and the tools where the session has others. Returns the level in force."""
        model = ModelChoice(self._model.provider, self._model.model_id)
        if state.model is not None and state.model != model:
            await record.write(ModelChangeEntry(provider=self._model.provider, model_id=self._model.model_id))
        names = list(self._tools)
        if state.active_tools is not None and state.active_tools != names:
            await record.write(ActiveToolsChangeEntry(active_tool_names=names))
        wanted = self._settings.thinking_level
        if wanted is None:
            return None if path.thinking_level is None else state.thinking_level
        if wanted != state.thinking_level:
            await record.write(ThinkingLevelChangeEntry(thinking_level=wanted))
        return wanted

    def _header(self, level: str | None) -> RequestHeaderEntry:
        return RequestHeaderEntry(
            model={"provider": self._model.provider, "modelId": self._model.model_id},
            system_prompt=self._system_prompt,
            tools=[
                {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
                for tool in self._tools.values()
            ]
            or None,
            options=self._options() or None,
            thinking_level=level,
        )

    def _options(self) -> dict[str, Any]:
        """All that go out: the model's own, which the settings' win over."""
        own: Mapping[str, Any] = self._model.options if isinstance(self._model, HasOptions) else {}
        return {**own, **self._settings.options}


def _id_of_same(path: EntryPath, state: PathState, header: RequestHeaderEntry) -> str | None:
    """The id of the newest header on the path if it says just this, and nothing newer says otherwise."""
    position = path.request_header
    if position is None or state.header is None or state.header_position != position:
        return None
    return path.entry_id(position) if _members(state.header) == _members(header) else None


def _members(header: RequestHeaderEntry) -> dict[str, Any]:
    return header.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=_ENVELOPE)
