"""The session: what an app appends to, reads, branches and forks. The rules are the log's; this gives them names."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from harness.context import CURRENT
from harness.continuing import Continued, continue_from
from harness.fork import ForkTarget, make_fork
from harness.labels import one_line
from harness.recovery import plan_recovery
from harness.session_opening import SessionOpening
from harness.session_reading import SessionReading
from harness.session_turn import SessionTurn, is_for_the_turn
from harness.working_memory import WorkingMemory
from storage.entries import (
    ActiveToolsChangeEntry,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    CustomMessageEntry,
    Entry,
    LabelEntry,
    LeafEntry,
    MetadataEntry,
    ModelChangeEntry,
    SessionInfoEntry,
    ThinkingLevelChangeEntry,
    WorkingMemoryEntry,
)
from storage.entry_log import EntryLog
from storage.errors import BusyError, SessionError
from storage.header import SessionHeader
from storage.messages import ImageContent, Message, TextContent, Usage
from storage.pending_write import PendingWrite
from storage.protocols import Deletable, SessionStorage, SessionWarning


class Session(SessionReading):
    """One conversation: an append-only tree of entries, and a leaf where it goes on.

    ::

        async with Session.open(JsonlStorage.open_or_create("chat.jsonl")) as session:
            await session.append_message(UserMessage(content="Hello"))

    Each ``append_*`` is a plain function: it takes a snapshot at the call and returns a ``PendingWrite``, to be awaited
    for the entry's id. Writes are committed in the order of the calls, each under the leaf of that moment. All ``append_*``
    raise ``InvalidEntryError``, ``QueueFullError``, ``ReadOnlySessionError``, ``SessionClosedError``, ``StorageError``
    (the store failed before) and ``WrongEventLoopError``, and then nothing was queued.

    A session belongs to the event loop that opened it.
    """

    def __init__(self, log: EntryLog) -> None:
        """Use ``Session.open``."""
        super().__init__(log)
        self._owner: object | None = None
        self._turn: SessionTurn | None = None

    @classmethod
    def open(cls, storage: SessionStorage | Awaitable[SessionStorage]) -> SessionOpening:
        """Open the session in ``storage``, or in what the awaitable makes; await it, or enter it with ``async with``.

        The whole record is read and checked once. If that fails, the storage is closed, and the error is raised:
        ``DamagedSessionError``, ``UnsupportedVersionError``, ``SessionNotFoundError``, ``StorageError``.
        """
        return SessionOpening(cls, storage)

    # --- what it is

    @property
    def id(self) -> str:
        """The session's id."""
        return self.header.id

    @property
    def header(self) -> SessionHeader:
        """The header, with members that we do not know."""
        return self._log.storage.info.header

    @property
    def storage(self) -> SessionStorage:
        """The storage underneath."""
        return self._log.storage

    @property
    def log(self) -> EntryLog:
        """The log underneath, for what has no name here."""
        return self._log

    @property
    def writable(self) -> bool:
        """Whether it takes appends; if not, ``warnings`` or the mode of opening say why."""
        return self._log.writable

    @property
    def warnings(self) -> tuple[SessionWarning, ...]:
        """What was found at opening that lost nothing: an unterminated tail, a repair, orphans."""
        return self._log.warnings

    @property
    def leaf_id(self) -> str | None:
        """The leaf after the last committed entry; ``None`` before the first. Pending writes do not count."""
        return self._log.leaf_id

    # --- appending

    def append_message(self, message: Message) -> PendingWrite:
        """A message of a user, a model or a tool."""
        return self._log.append_message(message)

    def append_entry(self, entry: Entry) -> PendingWrite:
        """Any entry. One with a ``parent_id`` branches there: that, a compaction and a leaf are refused during a turn."""
        if is_for_the_turn(entry):
            self._refuse_during_turn("an entry with a place of its own, a compaction or a leaf")
        return self._append(entry)

    def append_model_change(self, provider: str, model_id: str) -> PendingWrite:
        """From here on, another model."""
        return self._log.append(ModelChangeEntry(provider=provider, model_id=model_id))

    def append_thinking_level_change(self, thinking_level: str) -> PendingWrite:
        """From here on, another thinking level."""
        return self._log.append(ThinkingLevelChangeEntry(thinking_level=thinking_level))

    def append_active_tools_change(self, active_tool_names: Sequence[str]) -> PendingWrite:
        """From here on, these tools are offered."""
        return self._log.append(ActiveToolsChangeEntry(active_tool_names=list(active_tool_names)))

    def append_compaction(
        self,
        summary: str,
        *,
        first_kept_entry_id: str | None = None,
        retained_tail: Sequence[Message] | None = None,
        tokens_before: int,
        details: Any = None,
        usage: Usage | None = None,
    ) -> PendingWrite:
        """A summary that stands for what lies before it, but for the entries from ``first_kept_entry_id`` on.

        ``retained_tail`` keeps copies of messages instead, and wins if both are given; with neither, nothing is kept.
        ``tokens_before``: the size of the context that was summarised. Raises ``BusyError`` during a turn. The write
        fails with ``NotOnPathError``, and nothing is written, if the first kept entry is not on the path when its turn
        comes: someone navigated away.
        """
        self._refuse_during_turn("append_compaction")
        return self._append(
            CompactionEntry(
                summary=summary,
                first_kept_entry_id=first_kept_entry_id,
                retained_tail=None if retained_tail is None else list(retained_tail),
                tokens_before=tokens_before,
                details=details,
                usage=usage,
            )
        )

    def append_branch_summary(
        self, summary: str, from_id: str, *, details: Any = None, usage: Usage | None = None
    ) -> PendingWrite:
        """What happened on the branch whose leaf ``from_id`` was left; ``move_to`` with a summary writes it in one step."""
        return self._log.append(
            BranchSummaryEntry(summary=summary, from_id=from_id, details=details, usage=usage),
            check=lambda: self._require(from_id),
        )

    def append_working_memory(
        self, op: Literal["set", "delete", "clear"], key: str | None = None, value: Any = None
    ) -> PendingWrite:
        """A change of the working memory, in force along this path: ``set`` a key, ``delete`` one, or ``clear`` all."""
        if (op == "clear") != (key is None):
            raise ValueError("'set' and 'delete' take a key, 'clear' takes none")
        entry = WorkingMemoryEntry(op=op, key=key)
        if op == "set":
            entry.value = value
        return self._log.append(entry)

    def append_custom_entry(self, custom_type: str, data: Any = None) -> PendingWrite:
        """An app's own entry, which the model is not shown."""
        return self._log.append(CustomEntry(custom_type=custom_type, data=data))

    def append_custom_message(
        self,
        custom_type: str,
        content: str | Sequence[TextContent | ImageContent],
        *,
        display: bool = True,
        details: Any = None,
    ) -> PendingWrite:
        """An app's message, which the model is shown as a user message; ``display`` and ``details`` are the app's."""
        parts = content if isinstance(content, str) else list(content)
        return self._log.append(
            CustomMessageEntry(custom_type=custom_type, content=parts, display=display, details=details)
        )

    def append_label(self, target_id: str, label: str | None) -> PendingWrite:
        """Name an entry, session-wide; ``None`` or blank takes the name away. Fails with ``EntryNotFoundError``."""
        text = None if label is None else one_line(label)
        return self._log.append(LabelEntry(target_id=target_id, label=text), check=lambda: self._require(target_id))

    def append_session_name(self, name: str | None) -> PendingWrite:
        """Name the session; ``None`` or blank takes the name away."""
        return self._log.append(SessionInfoEntry(name=None if name is None else one_line(name)))

    def append_metadata(self, key: str, value: Any) -> PendingWrite:
        """An app's fact: any JSON value under a key."""
        return self._log.append(MetadataEntry(key=key, value=value))

    def move_to(self, entry_id: str | None, summary: str | None = None) -> PendingWrite:
        """Go on from ``entry_id`` (``None``: from before the first entry), in the same session: branching in place.

        One entry is written: a ``leaf``, or, with the summary of what is left behind, a ``branch_summary`` under the
        target. Raises ``BusyError`` during a turn. Fails with ``EntryNotFoundError``, and then the leaf is where it was.
        """
        self._refuse_during_turn("move_to")
        return self.move_in_turn(entry_id, None if summary is None else BranchSummaryEntry(summary=summary))

    # --- the whole

    @property
    def working_memory(self) -> WorkingMemory:
        """A few facts under keys, in force along the path: ``set``, ``get``, ``delete``, ``keys``, ``values``, ``clear``."""
        return WorkingMemory(self)

    async def continue_from(self, other: Session, *, last_summary: bool = False) -> Continued:
        """Take over the working memory at the leaf of ``other``, and with ``last_summary`` its newest summary.

        Keys that this session has itself keep their values, so an empty source, or any, hides nothing here; those that
        were deleted here since it was first continued from ``other`` stay deleted. Each key taken over is an entry that
        names the session it came from. The summary stands at the beginning of a conversation that shows nothing yet, and
        is a message in any other. A ``metadata`` entry ``continuedFrom`` says what came from where. ``other`` is only
        read, and may be open for reading.

        Raises ``BusyError`` during a turn, ``InvalidEntryError`` for the session itself, ``NotOnPathError`` where somebody
        appends meanwhile, and what reading and appending raise.
        """
        self._refuse_during_turn("continue_from")
        return await continue_from(self, other, last_summary=last_summary)

    async def write_blob(self, data: bytes) -> str:
        """Keep a large output beside the record; the name it is found under, to be recorded in a result's ``blobs``.

        It is there, as durably as an entry, when this returns, and travels with ``fork`` and ``delete``. Raises
        ``SessionError`` where the storage keeps no blobs, ``InvalidEntryError`` for what is no bytes, and what an append
        raises. See ``storage.blob_calls``.
        """
        return await self._log.blobs.write(data)

    async def fork(
        self,
        target_id: str | None = None,
        *,
        position: Literal["at", "before"] = "at",
        into: ForkTarget,
        with_blobs: bool = True,
    ) -> Session:
        """A new session with the path to ``target_id`` (default: the leaf), opened for writing; this one is untouched.

        ``into``: a repository, or a backend's ``create`` with its place bound, such as
        ``functools.partial(JsonlStorage.create, "other.jsonl")``. Entry ids are kept, ``seq`` is counted anew; labels and
        the name that are in force but lie elsewhere are appended, and a ``leaf`` at the target. ``position="before"`` a
        user message is before the turn that it opened. It is made whole or not at all, with the blobs that its entries
        name; ``with_blobs=False`` leaves those behind, as a backend without blobs asks for.
        """
        made: Session | SessionStorage = await make_fork(self._log, target_id, position, into, with_blobs=with_blobs)
        return made if isinstance(made, Session) else await Session.open(made)

    async def flush(self) -> None:
        """Write everything that was queued. Raises the first failure that nobody was told of."""
        await self._log.flush()

    async def refresh(self) -> None:
        """Show what another process added since (in a session that was opened for reading)."""
        await self._log.refresh()

    async def recover(self) -> list[str]:
        """Close the last turn if a crash left it open, and nobody went on since (``harness.recovery`` says it exactly).

        One error result for each call without one, saying whether it was begun, then ``turn_end: interrupted``: the ids
        of these. Nothing is run again. Raises ``BusyError`` while a turn runs.
        """
        self._refuse_during_turn("recover")
        path = await self._log.path()
        index = self._log.index
        plan = plan_recovery(path, has_ended=lambda entry_id: index.ids[entry_id] in index.ended_turns)
        writes = [self._log.append(entry) for entry in plan]
        return [await write for write in writes]

    async def aclose(self) -> None:
        """Write what is queued and close the storage, whatever happens. Idempotent; a cancellation waits for it."""
        self._turn = None
        self._owner = None
        await self._log.aclose()

    async def delete(self) -> None:
        """Close the session and delete it, side files included. Raises ``BusyError`` during a turn."""
        self._refuse_during_turn("delete")
        storage = self._log.storage
        if not isinstance(storage, Deletable):
            raise SessionError(f"{type(storage).__name__} cannot delete sessions; delete it where it is stored")
        await self._log.aclose(close=storage.delete)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except SessionError as failure:
            if error is None:
                raise
            # What is on its way is told first: a cancellation must not become somebody's forgotten write.
            error.add_note(f"closing the session failed too: {failure}")

    # --- one harness at a time, one turn at a time (R25)

    def claim(self, owner: object) -> None:
        """Make ``owner`` the one that runs turns here. Raises ``BusyError`` if another one is."""
        self.refuse_others(owner)
        self._owner = owner

    def refuse_others(self, owner: object) -> None:
        """Raise ``BusyError`` if another harness than ``owner`` holds the session."""
        if self._owner is not None and self._owner is not owner:
            raise BusyError("another harness holds this session; close it first (aclose, or leave its async with)")

    def release(self, owner: object) -> None:
        """Give that up. No effect if ``owner`` is not the one."""
        if self._owner is owner:
            self._owner = None

    def begin_turn(self, owner: object) -> SessionTurn:
        """Begin a turn: until it ends, nobody else moves the leaf, compacts or recovers. Raises ``BusyError``."""
        self.claim(owner)
        if self._turn is not None:
            raise BusyError("a turn is running; wait for it (wait_for_idle), steer it, or abort it")
        self._turn = SessionTurn(self)
        return self._turn

    def end_turn(self, turn: SessionTurn) -> None:
        """The turn is over."""
        if self._turn is turn:
            self._turn = None

    def _refuse_during_turn(self, what: str) -> None:
        if self._turn is not None:
            raise BusyError(f"{what} has to wait until the running turn is over; abort it, or wait for it")

    # --- inside

    def append_in_turn(self, entry: Entry) -> PendingWrite:
        """For the turn that runs: what is refused to everybody else."""
        return self._append(entry)

    def move_in_turn(self, entry_id: str | None, summary: BranchSummaryEntry | None) -> PendingWrite:
        """For who holds the turn; see ``move_to``."""
        if summary is None:
            return self._log.append(LeafEntry(target_id=entry_id), check=lambda: self._require(entry_id))
        summary.parent_id = entry_id  # given, also when it is None
        return self._log.append(summary, check=lambda: self._require(entry_id), from_leaf=True)

    def _append(self, entry: Entry) -> PendingWrite:
        first_kept = entry.first_kept_entry_id if isinstance(entry, CompactionEntry) else None
        if first_kept is not None:
            return self._log.append(entry, check=lambda: self._log.index.require_kept(first_kept))
        return self._log.append(entry)

    def _require(self, entry_id: str | None) -> None:
        if entry_id is not None:
            self._log.index.seq_of(entry_id)

    def __repr__(self) -> str:
        return f"<Session {self.id} {len(self._log.index)} entries in {self.storage.info.place}>"


__all__ = ["CURRENT", "Session", "SessionOpening", "SessionTurn"]
