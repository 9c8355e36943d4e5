"""A session as a folder: which files it is made of, and how they are read back into an order (R13).

::

    <session>/metadata.json        the header
    <session>/entries/<id>.json    one entry each, with its seq and the first seq of the batch it was committed in
    <session>/torn/                what a repair took out of entries/
    <session>/blobs/<name>         large outputs that entries name
    <session>/.lock                the writer's lock

Each file is there whole or not at all, since it is renamed into place after it was written. So what a crash can leave
behind is a gap within the last batch (an *unterminated tail*) and temporaries. Only ``<id>.json`` that holds that id
is an entry; nothing else in ``entries/`` is ever read as one, or touched.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from storage.errors import DamagedSessionError
from storage.event_loops import Breath
from storage.identifiers import is_safe_name
from storage.protocols import Record

METADATA = "metadata.json"
ENTRIES = "entries"
TORN = "torn"
BLOBS = "blobs"
LOCK = ".lock"
SUFFIX = ".json"

_NUMBER = rb"(0|[1-9][0-9]{0,17})"
_START = re.compile(rb'\{"seq":' + _NUMBER + rb',"batch":' + _NUMBER + rb'(?=,"type":"\w*","id":"([^"\\]*)")')
"""How we write it. What begins otherwise was written by another program, or laid out anew."""

_PLACE = re.compile(rb'\{"seq":' + _NUMBER + rb',"batch":' + _NUMBER + rb"(?=[,}])")
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_NAMES_SHOWN = 5


def entry_file_name(entry_id: str) -> str:
    """The name of an entry's file."""
    return entry_id + SUFFIX


def entry_file_bytes(record: Record, batch: int) -> bytes:
    """What an entry's file holds: the committed line with ``batch`` as its second member, and a newline.

    Raises ``ValueError`` for a line that does not begin with its own seq: nothing that was committed under another
    place may get into the folder.
    """
    start = b'{"seq":%d' % record.seq
    rest = record.data[len(start) : len(start) + 1]
    if not record.data.startswith(start) or rest not in (b",", b"}") or b"\n" in record.data:
        raise ValueError(f"record {record.seq} is no line that begins with its seq: {record.data[:60]!r}")
    return b'%b,"batch":%d%b\n' % (start, batch, record.data[len(start) :])


class StoredEntry(NamedTuple):
    """One entry's file: its place, the first place of its batch, and the line as it was committed."""

    seq: int
    batch: int
    id: str
    line: bytes


def read_entry_file(path: str, entry_id: str) -> StoredEntry | None:
    """The entry in a file that is named after ``entry_id``, or ``None`` if it holds something else.

    Raises ``DamagedSessionError`` for what may have been that entry: text that is no JSON, or an entry without a place.
    """
    with open(path, "rb") as file:
        data = file.read()
    match = _START.match(data)
    if match is not None and match[3] == entry_id.encode() and int(match[2]) <= int(match[1]):
        line = b'{"seq":' + match[1] + data[match.end() :].rstrip(_SPACE)
        if b"\n" not in line:
            return StoredEntry(int(match[1]), int(match[2]), entry_id, line)
    return _read_foreign(path, entry_id, data)


