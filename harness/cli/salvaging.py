"""What can be saved of a damaged session. Pure: lines in, a whole session's records out, and what was lost.

Every whole line is kept, under the id it had. Where something hangs from a line that is lost, a stand-in with the lost
id takes its place, so that the ways through it can be walked again; it hangs from where the lost line says, or else from
where the conversation was at that moment. Nothing here is shown to a model that was not recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from harness.cli.plain_text import preview
from storage.copying import with_seq
from storage.decode import parse_entry, parse_record
from storage.entries import (
    CompactionEntry,
    CustomEntry,
    Entry,
    LeafEntry,
    UnknownEntry,
    UnknownMessageEntry,
    iso_timestamp,
)
from storage.errors import DamagedSessionError
from storage.header import SessionHeader, parse_header
from storage.identifiers import new_id
from storage.line_scan import is_blank
from storage.protocols import Record
from storage.strict_json import encode_model
from storage.summaries import parse_time

LOST_LINE = "branchline.lost_line"
"""The custom type of the entry that stands where a line was lost."""

SALVAGED = "branchline.salvaged"
"""The custom type of the last entry of a salvaged copy: where it came from, and what was lost."""

_ID = re.compile(rb'"id"[ \t]*:[ \t]*"([^"\\\x00-\x1f]{1,128})"')
_PARENT = re.compile(rb'"parentId"[ \t]*:[ \t]*"([^"\\\x00-\x1f]{1,128})"')
_HEAD = 400
"""Bytes of a bad line in which its own id is looked for; further in, one may be anybody's."""


class Line(NamedTuple):
    """A line of the damaged session, and its number, if it has one."""

    data: bytes
    number: int | None = None

    def __str__(self) -> str:
        return f"line {self.number}" if self.number is not None else "an entry"


@dataclass(slots=True)
class Salvage:
    """What was saved: the records of a whole session. ``lost`` says what was not, or had to be guessed, a line each."""

    header: SessionHeader | None = None
    records: list[Record] = field(default_factory=list[Record])
    lost: list[str] = field(default_factory=list[str])
    kept: int = 0
    """How many entries of the damaged session are among the records."""


class _Bad(NamedTuple):
    line: Line
    why: str


def salvage_bytes(data: bytes) -> Salvage:
    """What can be saved of a session's file. Raises ``UnsupportedVersionError`` where another program can read it all."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    tail = lines.pop()
    numbered = [Line(line.removesuffix(b"\r"), number) for number, line in enumerate(lines, 1) if not is_blank(line)]
    made = _Salvager()
    if numbered:
        try:
            made.salvage.header = parse_header(numbered[0].data)
            del numbered[0]
        except DamagedSessionError:
            made.salvage.lost.append(
                f"{numbered[0]} is no header, so the session has a new id and this folder as its own"
            )
    made.take(numbered)
    if not is_blank(tail):
        made.salvage.lost.append(f"line {len(lines) + 1} has {len(tail):,} bytes without a newline: never committed")
    return made.salvage


def salvage_lines(header: SessionHeader, lines: Iterable[bytes]) -> Salvage:
    """What can be saved of a session whose whole lines were read already."""
    made = _Salvager()
    made.salvage.header = header
    made.take([Line(line) for line in lines])
    return made.salvage


def finished(salvage: Salvage, source: str) -> list[Record]:
    """The records with one more at the end, which says where they came from and what was lost."""
    leaf = _leaf_after(salvage.records)
    entry = CustomEntry(
        parent_id=leaf, custom_type=SALVAGED, data={"source": source, "kept": salvage.kept, "lost": salvage.lost}
    )
    entry.parent_id = leaf  # given, also when it is None
    return [*salvage.records, _record(encode_model(entry), len(salvage.records))]


def oddities(entry: Entry, before: Collection[str]) -> Iterator[str]:
    """What an entry of ours never has, and what opening a session lets pass: pi's may have it."""
    if "parent_id" not in entry.model_fields_set:
        yield "it does not say what it hangs from (parentId)"
    if parse_time(entry.timestamp) is None:
        yield f"its time {preview(entry.timestamp, 40)!r} is none"
    kept = entry.first_kept_entry_id if isinstance(entry, CompactionEntry) else None
    if kept is not None and kept != entry.id and kept not in before:
        yield f"it keeps what follows {preview(kept, 80)!r}, which is not before it"


