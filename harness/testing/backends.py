"""Swap the backend: the same app, or the same test, on memory, on files, on folders and on a database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.session import Session
from harness.session_opening import SessionOpening
from storage.entry_file_repository import EntryFileRepository
from storage.jsonl_repository import JsonlRepository
from storage.memory_repository import MemoryRepository
from storage.protocols import Mode
from storage.repository import SessionRepository
from storage.sqlite_repository import SqliteRepository

BACKENDS: Final = ("memory", "jsonl", "entry_files", "sqlite")
"""The names of the backends, in the order of ``each_backend``."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Sessions on one kind of storage.

    ```python
    async with backend.session() as session:
        ...
    async with backend.session() as session:  # the same one, opened anew
        ...
    ```
    """

    name: str
    """One of ``BACKENDS``."""
    repository: SessionRepository
    """The shelf that they lie on: for apps that have many, and for ``session.fork(into=…)``."""

    def __repr__(self) -> str:
        return self.name

    def session(self, session_id: str = "test", *, mode: Mode = "write") -> SessionOpening:
        """The session of that id, to be awaited or entered with ``async with``. To write, it is made if it is not there."""
        storage = (
            self.repository.open_or_create(session_id)
            if mode == "write"
            else self.repository.open(session_id, mode=mode)
        )
        return Session.open(storage)


def backend_of(name: str, folder: str | os.PathLike[str]) -> Backend:
    """The backend of that name, with its files, where it has any, in a folder of its own below ``folder``.

    Raises:
        ValueError: there is none of that name.
    """
    root = Path(folder, name)
    match name:
        case "memory":
            return Backend(name, MemoryRepository())
        case "jsonl":
            return Backend(name, JsonlRepository(root))
        case "entry_files":
            return Backend(name, EntryFileRepository(root))
        case "sqlite":
            return Backend(name, SqliteRepository(root / "sessions.sqlite"))
        case _:
            raise ValueError(f"there is no backend {name!r}; they are {', '.join(BACKENDS)}")


def each_backend(folder: str | os.PathLike[str]) -> Iterator[Backend]:
    """All backends, one after the other, empty, with their files below ``folder``."""
    return (backend_of(name, folder) for name in BACKENDS)
