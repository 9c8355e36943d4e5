"""A harness's hold on its session: taken at its first awaited call, given up at its end (R25)."""

from __future__ import annotations

import anyio

from harness.session import Session
from storage.errors import SessionClosedError


class Claim:
    """That ``owner`` is the one harness of ``session``, once ``take`` was awaited."""

    def __init__(self, session: Session, owner: object) -> None:
        """Takes nothing yet."""
        self._session = session
        self._owner = owner
        self._taking = anyio.Lock()
        self._taken = False
        self._closed = False

    def check_open(self) -> None:
        """Raise ``SessionClosedError`` if it was given up, and ``WrongEventLoopError`` on another loop."""
        self._session.log.check_loop()
        if self._closed:
            raise SessionClosedError("this harness is closed; make another one for the session")

    async def take(self) -> None:
        """Claim the session, and close a turn that a crash left open. Raises ``BusyError`` if another harness has it."""
        self.check_open()
        if self._taken:
            return
        async with self._taking:
            if self._taken:
                return
            self._session.claim(self._owner)
            try:
                await self._session.recover()
                self.check_open()  # it may have been given up meanwhile
            except BaseException:
                self._session.release(self._owner)
                raise
            self._taken = True

    async def give_up(self) -> None:
        """Let another harness have the session, once what ``take`` records is recorded. Idempotent."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._taking:
                self._taken = False
                self._session.release(self._owner)
