"""A new session that goes on where another one ended: with its working memory and, if asked, with its last summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from compaction.state import fold_memory
from storage.entries import CompactionEntry, CustomMessageEntry, Entry, MetadataEntry, WorkingMemoryEntry
from storage.entry_path import EntryPath
from storage.errors import InvalidEntryError, NotOnPathError

if TYPE_CHECKING:
    from harness.session import Session

CONTINUED_FROM: Final = "continuedFrom"
"""The key of the metadata entry that says where it came from."""

_SHOWN: Final = frozenset(("message", "custom_message", "branch_summary", "compaction"))


@dataclass(frozen=True, slots=True)
class Continued:
    """What a session took over.

    ``kept``: keys that it had itself, with values that stay. ``deleted``: keys that were deleted here since it was first
    continued from the other one, and stay so.
    """

    session_id: str
    keys: tuple[str, ...]
    kept: tuple[str, ...]
    summary_id: str | None = None
    """The entry here that holds the other session's last summary."""
    deleted: tuple[str, ...] = ()


async def continue_from(session: Session, other: Session, *, last_summary: bool) -> Continued:
    """See ``Session.continue_from``."""
    if other is session or other.id == session.id:
        raise InvalidEntryError("a session cannot be continued by itself; open or create another one")
    source = await other.log.path()
    path = await session.log.path()
    leaf_id = session.log.leaf_id
    inherited, own = fold_memory(source).values, fold_memory(path).values
    deleted = _deleted_since(path, other.id)
    new = {key: value for key, value in inherited.items() if key not in own and key not in deleted}
    entries: list[Entry] = []
    summary = last_summary_on(source) if last_summary else None
    summary_id = None if summary is None else _taken_over(path, summary, other)
    if summary is not None and summary_id is None:
        entries.append(_as_entry(summary, path, other))
        summary_id = entries[0].id
    for key, value in new.items():
        entry = WorkingMemoryEntry(op="set", key=key, value=value)
        entry.from_session = other.id
        entries.append(entry)
    origin: dict[str, Any] = {"session": other.id, "keys": [*new]}
    if other.leaf_id is not None:
        origin["entry"] = other.leaf_id
    if summary is not None:
        origin["summary"] = summary.id
    entries.append(MetadataEntry(key=CONTINUED_FROM, value=origin))

    def is_as_it_was() -> None:
        if session.log.leaf_id != leaf_id:
            raise NotOnPathError(
                "somebody else appended to the session meanwhile, so nothing was taken over; try again"
            )

    first, *rest = entries
    await session.log.append(first, check=is_as_it_was)  # refused, it takes all others along
    for write in [session.log.append(entry) for entry in rest]:
        await write
    return Continued(
        session_id=other.id,
        keys=tuple(new),
        kept=tuple(key for key in inherited if key in own),
        summary_id=summary_id,
        deleted=tuple(key for key in inherited if key in deleted),
    )


def _deleted_since(path: EntryPath, other_id: str) -> set[str]:
    """The keys that were deleted, or cleared away, since this session was first continued from that other one.

    Somebody knew what comes from there, and did not want it: taking it over again would undo that.
    """
    is_continued = False
    there: set[str] = set()
    deleted: set[str] = set()
    for position in range(len(path)):
        if path.entry_type(position) not in ("metadata", "working_memory"):
            continue
        entry = path.entry(position)
        if isinstance(entry, MetadataEntry):
            is_continued = is_continued or (entry.key == CONTINUED_FROM and _session_in(entry.value) == other_id)
        elif isinstance(entry, WorkingMemoryEntry):
            is_continued = is_continued or entry.from_session == other_id
            gone = there if entry.op == "clear" else {entry.key or ""}
            if entry.op == "set":
                there |= gone
                deleted -= gone
            else:
                if is_continued:
                    deleted |= gone
                there = there - gone
    return deleted


def _session_in(origin: object) -> object:
    return cast("dict[str, Any]", origin).get("session") if isinstance(origin, dict) else None


def last_summary_on(path: EntryPath) -> CompactionEntry | None:
    """The newest compaction, if it says anything."""
    if path.compaction is None:
        return None
    entry = cast("CompactionEntry", path.entry(path.compaction))
    return entry if entry.summary and entry.summary.strip() else None


def _taken_over(path: EntryPath, summary: CompactionEntry, other: Session) -> str | None:
    """The entry of the path that this very summary was taken over into, if it was."""
    for position in range(len(path)):
        if path.entry_type(position) in ("compaction", "custom_message"):
            details: object = cast("CompactionEntry | CustomMessageEntry", path.entry(position)).details
            if isinstance(details, dict) and cast("dict[str, Any]", details).get("from") == _origin(summary, other):
                return path.entry_id(position)
    return None


def _origin(summary: CompactionEntry, other: Session) -> dict[str, str]:
    return {"session": other.id, "entry": summary.id}


def _as_entry(summary: CompactionEntry, path: EntryPath, other: Session) -> Entry:
    """At the beginning of a conversation, what lies before it; later a message, which hides nothing."""
    origin = _origin(summary, other)
    if not any(path.entry_type(position) in _SHOWN for position in range(len(path))):
        known: object = summary.details
        details = cast("dict[str, Any]", known) if isinstance(known, dict) else {}
        return CompactionEntry(
            summary=summary.summary, tokens_before=summary.tokens_before, details={**details, "from": origin}
        )
    return CustomMessageEntry(
        custom_type=CONTINUED_FROM,
        content=f"This conversation also continues another one. This is a summary of that:\n\n{summary.summary}",
        display=True,
        details={"from": origin},
    )
