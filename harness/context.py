"""What the model is shown, as an app sees it: the projection of a path, driven so that the event loop can breathe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from compaction.breathing import run_with_pauses
from compaction.kept_units import KeptUnits
from compaction.projection import Projection, UnknownEntries, project
from compaction.selection import Transform
from compaction.shown_unit import Shown
from compaction.state import ModelChoice, PathState
from compaction.tokens import TokenEstimator, is_estimator
from compaction.walk import Projector
from storage.entries import Shortening
from storage.entry_path import EntryPath, IndexedPath
from storage.errors import SessionError, SettingsError
from storage.protocols import SessionWarning
from storage.setting_checks import check_whole

CURRENT: Final = object()
"""As a leaf: the session's own, at that time."""


class SessionContext:
    """What a model is shown at a leaf, and what is in force there. Always sendable (R20); nothing in it is shared.

    ``entry_ids`` has for each message the entry it came from: a made-up result its reply's, a retained tail the
    compaction's, a placeholder ``None``. ``chars`` is the size of the messages (R21). ``dropped`` lists the results
    without a call that were left out. ``thinking_level`` is "off", the others ``None``, where nothing on the path says
    otherwise. ``tools`` are the whole schemas of the newest request header. ``tail``: where a budget cut a compaction's
    retained tail, the places of its messages that are shown, counted from its end (-1 is its last). ``passing``: how many
    of the last messages are no part of the conversation (the working memory), 0 or 1. ``is_whole``: no budget left
    anything out.
    """

    def __init__(self, projection: Projection) -> None:
        """Made by ``Session.build_context``."""
        state = projection.state
        self._projection = projection
        self.messages: list[Shown] = projection.messages
        self.entry_ids: list[str | None] = projection.entry_ids
        self.system_prompt: str | None = state.system_prompt
        self.model: ModelChoice | None = state.model
        self.thinking_level: str = state.thinking_level
        self.active_tools: list[str] | None = state.active_tools
        self.tools: list[dict[str, Any]] | None = state.tools
        self.working_memory: Mapping[str, Any] = state.working_memory
        self.chars: int = projection.chars
        self.dropped: list[str] = projection.dropped
        self.compaction_id: str | None = projection.compaction_id
        self.warnings: list[SessionWarning] = projection.warnings
        self.tail: list[int] | None = projection.tail
        self.is_whole: bool = projection.is_whole
        self.passing: int = projection.passing

    @property
    def tokens(self) -> int:
        """Tokens of messages, system prompt and tool schemas.

        Where no token budget and no estimator had them counted, they are counted when first asked for: the provider's
        count for the newest reply where there is one, else a rough estimate, a few microseconds a message.
        """
        return self._projection.tokens

    def __repr__(self) -> str:
        return f"<SessionContext {len(self.messages)} messages, {self.chars:,} characters>"


async def build_context(
    path: EntryPath,
    *,
    max_chars: int | None = None,
    max_tokens: int | None = None,
    estimator: TokenEstimator | None = None,
    transforms: Sequence[Transform] = (),
    projectors: Mapping[str, Projector] | None = None,
    unknown_entries: UnknownEntries = "raise",
    shorten: Shortening | None = None,
    state: PathState | None = None,
    kept: KeptUnits | None = None,
) -> SessionContext:
    """The context at the end of ``path``; see ``compaction.projection.project``. Cancelled, it stops at its next pause.

    Raises ``SettingsError`` for a budget that is no number of characters or tokens, or an estimator that is none, and what
    ``project`` raises.
    """
    check_whole("a context's budget", "max_chars", max_chars, none="for no limit")
    check_whole("a context's budget", "max_tokens", max_tokens, none="for no limit")
    if estimator is not None and not is_estimator(estimator):
        expected = "a TokenEstimator, such as TiktokenEstimator('gpt-5-mini')"
        raise SettingsError(
            f"a context's estimator is {estimator!r:.100}; give {expected}",
            setting="estimator",
            value=estimator,
            expected=expected,
        )
    steps = project(
        path,
        max_chars=max_chars,
        max_tokens=max_tokens,
        estimator=estimator,
        transforms=transforms,
        projectors=projectors or {},
        unknown_entries=unknown_entries,
        shorten=shorten,
        state=state,
        kept=kept,
    )
    try:
        return SessionContext(await run_with_pauses(steps))
    except SessionError as error:
        if error.path is None and isinstance(path, IndexedPath):
            error.path = path.place
        raise
