"""What a clause works with: sessions of the backend under test, opened and closed as often as it likes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial

import anyio

from storage.decode import parse_record
from storage.entries import iso_timestamp
from storage.entry_log import EntryLog
from storage.errors import StorageError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.protocols import Mode, Record, SessionStorage
from storage.testing.watched_storage import Watch, watched

_SHOWN_BEFORE = 20
_SHOWN = 50

StorageOpener = Callable[[str, Mode], SessionStorage | Awaitable[SessionStorage]]
"""Opens the session of a name, and begins it if there is none; the same name gives the same session every time.

It is called in a worker thread, so it may block; what it returns to be awaited is awaited on the event loop. What a crash
left, it repairs. ``mode="read"`` is asked only for sessions that exist; a backend that has no readers raises
``NotImplementedError`` then.
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


def expect_same(found: Sequence[Record], committed: Sequence[Record], otherwise: str) -> None:
    """Raise ``ClauseError``, which shows the first difference, unless ``found`` holds the bytes of ``committed``."""
    there, whole = [record.data for record in found], [record.data for record in committed]
    for data in there:
        expect(type(data) is bytes, f"{otherwise}: Record.data is a {type(data).__name__}; give bytes of its own")
    if there == whole:
        return
    if len(there) != len(whole):
        raise ClauseError(f"{otherwise}: {len(there)} records are there, not {len(whole)}")
    if sorted(there) == sorted(whole):
        raise ClauseError(f"{otherwise}: the records are there in another order")
    place = next(place for place, data in enumerate(whole) if there[place] != data)
    raise ClauseError(f"{otherwise}: {_first_difference(there[place], whole[place], place)}")


def expect_ids(found: Sequence[str], expected: Sequence[str], otherwise: str) -> None:
    """Raise ``ClauseError``, which says what is wrong with ``found``, unless it is ``expected``."""
    if [*found] == [*expected]:
        return
    missing = [place for place, entry_id in enumerate(expected) if entry_id not in found]
    twice = len(found) - len({*found})
    strange = len({*found}.difference(expected))
    problems = [
        f"{len(missing)} of {len(expected)} entries are missing (the first is number {missing[0]})" if missing else "",
        f"{twice} are there twice" if twice else "",
        f"{strange} are there that should not be" if strange else "",
    ]
    raise ClauseError(f"{otherwise}: {'; '.join(filter(None, problems)) or 'they are in another order'}")


def _first_difference(found: bytes, committed: bytes, place: int) -> str:
    same = next(
        (at for at, (one, other) in enumerate(zip(found, committed, strict=False)) if one != other),
        min(len(found), len(committed)),
    )
    start = max(0, same - _SHOWN_BEFORE)
    shown, expected = found[start:][:_SHOWN], committed[start:][:_SHOWN]
    return (
        f"record {place} differs from byte {same} on: {shown!r} came back for {expected!r}; keep Record.data as it is, and "
        "do not write it anew from its JSON"
    )


def _let_go(given: SessionStorage | Awaitable[SessionStorage]) -> None:
    """Close a storage, or a coroutine that has not begun, that nobody will get."""
    if isinstance(given, Coroutine) or not isinstance(given, Awaitable):
        given.close()


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
        self.watch: Watch = Watch()
        """Waits for the backend's calls."""
        self.ran_out_of_time: bool = False
        self.name: str = f"conformance-{new_id()}-{next(self._numbers)}"
        """The name of this clause's session."""

    async def storage(self, mode: Mode = "write", *, name: str | None = None) -> SessionStorage:
        """The session's storage, opened once more. Raises ``AbilityAbsent`` if there are no readers."""
        opened: list[SessionStorage | Awaitable[SessionStorage]] = []
        try:
            # The watch ends the wait. A cancellation before that would drop what the opener gives.
            with anyio.CancelScope(shield=True):
                opened.append(
                    await run_in_worker(
                        lambda: self.watch.call(
                            "the opener", lambda: self._opener(name or self.name, mode), undo=_let_go
                        ),
                        undo=_let_go,
                    )
                )
            given = opened[0]
            storage = watched(await given if isinstance(given, Awaitable) else given, self.watch)
        except NotImplementedError as error:
            if mode == "write":
                raise  # every backend writes
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
        inside.watch = self.watch
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
        """Close all logs and storages, and remove the folders, whatever is raised meanwhile; raises the first of it."""
        closing: list[Callable[[], Awaitable[object]]] = [inside.close for inside in self._inside]
        closing += [log.aclose for log in self._logs]
        closing += [partial(run_in_worker, storage.close) for storage in self._storages]
        closing.append(partial(run_in_worker, self._folders.close))
        self._inside, self._logs, self._storages = [], [], []
        errors: list[Exception] = []
        for close in closing:
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - the first one is raised below, when the rest is closed
                errors.append(error)
        if errors:
            raise errors[0]


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
