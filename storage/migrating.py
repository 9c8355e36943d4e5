"""pi's older files: a new version-3 file is made of one of version 1 or 2. The old one is only read.

Version 1 is a list: entries have no ids, and a compaction counts its first kept entry among all lines, the header
included. Version 2 has ids, and calls the role of an extension's message ``hookMessage``. What is made is a file as pi
itself would write it: without ``seq``, so its order is that of its lines.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from storage import files
from storage.blob_folder import BlobFolder
from storage.blobs import Blobs, blob_names_in
from storage.decode import KNOWN_TYPES
from storage.errors import (
    BlobNotFoundError,
    DamagedSessionError,
    SessionNotFoundError,
)
from storage.event_loops import Breath, run_in_worker
from storage.header import FORMAT_VERSION, OLD_VERSIONS, SessionHeader
from storage.identifiers import absolute_place, check_session_id
from storage.index import EntryIndex
from storage.jsonl_file import blob_folder, create_session_file, naming
from storage.line_scan import LineScan, is_blank
from storage.protocols import Durability, Record, SessionWarning

_BOM = b"\xef\xbb\xbf"
_ID_DIGITS = 8
_HOOK = "hook"
"""The type of an extension's message that names none."""
_Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What was made of which file. ``version`` is the source's, ``entries`` the number of entries in the target."""

    source: str
    target: str
    version: int
    session_id: str
    entries: int
    warnings: tuple[SessionWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class OldSession:
    """A session that was read out of a file, as version 3. ``blobs`` are read when they are iterated, once."""

    source: str
    version: int
    header: SessionHeader
    records: list[Record]
    blobs: Blobs
    warnings: tuple[SessionWarning, ...]


async def migrate_pi_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    session_id: str | None = None,
    durability: Durability = "fsync",
) -> MigrationReport:
    """Make a new version-3 file at ``target`` of the session file ``source``: whole or not at all; ``source`` is only read.

    Versions 1 and 2 are converted; a file of version 3 (pi's or ours, its blobs too) is copied line by line. The same
    source gives the same ids every time. ``session_id`` replaces the header's id. A last line without a newline is left out
    with a warning; in versions 1 and 2 it is taken if it is whole, as pi does.

    Raises ``SessionNotFoundError``, ``StorageError`` (unreadable), ``DamagedSessionError`` naming the line,
    ``UnsupportedVersionError`` (newer than 3), ``SessionExistsError`` if there is anything at ``target``,
    ``SessionLockedError`` and ``InvalidIdError``. A cancellation is let through when the worker has ended; what was made
    by then stays, whole.
    """
    place, goal = absolute_place(source), absolute_place(target)
    if session_id is not None:
        check_session_id(session_id)

    return await run_in_worker(lambda: write_old_session(read_old_session(place), goal, session_id, durability))


def write_old_session(old: OldSession, target: str, session_id: str | None, durability: Durability) -> MigrationReport:
    """The file ``target``, made of a session that was read; see ``migrate_pi_file``. Blocking."""
    header = old.header if session_id is None else old.header.model_copy(update={"id": session_id})
    made = naming(target, lambda: create_session_file(target, header, old.records, durability, blobs=old.blobs))
    made.close()
    return MigrationReport(old.source, target, old.version, header.id, len(old.records), old.warnings)


def read_old_session(path: str) -> OldSession:
    """The session in the file ``path``, of version 1, 2 or 3. Blocking; raises what ``migrate_pi_file`` raises."""
    data = naming(path, lambda: _read(path))
    lines = data.removeprefix(_BOM).split(b"\n")
    warnings: list[SessionWarning] = []
    tail = lines.pop()
    version = _version_of(next((line for line in (*lines, tail) if not is_blank(line)), b""))
    if not is_blank(tail):
        lines += _checked_tail(tail, len(lines) + 1, version, warnings)
    start = next((number for number, line in enumerate(lines) if not is_blank(line)), None)
    if start is None:
        raise SessionNotFoundError("the file holds no committed line, so there is no session in it", path=path)
    if version in OLD_VERSIONS:
        _check_one_header(lines, start, path)
        convert = _from_version_1 if version == 1 else _from_version_2
        lines = convert(lines, start, warnings)
    scan = LineScan(path=path)
    index = EntryIndex()
    index.place = path
    records: list[Record] = []

    def add(record: Record) -> None:
        index.foreign = scan.header is not None and scan.header.branchline is None
        index.add(record)
        records.append(record)

    breath = Breath()
    for line in lines:
        for _ in scan.feed(line + b"\n", add):
            pass
        breath.take()
    if scan.header is None:
        raise DamagedSessionError("there is no session header in this file; it was left as it is", path=path, line=1)
    _check_whole(index, path)
    unknown = {record.type for record in records} - KNOWN_TYPES
    warnings += [
        SessionWarning("unknown_type", f"entries of type {kind!r} are kept as they are") for kind in sorted(unknown)
    ]
    return OldSession(
        path,
        version if version in OLD_VERSIONS else FORMAT_VERSION,
        scan.header,
        records,
        _blobs_beside(path, records),
        (*warnings, *scan.warnings, *index.warnings),
    )


def _check_one_header(lines: Sequence[bytes], start: int, path: str) -> None:
    for number in range(start + 1, len(lines)):
        if b'"session"' in lines[number]:
            members = _parsed(lines[number])
            if isinstance(members, dict) and cast("_Object", members).get("type") == "session":
                raise DamagedSessionError(
                    f"there is a second session header at line {number + 1}, so two files were put into one; nothing was "
                    "made",
                    path=path,
                    line=number + 1,
                )


