"""What may not be read or written: tested as another user, since root may do everything (R15)."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage import (
    EntryFileStorage,
    EntryLog,
    JsonlStorage,
    SessionNotFoundError,
    StorageError,
    UserMessage,
)
from tests.storage.places import fork

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")

NOBODY = 65534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches (pytest's own are closed to others)."""
    folder = Path(tempfile.mkdtemp(prefix="branchline-permissions-"))
    folder.chmod(0o777)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)
    shutil.rmtree(folder)


def as_nobody(work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` in a child that gave up root; what it raises fails the test."""
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            anyio.run(work)
            code = 0
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert (status, told) == (0, "")


def make(path: Path) -> None:
    """A session with one entry, for everybody to read and write."""

    async def run() -> None:
        backend: Any = JsonlStorage if path.suffix else EntryFileStorage
        log = await EntryLog.open(await backend.create(path, durability="os"))
        await log.append_message(UserMessage(content="first"))
        await log.aclose()

    anyio.run(run)
    for found in [path, *(path.rglob("*") if path.is_dir() else ()), Path(f"{path}.lock")]:
        if found.exists():
            found.chmod(0o777 if found.is_dir() else 0o666)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_what_cannot_be_read_is_not_missing(open_folder: Path, mode: Any) -> None:
    """R15: an unreadable file is a StorageError, not "no session", and open_or_create makes no new one in its place."""
    path = open_folder / "chat.jsonl"
    make(path)
    path.chmod(0)

    async def work() -> None:
        for opening in (JsonlStorage.open(path, mode=mode), JsonlStorage.open_or_create(path)):
            with pytest.raises(StorageError, match="Permission denied") as caught:
                await opening
            assert not isinstance(caught.value, SessionNotFoundError)
            assert caught.value.path == str(path)

    as_nobody(work)
    path.chmod(0o600)
    assert path.read_bytes().count(b"\n") == 2
    assert sorted(found.name for found in open_folder.iterdir()) == ["chat.jsonl", "chat.jsonl.lock"]


def test_a_file_that_cannot_be_written(open_folder: Path) -> None:
    """R15: it opens for reading; opening for writing says that it may not be written, and makes nothing but the lock."""
    path = open_folder / "chat.jsonl"
    make(path)
    path.chmod(0o444)
    before = path.read_bytes()

    async def work() -> None:
        reader = await EntryLog.open(await JsonlStorage.open(path, mode="read"))
        assert len(reader.index) == 1
        await reader.aclose()
        with pytest.raises(StorageError, match="Permission denied"):
            await JsonlStorage.open(path)

    as_nobody(work)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written(open_folder: Path) -> None:
    """R15: in a read-only folder sessions can be read, beside no lock file; creating is refused, and nothing is left."""
    path = open_folder / "chat.jsonl"
    make(path)
    Path(f"{path}.lock").unlink()
    open_folder.chmod(0o555)

    async def work() -> None:
        reader = await EntryLog.open(await JsonlStorage.open(path, mode="read"))
        assert len(reader.index) == 1
        await reader.aclose()
        for opening in (
            JsonlStorage.open(path),
            JsonlStorage.create(open_folder / "new.jsonl"),
            JsonlStorage.open_or_create(open_folder / "new.jsonl"),
            JsonlStorage.create(open_folder / "new" / "new.jsonl"),
            EntryFileStorage.create(open_folder / "new"),
        ):
            with pytest.raises(StorageError, match="Permission denied"):
                await opening

    as_nobody(work)
    assert [found.name for found in open_folder.iterdir()] == ["chat.jsonl"]


def test_a_folder_that_becomes_read_only(open_folder: Path) -> None:
    """R10: for entry files a folder that is closed while the session is open: the append fails with the reason.

    Goes on when it may be written again.
    """
    path = open_folder / "chat"
    make(path)

    async def work() -> None:
        log = await EntryLog.open(await EntryFileStorage.open(path, durability="os"))
        (path / "entries").chmod(0o555)
        with pytest.raises(StorageError, match="Permission denied"):
            await log.append_message(UserMessage(content="refused"))
        (path / "entries").chmod(0o777)
        await log.append_message(UserMessage(content="second"))
        await log.aclose()

    os.chown(path / "entries", NOBODY, NOBODY) if os.getuid() == 0 else None
    as_nobody(work)
    assert len(list((path / "entries").iterdir())) == 2


def test_a_folder_that_cannot_be_entered(open_folder: Path) -> None:
    """R15: below a folder without search permission nothing is missing: it cannot be looked at."""
    hidden = open_folder / "hidden"
    hidden.mkdir()
    path = hidden / "chat.jsonl"
    make(path)
    hidden.chmod(0)

    async def work() -> None:
        for opening in (
            JsonlStorage.open(path),
            JsonlStorage.open(path, mode="read"),
            JsonlStorage.open_or_create(path),
            EntryFileStorage.open(hidden / "chat", mode="read"),
        ):
            with pytest.raises(StorageError, match="Permission denied"):
                await opening

    as_nobody(work)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mask: int) -> None:
    """R16: files are 0600 and folders 0700 under every umask, side files and locks included."""
    before = os.umask(mask)
    try:
        jsonl, folder = tmp_path / "a" / "b" / "chat.jsonl", tmp_path / "c" / "d" / "chat"
        make_private(jsonl)
        make_private(folder)
    finally:
        os.umask(before)
    for found in tmp_path.rglob("*"):
        expected = 0o700 if found.is_dir() else 0o600
        assert stat.S_IMODE(found.stat().st_mode) == expected, found


def make_private(path: Path) -> None:
    """A session with one entry and a repaired tail."""

    async def run() -> None:
        backend: Any = JsonlStorage if path.suffix else EntryFileStorage
        log = await EntryLog.open(await backend.create(path))
        await log.append_message(UserMessage(content="first"))
        await log.aclose()
        if path.suffix:
            with path.open("ab") as file:
                file.write(b"tail")
            (await backend.open(path, on_torn_tail="repair")).close()

    anyio.run(run)
