"""Conversations from elsewhere: session files of pi, and plain message files, which become sessions of ours."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from harness.message_files import first_line_is_header, read_messages
from storage.adopting import adopted_header, adopted_records
from storage.copying import with_seq
from storage.decode import facts_of
from storage.entries import MessageEntry
from storage.errors import SessionError
from storage.event_loops import run_in_worker
from storage.identifiers import absolute_place, check_session_id, is_safe_name, new_id
from storage.jsonl_repository import JsonlRepository
from storage.messages import Message
from storage.migrating import read_old_session
from storage.protocols import Record, SessionWarning
from storage.repository import SessionRepository
from storage.session_streams import StreamsSessions
from storage.strict_json import encode_model


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """What an import made. ``kind``: ``"session"`` (a session file), or ``"messages"`` (a file of plain messages).

    ``version`` is the session file's, ``place`` the path of what was made, ``entries`` how many entries it has.
    """

    session_id: str
    place: str
    kind: Literal["session", "messages"]
    entries: int
    version: int | None = None
    warnings: tuple[SessionWarning, ...] = ()


async def import_session(
    source: str | os.PathLike[str],
    into: SessionRepository,
    *,
    session_id: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> ImportedSession:
    """Make a session in ``into`` of the file ``source``: whole or not at all; ``source`` is only read.

    A file whose first line is a session's header is a session of pi (version 1, 2 or 3) or of ours, and keeps its
    branches, its times and, unless ``session_id`` is given, its id; where the target is no repository of JSONL files, every
    entry of it gets its place (``seq``), and the header our mark. Any other is taken for messages (see
    ``import_messages``): one conversation, in the folder ``cwd`` (default: the current one), with a new id.

    Raises ``SessionNotFoundError`` (no file, or nothing in it), ``StorageError``, ``DamagedSessionError`` and
    ``InvalidEntryError`` (messages), which name the line, ``UnsupportedVersionError`` and ``SessionExistsError``.
    """
    place = absolute_place(source)
    if await run_in_worker(lambda: first_line_is_header(place)):
        if not isinstance(into, JsonlRepository):
            return await run_in_worker(lambda: _adopt(place, into, session_id))
        report = await into.take_in(place, session_id)
        return ImportedSession(
            report.session_id, report.target, "session", report.entries, report.version, report.warnings
        )
    records = await run_in_worker(lambda: _records(read_messages(place)))
    storage = await into.create(session_id, cwd=cwd, records=records)
    await run_in_worker(storage.close)
    return ImportedSession(storage.info.header.id, storage.info.place, "messages", len(records))


def _adopt(source: str, into: SessionRepository, session_id: str | None) -> ImportedSession:
    """A session file, made into a session of a place that keeps only what is all ours. Blocking."""
    if not isinstance(into, StreamsSessions):
        raise SessionError(f"{type(into).__name__} takes no sessions of other programs; import into JSONL files")
    old = read_old_session(source)
    made_id = session_id or (old.header.id if is_safe_name(old.header.id) else new_id())
    records = adopted_records(old.records)
    into.receive(adopted_header(old.header, check_session_id(made_id)), records, old.blobs)
    with into.reading(made_id) as there:
        return ImportedSession(made_id, there.place, "session", len(records), old.version, old.warnings)


def import_messages(source: str | os.PathLike[str] | Iterable[str | bytes | Mapping[str, Any]]) -> list[Message]:
    """The messages in a file, or in lines or objects of JSON. Blocking.

    ``source`` is a path (as ``str`` or ``PathLike``), or an iterable of lines or of decoded messages. A file holds one
    message a line, or is one JSON value: a list of messages, or an object with ``messages`` (and ``system``). Each message
    may be in our JSON, mini-agent's (``tool`` with ``toolCallId``; ``toolCalls`` with ``input``), OpenAI's
    (``tool_calls``; ``tool`` with ``tool_call_id``) or Anthropic's (``tool_use`` and ``tool_result`` blocks).
    ``docs/import-export.md`` says what becomes of each part.

    Raises ``InvalidEntryError`` naming the line (or the number of the message), ``SessionNotFoundError`` for a file that
    is missing or empty, and ``StorageError`` for one that cannot be read. Nothing is skipped.
    """
    return read_messages(source)


def _records(messages: Sequence[Message]) -> list[Record]:
    """The messages as a chain of committed lines."""
    records: list[Record] = []
    parent_id: str | None = None
    for seq, message in enumerate(messages):
        entry = MessageEntry(parent_id=parent_id, timestamp=_iso(message.timestamp), message=message)
        line = with_seq(encode_model(entry), seq)
        records.append(Record(seq, entry.id, parent_id, entry.type, line, facts_of(entry)))
        parent_id = entry.id
    return records


def _iso(milliseconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.now(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


__all__ = ["ImportedSession", "import_messages", "import_session"]
