"""The reading side of a session: entries, branches, labels, contexts and blobs, each a copy that is the caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compaction.projection import UnknownEntries
from compaction.selection import Transform
from compaction.tokens import TokenEstimator
from compaction.walk import Projector
from harness.context import CURRENT, SessionContext, build_context
from harness.labels import label_in_force, labels_in_force, name_in_force
from storage.assembling import LEAF
from storage.entries import Entry
from storage.entry_log import EntryLog
from storage.index import NONE


class SessionReading:
    """What is read from a log. Reads wait for the writes that were called before them (R7)."""

    def __init__(self, log: EntryLog) -> None:
        """``log`` is the session's."""
        self._log = log

    async def entry(self, entry_id: str) -> Entry:
        """An entry. It shares nothing with the store. Raises ``EntryNotFoundError``."""
        return await self._log.entry(entry_id)

    async def entries(self, *, after_seq: int = -1, limit: int = 1000) -> list[Entry]:
        """A page of entries of all branches, in the order they were committed: at most ``limit`` after ``after_seq``."""
        return await self._log.entries(after_seq=after_seq, limit=limit)

    async def branch(self, from_id: str | None = None) -> list[Entry]:
        """The entries from the root to ``from_id`` (``None``: to the leaf).

        Raises ``EntryNotFoundError``, and ``BrokenPathError`` where the path runs through a parent that is not there.
        """
        await self._log.settled()
        index = self._log.index
        leaf_id = index.leaf_id if from_id is None else from_id
        return await self._log.decode(index.path(NONE if leaf_id is None else index.seq_of(leaf_id)))

    async def label(self, entry_id: str) -> str | None:
        """The label of an entry, or ``None``. Raises ``EntryNotFoundError``."""
        await self._log.settled()
        self._log.index.seq_of(entry_id)
        return label_in_force(self._log.index, entry_id)

    async def labels(self) -> dict[str, str]:
        """All labels in force, by entry id."""
        await self._log.settled()
        return labels_in_force(self._log.index)

    async def name(self) -> str | None:
        """The session's name, or ``None``."""
        await self._log.settled()
        return name_in_force(self._log.index)

    async def build_context(
        self,
        *,
        leaf_id: str | object | None = CURRENT,
        max_chars: int | None = None,
        max_tokens: int | None = None,
        estimator: TokenEstimator | None = None,
        transforms: Sequence[Transform] = (),
        projectors: Mapping[str, Projector] | None = None,
        unknown_entries: UnknownEntries = "raise",
    ) -> SessionContext:
        """What the model is shown at ``leaf_id`` (default: the leaf): always sendable, within the budgets.

        ``max_chars`` covers the messages, ``max_tokens`` the system prompt and the tool schemas too. See
        ``harness.context.build_context`` and ``docs/context.md``. Raises ``BudgetError`` if what must be shown does not
        fit, ``UnsupportedEntryError``, ``EntryNotFoundError`` and ``BrokenPathError``.
        """
        path = await self._log.path(LEAF if leaf_id is CURRENT else leaf_id)
        return await build_context(
            path,
            max_chars=max_chars,
            max_tokens=max_tokens,
            estimator=estimator,
            transforms=transforms,
            projectors=projectors,
            unknown_entries=unknown_entries,
        )

    async def read_blob(self, name: str) -> bytes:
        """What was kept under ``name``. Raises ``BlobNotFoundError``, ``InvalidIdError`` and ``StorageError``."""
        return await self._log.blobs.read(name)
