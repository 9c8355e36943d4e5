"""Copying committed lines into another session: the bytes stay, only their place is counted anew."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, cast

from storage.decode import parse_record
from storage.index import EntryIndex, build_index
from storage.protocols import Record

_OWN_SEQ = re.compile(rb'\{[ \t\r]*"seq"[ \t\r]*:[ \t\r]*\d+[ \t\r]*,')


class IndexedRecords(list[Record]):
    """Records that are numbered and, where there is an index, indexed: whoever stores them need not go over them again."""

    def __init__(self, records: Iterable[Record], index: EntryIndex | None) -> None:
        """``index`` knows just these, and is given to the first who asks."""
        super().__init__(records)
        self._index = index

    def add(self, record: Record) -> None:
        """One more."""
        self.append(record)
        if self._index is not None:
            self._index.add(record)

    def take_index(self) -> EntryIndex | None:
        """The index, once."""
        index, self._index = self._index, None
        return index


def index_of(records: Iterable[Record]) -> EntryIndex:
    """The index of ``records``, which are numbered from 0."""
    index = records.take_index() if isinstance(records, IndexedRecords) else None
    return index or build_index(records)


def renumbered(records: Iterable[Record]) -> list[Record]:
    """``records`` with places 0, 1, 2 … and ``seq`` as the first member of each line; everything else byte for byte."""
    if isinstance(records, IndexedRecords):
        return IndexedRecords(records, records.take_index())  # the caller's own list stays as it is
    copies: list[Record] = []
    for seq, record in enumerate(records):
        if record.seq == seq and record.data.startswith(b'{"seq":%d,' % seq):
            copies.append(record)
        else:
            copies.append(record._replace(seq=seq, data=with_seq(record.data, seq), line=None))
    return copies


def with_seq(data: bytes, seq: int) -> bytes:
    """The line with ``seq`` as its first member."""
    match = _OWN_SEQ.match(data)
    if match is not None:
        return b'{"seq":%d,%b' % (seq, data[match.end() :])
    # A foreign line with a ``seq`` somewhere inside: only a parser can tell whether it is the line's own.
    members = cast("dict[str, Any]", json.loads(data)) if b'"seq"' in data else {}
    if "seq" not in members:
        return b'{"seq":%d,%b' % (seq, data.lstrip()[1:].lstrip())
    del members["seq"]
    rest = json.dumps(members, ensure_ascii=True, separators=(",", ":")).encode()
    copy = b'{"seq":%d,%b' % (seq, rest[1:])
    parse_record(copy, seq)
    return copy
