"""Entry files when the process, the disk or the permissions give way (R9, R10, R13, R15)."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.entry_files import EntryFileStorage
from storage.errors import (
    DamagedSessionError,
    SessionNotFoundError,
    StorageError,
)
from tests.storage.entry_folders import (
    chain,
    commit,
    create,
    entry_path,
    make,
    reopen,
    snapshot,
)
from tests.storage.strangers import STRANGER, as_stranger


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chat"


OPERATIONS = ("create_file", "write", "sync_data", "rename", "sync_folder")


def _die_at(fatal: int) -> None:
    """End this process at its ``fatal``-th file operation; a write that it dies in is half done."""
    calls = 0

    def wrap(name: str) -> None:
        original = getattr(files, name)

        def dying(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal:
                if name == "write":
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os._exit(1)
            return original(*arguments)

        setattr(files, name, dying)

    for name in OPERATIONS:
        wrap(name)


def _crash_everywhere(root: str, result: Any) -> None:
    """In a process of its own: for n = 1, 2, … a child that dies at its n-th file operation, while it commits batches."""
    report: list[list[str]] = []
    for fatal in range(1, 200):
        folder = Path(root) / str(fatal)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _die_at(fatal)
            storage = create(folder, durability="fsync")
            os.write(writer, b"created\n")
            seq = 0
            for size in (1, 3, 2):
                records = chain(size, start=seq)
                commit(storage, records)
                os.write(writer, "".join(f"{record.id}\n" for record in records).encode())
                seq += size
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            report.append([str(folder), *lines.read().split()])
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
    result.put(report)


def test_a_crash_at_every_operation(tmp_path: Path) -> None:
    """Reopened after a death at each file operation: all that was acknowledged is there, and one can go on, for good."""
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    process = context.Process(target=_crash_everywhere, args=(str(tmp_path), result))
    process.start()
    report = result.get(timeout=60)
    process.join()
    assert len(report) > 30
    tails = 0
    for place, *acknowledged in report:
        folder = Path(place)
        if not acknowledged:
            continue  # it was not made; that nothing of it is listed is tested with the repository
        assert acknowledged.pop(0) == "created"
        storage = reopen(folder, on_torn_tail="repair")
        found = [record.id for record in storage.read()]
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= 6
        tails += any(warning.code == "tail_repaired" for warning in storage.info.warnings)
        more = chain(1, start=len(found))
        commit(storage, more)
        storage.close()
        storage = reopen(folder)
        assert [record.id for record in storage.read()] == [*found, more[0].id]
        storage.close()
    assert tails == 0  # renames are in order, so only a lost one (power, not a death) leaves a gap


def test_every_set_of_lost_renames(tmp_path: Path) -> None:
    """Power loss may keep any of an unsynced batch's names: the acknowledged part shows, and repair makes it whole."""
    from itertools import combinations

    for number, kept in enumerate(kept for count in range(4) for kept in combinations(range(2, 5), count)):
        folder = tmp_path / str(number)
        records = make(folder, [2, 3])
        for seq in range(2, 5):
            if seq not in kept:
                entry_path(folder, records[seq]).unlink()
        storage = reopen(folder, on_torn_tail="repair")
        whole = 2
        while whole in kept:
            whole += 1
        assert [record.seq for record in storage.read()] == list(range(whole))
        commit(storage, chain(1, start=whole))
        storage.close()
        storage = reopen(folder, on_torn_tail="raise")
        assert len(storage.read()) == whole + 1
        storage.close()


def test_a_repair_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dying in the middle of a repair leaves a tail that the next one repairs."""
    folder = tmp_path / "chat"
    records = make(folder, [1, 4])
    entry_path(folder, records[1]).unlink()
    original = files.rename
    calls = 0

    def rename(source: str, target: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(5, "Input/output error")
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", rename)
        with pytest.raises(StorageError, match="tail cannot be moved"):
            reopen(folder, on_torn_tail="repair")
    storage = reopen(folder, on_torn_tail="repair")
    assert len(storage.read()) == 1
    assert len(list((folder / "torn").iterdir())) == 3
    storage.close()


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_no_repair_beside_damage(tmp_path: Path, on_corrupt: Any) -> None:
    """R14, R15: where another entry is damaged, a tail is not set aside; salvage shows it, for nothing is ever appended."""
    folder = tmp_path / "chat"
    records = make(folder, [1, 1, 3])
    damaged = entry_path(folder, records[0])
    damaged.write_bytes(damaged.read_bytes()[:100])
    entry_path(folder, records[2]).unlink()
    before = snapshot(folder / "entries")
    if on_corrupt == "raise":
        with pytest.raises(DamagedSessionError):
            reopen(folder, on_torn_tail="repair")
    else:
        storage = reopen(folder, on_torn_tail="repair", on_corrupt="skip")
        assert [record.seq for record in storage.read()] == [1, 3, 4]
        assert not storage.info.writable
        storage.close()
    assert snapshot(folder / "entries") == before
    assert not (folder / "torn").exists()


def test_salvage_without_a_header(tmp_path: Path) -> None:
    """R14: with its header lost or damaged, salvage shows every entry; the folder's name stands in for the id."""
    folder = tmp_path / "chat"
    records = make(folder, [1, 2])
    for spoil in (lambda path: path.write_bytes(path.read_bytes()[:30]), lambda path: path.unlink()):
        spoil(folder / "metadata.json")
        with pytest.raises(DamagedSessionError):
            reopen(folder)
        storage = reopen(folder, on_corrupt="skip")
        assert [record.id for record in storage.read()] == [record.id for record in records]
        assert (storage.info.header.id, storage.info.writable) == ("chat", False)
        storage.close()


