"""What every repository does in the same way: its calls with their arguments, and forks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Generic, Literal, TypedDict, TypeVar, Unpack

from storage.blobs import Blobs
from storage.identifiers import check_session_id
from storage.protocols import Corrupt, Mode, Record, SessionStorage, TornTail
from storage.repository import Forkable, Made

S = TypeVar("S", bound=SessionStorage)


class NewSession(TypedDict):
    """What a new session is made of; see ``SessionRepository.create``."""

    cwd: str | os.PathLike[str] | None
    parent_session: str | None
    records: Iterable[Record]
    blobs: Blobs


class Opening(TypedDict):
    """How a session is opened; see ``SessionRepository.open``."""

    mode: Mode
    on_torn_tail: TornTail
    on_corrupt: Corrupt
    lock_timeout: float


class OpeningOrNew(TypedDict):
    """How a session is opened or made; see ``SessionRepository.open_or_create``."""

    cwd: str | os.PathLike[str] | None
    on_corrupt: Corrupt
    lock_timeout: float


class BaseRepository(ABC, Generic[S]):
    """A ``SessionRepository`` but for where its sessions lie, and how they are listed, found and deleted."""

    async def create(
        self,
        session_id: str | None = None,
        *,
        cwd: str | os.PathLike[str] | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
        blobs: Blobs = (),
    ) -> S:
        """A new session; see ``SessionRepository.create``."""
        return await self._create(session_id, cwd=cwd, parent_session=parent_session, records=records, blobs=blobs)

    async def open(
        self,
        session_id: str,
        *,
        mode: Mode = "write",
        on_torn_tail: TornTail = "repair",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> S:
        """The session of that id; see ``SessionRepository.open``."""
        return await self._open(
            session_id, mode=mode, on_torn_tail=on_torn_tail, on_corrupt=on_corrupt, lock_timeout=lock_timeout
        )

    async def open_or_create(
        self,
        session_id: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> S:
        """The session of that id, begun now if there is none; see ``SessionRepository.open_or_create``."""
        return await self._open_or_create(session_id, cwd=cwd, on_corrupt=on_corrupt, lock_timeout=lock_timeout)

    async def fork(
        self,
        source: Forkable[Made],
        target_id: str | None = None,
        *,
        position: Literal["at", "before"] = "at",
        session_id: str | None = None,
    ) -> Made:
        """A new session here with the path to ``target_id`` in ``source``; see ``SessionRepository.fork``."""
        if session_id is not None:
            check_session_id(session_id)
        # A partial: unlike a function of ours, it shows what ``create`` takes.
        return await source.fork(target_id, position=position, into=partial(self.create, session_id))

    @abstractmethod
    async def _create(self, session_id: str | None, **new: Unpack[NewSession]) -> S:
        """Make it, under a new id if none is given."""

    @abstractmethod
    async def _open(self, session_id: str, **opening: Unpack[Opening]) -> S:
        """Open the one that is there."""

    @abstractmethod
    async def _open_or_create(self, session_id: str, **opening: Unpack[OpeningOrNew]) -> S:
        """Open it, or make it if it is not there."""
