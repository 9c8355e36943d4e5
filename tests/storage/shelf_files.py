"""Files of sessions in one folder, written by hand, and what a listing says of them."""

from __future__ import annotations

from pathlib import Path

from storage.entry_file_repository import EntryFileRepository
from storage.jsonl_repository import JsonlRepository
from storage.repository import SessionSummary
from tests.storage.entry_folders import chain

HEADER = b'{"type":"session","version":3,"id":"x","timestamp":"2026-01-02T03:04:05.678Z","cwd":"/here","branchline":1}'


def lines(count: int, text: str = "message") -> list[bytes]:
    """``count`` messages, each the child of the one before, as lines."""
    return [record.data.replace(b'"message ', b'"' + text.encode() + b" ") for record in chain(count)]


def write_file(root: Path, name: str, *rows: bytes) -> Path:
    """Make a file of ``rows``, each with a newline."""
    path = root / name
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    return path


async def listed(repository: JsonlRepository | EntryFileRepository, *, deep: bool = False) -> dict[str, SessionSummary]:
    """Every session's summary, by its id."""
    return {summary.id: summary for summary in await repository.list(limit=10_000, deep=deep)}
