"""What a fork takes along: the path, and the labels and the name that are in force on it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, Protocol, cast

from storage.blobs import blob_names_in
from storage.copying import IndexedRecords, with_seq
from storage.decode import FACTS_OF_ROLES, decode_entry, facts_of, facts_of_model
from storage.entries import (
    Entry,
    LabelEntry,
    LeafEntry,
    SessionInfoEntry,
    UnknownEntry,
    UnknownMessageEntry,
)
from storage.entry_log import EntryLog
from storage.errors import SessionError
from storage.event_loops import Breath, run_in_worker
from storage.index import NONE, EntryIndex
from storage.protocols import BlobStore, Record
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

_FACTS = {("message", role): facts for role, facts in FACTS_OF_ROLES.items()}
"""What is known of an entry by its type and role alone. (The rest have targets.)"""

_REPLY = ("message", "assistant")

_make: Callable[[type[Record], tuple[Any, ...]], Record] = tuple[Any, ...].__new__
"""As ``Record._make`` does it, without its detour: every entry of a fork comes through here."""


async def make_fork(
    log: EntryLog, target_id: str | None, position: Literal["at", "before"], into: ForkTarget, *, with_blobs: bool
) -> Any:
    """What ``into`` makes of the path to ``target_id``: a storage, or a session. See ``Session.fork``."""
    await log.settled()
    header = log.storage.info.header
    records = await run_in_worker(fork_records(log.index, target_id, position))
    create = cast("Callable[..., Awaitable[Any]]", getattr(into, "create", into))
    blobs = await run_in_worker(partial(blobs_of_fork, log, records, create)) if with_blobs else {}
    return await create(cwd=header.cwd, parent_session=header.id, records=records, **blobs)


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
        target = place_before(index, target)
    return partial(_records, index, target, [*index.labels.items()], index.name_seq)


def _records(index: EntryIndex, target: int, labels: list[tuple[str, int]], name_seq: int) -> list[Record]:
    path = _along_path(index, target)
    on_path = {record.id for record in path}
    parent_id = path[-1].id if path else None
    # Nearly always a session is one path, and its index knows what that of the fork has to know.
    is_known = index.is_one_path(target) and _are_numbered(path)
    records = IndexedRecords(path, index.beginning(path) if is_known else None)
    additions = [*_additions(index, on_path, labels, name_seq), LeafEntry(target_id=_name(index, target))]
    for entry in additions:
        entry.parent_id = entry.target_id if isinstance(entry, LeafEntry) else parent_id
        data = encode_model(cast("Any", entry))
        place = len(records)
        records.add(Record(place, entry.id, entry.parent_id, entry.type, with_seq(data, place), facts_of(entry)))
        parent_id = entry.id
    return records


def _along_path(index: EntryIndex, target: int) -> list[Record]:
    """The entries of a path, counted anew."""
    breath = Breath()
    records: list[Record] = []
    parent_id: str | None = None
    names, lines, known = index.names, index.lines, _FACTS
    for place, seq in enumerate(index.path(target)):
        kind = index.kind(seq)
        facts = known[kind] if kind in known else facts_of_model(index.model_at(seq)) if kind == _REPLY else None
        name = names[seq]
        if facts is None:
            record = _copied(index, seq, place, parent_id)
        else:
            data = lines[seq] or index.line(seq)
            record = _make(
                Record, (place, name, parent_id, kind[0], data if seq == place else with_seq(data, place), facts, None)
            )
        if place == 0 and index.root_with_parent == seq:
            record = record._replace(data=with_seq(_with_members(record.data, parentId=None), 0))
        records.append(record)
        parent_id = name
        if place & 31 == 31:
            breath.take()
    return records


def _are_numbered(records: Sequence[Record]) -> bool:
    """Whether each line has its place as ``seq``, as its first member."""
    lines = [record.data for record in records]
    return all(map(bytes.startswith, lines, map(b'{"seq":%d,'.__mod__, range(len(lines)))))


def blobs_of_fork(log: EntryLog, records: Sequence[Record], create: Callable[..., Any]) -> dict[str, Any]:
    """What is given to ``create`` besides, so that the blobs which ``records`` name are there in the fork. Blocking.

    Raises ``SessionError`` where there are some and ``create`` takes none: they would be lost without a word.
    """
    if not isinstance(log.storage, BlobStore):
        return {}
    there = {*log.storage.blob_names()}
    if not there:
        return {}
    names = [name for name in blob_names_in(record.data for record in records) if name in there]
    if not names:
        return {}
    try:
        taken = signature(create).parameters.values()
    except ValueError:  # it is not written in Python, and does not tell
        taken = ()
    if not any(one.name == "blobs" or one.kind is Parameter.VAR_KEYWORD for one in taken):
        raise SessionError(
            f"the forked entries name {len(names)} blobs, and where the fork goes none are kept; fork to another backend, "
            "or pass with_blobs=False to leave them behind"
        )
    return {"blobs": log.blobs.copies(names)}


def _copied(index: EntryIndex, seq: int, place: int, parent_id: str | None) -> Record:
    """An entry of which the index does not know enough, so that it has to be decoded; its bytes stay as they are."""
    data = index.line(seq)
    entry = decode_entry(data)
    if isinstance(entry, UnknownEntry | UnknownMessageEntry) and entry.seq is None and not entry.ignorable:
        # Pi wrote it, so it may be ignored; in the copy it gets a place like all others, and must say so itself.
        data = _with_members(data, ignorable=True)
        entry = decode_entry(data)
    return Record(place, index.names[seq], parent_id, entry.type, with_seq(data, place), facts_of(entry))


def _with_members(data: bytes, **members: Any) -> bytes:
    """The line with some members replaced or added; surrogates stay escaped as they were."""
    return json.dumps(json.loads(data) | members, separators=(",", ":")).encode()


def _name(index: EntryIndex, seq: int) -> str | None:
    return index.names[seq] if seq >= 0 else None


def place_before(index: EntryIndex, target: int) -> int:
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
