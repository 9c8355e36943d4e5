"""Splitting a session's bytes into committed lines, and each line into a record (R2, R13–R15).

The commit mark of a line is its newline, LF and nothing else. Bytes are split before they are decoded: U+2028 in a text
is no line end, and a multi-byte character may lie across two reads. Blank lines are skipped, but counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from storage.decode import facts_of, parse_entry
from storage.errors import DamagedSessionError
from storage.header import SessionHeader, parse_header, stand_in_header
from storage.protocols import Corrupt, Record, SessionWarning

_make: Callable[[type[Record], tuple[Any, ...]], Record] = tuple[Any, ...].__new__

_NEWLINE = ord("\n")
_BOM = b"\xef\xbb\xbf"


def is_blank(data: bytes) -> bool:
    """Whether there is nothing but white space in ``data``. A NUL is no white space: it is what power loss leaves."""
    return not data or data.isspace()


class LineScan:
    """Takes the bytes of a session piece by piece, hands on its records, and keeps what has no newline yet.

    It goes on from where it stands, so the same scan reads what another process appends later.
    """

    def __init__(self, *, path: str | None = None, on_corrupt: Corrupt = "raise") -> None:
        self._path = path
        self.skips: bool = on_corrupt == "skip"
        self.header: SessionHeader | None = None
        self._tail: list[bytes] = []
        self.accepted: int = 0
        """How many bytes are committed: the offset behind the last newline."""
        self.line: int = 0
        """Physical lines so far, 1-based number of the last one."""
        self.seq: int = 0
        """The place of the next entry."""
        self.warnings: list[SessionWarning] = []
        self.bad_lines: int = 0
        self.gaps: int = 0
        """Lines whose ``seq`` says that entries before them are missing. Only with ``on_corrupt="skip"``."""
        self.lost_header: DamagedSessionError | None = None
        """Why the header is not the session's own but one that stands in for it. Only with ``on_corrupt="skip"``."""
        self._strict_seq = False
        self._last_id = ""

    @property
    def tail(self) -> bytes:
        """The bytes after the last newline."""
        if len(self._tail) > 1:
            self._tail = [b"".join(self._tail)]
        return self._tail[0] if self._tail else b""

    @tail.setter
    def tail(self, data: bytes) -> None:
        self._tail = [data] if data else []

    def copy(self) -> LineScan:
        """Another scan that stands at the same place."""
        other = copy(self)
        other.warnings = [*self.warnings]
        other.tail = self.tail
        return other

    def feed(self, data: bytes, add: Callable[[Record], object]) -> Iterator[None]:
        """``add`` the records in ``data``, which continues what was fed before; pauses after every few.

        Raises ``DamagedSessionError`` and ``UnsupportedVersionError`` naming the line; ``add`` may raise the first of
        them too, for a duplicate id. With ``on_corrupt="skip"`` a bad line becomes a warning, keeps its place, and
        leaves a gap in ``seq``; so does a line that took others along, and a header that is lost is stood in for.
        """
        if _NEWLINE not in data:
            self._tail.append(data)  # joined only when the line is whole: it may be of any length
            return
        lines = (self.tail + data).split(b"\n") if self._tail else data.split(b"\n")
        self.tail = lines.pop()
        path = self._path
        number, accepted = self.line, self.accepted
        try:
            for line in lines:
                number += 1
                accepted += len(line) + 1
                if not number & 15:
                    yield
                if line[-1:] == b"\r":
                    line = line[:-1]  # noqa: PLW2901 - CRLF
                if not line or line.isspace():
                    continue
                if self.header is None:
                    line = line.removeprefix(_BOM) if number == 1 else line  # noqa: PLW2901
                    if self._took_header(line, number):
                        continue
                seq = self.seq
                self.seq = seq + 1
                try:
                    entry = parse_entry(line, path, number)
                    if entry.seq != seq:
                        seq = self._place(seq, entry.seq, number)
                    parent_id = entry.parent_id
                    if parent_id == self._last_id:
                        # One string instead of two for nearly every entry: a third of the index's memory.
                        parent_id = self._last_id
                    self._last_id = entry_id = entry.id
                    # Made as ``Record._make`` does it: this line runs for every entry of every session that is opened.
                    add(_make(Record, (seq, entry_id, parent_id, entry.type, line, facts_of(entry), number)))
                except DamagedSessionError as error:
                    error.path = error.path or path
                    if not self.skips:
                        raise
                    self.bad_lines += 1
                    self.warnings.append(SessionWarning("bad_line", error.message.split("; nothing was")[0], number))
        finally:
            self.line, self.accepted = number, accepted

    def _took_header(self, line: bytes, number: int) -> bool:
        """Read the header; in salvage something stands in for one that is lost. Whether the line was no entry."""
        try:
            self.header = parse_header(line, path=self._path)
            self._strict_seq = self.header.branchline is not None
        except DamagedSessionError as error:
            if not self.skips:
                raise
            self.lost_header = error
            self.header = stand_in_header(os.path.splitext(os.path.basename(self._path or ""))[0])
            self._strict_seq = True
            self.bad_lines += 1
            self.warnings.append(SessionWarning("bad_line", error.message.split("; the file was")[0], number))
            try:
                parse_entry(line, self._path, number)
            except DamagedSessionError:
                return True
            return False
        return True

    def _place(self, seq: int, given: int | None, number: int) -> int:
        """The place of an entry that gives another one than ``seq``, which would be next, or none."""
        if given is None:
            self._strict_seq = False  # pi wrote this line, and does not count; from here on the place counts
        elif self._strict_seq and self.skips and given > seq:
            self.gaps += 1
            self.seq = given + 1
            why = f"line {number} holds seq {given}, where {seq} was expected; the entries between are missing"
            self.warnings.append(SessionWarning("entries_missing", why, number))
            return given
        elif self._strict_seq:
            raise DamagedSessionError(
                f"invalid session record at line {number}: expected seq {seq}, found {given}; entries are missing or "
                "out of order; nothing was changed, and opening with on_corrupt='skip' shows the rest",
                path=self._path,
                line=number,
                expected=seq,
                found=given,
            )
        elif not any(warning.code == "seq_differs" for warning in self.warnings):
            self.warnings.append(
                SessionWarning(
                    "seq_differs",
                    f"line {number} gives seq {given}, its place is {seq}; the place counts",
                    number,
                )
            )
        return seq

    def tail_warning(self) -> SessionWarning | None:
        """What to say of bytes without a newline; ``None`` if there are none but white space."""
        if not self.tail.strip(b" \t\r\n"):  # behind other white space, what is appended would be no JSON
            return None
        return SessionWarning(
            "unterminated_tail",
            f"line {self.line + 1} has {len(self.tail):,} bytes without a newline, which were never committed; "
            "open with on_torn_tail='repair' to set them aside and go on",
            self.line + 1,
        )
