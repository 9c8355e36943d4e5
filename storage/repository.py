"""**Protocol:** the shelf that sessions stand on, and what a listing of it says (R15, R16).

A repository knows sessions by their ids. Ids are checked before any file is touched, and two ids must differ in more
than case. What opens a session through it repairs an unterminated tail; what lists or finds one writes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar, overload, runtime_checkable

from storage.errors import InvalidIdError, SessionNotFoundError
from storage.protocols import Corrupt, Mode, Record, SessionStorage, TornTail

_BEGINNING = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MATCHES_SHOWN = 8

Forked_co = TypeVar("Forked_co", covariant=True)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session, as a listing shows it.

    A session that cannot be opened is listed too: ``problem`` says why, ``problem_code`` is the ``code`` of the error
    that opening it would raise, as far as a listing can know without reading everything.
    """

    id: str
    place: str
    """Where it lies: the path of its file or folder."""
    modified: datetime
    """When it was last written to (UTC)."""
    created: datetime | None = None
    """When it was begun, as its header says."""
    size: int | None = None
    """Bytes. ``None`` where finding out would mean to look at each of a thousand files; ``deep=True`` does."""
    cwd: str | None = None
    parent_session: str | None = None
    first_message: str | None = None
    """The beginning of the first user message, at most 200 characters on one line."""
    name: str | None = None
    entries: int | None = None
    """How many entries it has; only with ``deep=True``."""
    problem: str | None = None
    problem_code: str | None = None


@dataclass(frozen=True, slots=True)
class SessionPage(Sequence[SessionSummary]):
    """A page of a listing. ``after`` is the mark to ask for the next page with; ``None`` on the last one."""

    sessions: tuple[SessionSummary, ...]
    after: str | None = None

    @overload
    def __getitem__(self, index: int) -> SessionSummary: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SessionSummary, ...]: ...

    def __getitem__(self, index: int | slice) -> SessionSummary | tuple[SessionSummary, ...]:
        return self.sessions[index]

    def __len__(self) -> int:
        return len(self.sessions)

    def __iter__(self) -> Iterator[SessionSummary]:
        return iter(self.sessions)


class Forkable(Protocol[Forked_co]):
    """**Protocol:** what can be forked into a repository: a ``Session``."""

    async def fork(
        self, target_id: str | None = None, *, position: Literal["at", "before"] = "at", into: Any
    ) -> Forked_co:
        """A new session, made by ``into``."""
        ...


