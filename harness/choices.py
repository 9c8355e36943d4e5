"""What the next request asks for: which model, how much thinking, which tools.

The model is the caller's. Thinking level and active tools are what the caller said when the harness was made, else what
is in force on the path (R22): so a new harness takes over what an old session had, and going back to a branch gives what
it had. What ``set_…`` was given is recorded, and from then on the record counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compaction.state import ModelChoice
from harness.models.protocol import ChatModel
from harness.session import Session
from harness.settings import AgentSettings
from harness.tools.definition import Tool
from storage.decode import decode_entry
from storage.entries import ActiveToolsChangeEntry, ThinkingLevelChangeEntry
from storage.errors import InvalidEntryError, ModelError, SettingsError, ToolError
from storage.in_force import NONE, State
from storage.protocols import SessionWarning


class Choices:
    """The choices of one harness. ``level`` and ``active``: what the caller said, or ``None`` where the record counts."""

    def __init__(
        self,
        session: Session,
        model: ChatModel,
        tools: Mapping[str, Tool],
        settings: AgentSettings,
        active_tools: Sequence[str] | None,
    ) -> None:
        """Raises ``ToolError`` for an active tool that there is not, ``SettingsError`` for settings that are none.

        And what ``checked_model`` raises.
        """
        if not isinstance(settings, AgentSettings):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(
                f"the settings are {settings!r:.100}; give AgentSettings(…)",
                setting="settings",
                value=settings,
                expected="AgentSettings",
            )
        self._session = session
        self._settings = settings
        self.tools = tools
        self.model = self.checked_model(model)
        self.level: str | None = settings.thinking_level
        self.active: list[str] | None = None if active_tools is None else self.checked_names(active_tools)

    def checked_model(self, model: ChatModel) -> ChatModel:
        """The model, if its window leaves room for requests. Raises ``SettingsError``, and ``ModelError`` for no model."""
        if not callable(getattr(model, "stream", None)):
            raise ModelError(f"{model!r:.100} is no model; give an object such as OpenAIChatModel('gpt-5-mini')")
        self._settings.check_window(model.context_window, model_id=model.model_id)
        return model

    def checked_names(self, names: Sequence[str]) -> list[str]:
        """The names, each once. Raises ``ToolError`` for one that no tool has."""
        if isinstance(names, str):
            raise ToolError(f"the active tools are a list of names, not the text {names!r:.100}")
        for name in names:
            if name not in self.tools:
                known = ", ".join(self.tools) or "none"
                raise ToolError(f"there is no tool {name!r:.100} to be active; the tools are: {known}")
        return list(dict.fromkeys(names))

    def checked_level(self, level: str) -> str:
        """The level, if it is a word. Raises ``InvalidEntryError``."""
        if not isinstance(level, str) or not level.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidEntryError(f"the thinking level {level!r:.100} is no word; give one such as 'off' or 'high'")
        return level

    @property
    def choice(self) -> ModelChoice:
        """The model, as the record names it."""
        return ModelChoice(self.model.provider, self.model.model_id)

    @property
    def recorded_model(self) -> ModelChoice | None:
        """The model that is in force at the leaf by the record."""
        model = self._session.log.index.model_at(self._leaf())
        return None if model is None else ModelChoice(*model)

    @property
    def recorded_level(self) -> str | None:
        """The thinking level that is in force at the leaf by the record; ``None`` where nothing set it."""
        entry = self._entry(self._state().thinking_level)
        return entry.thinking_level if isinstance(entry, ThinkingLevelChangeEntry) else None

    @property
    def recorded_tools(self) -> list[str] | None:
        """The active tools that are in force at the leaf by the record, also those that are not here."""
        entry = self._entry(self._state().active_tools)
        return entry.active_tool_names if isinstance(entry, ActiveToolsChangeEntry) else None

    def offered(self, recorded: Sequence[str] | None) -> dict[str, Tool]:
        """The tools to offer where ``recorded`` is in force: of what the record names, those that are here."""
        names = self.active if self.active is not None else recorded
        if names is None:
            return dict(self.tools)
        return {name: self.tools[name] for name in names if name in self.tools}

    def warnings(self) -> tuple[SessionWarning, ...]:
        """What was recorded and cannot be taken over."""
        seq = self._state().active_tools
        recorded = self.recorded_tools
        if self.active is not None or recorded is None:
            return ()
        missing = [name for name in recorded if name not in self.tools]
        if not missing:
            return ()
        text = (
            f"the session's active tools name {', '.join(map(repr, missing))}, which this harness does not have; the others "
            "are offered; set_active_tools records other ones"
        )
        return (SessionWarning("unknown_active_tools", text, entry_id=self._session.log.index.names[seq]),)

    def _leaf(self) -> int:
        leaf_id = self._session.leaf_id
        return NONE if leaf_id is None else self._session.log.index.ids.get(leaf_id, NONE)

    def _state(self) -> State:
        return self._session.log.index.state(self._leaf())

    def _entry(self, seq: int) -> object:
        return None if seq == NONE else decode_entry(self._session.log.index.line(seq))
