"""What the model is shown: the projection of a path, driven so that the event loop can breathe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio.lowlevel

if TYPE_CHECKING:
    from compaction.state import ModelChoice
    from compaction.tokens import TokenEstimator
    from storage.entry_path import EntryPath
    from storage.messages import Message
    from storage.protocols import SessionWarning

CURRENT: Final = object()
"""As a leaf: the session's own, at that time."""

Transform = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What a model is shown, and what is in force."""

    messages: list[Message]
    entry_ids: list[str | None]
    system_prompt: str | None
    model: ModelChoice | None
    thinking_level: str
    active_tools: list[str] | None
    chars: int
    tokens: int
    dropped: list[str]
    compaction_id: str | None
    warnings: tuple[SessionWarning, ...]


async def build_context(
    path: EntryPath,
    *,
    max_chars: int | None,
    max_tokens: int | None,
    estimator: TokenEstimator | None,
    transforms: Sequence[Transform],
    projectors: Mapping[str, Callable[..., Any]],
    unknown_entries: Literal["raise", "skip"],
) -> SessionContext:
    """Project ``path``."""
    raise NotImplementedError
