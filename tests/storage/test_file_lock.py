"""The writer's lock (R12): one at a time, named, free when its owner is dead, and never in a reader's way."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage import file_lock
from storage.errors import SessionLockedError, StorageError
from storage.file_lock import WriterLock, lock_owner, open_when_free
from tests.storage.strangers import STRANGER, as_stranger

HOLDER = """
import sys, time
from storage.file_lock import WriterLock
lock = WriterLock.acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "chat.jsonl.lock")


def hold_elsewhere(path: str) -> subprocess.Popen[str]:
    """A second process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_two_in_one_process_exclude_each_other(path: str) -> None:
    """A second writer in the same process is refused like one in another."""
    lock = WriterLock.acquire(path)
    with pytest.raises(SessionLockedError) as caught:
        WriterLock.acquire(path)
    assert caught.value.details["owner"]["pid"] == os.getpid()
    assert "this one" in str(caught.value)
    lock.release()
    WriterLock.acquire(path).release()


def test_another_process_is_named(path: str) -> None:
    """The loser is told who holds it: process, host, since when; and the winner's name survives that."""
    process = hold_elsewhere(path)
    try:
        with pytest.raises(SessionLockedError):
            WriterLock.acquire(path)
        with pytest.raises(SessionLockedError, match=f"process {process.pid} on ") as caught:
            WriterLock.acquire(path)
        owner = caught.value.details["owner"]
        assert owner["pid"] == process.pid
        assert owner["host"]
        assert owner["since"].endswith("Z")
    finally:
        end(process)