class _Salvager:
    """Goes through the lines in order and keeps a tree that is whole at every step."""

    def __init__(self) -> None:
        self.salvage = Salvage()
        self._ids: set[str] = set()
        self._whole: dict[str, bytes] = {}
        """The ids of whole lines, each with the first line of it."""
        self._leaf: str | None = None
        self._is_foreign = False

    def take(self, lines: Sequence[Line]) -> None:
        read = [(line, self._read(line)) for line in lines]
        for line, found in read:
            if not isinstance(found, _Bad):
                self._whole.setdefault(found.id, line.data)
        self._is_foreign = self.salvage.header is not None and self.salvage.header.branchline is None
        for place, (line, found) in enumerate(read):
            if isinstance(found, _Bad):
                self._stand_in_for(found)
            else:
                self._keep(line, found, is_fork=self._is_foreign and place == 0)

    def _read(self, line: Line) -> Entry | _Bad:
        try:
            return parse_entry(line.data, None, line.number)
        except DamagedSessionError as error:
            why = error.message.split("; nothing was")[0]
        try:
            return parse_entry(line.data.decode("utf-8", "replace").encode(), None, line.number)
        except DamagedSessionError:
            return _Bad(line, why)

    def _keep(self, line: Line, entry: Entry, *, is_fork: bool) -> None:
        """Add a whole line. What of it cannot stay is changed, and told."""
        data = line.data
        lost = self.salvage.lost
        changes: dict[str, Any] = {}
        try:
            data.decode()
        except UnicodeDecodeError:
            data = data.decode("utf-8", "replace").encode()
            lost.append(f"{line} ({entry.id}) held bytes that are no text; each became U+FFFD")
        if entry.id in self._ids:
            if _without_seq(data) == _without_seq(self._whole.get(entry.id, b"")):
                lost.append(f"{line} repeats entry {entry.id} word by word; it was left out")
                return
            changes["id"] = new_id()
            lost.append(f"{line} has the id {entry.id} again; it is kept as {changes['id']}")
        parent = entry.parent_id
        if parent is not None and parent not in self._ids:
            if is_fork and parent not in self._whole:
                changes["parentId"] = None
            else:
                changes["parentId"] = self._place_for(line, entry, parent)
        if not self._is_foreign and entry.seq is not None:
            changes |= self._completed(line, entry)
        if isinstance(entry, LeafEntry) and entry.target_id is not None and entry.target_id not in self._ids:
            changes["targetId"] = changes["parentId"] = self._leaf
            lost.append(
                f"{line} goes back to {entry.target_id}, which is not there; "
                f"it goes on from {self._leaf or 'the beginning'} instead"
            )
        if isinstance(entry, UnknownEntry | UnknownMessageEntry) and entry.seq is None and not entry.ignorable:
            changes["ignorable"] = True  # pi wrote it; in the copy it gets a place like all others, and must say so
        self._add(_with_members(data, changes) if changes else data)
        self.salvage.kept += 1

    def _completed(self, line: Line, entry: Entry) -> dict[str, Any]:
        """What an entry of ours always says, where it is lost; see ``oddities``."""
        changes: dict[str, Any] = {}
        lost = self.salvage.lost
        if "parent_id" not in entry.model_fields_set:
            changes["parentId"] = self._leaf
            lost.append(f"{line} ({entry.id}) does not say what it hangs from; now it {self._here()}")
        if parse_time(entry.timestamp) is None:
            changes["timestamp"] = iso_timestamp()
            lost.append(f"{line} ({entry.id}) has lost its time; the present one is there")
        kept = entry.first_kept_entry_id if isinstance(entry, CompactionEntry) else None
        if kept is not None and kept != entry.id and kept not in self._ids:
            changes["firstKeptEntryId"] = entry.id  # which means that nothing is kept
            lost.append(f"{line} ({entry.id}) keeps what follows {kept}, which is not before it; it keeps nothing")
        return changes

    def _here(self) -> str:
        return f"hangs from {self._leaf}" if self._leaf is not None else "is a beginning"

    def _place_for(self, line: Line, entry: Entry, parent: str) -> str | None:
        """What an entry hangs from whose parent is not before it."""
        if parent in self._whole:
            self.salvage.lost.append(
                f"{line} ({entry.id}) hangs from {parent}, which comes only later; now it {self._here()}"
            )
            return self._leaf
        self.salvage.lost.append(
            f"entry {parent} is missing, which {line} ({entry.id}) hangs from; a stand-in is there"
        )
        self._stand_in(parent, self._leaf, {"why": "missing"})
        return parent

    def _stand_in_for(self, bad: _Bad) -> None:
        """A bad line is lost; where it says which entry it was, a stand-in takes its place."""
        head = bad.line.data[:_HEAD]
        entry_id, parent = _text(_ID.search(head)), _text(_PARENT.search(head))
        self.salvage.lost.append(
            f"{bad.line} is lost ({_short(bad.why)}): {preview(head.decode('utf-8', 'replace'), 80)}"
        )
        if entry_id is None or entry_id in self._ids or entry_id in self._whole:
            return
        facts = {"line": bad.line.number, "bytes": len(bad.line.data), "why": bad.why}
        self._stand_in(entry_id, parent if parent in self._ids else self._leaf, facts)

    def _stand_in(self, entry_id: str, parent: str | None, facts: dict[str, Any]) -> None:
        entry = CustomEntry(id=entry_id, parent_id=parent, custom_type=LOST_LINE, data=facts)
        entry.parent_id = parent  # given, also when it is None
        self._add(encode_model(entry))

    def _add(self, data: bytes) -> None:
        record = _record(data, len(self.salvage.records))
        self.salvage.records.append(record)
        self._ids.add(record.id)
        self._leaf = _leaf_after([record])


def _record(data: bytes, seq: int) -> Record:
    return parse_record(with_seq(data, seq), seq)


def _leaf_after(records: Sequence[Record]) -> str | None:
    if not records:
        return None
    last = records[-1]
    return last.facts.target if last.type == "leaf" and last.facts is not None else last.id


def _with_members(data: bytes, changes: dict[str, Any]) -> bytes:
    members = cast("dict[str, Any]", json.loads(data)) | changes
    return json.dumps(members, separators=(",", ":")).encode()


def _without_seq(data: bytes) -> Any:
    try:
        members: Any = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict):
        return members
    return {name: value for name, value in cast("dict[str, Any]", members).items() if name != "seq"}


def _text(match: re.Match[bytes] | None) -> str | None:
    return match.group(1).decode("utf-8", "replace") if match is not None else None


def _short(why: str) -> str:
    return re.sub(r"^invalid session (?:JSON|record)(?: at line \d+)?: ", "", why)
