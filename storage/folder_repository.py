"""What the repositories on disk share: ids become names in one folder, and listings go by the time of change."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol, Self, TypeVar, Unpack

from storage.base_repository import BaseRepository, NewSession, Opening, OpeningOrNew
from storage.blobs import Blobs
from storage.errors import (
    InvalidIdError,
    SessionError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from storage.event_loops import Breath, run_in_worker
from storage.identifiers import check_session_id, is_safe_name, new_id
from storage.protocols import Corrupt, Durability, Mode, Record, SessionStorage, TornTail
from storage.repository import (
    Mark,
    SessionPage,
    SessionSummary,
    check_prefix,
    marks_of_page,
    match_prefix,
    namesake_of,
    no_such_session,
)
from storage.session_streams import check_writable, identity_of
from storage.summaries import summarise


class StorageAtPath(SessionStorage, Protocol):
    """A storage whose sessions lie at a path each: what its class makes and opens them with."""

    @classmethod
    async def create(
        cls,
        where: str | os.PathLike[str],
        /,
        *,
        cwd: str | os.PathLike[str] | None,
        session_id: str | None,
        parent_session: str | None,
        records: Iterable[Record],
        blobs: Blobs,
        durability: Durability,
    ) -> Self:
        """A new session."""
        ...

    @classmethod
    async def open(
        cls,
        where: str | os.PathLike[str],
        /,
        *,
        mode: Mode,
        durability: Durability,
        on_torn_tail: TornTail,
        on_corrupt: Corrupt,
        lock_timeout: float,
    ) -> Self:
        """The session that is there."""
        ...

    @classmethod
    async def open_or_create(
        cls,
        where: str | os.PathLike[str],
        /,
        *,
        cwd: str | os.PathLike[str] | None,
        session_id: str | None,
        durability: Durability,
        on_corrupt: Corrupt,
        lock_timeout: float,
    ) -> Self:
        """Either."""
        ...


S = TypeVar("S", bound=StorageAtPath)

_AT_ONCE = 64
"""How many sessions are summarised in one go, which a cancellation waits for."""


class FolderRepository(BaseRepository[S]):
    """The part of a repository on disk that does not depend on the backend. The folder is the truth, nothing else."""

    suffix: ClassVar[str] = ""
    """What follows the id in the name of a session's file or folder."""

    storage_type: type[S]
    """The backend's storage, which makes and opens the sessions."""

    def __init__(self, root: str | os.PathLike[str], *, durability: Durability = "fsync") -> None:
        """``root`` is the folder of the sessions; it is made (0700) with the first of them."""
        self.root: str = os.path.abspath(root)
        self.durability: Durability = durability

    def path_of(self, session_id: str) -> str:
        """Where the session of that id lies, or would lie. Raises ``InvalidIdError``."""
        return os.path.join(self.root, check_session_id(session_id) + self.suffix)

    async def _create(self, session_id: str | None, **new: Unpack[NewSession]) -> S:
        session_id, path = await run_in_worker(lambda: self._free(session_id))
        return await self.storage_type.create(path, session_id=session_id, durability=self.durability, **new)

    async def _open(self, session_id: str, **opening: Unpack[Opening]) -> S:
        path = await run_in_worker(lambda: self._existing(session_id))
        return await self.storage_type.open(path, durability=self.durability, **opening)

    async def _open_or_create(self, session_id: str, **opening: Unpack[OpeningOrNew]) -> S:
        path = await run_in_worker(lambda: self._existing_or_free(session_id))
        return await self.storage_type.open_or_create(
            path, session_id=session_id, durability=self.durability, **opening
        )

    async def list(self, *, after: str | None = None, limit: int = 50, deep: bool = False) -> SessionPage:
        """The sessions, the one that was written to last first; see ``SessionRepository.list``.

        One that is written to between two pages moves to the front, where the next listing shows it.
        """
        found = await run_in_worker(self._scan)
        page, rest = marks_of_page(found, after, limit)
        summaries: list[SessionSummary] = []
        for start in range(0, len(page), _AT_ONCE):
            some = page[start : start + _AT_ONCE]
            summaries += await run_in_worker(lambda some=some: self._summarise_all(some, deep))
        return SessionPage(tuple(summaries), rest)

    async def find(self, prefix: str) -> str:
        """The id that ``prefix`` names; see ``SessionRepository.find``."""
        check_prefix(prefix)
        ids = [mark.id for mark in await run_in_worker(self._scan) if is_safe_name(mark.id)]
        return match_prefix(prefix, ids, place=self.root)

    def identity(self) -> object:
        """The folder; see ``LooksAhead``. Blocking."""
        return identity_of(self.root)

    def check_receiving(self) -> None:
        """See that the folder can be read and written; see ``LooksAhead``. Blocking."""
        self._names()
        check_writable(self.root)

    # ---- what a backend adds

    @abstractmethod
    def _id_of(self, item: os.DirEntry[str]) -> str | None:
        """The id of the session that ``item`` is; ``None`` if it is none."""

    @abstractmethod
    def _changed_at(self, item: os.DirEntry[str]) -> int:
        """When that session was last written to, in nanoseconds since 1970."""

    @abstractmethod
    def _summarise(self, mark: Mark, path: str, *, deep: bool) -> SessionSummary:
        """What there is to tell of one session."""

    # ---- blocking, in a worker

    def _scan(self) -> Sequence[Mark]:
        """A mark for every session."""
        marks: list[Mark] = []
        breath = Breath()
        try:
            with os.scandir(self.root) as found:
                for item in found:
                    breath.take()
                    session_id = self._id_of(item)
                    if session_id is not None:
                        marks.append(Mark(self._mark_time(item), session_id))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"the sessions cannot be listed: {error.strerror}", path=self.root) from error
        return marks

    def _mark_time(self, item: os.DirEntry[str]) -> int:
        try:
            return self._changed_at(item)
        except OSError:
            return 0  # gone this moment, or not to be looked at: then its summary says so

    def _summarise_all(self, marks: Sequence[Mark], deep: bool) -> Sequence[SessionSummary]:
        summaries: list[SessionSummary] = []
        breath = Breath()
        for mark in marks:
            breath.take()
            path = os.path.join(self.root, mark.id + self.suffix)
            problem = self._name_problem(mark.id, path)
            if problem is not None:
                summaries.append(summarise(mark.id, path, mark.changed, None, problem))
            elif os.path.lexists(path):
                summaries.append(self._summarise(mark, path, deep=deep))
        return summaries

    def _name_problem(self, session_id: str, path: str) -> Callable[[], dict[str, object]] | None:
        def refuse() -> dict[str, object]:
            if is_safe_name(session_id):
                raise _symlink(path)
            raise InvalidIdError("its name is no session id; open it by its path, or rename it", path=path)

        return refuse if os.path.islink(path) or not is_safe_name(session_id) else None

    def _existing(self, session_id: str) -> str:
        """The path of a session that is there. Raises ``SessionNotFoundError``, for another spelling too."""
        path = self.path_of(session_id)
        names = self._names()
        if os.path.basename(path) not in names:
            raise no_such_session(session_id, self._ids(names), place=self.root)
        if os.path.islink(path):
            # Its lock would lie beside the link, not beside the file, and let a second writer in.
            raise _symlink(path)
        return path

    def _free(self, session_id: str | None) -> tuple[str, str]:
        """An id (made, if none is given) and its path, which may be taken, but by no id that differs only in case."""
        session_id = new_id() if session_id is None else session_id
        path = self.path_of(session_id)
        namesake = namesake_of(session_id, self._ids(self._names()))
        if namesake is not None:
            raise SessionExistsError(
                f"there is a session {namesake!r}, and not every file system tells apart two names that differ only in "
                "case; choose another id",
                path=self.root,
            )
        return session_id, path

    def _existing_or_free(self, session_id: str) -> str:
        try:
            return self._existing(session_id)
        except SessionNotFoundError:
            return self._free(session_id)[1]

    def _deleting(self, path: str, action: Callable[[], None]) -> None:
        try:
            action()
        except SessionError:
            raise
        except OSError as error:
            raise StorageError(f"the session could not be deleted: {error}", path=path) from error

    def _names(self) -> set[str]:
        try:
            return set(os.listdir(self.root))
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StorageError(f"the sessions cannot be listed: {error.strerror}", path=self.root) from error

    def _ids(self, names: set[str]) -> Sequence[str]:
        return [name.removesuffix(self.suffix) for name in names if name.endswith(self.suffix)]


def _symlink(path: str) -> StorageError:
    return StorageError("it is a symbolic link; open what it points to by its path", path=path)
