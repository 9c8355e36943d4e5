"""What the tests of entry files share: records, a folder as it is, and a storage opened without an event loop."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage.decode import parse_record
from storage.entry_files import EntryFileStorage
from storage.header import new_header
from storage.identifiers import new_id
from storage.protocols import Corrupt, Durability, Mode, Record, TornTail


def record(seq: int, *, entry_id: str | None = None, parent: str | None = None, text: str = "hello") -> Record:
    """A user message at place ``seq``."""
    members = {
        "seq": seq,
        "type": "message",
        "id": entry_id or new_id(),
        "parentId": parent,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "message": {"role": "user", "content": text, "timestamp": 1767323045678},
    }
    return parse_record(json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode(), seq)


def chain(count: int, *, start: int = 0, parent: str | None = None) -> list[Record]:
    """``count`` messages, each the child of the one before."""
    records: list[Record] = []
    for seq in range(start, start + count):
        records.append(record(seq, parent=parent, text=f"message {seq}"))
        parent = records[-1].id
    return records


def create(folder: Path, records: Sequence[Record] = (), durability: Durability = "os") -> EntryFileStorage:
    """A new session, made in this thread."""
    return EntryFileStorage._create(str(folder), new_header(cwd="/here"), records, durability)


def reopen(
    folder: Path,
    mode: Mode = "write",
    on_torn_tail: TornTail = "read_only",
    on_corrupt: Corrupt = "raise",
    durability: Durability = "os",
) -> EntryFileStorage:
    """An existing session, opened in this thread."""
    return EntryFileStorage._open(str(folder), mode, durability, on_torn_tail, on_corrupt)


def commit(storage: EntryFileStorage, records: Sequence[Record]) -> None:
    """Commit and sync one batch."""
    sync = storage.commit(records)
    if sync is not None:
        sync()


def make(folder: Path, batches: Sequence[int], durability: Durability = "os") -> list[Record]:
    """A closed session whose batches have these sizes; its records."""
    storage = create(folder, durability=durability)
    records: list[Record] = []
    for size in batches:
        more = chain(size, start=len(records), parent=records[-1].id if records else None)
        commit(storage, more)
        records += more
    storage.close()
    return records


def entry_path(folder: Path, item: Record) -> Path:
    """The file of a record."""
    return folder / "entries" / f"{item.id}.json"


def snapshot(folder: Path) -> dict[str, Any]:
    """All that is below ``folder``: modes, and the bytes of files."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return found
