"""Messages that wait for their place in a turn: recorded at once, delivered later, lost by no crash in between.

On disk: ``queued`` when it was called; ``delivered``, which names the message's entry, and that entry, when it took its
place; ``delivered`` without such a name when it was taken back. What waits is folded along the path
(``EntryIndex.waiting``), so a branch has the queue that it had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast, get_args

import anyio

from harness.events import QueueKind
from harness.session import Session
from storage.decode import decode_entry
from storage.entries import DeliveredEntry, Entry, MessageEntry, QueuedEntry
from storage.errors import InvalidEntryError, QueueFullError
from storage.index import NONE
from storage.messages import ImageContent, TextContent, UserMessage
from storage.pending_write import PendingWrite

Prompt = str | Sequence[TextContent | ImageContent]
"""What a person says: a text, or parts."""

Put = Callable[[Entry], Awaitable[PendingWrite]]
"""Hands an entry to the log, and waits where too much is waiting there."""

KINDS: Final = frozenset(get_args(QueueKind))


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that waits, or waited, for its place in a turn. ``entry_id`` is that of its ``queued`` entry."""

    entry_id: str
    kind: QueueKind
    message: UserMessage


def user_message(prompt: Prompt | UserMessage) -> UserMessage:
    """The message for what was given. Raises ``InvalidEntryError`` where it says nothing."""
    given: object = prompt
    if isinstance(given, UserMessage):
        message = given
    elif isinstance(given, str):
        message = UserMessage(content=given)
    else:
        parts = [*cast("Sequence[object]", given)] if isinstance(given, list | tuple) else [given]
        if not all(isinstance(part, TextContent | ImageContent) for part in parts):
            raise InvalidEntryError(
                f"a prompt is a text, a list of TextContent and ImageContent, or a UserMessage, not {given!r:.100}"
            )
        message = UserMessage(content=cast("list[TextContent | ImageContent]", parts))
    content = message.content
    has_image = not isinstance(content, str) and any(isinstance(part, ImageContent) for part in content or ())
    if not has_image and not message.text.strip():
        raise InvalidEntryError("an empty prompt: there is nothing to ask the model; give some text or an image")
    return message


class MessageQueue:
    """The queue of one session, for the harness that holds it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: list[PendingWrite] = []
        """What was queued here and is not committed yet."""
        self._leaving: dict[str, PendingWrite | None] = {}
        """What takes waiting messages out, by queued id, until that is committed; ``None`` while it is being made."""
        self._kinds: dict[str, str] = {}
        """Of waiting messages, so that only those are decoded that somebody asks for."""

    def put(self, kind: QueueKind, prompt: Prompt | UserMessage) -> PendingWrite:
        """Record a message that waits, as it is now. Raises what ``Session.append_entry`` does."""
        entry = QueuedEntry(kind=kind, message=user_message(prompt), ignorable=True)
        write = self._session.append_entry(entry)
        self._calls = [*(call for call in self._calls if not call.is_done()), write]
        return write

    async def waiting(self, kinds: Iterable[str] = KINDS) -> list[QueuedMessage]:
        """What waits at the leaf, oldest first. When it returns, nothing that was queued here before is left out.

        From its return to the caller's next await nothing changes.
        """
        log = self._session.log
        await log.settled()
        while any(not call.is_done() for call in self._calls):
            await log.settled()
        index = log.index
        leaf_id = index.leaf_id
        places = index.waiting(NONE if leaf_id is None else index.ids.get(leaf_id, NONE))
        self._forget({index.names[place] for place in places})
        read = (self._read(index.names[place], index.line(place), kinds) for place in places)
        return [message for message in read if message is not None]

    def _read(self, entry_id: str, line: bytes, kinds: Iterable[str]) -> QueuedMessage | None:
        """The message in a ``queued`` entry; ``None`` for one of another kind, or that is leaving."""
        if entry_id in self._leaving or self._kinds.get(entry_id, "") not in ("", *kinds):
            return None
        entry = decode_entry(line)
        if not isinstance(entry, QueuedEntry) or not isinstance(entry.message, UserMessage):
            return None  # a later version may queue what this one cannot deliver; it goes on waiting
        self._kinds[entry_id] = entry.kind
        return QueuedMessage(entry_id, cast("QueueKind", entry.kind), entry.message) if entry.kind in kinds else None

    def _forget(self, waiting: set[str]) -> None:
        """What has left is not waiting any more; what could not be written is waiting as before."""
        for entry_id, write in [*self._leaving.items()]:
            if write is not None and write.is_done() and (write.error is not None or entry_id not in waiting):
                del self._leaving[entry_id]
        self._kinds = {entry_id: kind for entry_id, kind in self._kinds.items() if entry_id in waiting}

    async def deliver(self, messages: Sequence[QueuedMessage], put: Put) -> list[MessageEntry]:
        """Have ``messages``, which ``waiting`` just gave, take their places at the leaf, in order; ``put`` writes.

        Returns their entries once they are committed. Cancelled, what was not handed to the log goes on waiting.
        """
        entries: list[MessageEntry] = []

        async def put_both(queued: QueuedMessage) -> PendingWrite:
            entry = MessageEntry(message=queued.message)
            await put(DeliveredEntry(entry_id=queued.entry_id, message_id=entry.id, ignorable=True))
            entries.append(entry)
            return await put(entry)

        await self._take_out(messages, put_both)
        return entries

    async def take_back(self, kinds: Iterable[str]) -> list[QueuedMessage]:
        """Take out what waits of these kinds. Returns it once that is committed; a scope's cancellation waits for it."""
        messages: list[QueuedMessage] = []
        with anyio.CancelScope(shield=True):
            messages = await self.waiting(kinds)
            await self._take_out(
                messages,
                lambda queued: append_in_time(self._session, DeliveredEntry(entry_id=queued.entry_id, ignorable=True)),
            )
        return messages

    async def _take_out(
        self, messages: Sequence[QueuedMessage], put: Callable[[QueuedMessage], Awaitable[PendingWrite]]
    ) -> None:
        """Have ``put`` hand to the log that each of them has left, and wait until all of it is committed.

        Where that fails or is cancelled, those that were not handed over go on waiting.
        """
        self._leaving.update((queued.entry_id, None) for queued in messages)
        writes: list[PendingWrite] = []
        try:
            for queued in messages:
                self._leaving[queued.entry_id] = write = await put(queued)
                writes.append(write)
        except BaseException:
            for queued in messages[len(writes) :]:
                self._leaving.pop(queued.entry_id, None)
            raise
        for write in writes:
            await write


async def append_in_time(session: Session, entry: Entry) -> PendingWrite:
    """Hand an entry to the log: at once, unless too much is waiting; then after that was written."""
    while True:
        try:
            return session.append_entry(entry)
        except QueueFullError:
            await session.flush()
