"""The log's side of blobs: who may write one and when, and that a session is not closed while one is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar, cast

from storage.blobs import check_blob_name
from storage.errors import BlobNotFoundError, InvalidEntryError, SessionClosedError, SessionError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.protocols import BlobStore, SessionStorage

T = TypeVar("T")


class _Log(Protocol):
    @property
    def storage(self) -> SessionStorage: ...
    def check_usable(self) -> None: ...
    def check_writable(self) -> None: ...


class BlobCalls:
    """Writes and reads the blobs of a log's storage, in workers, several at once, beside the entries."""

    def __init__(self, log: _Log) -> None:
        """Nothing is under way."""
        self._log = log
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    async def write(self, data: bytes) -> str:
        """Keep ``data`` beside the record; the name it is found under. It is there when this returns.

        An entry that names it is appended after that, so that no entry names what is not there. Nothing is left of a
        write that failed; one that was cancelled may leave a blob that nobody names. A cancellation is let through when
        the worker has ended. Raises ``InvalidEntryError`` for what is no bytes, ``SessionError`` where the storage keeps
        no blobs, and what an append raises.
        """
        self._log.check_writable()
        if not isinstance(cast("object", data), bytes):
            raise InvalidEntryError(f"a {type(data).__name__} is no bytes; encode text before it is kept as a blob")
        store = self._store()
        name = new_id()
        await self._run(lambda: store.write_blob(name, data))
        return name

    async def read(self, name: str) -> bytes:
        """What was kept under ``name``.

        Raises ``BlobNotFoundError``, ``InvalidIdError``, ``StorageError``, and ``SessionError`` where the storage keeps no
        blobs.
        """
        self._log.check_usable()
        check_blob_name(name)
        return await self._run(partial(self._store().read_blob, name))

    def copies(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The blobs of these names, read while they are taken: in a worker. One that is lost is left out of a copy."""
        store = self._store()
        for name in names:
            try:
                with self._under_way():
                    data = store.read_blob(name)
            except BlobNotFoundError:
                continue
            yield name, data

    def end(self) -> None:
        """Take no more calls, and wait for those that are under way. Blocking."""
        with self._changed:
            self._closed = True
            while self._running:
                self._changed.wait()

    async def _run(self, call: Callable[[], T]) -> T:
        def run() -> T:
            with self._under_way():
                return call()

        return await run_in_worker(run)

    @contextmanager
    def _under_way(self) -> Generator[None]:
        with self._changed:
            if self._closed:
                raise SessionClosedError("the session is closed; open it again")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _store(self) -> BlobStore:
        storage = self._log.storage
        if not isinstance(storage, BlobStore):
            raise SessionError(
                f"{type(storage).__name__} keeps no blobs; keep the data elsewhere, or use a storage that does, as all of "
                "branchline's own do"
            )
        return storage