def _check_whole(index: EntryIndex, path: str) -> None:
    for entry_id, missing, line in index.broken:
        raise DamagedSessionError(
            f"entry {entry_id!r:.80} points to {missing!r:.80}, which is not before it in this file, so its tree is "
            "damaged; nothing was made",
            path=path,
            line=line,
            entry_id=entry_id,
        )


def _read(path: str) -> bytes:
    try:
        with open(files.open_file(path, writing=False), "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise SessionNotFoundError("there is no file here; check the path", path=path) from None


def _checked_tail(tail: bytes, number: int, version: int, warnings: list[SessionWarning]) -> list[bytes]:
    """The last line, which has no newline: cut off by a crash, and in version 3 not committed even if it is whole (R13)."""
    if version in OLD_VERSIONS and isinstance(_parsed(tail), dict):
        warnings.append(
            SessionWarning("unterminated_tail", f"line {number} has no newline, but is whole; it was taken", number)
        )
        return [tail]
    text = f"line {number} has {len(tail):,} bytes without a newline, which are no entry; they were left out"
    warnings.append(SessionWarning("unterminated_tail", text, number))
    return []


def _version_of(line: bytes) -> int:
    """The version that the header names; what is no header is for the reader of version 3 to refuse."""
    header = _parsed(line)
    if not isinstance(header, dict) or cast("_Object", header).get("type") != "session":
        return FORMAT_VERSION
    version: Any = cast("_Object", header).get("version", 1)
    return version if type(version) is int else FORMAT_VERSION


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # damage is named by the reader of version 3, with its line


def _from_version_1(lines: Sequence[bytes], start: int, warnings: list[SessionWarning]) -> list[bytes]:
    header = cast("_Object", _parsed(lines[start]))
    if not isinstance(header.get("id"), str):
        header["id"] = "pi-" + _digest(lines[start].decode("utf-8", "replace"))[:12]
    filled = [number for number in range(start, len(lines)) if not is_blank(lines[number])]
    ids: dict[int, str] = {}
    taken: set[str] = set()
    for place, number in enumerate(filled[1:], 1):
        ids[number] = _new_id(f"{header['id']}:{place}", taken)
    converted = [*lines]
    converted[start] = _header_line(header)
    parent: str | None = None
    for number in filled[1:]:
        members = _parsed(lines[number])
        if isinstance(members, dict):
            entry = _renamed(cast("_Object", members))
            if "firstKeptEntryIndex" in entry:
                _give_first_kept(entry, filled, ids, number, warnings)
            entry.pop("id", None)
            entry.pop("parentId", None)
            converted[number] = _line({"id": ids[number], "parentId": parent, **entry}, lines[number])
        parent = ids[number]
    return converted


def _give_first_kept(
    entry: _Object, filled: Sequence[int], ids: dict[int, str], number: int, warnings: list[SessionWarning]
) -> None:
    """Name the first kept entry by its id instead of by its place among all lines, of which the header is 0."""
    index: Any = entry.pop("firstKeptEntryIndex")
    if type(index) is int and 0 < index < len(filled) and filled[index] <= number:
        entry["firstKeptEntryId"] = ids[filled[index]]
    elif index != 0:
        text = f"line {number + 1} keeps entries from place {index!r:.40} on, which is none before it; it keeps nothing"
        warnings.append(SessionWarning("first_kept_missing", text, number + 1))


def _from_version_2(lines: Sequence[bytes], start: int, warnings: list[SessionWarning]) -> list[bytes]:
    del warnings  # nothing can be lost
    converted = [*lines]
    converted[start] = _header_line(cast("_Object", _parsed(lines[start])))
    for number in range(start + 1, len(lines)):
        if b"hookMessage" in lines[number]:
            members = _parsed(lines[number])
            if isinstance(members, dict):
                converted[number] = _line(_renamed(cast("_Object", members)), lines[number])
    return converted


def _renamed(entry: _Object) -> _Object:
    """An extension's message with the role it has today, and with a type, which every one has today."""
    message: Any = entry.get("message")
    if isinstance(message, dict) and cast("_Object", message).get("role") == "hookMessage":
        renamed = {**cast("_Object", message), "role": "custom"}
        return {**entry, "message": renamed if "customType" in renamed else {**renamed, "customType": _HOOK}}
    return entry


def _header_line(header: _Object) -> bytes:
    return _line({"type": "session", "version": FORMAT_VERSION, **header} | {"version": FORMAT_VERSION}, b"")


def _line(members: _Object, otherwise: bytes) -> bytes:
    """The members as a line; where they cannot be written (NaN), the line as it was, for the reader to refuse."""
    try:
        return json.dumps(members, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate that the file holds escaped; so it stays
        return json.dumps(members, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return otherwise


def _new_id(seed: str, taken: set[str]) -> str:
    """Eight hexadecimal digits, as pi's own ids; more where those are taken."""
    digest = _digest(seed)
    found = next(digest[:length] for length in range(_ID_DIGITS, 65) if digest[:length] not in taken)
    taken.add(found)
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _blobs_beside(path: str, records: Sequence[Record]) -> Iterator[tuple[str, bytes]]:
    """The blobs that the records name, as far as they are there."""
    folder = BlobFolder(blob_folder(path))
    for name in blob_names_in(record.data for record in records):
        try:
            yield name, folder.read(name)
        except BlobNotFoundError:
            continue  # the copy is as its source is
