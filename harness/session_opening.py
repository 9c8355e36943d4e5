"""Opening a session: an awaitable that is an asynchronous context manager too."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from storage.entry_log import EntryLog
from storage.errors import SessionError
from storage.event_loops import run_in_worker
from storage.protocols import SessionStorage

if TYPE_CHECKING:
    from harness.session import Session


class SessionOpening:
    """What ``Session.open`` gives: await it for the session, or enter it with ``async with``, which closes it."""

    def __init__(self, kind: type[Session], storage: SessionStorage | Awaitable[SessionStorage]) -> None:
        """Use ``Session.open``."""
        self._kind = kind
        self._storage = storage
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, Any, Session]:
        return self._open().__await__()

    async def _open(self) -> Session:
        given = self._storage
        storage = _checked(await given if isinstance(given, Awaitable) else given)
        EntryLog.check_free(storage)
        try:
            return self._kind(await EntryLog.open(storage))
        except BaseException:
            await run_in_worker(storage.close)
            raise

    async def __aenter__(self) -> Session:
        self._session = await self._open()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, traceback)


def _checked(storage: SessionStorage) -> SessionStorage:
    """The storage, if it is one: neither a path, nor a repository, nor the function that would make one."""
    if not all(callable(getattr(storage, name, None)) for name in ("read", "commit", "close")):
        raise SessionError(
            f"a {type(storage).__name__} is no storage; open what a backend's or a repository's create, open or "
            "open_or_create returns, such as JsonlStorage.open_or_create('chat.jsonl')"
        )
    return storage
