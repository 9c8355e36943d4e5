"""What a fork takes along: the path, and the labels and the name that are in force on it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, cast

from storage.copying import renumbered
from storage.decode import decode_entry, facts_of
from storage.entries import (
    Entry,
    LabelEntry,
    LeafEntry,
    SessionInfoEntry,
    UnknownEntry,
    UnknownMessageEntry,
)
from storage.event_loops import Breath
from storage.index import NONE, EntryIndex
from storage.protocols import Facts, Record
from storage.strict_json import encode_model


class Creates(Protocol):
    """**Protocol:** a repository, as far as a fork needs it."""

    async def create(self, *, cwd: Any, parent_session: str, records: Sequence[Record]) -> Any:
        """A new session (or its storage) that holds ``records``."""
        ...


class CreatesHere(Protocol):
    """**Protocol:** a backend's ``create`` with its place bound."""

    def __call__(self, *, cwd: Any, parent_session: str, records: Sequence[Record]) -> Awaitable[Any]:
        """A new storage that holds ``records``."""
        ...


ForkTarget = Creates | CreatesHere


def fork_records(
    index: EntryIndex, target_id: str | None, position: Literal["at", "before"]
) -> Callable[[], list[Record]]:
    """What makes the records of a fork, in order, counted from 0: blocking and possibly long, for a worker.

    What may change meanwhile is looked at in this call, on the event loop. Raises ``EntryNotFoundError``, and what it
    returns raises ``BrokenPathError``.
    """
    if target_id is None:
        target_id = index.leaf_id
    target = NONE if target_id is None else index.seq_of(target_id)
    if position == "before" and target >= 0:
        target = _before(index, target)
    return partial(_records, index, target, [*index.labels.items()], index.name_seq)


def _records(index: EntryIndex, target: int, labels: list[tuple[str, int]], name_seq: int) -> list[Record]:
    breath = Breath()
    records: list[Record] = []
    parent_id: str | None = None
    for count, seq in enumerate(index.path(target)):
        records.append(_copied(index, seq, parent_id))
        parent_id = index.names[seq]
        if count & 31 == 31:
            breath.take()
    on_path = {record.id for record in records}
    additions = [*_additions(index, on_path, labels, name_seq), LeafEntry(target_id=_name(index, target))]
    for entry in additions:
        entry.parent_id = entry.target_id if isinstance(entry, LeafEntry) else parent_id
        data = encode_model(cast("Any", entry))
        records.append(Record(-1, entry.id, entry.parent_id, entry.type, data, facts_of(entry)))
        parent_id = entry.id
    return renumbered(records)


def _copied(index: EntryIndex, seq: int, parent_id: str | None) -> Record:
    """An entry of the path, its bytes as they are; decoded only where the index does not know enough of it."""
    kind, role = index.kind(seq)
    data = index.line(seq)
    if kind == "message" and role:
        facts = Facts(role, None, index.model_at(seq) if role == "assistant" else None)
    else:
        entry = decode_entry(data)
        if isinstance(entry, UnknownEntry | UnknownMessageEntry) and entry.seq is None and entry.ignorable is None:
            # Pi wrote it, so it may be ignored; in the copy it gets a place like all others, and must say so itself.
            data = _with_members(data, ignorable=True)
            entry = decode_entry(data)
        facts = facts_of(entry)
    if parent_id is None and index.root_with_parent == seq:
        data = _with_members(data, parentId=None)
    return Record(seq, index.names[seq], parent_id, kind, data, facts)


def _with_members(data: bytes, **members: Any) -> bytes:
    """The line with some members replaced or added; surrogates stay escaped as they were."""
    return json.dumps(json.loads(data) | members, separators=(",", ":")).encode()


def _name(index: EntryIndex, seq: int) -> str | None:
    return index.names[seq] if seq >= 0 else None


def _before(index: EntryIndex, target: int) -> int:
    """The entry before ``target``; before a user message that opened its turn, the entry before its ``turn_start``."""
    state = index.state(target)
    if index.openers[target] == target and state.turn >= 0 and index.is_on_path(state.turn, target):
        return index.parents[state.turn]
    return index.parents[target]


def _additions(index: EntryIndex, on_path: set[str], labels: list[tuple[str, int]], name_seq: int) -> list[Entry]:
    """The labels of entries on the path, and the name, as far as the path itself does not give them."""
    additions: list[Entry] = []
    for target_id, seq in labels:
        if target_id in on_path and index.names[seq] not in on_path:
            label = cast("LabelEntry", decode_entry(index.line(seq))).label
            additions.append(LabelEntry(target_id=target_id, label=label))
    if name_seq != NONE and index.names[name_seq] not in on_path:
        name = cast("SessionInfoEntry", decode_entry(index.line(name_seq))).name
        additions.append(SessionInfoEntry(name=name))
    return additions