class SessionRepository(Protocol):
    """**Protocol:** the sessions of one backend in one place. See ``JsonlRepository`` for how each behaves on disk.

    Cancelled, a call lets the cancellation through when the work that was under way in its thread has ended; a session
    that was opened or made for nobody is closed again.
    """

    async def create(
        self,
        session_id: str | None = None,
        *,
        cwd: str | os.PathLike[str] | None = None,
        parent_session: str | None = None,
        records: Iterable[Record] = (),
    ) -> SessionStorage:
        """A new session, holding ``records``: made whole or not at all. Where there are blobs, it takes ``blobs`` too.

        Raises ``SessionExistsError`` (also for an id that differs only in case), ``InvalidIdError``, ``StorageError``.
        """
        ...

    async def open(
        self,
        session_id: str,
        *,
        mode: Mode = "write",
        on_torn_tail: TornTail = "repair",
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> SessionStorage:
        """The session of that id. Opened for reading, nothing is repaired.

        Raises ``SessionNotFoundError``, ``InvalidIdError``, and what the backend's ``open`` raises.
        """
        ...

    async def open_or_create(
        self,
        session_id: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        on_corrupt: Corrupt = "raise",
        lock_timeout: float = 0,
    ) -> SessionStorage:
        """The session of that id, begun now if there is none. Raises what ``open`` and ``create`` raise."""
        ...

    async def list(self, *, after: str | None = None, limit: int = 50, deep: bool = False) -> SessionPage:
        """The sessions, the one that was written to last first, at most ``limit`` behind the mark ``after``.

        Reads at most the first and the last 64 KiB of each; with ``deep``, everything of each. Writes nothing. One that
        is damaged, unreadable or of another version is listed with its problem and hides no other.
        Raises ``StorageError`` if the place itself cannot be read, ``ValueError`` for a mark or limit that is none.
        """
        ...

    async def find(self, prefix: str) -> str:
        """The id that is ``prefix``, or else the only one that begins with it. Creates nothing.

        Raises ``SessionNotFoundError``, whose ``details["matches"]`` are the ids that do begin with it (none, or
        several), and ``InvalidIdError`` for what cannot begin an id.
        """
        ...

    async def fork(
        self,
        source: Forkable[Made],
        target_id: str | None = None,
        *,
        position: Literal["at", "before"] = "at",
        session_id: str | None = None,
    ) -> Made:
        """A new session here with the path to ``target_id`` in ``source``; what ``Session.fork`` returns."""
        ...

    async def delete(self, session_id: str, *, lock_timeout: float = 0) -> None:
        """Delete the session and all that lies beside it.

        Raises ``SessionNotFoundError`` (so also the second time), ``SessionLockedError`` while it is written to,
        ``InvalidIdError`` and ``StorageError``.
        """
        ...


@runtime_checkable
class ChecksWhole(Protocol):
    """**Protocol:** a repository in which more can be wrong than with one of its sessions: a database."""

    async def check(self) -> list[str]:
        """What is wrong with the whole, a line each; nothing is changed. Raises ``StorageError``."""
        ...


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if an id can begin with it. Raises ``InvalidIdError`` before any file is touched."""
    if not isinstance(prefix, str) or _BEGINNING.fullmatch(prefix) is None or ".." in prefix:  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from people
        raise InvalidIdError(
            f"no session id begins with {prefix!r:.140}: ids are 1 to 128 letters, digits, '.', '_' or '-', beginning "
            "with a letter or digit, without '..'"
        )
    return prefix


def match_prefix(prefix: str, ids: Iterable[str], *, place: str) -> str:
    """The one of ``ids`` that ``prefix`` names; see ``SessionRepository.find``."""
    matches = sorted(found for found in ids if found.startswith(prefix))
    if prefix in matches:
        return prefix
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise SessionNotFoundError(f"no session's id begins with {prefix!r}; list them", path=place, matches=[])
    shown = ", ".join(matches[:_MATCHES_SHOWN]) + (", …" if len(matches) > _MATCHES_SHOWN else "")
    raise SessionNotFoundError(
        f"{prefix!r} begins {len(matches)} session ids; give more of it: {shown}", path=place, matches=matches
    )


def namesake_of(session_id: str, ids: Iterable[str]) -> str | None:
    """The one of ``ids`` that differs from ``session_id`` only in case."""
    lower = session_id.lower()
    return next((found for found in ids if found != session_id and found.lower() == lower), None)


def no_such_session(session_id: str, ids: Iterable[str], *, place: str) -> SessionNotFoundError:
    """The error for an id that is none of ``ids``; it names the one that differs only in case."""
    namesake = namesake_of(session_id, ids)
    hint = f"; there is {namesake!r}, which is another id" if namesake else ""
    return SessionNotFoundError(f"there is no session {session_id!r}{hint}", path=place)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A session's place in a listing: newest first, then by id."""

    changed: int
    """Nanoseconds since 1970."""
    id: str

    def __str__(self) -> str:
        return f"{self.changed}:{self.id}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """The mark that a page gave as ``after``. Raises ``ValueError``."""
        changed, colon, session_id = text.partition(":")
        if not colon or not re.fullmatch(r"-?[0-9]{1,20}", changed):
            raise ValueError(f"after={text!r:.80} is no mark; pass the last page's own ``after``")
        return cls(int(changed), session_id)


def mark_before(after: str | None, limit: int) -> Mark | None:
    """The mark that a page of ``limit`` sessions comes behind; ``None`` for the first page. Raises ``ValueError``."""
    if limit < 1:
        raise ValueError("limit is at least 1")
    return Mark.parse(after) if after is not None else None


def marks_of_page(marks: Iterable[Mark], after: str | None, limit: int) -> tuple[list[Mark], str | None]:
    """The marks on the page behind ``after``, and the mark for the next page."""
    end = mark_before(after, limit)
    rest = sorted((mark for mark in marks if end is None or mark < end), reverse=True)
    page = rest[:limit]
    return page, str(page[-1]) if len(rest) > limit else None
