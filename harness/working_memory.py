"""The working memory of a session: a few facts under keys, which the model is shown at the end of each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compaction.state import fold_memory
from compaction.wording import MEMORY_KEY_CHARACTERS
from storage.errors import InvalidEntryError
from storage.pending_write import PendingWrite

if TYPE_CHECKING:
    from harness.session import Session


class WorkingMemory:
    """``Session.working_memory``: what is in force at the session's leaf.

    ::

        session.working_memory.set("current task", "port the parser")
        assert await session.working_memory.get("current task") == "port the parser"

    Each change is an entry on the path, so going back to a branch gives the memory it had. ``set``, ``delete`` and
    ``clear`` are plain functions that take a snapshot at the call, and raise what ``Session.append_message`` does; the
    others wait for the writes that were called before them.
    """

    def __init__(self, session: Session) -> None:
        """Use ``Session.working_memory``."""
        self._session = session

    def set(self, key: str, value: Any) -> PendingWrite:
        """Have ``key`` stand for ``value``, any JSON. Raises ``InvalidEntryError`` also for a key that says nothing."""
        return self._session.append_working_memory("set", checked_key(key), value)

    def delete(self, key: str) -> PendingWrite:
        """Forget ``key``. One that is not there is no error."""
        return self._session.append_working_memory("delete", checked_key(key))

    def clear(self) -> PendingWrite:
        """Forget everything."""
        return self._session.append_working_memory("clear")

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, the caller's own copy; ``default`` where it is not there."""
        return (await self.values()).get(key, default)

    async def keys(self) -> Sequence[str]:
        """All keys, in the order in which they were first set."""
        return [*(await self.values())]

    async def values(self) -> dict[str, Any]:
        """All of it, by key. Raises ``BrokenPathError`` where the path runs through a parent that is not there."""
        return fold_memory(await self._session.log.path()).values


def checked_key(key: Any) -> str:
    """The key, if it can be one. Raises ``InvalidEntryError``."""
    if not isinstance(key, str) or not key.strip():
        raise InvalidEntryError(f"a key of the working memory is a word or a few, not {key!r:.80}")
    if len(key) > MEMORY_KEY_CHARACTERS or not key.isprintable():
        raise InvalidEntryError(
            f"the key {key!r:.80} is not one line of at most {MEMORY_KEY_CHARACTERS} characters; put the rest in its value"
        )
    return key
