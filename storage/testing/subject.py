"""What a clause works with: sessions of the backend under test, opened and closed as often as it likes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from storage.decode import parse_record
from storage.entries import iso_timestamp
from storage.entry_log import EntryLog
from storage.errors import StorageError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.protocols import Mode, Record, SessionStorage

StorageOpener = Callable[[str, Mode], SessionStorage | Awaitable[SessionStorage]]
"""Opens the session of a name, and begins it if there is none; the same name gives the same session every time.

``mode="read"`` is asked only for sessions that exist; a backend that has no readers raises ``NotImplementedError`` then.
"""


FolderOpener = Callable[[str], StorageOpener]
"""Gives an opener for sessions all of whose files lie in a folder, as durable as the backend can be."""


class ClauseError(AssertionError):
    """The backend does not do what a clause asks for."""


class AbilityAbsent(Exception):  # noqa: N818 - it is no error
    """The backend has no such ability, and need not have it."""


def expect(holds: object, otherwise: str) -> None:
    """Raise ``ClauseError`` unless it holds. Unlike ``assert``, this also looks under ``python -O``."""
    if not holds:
        raise ClauseError(otherwise)


class Subject:
    """The backend under test, for one clause. ``close`` closes whatever the clause left open."""

    _numbers = itertools.count(1)

    def __init__(self, opener: StorageOpener, in_folder: FolderOpener | None = None) -> None:
        """``opener`` and ``in_folder`` as ``check_storage`` was given them."""
        self._opener = opener
        self._in_folder = in_folder
        self._folders = ExitStack()
        self._storages: list[SessionStorage] = []
        self._logs: list[EntryLog] = []
        self._inside: list[Subject] = []
        self.name: str = f"conformance-{new_id()}-{next(self._numbers)}"
        """The name of this clause's session."""

    async def storage(self, mode: Mode = "write", *, name: str | None = None) -> SessionStorage:
        """The session's storage, opened once more. Raises ``AbilityAbsent`` if there are no readers."""
        try:
            given = self._opener(name or self.name, mode)
            storage = await given if isinstance(given, Awaitable) else given
        except NotImplementedError as error:
            raise AbilityAbsent(f"it cannot be opened with mode={mode!r}") from error
        self._storages.append(storage)
        return storage

    async def log(self, mode: Mode = "write", *, name: str | None = None) -> EntryLog:
        """A log over the session's storage, opened once more."""
        log = await EntryLog.open(await self.storage(mode, name=name))
        self._logs.append(log)
        return log

    async def commit(self, storage: SessionStorage, *records: Record) -> None:
        """Commit and sync as the log does: in a worker thread."""

        def commit() -> None:
            sync = storage.commit(records)
            if sync is not None:
                sync()

        await run_in_worker(commit)

    async def read_all(self, mode: Mode = "write") -> list[Record]:
        """All that a newly opened storage reads; it is closed again."""
        storage = await self.storage(mode)
        records = await run_in_worker(lambda: list(storage.read()))
        await run_in_worker(storage.close)
        return records

    def folder(self) -> str:
        """A new empty folder, for ``within``. Raises ``AbilityAbsent`` if nothing can be opened in one."""
        if self._in_folder is None:
            raise AbilityAbsent("no in_folder was given, so its files cannot be copied or looked at")
        return self._folders.enter_context(tempfile.TemporaryDirectory(prefix="conformance-"))

    def within(self, folder: str) -> Subject:
        """The same clause's sessions in that folder, for the storages that are opened there; ``close`` closes them."""
        if self._in_folder is None:
            raise AbilityAbsent("no in_folder was given, so its files cannot be copied or looked at")
        inside = Subject(self._in_folder(folder))
        inside.name = "session"
        self._inside.append(inside)
        return inside

    async def give_up(self, log: EntryLog) -> None:
        """Close a log that failed, or not: for who goes on with another one."""
        self._logs.remove(log)
        try:
            await log.aclose()
        except StorageError:
            pass  # who waited for the write was told

    async def close(self) -> None:
        """Close all logs and storages, and remove the folders."""
        for inside in self._inside:
            await inside.close()
        for log in self._logs:
            await log.aclose()
        for storage in self._storages:
            await run_in_worker(storage.close)
        self._logs.clear()
        self._storages.clear()
        await run_in_worker(self._folders.close)


def record(seq: int, text: str = "hello", *, parent: str | None = None) -> Record:
    """A record as the log makes it: a user message at place ``seq``."""
    entry_id = new_id()
    above = "null" if parent is None else f'"{parent}"'
    line = (
        f'{{"seq":{seq},"type":"message","id":"{entry_id}","parentId":{above},"timestamp":"{iso_timestamp()}",'
        f'"message":{{"role":"user","content":"{text}","timestamp":0}}}}'
    )
    return parse_record(line.encode(), seq)


def chain(count: int, *, start: int = 0, parent: str | None = None) -> list[Record]:
    """``count`` records from place ``start``, each the child of the one before."""
    records: list[Record] = []
    for seq in range(start, start + count):
        records.append(record(seq, f"message {seq}", parent=parent))
        parent = records[-1].id
    return records
