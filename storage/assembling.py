"""A write's turn has come: it gets its parent and its place, and becomes the line that is committed.

What one write is refused for here (a taken id, a parent that is not there, a check of its own) is no other's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from storage.errors import InvalidEntryError, SessionError
from storage.index import EntryIndex
from storage.line_parts import json_or_null
from storage.pending_write import PendingWrite
from storage.protocols import Record

LEAF: Final = object()
"""As a parent: the leaf at the time when the write's turn comes."""


_make: Callable[[type[Record], tuple[Any, ...]], Record] = tuple[Any, ...].__new__
"""As ``Record._make`` does it, without its detour: every append comes through here."""


class Assembler:
    """Makes records of one log's writes, upon what its index says is committed."""

    def __init__(self, index: EntryIndex, *, place: str | None, ids_are_file_names: bool) -> None:
        """With ``ids_are_file_names`` two ids may not differ in case alone. ``place`` is for the errors."""
        self._index = index
        self._place = place
        self._mixed_case: dict[str, str] | None = _mixed_case(index.names) if ids_are_file_names else None
        self._last_id: str | None = None
        self._last_json = b"null"

    def assemble(self, writes: list[PendingWrite]) -> list[Record]:
        """Give each write its parent and place. Those that fail their checks fail alone, and are taken out."""
        index = self._index
        ids = index.ids
        seq = len(index)
        leaf = index.leaf_id
        mixed_case = self._mixed_case
        records: list[Record] = []
        new: set[str] = set()
        new_names: dict[str, str] = {}
        failed: list[PendingWrite] = []
        for write in writes:
            parent = leaf if write.parent_id is LEAF else write.parent_id
            entry_id = write.entry_id
            refusal: str | SessionError | None = None
            if entry_id in ids or entry_id in new:
                refusal = f"the id {entry_id!r} is taken in this session"
            elif mixed_case is not None and (twin := self._twin(entry_id, new_names)) is not None:
                refusal = (
                    f"the id {entry_id!r} differs only in case from {twin!r}, and not every file system can hold both; "
                    "choose another id"
                )
            elif write.check is not None:
                refusal = _failure_of(write.check)
            if refusal is None and parent is not None and parent not in ids and parent not in new:
                refusal = f"{write.kind} {entry_id!r} hangs from {parent!r}, which is no entry of this session"
            if refusal is not None:
                if isinstance(refusal, str):
                    refusal = InvalidEntryError(refusal, path=self._place, entry_id=entry_id)
                failed.append(write)
                write.settle(refusal)
                continue
            tail = write.tail
            if write.from_leaf:
                tail = b',"fromId":%b%b' % (json_or_null(leaf), tail)
            parent_json = self._last_json if parent is self._last_id else json_or_null(parent)
            line = b'{"seq":%d%b%b%b' % (seq, write.head, parent_json, tail)
            self._last_id, self._last_json = entry_id, write.id_json
            records.append(_make(Record, (seq, entry_id, parent, write.kind, line, write.facts, None)))
            new.add(entry_id)
            if mixed_case is not None:
                new_names[entry_id.lower()] = entry_id
            seq += 1
            leaf = write.facts.target if write.kind == "leaf" else entry_id
        for write in failed:
            writes.remove(write)
        return records

    def accept(self, records: Sequence[Record]) -> None:
        """These are committed: later writes are checked against them."""
        if self._mixed_case is not None:
            self._mixed_case.update(_mixed_case([record.id for record in records]))

    def _twin(self, entry_id: str, new_names: dict[str, str]) -> str | None:
        """An id that is there, or comes in the same batch, and differs only in case."""
        name = entry_id.lower()
        mixed_case = self._mixed_case or {}
        return new_names.get(name) or mixed_case.get(name) or (name if name in self._index.ids else None)


def _mixed_case(names: Iterable[str]) -> dict[str, str]:
    """The names that are not in lower case, by their lower case."""
    return {name.lower(): name for name in names if name != name.lower()}


def _failure_of(check: Callable[[], None]) -> SessionError | None:
    try:
        check()
    except SessionError as error:
        return error
    return None
