"""Reading a session from bytes, without a file: what is committed, and what is not."""

from __future__ import annotations

from typing import NamedTuple

from storage.header import SessionHeader
from storage.index import EntryIndex
from storage.line_scan import LineScan
from storage.protocols import Corrupt, Record, SessionWarning


class RecoveredSession(NamedTuple):
    """What the bytes of a session hold. ``header`` is ``None`` where nothing was committed: no session yet."""

    header: SessionHeader | None
    records: list[Record]
    warnings: list[SessionWarning]


def recover_jsonl(data: bytes, *, on_corrupt: Corrupt = "raise") -> RecoveredSession:
    """The committed records in ``data``; a pure function, which repairs nothing.

    Non-blank bytes after the last newline are no record, even when they happen to be whole JSON: they are reported as
    the warning ``unterminated_tail`` with its line. Raises ``DamagedSessionError`` for a newline-terminated bad line.
    The rule is tiny-pi's.
    """
    scan = LineScan(on_corrupt=on_corrupt)
    index = EntryIndex()
    index.salvaged = scan.skips
    records: list[Record] = []

    def add(record: Record) -> None:
        index.add(record)
        records.append(record)

    for _ in scan.feed(data, add):
        pass
    if scan.lost_header is not None and not records:
        raise scan.lost_header
    tail = scan.tail_warning()
    return RecoveredSession(scan.header, records, [*scan.warnings, *([tail] if tail else [])])