WRITER = """
import sys, anyio
from storage.entry_files import EntryFileStorage
from storage.entry_log import EntryLog
from storage.messages import UserMessage

async def main():
    log = await EntryLog.open(await EntryFileStorage.open_or_create(sys.argv[1]))
    while True:
        writes = [log.append_message(UserMessage(content="x" * 500)) for _ in range(3)]
        for write in writes:
            print(await write, flush=True)

anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_sigkill(tmp_path: Path, backend: str) -> None:
    """Killed at random moments: each id that was printed after its await is there, in order, each time."""
    chooser = random.Random(7)
    folder = tmp_path / "chat"
    printed: list[str] = []
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), backend], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        printed.append(process.stdout.readline().strip())
        time.sleep(chooser.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        printed += [line for line in rest.split("\n")[:-1] if line]
        storage = reopen(folder, mode="read")
        found = [record.id for record in storage.read()]
        places = [found.index(entry_id) for entry_id in printed]
        assert places == sorted(places)
        assert not [warning for warning in storage.info.warnings if warning.code != "foreign_file"]
        storage.close()


def test_a_killed_creation_leaves_no_session(tmp_path: Path) -> None:
    """SIGKILL while a large session is made: nothing is at its place, and making it again works, and cleans up after."""
    script = (
        "import sys; from pathlib import Path; from tests.storage.entry_folders import chain, create\n"
        "print('begin', flush=True); create(Path(sys.argv[1]), chain(5000), 'fsync'); print('end', flush=True)"
    )
    folder = tmp_path / "chat"
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    while not list(tmp_path.glob(".chat.creating-*/entries/*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    assert process.communicate()[0] == ""
    assert not folder.exists()
    with pytest.raises(SessionNotFoundError):
        reopen(folder)
    storage = create(folder, chain(3))
    assert len(list(tmp_path.iterdir())) == 2
    storage.delete()
    assert list(tmp_path.iterdir()) == []


def _open_as_stranger(folder: str, result: Any) -> None:
    os.setuid(STRANGER)
    found: dict[str, str] = {}
    for mode in ("read", "write"):
        try:
            storage = EntryFileStorage._open(folder, mode, "os", "read_only", "raise")
            found[mode] = f"{len(storage.read())} entries"
            storage.close()
        except Exception as error:  # noqa: BLE001 - told to the parent
            found[mode] = f"{type(error).__name__}: {error}"
    result.put(json.dumps(found))


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="drops to another user, so it needs root")
class TestPermissions:
    def test_what_cannot_be_read_is_not_missing(self, folder: Path) -> None:
        """Unreadable is an error of its own, and nothing is made."""
        make(folder, [1])
        before = snapshot(folder)
        found = as_stranger(_open_as_stranger, folder)
        assert found["read"].startswith("StorageError")
        assert found["write"].startswith("StorageError")
        assert snapshot(folder) == before

    def test_readable_but_not_writable(self, folder: Path) -> None:
        """Another user may read where modes allow it; a writer is told what it needs."""
        make(folder, [2])
        (folder / ".lock").unlink()
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = snapshot(folder)
        found = as_stranger(_open_as_stranger, folder)
        assert found["read"] == "2 entries"
        assert "write permission" in found["write"]
        assert snapshot(folder) == before

    def test_one_unreadable_entry(self, folder: Path) -> None:
        """One file that cannot be read is an error that names it, not a shorter session."""
        records = make(folder, [3])
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        entry_path(folder, records[2]).chmod(0o600)
        found = as_stranger(_open_as_stranger, folder)
        assert found["read"].startswith("StorageError")
        assert records[2].id in found["read"]