def _read_foreign(path: str, entry_id: str, data: bytes) -> StoredEntry | None:
    """The same, of a file that another program wrote or laid out anew."""
    try:
        loaded: Any = json.loads(data.removeprefix(_BOM).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedSessionError(
            f"invalid session JSON: {error}; nothing was changed, and opening with on_corrupt='skip' shows the rest",
            path=path,
            entry_id=entry_id,
        ) from error
    if not isinstance(loaded, dict) or cast("dict[str, Any]", loaded).get("id") != entry_id:
        return None
    members = cast("dict[str, Any]", loaded)
    seq = members.pop("seq", None)
    batch = members.pop("batch", seq)
    if type(seq) is not int or type(batch) is not int or not 0 <= batch <= seq:
        raise damaged(
            f"seq {seq!r:.40} and batch {batch!r:.40} are no place in a session", path=path, entry_id=entry_id
        )
    match = _PLACE.match(data)
    if match is not None and (int(match[1]), int(match[2])) == (seq, batch):
        line = b'{"seq":' + match[1] + data[match.end() :].rstrip(_SPACE)
        if b"\n" not in line:  # we wrote it, of a line that was made elsewhere: its bytes are as they were
            return StoredEntry(seq, batch, entry_id, line)
    whole = {"seq": seq, **members}
    try:
        line = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate that the file holds escaped; so it stays
        line = json.dumps(whole, separators=(",", ":")).encode()
    return StoredEntry(seq, batch, entry_id, line)


def damaged(why: str, *, path: str | None, entry_id: str | None = None) -> DamagedSessionError:
    """The error for a record that cannot be what was committed."""
    return DamagedSessionError(
        f"invalid session record: {why}; nothing was changed, and opening with on_corrupt='skip' shows the rest",
        path=path,
        entry_id=entry_id,
    )


def list_entry_names(folder: str) -> tuple[set[str], list[str]]:
    """The ids that name a file in ``folder``, and the names of everything else that is in it."""
    ids: set[str] = set()
    others: list[str] = []
    with os.scandir(folder) as found:
        for item in found:
            stem = item.name.removesuffix(SUFFIX)
            # A symlink is not followed: it could lead out of the session's folder.
            if stem != item.name and is_safe_name(stem) and item.is_file(follow_symlinks=False):
                ids.add(stem)
            else:
                others.append(item.name)
    return ids, sorted(others)


@dataclass(slots=True)
class FolderContents:
    """What was found in ``entries/``, put in order.

    ``entries`` are those of the committed record from the place that was asked for; ``tail`` the files behind a gap in
    the last batch; ``others`` the names that are no entries; ``damage`` all that makes it no whole session.
    """

    entries: list[StoredEntry] = field(default_factory=list[StoredEntry])
    tail: list[StoredEntry] = field(default_factory=list[StoredEntry])
    others: list[str] = field(default_factory=list[str])
    damage: list[DamagedSessionError] = field(default_factory=list[DamagedSessionError])

    @property
    def is_settled(self) -> bool:
        """Whether nothing is missing; a reader may have met a writer in the middle of a batch."""
        return not self.tail and not self.damage


def read_folder(folder: str, *, known: Mapping[str, str], start: int = 0) -> FolderContents:
    """Read all entries in ``folder`` but the ``known``, and put those from place ``start`` in order.

    ``known`` maps each id that was read before, in lower case, to itself. Raises ``FileNotFoundError`` if a file went
    away meanwhile, and other ``OSError``.
    """
    ids, others = list_entry_names(folder)
    contents = FolderContents(others=others)
    names = dict(known)
    found: dict[int, StoredEntry] = {}
    breath = Breath()
    for entry_id in sorted(ids):
        namesake = names.setdefault(entry_id.lower(), entry_id)
        if known.get(entry_id.lower()) == entry_id:
            continue
        breath.take()
        path = os.path.join(folder, entry_file_name(entry_id))
        try:
            entry = read_entry_file(path, entry_id)
        except DamagedSessionError as error:
            contents.damage.append(error)
            continue
        why = None
        if entry is None:
            contents.others.append(entry_file_name(entry_id))
        elif namesake != entry_id:
            why = f"{namesake}{SUFFIX} and {entry_id}{SUFFIX} differ only in case, which not every file system can hold"
        elif entry.seq < start or entry.seq in found:
            other = f"{found[entry.seq].id}{SUFFIX}" if entry.seq in found else "an entry that was read before"
            why = f"{entry_id}{SUFFIX} and {other} both hold seq {entry.seq}"
        else:
            found[entry.seq] = entry
        if why is not None:
            contents.damage.append(damaged(why, path=path, entry_id=entry_id))
    _arrange(folder, contents, found, start)
    return contents


def _arrange(folder: str, contents: FolderContents, found: dict[int, StoredEntry], start: int) -> None:
    seqs = sorted(found)
    missing = start
    while missing in found:
        missing += 1
    if missing == start + len(seqs):
        contents.entries = [found[seq] for seq in seqs]
        return
    newest = found[seqs[-1]]
    behind = [found[seq] for seq in seqs if seq > missing]
    if not contents.damage and missing >= newest.batch and all(entry.batch == newest.batch for entry in behind):
        contents.entries = [found[seq] for seq in seqs if seq < missing]
        contents.tail = behind
        return
    contents.entries = [found[seq] for seq in seqs]
    why = f"no entry holds seq {missing}, but {entry_file_name(newest.id)} holds {newest.seq}"
    contents.damage.append(damaged(why, path=folder))


def name_some(names: list[str]) -> str:
    """The first few of ``names``, for a message."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"{shown}, … ({len(names)} in all)" if len(names) > _NAMES_SHOWN else shown