def test_a_dead_owner_blocks_nobody(path: str) -> None:
    """SIGKILL frees the lock at once, though its file stays and still names the dead."""
    process = hold_elsewhere(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (lock_owner(path) or {})["pid"] == process.pid
    lock = WriterLock.acquire(path)
    assert (lock_owner(path) or {})["pid"] == os.getpid()
    lock.release()


def test_it_waits_as_long_as_asked(path: str) -> None:
    """A timeout is waited out, and no longer."""
    lock = WriterLock.acquire(path)
    begun = time.monotonic()
    with pytest.raises(SessionLockedError):
        WriterLock.acquire(path, 0.2)
    assert 0.2 <= time.monotonic() - begun < 60
    timer = threading.Timer(0.2, lock.release)
    timer.start()
    WriterLock.acquire(path, math.inf).release()
    timer.join()


def test_a_timeout_that_is_no_number_is_refused(path: str) -> None:
    """NaN would compare as neither over nor not: refused before the file is made."""
    with pytest.raises(ValueError, match="not a number"):
        WriterLock.acquire(path, math.nan)
    assert not os.path.exists(path)


def test_release_keeps_the_file_and_forgets_the_name(path: str) -> None:
    """Removing it would let two writers lock two files of one name; a name left in it would mislead."""
    lock = WriterLock.acquire(path)
    lock.release()
    lock.release()
    assert not lock.held
    assert os.path.getsize(path) == 0
    assert lock_owner(path) is None


def test_the_file_is_private_and_the_handle_is_not_inherited(path: str) -> None:
    """0600, and closed in programs that we start: a child that lives on must not keep the lock."""
    old = os.umask(0)
    try:
        lock = WriterLock.acquire(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        lock.release()
        WriterLock.acquire(path).release()
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_no_share_in_it(path: str) -> None:
    """After a fork the lock is the parent's alone: its release, or its death, frees it though the child lives."""
    lock = WriterLock.acquire(path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"y" if not lock.held else b"n")
        time.sleep(30)
        os._exit(0)
    try:
        assert os.read(reader, 1) == b"y"
        os.close(lock._descriptor or -1)  # as if the parent had died
        lock._descriptor = None
        WriterLock.acquire(path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_the_lock_of_a_deleted_session_is_not_taken_by_who_waited(path: str) -> None:
    """Who waited for a lock whose file was removed meanwhile locks the new file, not the one that is gone."""
    first = WriterLock.acquire(path)
    got: list[WriterLock] = []
    waiter = threading.Thread(target=lambda: got.append(WriterLock.acquire(path, 60)))
    waiter.start()
    time.sleep(0.1)
    first.remove()
    waiter.join()
    assert os.path.exists(path)
    with pytest.raises(SessionLockedError):
        WriterLock.acquire(path)
    got[0].release()


def test_a_lock_file_that_vanishes_as_it_is_locked(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted between opening and locking: the lock that is got is the one on the file that is there."""
    original = file_lock._open
    opened = 0

    def opening(place: str) -> int:
        nonlocal opened
        descriptor = original(place)
        opened += 1
        if opened == 1:
            os.unlink(place)
        return descriptor

    monkeypatch.setattr(file_lock, "_open", opening)
    lock = WriterLock.acquire(path)
    assert opened == 2
    with pytest.raises(SessionLockedError):
        WriterLock.acquire(path)
    lock.release()


def test_a_lock_file_that_keeps_vanishing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That ends in an error, not in a loop."""
    monkeypatch.setattr(file_lock, "_is_at", lambda *_: False)
    with pytest.raises(StorageError, match="again and again"):
        WriterLock.acquire(path, math.inf)


def test_release_frees_copies_of_the_handle(path: str) -> None:
    """A child between fork and exec has a copy of the handle: giving the lock up does not wait for it to be closed."""
    lock = WriterLock.acquire(path)
    assert lock._descriptor is not None
    copy = os.dup(lock._descriptor)
    lock.release()
    WriterLock.acquire(path).release()
    os.close(copy)


def test_remove_leaves_a_file_that_is_not_ours(path: str) -> None:
    """If somebody replaced the file, removing it would pull it from under its new owner."""
    first = WriterLock.acquire(path)
    os.unlink(path)
    second = WriterLock.acquire(path)
    first.remove()
    assert os.path.exists(path)
    second.release()


def test_a_symlink_is_not_followed(path: str, tmp_path: Path) -> None:
    """The owner's name is never written into a file that a symlink in the lock's place points to."""
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    os.symlink(precious, path)
    with pytest.raises(StorageError, match="lock file"):
        WriterLock.acquire(path)
    assert precious.read_text() == "keep me"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "fifo"])
def test_what_is_no_file_is_refused(path: str, make: object) -> None:
    """A folder or a pipe in the lock's place is an error at once, not a wait for ever."""
    assert callable(make)
    make(path)
    with pytest.raises(StorageError):
        WriterLock.acquire(path)


def test_no_folder(tmp_path: Path) -> None:
    """A missing folder is said, and not made."""
    with pytest.raises(StorageError, match="make the folder first"):
        WriterLock.acquire(tmp_path / "missing" / "x.lock")
    assert list(tmp_path.iterdir()) == []


def _lock_as_stranger(folder: str, result: Any) -> None:
    os.setuid(STRANGER)
    try:
        WriterLock.acquire(os.path.join(folder, "x.lock"))
    except Exception as error:  # noqa: BLE001 - told to the parent
        result.put(json.dumps({"error": type(error).__name__, "message": str(error)}))


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="drops to another user, so it needs root")
def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    """A writer is told that it needs write permission, and that a reader does not."""
    folder = tmp_path / "readonly"
    folder.mkdir()
    folder.chmod(0o755)
    found = as_stranger(_lock_as_stranger, folder)
    assert found["error"] == "StorageError"
    assert "write permission" in found["message"]
    assert "mode='read'" in found["message"]
    assert list(folder.iterdir()) == []


def test_an_owner_that_is_no_owner_is_unknown(path: str) -> None:
    """Whatever the file holds, reading the owner from it neither fails nor destroys it."""
    for text in [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 5000]:
        Path(path).write_bytes(text)
        assert lock_owner(path) is None
        assert Path(path).read_bytes() == text


def test_a_full_disk_does_not_keep_the_lock_from_its_owner(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name in the file is a courtesy: without room for it, the lock is held all the same."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        lock = WriterLock.acquire(path)
    with pytest.raises(SessionLockedError, match="another writer") as caught:
        WriterLock.acquire(path)
    assert caught.value.details["owner"] is None
    lock.release()


def test_the_name_is_json(path: str) -> None:
    """Other programs can read who holds it."""
    lock = WriterLock.acquire(path)
    assert set(json.loads(Path(path).read_bytes())) == {"pid", "host", "since"}
    lock.release()


class TestOpenWhenFree:
    """Opening waits for the lock in the task, where it can be cancelled."""

    pytestmark = pytest.mark.anyio

    async def test_it_waits_for_the_other_writer(self, path: str) -> None:
        """It gets the lock when the holder lets go, within the time."""
        holder = WriterLock.acquire(path)
        timer = threading.Timer(0.15, holder.release)
        timer.start()
        lock = await open_when_free(lambda: WriterLock.acquire(path), 60, undo=WriterLock.release)
        assert lock.held
        lock.release()
        timer.join()

    async def test_it_gives_up_in_time(self, path: str) -> None:
        """Without time to wait, and after the time, it raises who holds the lock."""
        holder = WriterLock.acquire(path)
        for seconds in (0, 0.1):
            with pytest.raises(SessionLockedError):
                await open_when_free(lambda: WriterLock.acquire(path), seconds, undo=WriterLock.release)
        holder.release()

    async def test_cancelled_while_it_waits(self, path: str) -> None:
        """A cancellation ends the wait at once and leaves nothing locked."""
        holder = WriterLock.acquire(path)
        with anyio.move_on_after(0.1) as scope:
            await open_when_free(lambda: WriterLock.acquire(path), math.inf, undo=WriterLock.release)
        assert scope.cancelled_caught
        holder.release()
        WriterLock.acquire(path).release()

    async def test_cancelled_as_it_gets_it(self, path: str) -> None:
        """A lock that was got for a task that is cancelled is given up again."""
        begun = threading.Event()

        def slowly() -> WriterLock:
            lock = WriterLock.acquire(path)
            begun.set()
            time.sleep(0.1)
            return lock

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: open_when_free(slowly, 0, undo=WriterLock.release))
            while not begun.is_set():  # it is set in a thread
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        with anyio.fail_after(60):
            while True:
                try:
                    WriterLock.acquire(path).release()
                    break
                except SessionLockedError:
                    await anyio.sleep(0.01)
