"""What a tool may know of the call it answers, and how it says how far it is."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from harness.working_memory import WorkingMemory
from storage.errors import ToolError


def _ignore(_message: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class ToolContext:
    """One call, as its tool sees it. A function tool takes it as its first parameter, annotated ``ToolContext``."""

    call_id: str = ""
    """The call's id: unique in its reply, not in the session."""
    tool_name: str = ""
    idempotency_key: str = ""
    """Unique for this call, recorded before it begins: give it to a service that must not do the same thing twice."""
    deadline: float | None = None
    """When the call is cut off, on the clock of ``anyio.current_time()`` (seconds), or ``None``."""
    working_directory: Path | None = None
    """The folder that the session belongs to, where there is one."""
    report: Callable[[str], None] = _ignore
    """Takes a line of progress for whoever watches the turn. Call ``progress`` instead: it works in threads too."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set when the call was cancelled or its time is over; a thread is not killed, so long work looks at it."""
    write_blob: Callable[[bytes], Awaitable[str]] | None = None
    """Stores bytes beside the record. Call ``keep`` instead: it says what is wrong where there is no such place."""
    read_blob: Callable[[str], Awaitable[bytes]] | None = None
    """Reads them back. Call ``kept`` instead."""
    memory: WorkingMemory | None = None
    """The working memory of the session that the call's turn runs in."""

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this call any more. For synchronous tools, which cancellation cannot interrupt."""
        return self.stopped.is_set()

    def progress(self, message: str) -> None:
        """Say how far it is. Returns at once, from the event loop or from the tool's own thread; never recorded."""
        self.report(message)

    async def keep(self, data: bytes) -> str:
        """Store bytes beside the record, for what is too large for a result. Returns the blob's name.

        Name it in the result's ``ToolOutput.blobs``, so that it travels with the session. Raises ``ToolError`` where the
        session's storage keeps no blobs, and what the storage raises.
        """
        if self.write_blob is None:
            raise ToolError(
                "the storage of this session keeps no blobs; return less, or use a storage that does: all that come with "
                "this library do"
            )
        return await self.write_blob(data)

    async def kept(self, name: str) -> bytes:
        """The bytes of a blob. Raises ``ToolError`` where the storage keeps none, and ``LookupError`` for no such name."""
        if self.read_blob is None:
            raise ToolError(f"the storage of this session keeps no blobs, so there is none named {name!r:.140}")
        return await self.read_blob(name)

    def remaining(self) -> float | None:
        """Seconds until the deadline, or ``None`` without one. On the event loop only."""
        return None if self.deadline is None else max(0.0, self.deadline - anyio.current_time())
