"""**Protocols**: what a backend is. A backend is plain blocking code; ``EntryLog`` gives it every rule and the threads.

Why blocking: an ``async def commit`` would be killed in the middle by a native cancellation while its thread writes on.
The log calls a backend from one thread at a time, in its own workers (``commit`` directly on the event loop where
``info.inline`` and the batch is at most 64 KiB), and never calls it again after it failed in an unknown way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from storage.header import SessionHeader

if TYPE_CHECKING:
    from storage.index import EntryIndex

Durability = Literal["fsync", "os"]
"""``"fsync"``: what was acknowledged survives power loss. ``"os"``: it survives a killed process."""

Mode = Literal["write", "read"]
TornTail = Literal["read_only", "repair", "raise"]
Corrupt = Literal["raise", "skip"]


class Facts(NamedTuple):
    """What the log's index needs to know of an entry without decoding it again."""

    role: str = ""
    """The message's role, for an entry of type ``message``."""
    target: str | None = None
    """The target of a label, leaf or context edit; the first kept entry of a compaction; the message of a delivery."""
    model: tuple[str | None, str | None] | None = None
    """Provider and model id, of a model change or a reply."""
    unknown: bool = False
    """Whether it is of an unknown type or role and so stands in the way of a context."""


NO_FACTS = Facts()


class Record(NamedTuple):
    """A committed line: its place, the links of the tree, and its bytes (without the newline).

    ``data`` is the record; everything else is read off it. Make one with ``storage.decode.parse_record``, which checks
    the bytes, or give ``facts=None`` and the log checks them. ``line`` is the physical line it was read from, for messages.
    """

    seq: int
    id: str
    parent_id: str | None
    type: str
    data: bytes
    facts: Facts | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class SessionWarning:
    """Something found at opening that lost nothing, but that one should know. ``line`` is 1-based and physical."""

    code: str
    message: str
    line: int | None = None
    entry_id: str | None = None


@dataclass(frozen=True, slots=True)
class StorageInfo:
    """What a storage says of itself. ``place`` is for messages.

    ``inline``: a ``commit`` of at most 64 KiB costs no more than a write to the page cache, so the log may call it on the
    event loop. ``salvaged``: bad lines were skipped, so ``seq`` has gaps. ``read_only_reason`` says why it is not
    ``writable``. ``ids_are_file_names``: entry ids must be safe names.
    """

    header: SessionHeader
    writable: bool
    inline: bool = False
    warnings: tuple[SessionWarning, ...] = ()
    place: str = ""
    read_only_reason: str = ""
    ids_are_file_names: bool = False
    salvaged: bool = False


class SessionStorage(Protocol):
    """**Protocol:** one session's records. Four members; see ``docs/backends.md`` for a backend written as a guide."""

    @property
    def info(self) -> StorageInfo:
        """The header and the state. Never blocks."""
        ...

    def read(self, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
        """The records after ``after_seq``, in order, at most ``limit``; none is an empty sequence.

        Asked again after the last one, it looks at the store anew and so shows what another process added.
        Raises ``DamagedSessionError`` naming the place, ``StaleSessionError`` if what was read before is gone,
        and ``OSError``.
        """
        ...

    def commit(self, records: Sequence[Record]) -> Callable[[], None] | None:
        """Write ``records`` in order, and return the sync that makes them durable, or ``None`` if they are.

        ``records[0].seq`` is compared with what the store holds: ``StaleSessionError`` if it is not the next one, and
        then nothing of it is written. ``CommitFailed(committed=n)`` says that the store is known to hold exactly the
        first ``n``; any other exception means that it is not known, and nothing is asked of this storage again but
        ``close``. Runs to its end or raises: it is never cancelled. No records, nothing is done.
        """
        ...

    def close(self) -> None:
        """Let go of files, connections and the writer's lock. Idempotent; called whatever happened before."""
        ...


@runtime_checkable
class Deletable(Protocol):
    """**Protocol:** a storage whose session can be deleted whole, side files included."""

    def delete(self) -> None:
        """Close and delete. Nothing of the session is left. Raises ``OSError``."""
        ...


@runtime_checkable
class Indexed(Protocol):
    """**Protocol:** a storage that indexed its records while it was opened, so that nobody has to go over them again."""

    def take_index(self) -> EntryIndex | None:
        """The index, once; ``None`` if there is none, or somebody has it."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """**Protocol:** a storage that can wait for what others append, instead of being asked again and again."""

    def wait_for_change(self, timeout: float) -> bool:
        """Wait until there may be more to read, at most ``timeout`` seconds; whether there may.

        It may come back early for nothing, and says so the first time it is called: read then. Blocks, so it is called in
        a worker thread, where a cancellation waits for its end: keep ``timeout`` short. Never called together with
        ``read`` or ``close``. Raises ``SessionClosedError`` and ``StorageError``.
        """
        ...


@runtime_checkable
class PathReader(Protocol):
    """**Protocol:** a backend that can read one path without reading everything."""

    def read_path(self, leaf_id: str) -> Sequence[Record]:
        """The records from the root to ``leaf_id``."""
        ...


@runtime_checkable
class BlobStore(Protocol):
    """**Protocol:** large tool outputs beside the record; they travel with fork, delete and migrate.

    Names are safe as file names (``storage.blobs.check_blob_name``; the log makes UUIDs), and a blob never changes.
    Unlike the record's, these calls may come from several threads at once, and while a ``commit`` runs: a large blob
    must not hold up the conversation. None of them is under way when ``close`` is called.

    Where blobs can be copied, ``create`` also takes ``blobs``: pairs of a name and its bytes, iterated once, in a worker.
    They are part of what is made whole or not at all.
    """

    def write_blob(self, name: str, data: bytes) -> None:
        """Store ``data``, as durably as the record, under ``name``, which is new; whole or not at all.

        Raises ``InvalidIdError``, ``StorageError``, ``ReadOnlySessionError`` and, of a storage that was closed,
        ``SessionClosedError``.
        """
        ...

    def read_blob(self, name: str) -> bytes:
        """What was stored under ``name``. Raises ``BlobNotFoundError`` (a ``LookupError``) and ``StorageError``."""
        ...

    def blob_names(self) -> Sequence[str]:
        """The names of all blobs of the session, sorted."""
        ...
