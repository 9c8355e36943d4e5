"""The system fails under a real process: a full disk, limits, and errors injected into its calls (R10)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage import EntryFileStorage, EntryLog, JsonlStorage, UserMessage
from tests.programs import REPOSITORY, can, run
from tests.storage.places import committed_lines

PROGRAM = [sys.executable, "-m", "tests.storage.breaking_program"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")


@pytest.fixture(params=["chat.jsonl", "chat"])
def name(request: pytest.FixtureRequest) -> str:
    """A session's name, of either backend on disk."""
    return request.param


@pytest.fixture(params=["asyncio", "trio"])
def loop(request: pytest.FixtureRequest) -> str:
    """An event loop."""
    return request.param


def check_recovered(found: dict[str, Any]) -> None:
    """What was acknowledged, and nothing else, is there, in order, in one chain."""
    parts = [found["before"], *[found[part]["committed"] for part in ("full", "again", "room") if part in found]]
    expected = [entry_id for part in parts for entry_id in part]
    assert found["held"] == expected
    assert found["chain"] == len(expected)
    assert len(found["room"]["committed"]) == 40


def test_a_full_disk(tmp_path: Path, name: str, loop: str) -> None:
    """R10: on a disk that is really full, whole entries stay, the rest is cut and fails with one cause.

    When there is room again the same log goes on. Nothing can be created there meanwhile, and nothing of that is left.
    """
    if not can("unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"):
        pytest.skip("no mount name spaces here")
    script = 'mount -t tmpfs -o size=256k tmpfs "$1" && shift && exec "$@"'
    found = run("unshare", "-Urm", "sh", "-c", script, "sh", tmp_path, *PROGRAM, "disk", tmp_path / name, loop)
    full = found["full"]
    assert full["failed"] > 20
    assert full["committed"]
    assert (full["kinds"], full["causes"], full["errnos"]) == (["StorageError"], 1, [errno.ENOSPC])
    assert full["writable"]
    assert found["again"]["failed"] or found["again"]["committed"]
    assert found["whole"]
    assert (found["created"], found["left"]) == ("refused", [])
    check_recovered(found)


def test_a_short_write(tmp_path: Path, loop: str) -> None:
    """R10: a write that the system cuts short at the file size limit: the whole lines stay, the half one is cut."""
    found = run(*PROGRAM, "size", tmp_path / "chat.jsonl", loop)
    full = found["full"]
    assert 5 < len(full["committed"]) < 20
    assert (full["causes"], full["errnos"]) == (1, [errno.EFBIG])
    assert full["writable"]
    check_recovered(found)


def test_no_more_open_files(tmp_path: Path, loop: str) -> None:
    """R10: when the process may open no more files, what was written whole stays, and it goes on when it may."""
    found = run(*PROGRAM, "files", tmp_path / "chat", loop)
    full = found["full"]
    assert full["failed"]
    assert (full["causes"], full["errnos"]) == (1, [errno.EMFILE])
    assert full["writable"]
    check_recovered(found)


def begin(path: Path) -> list[str]:
    """A session of two entries; their ids."""

    async def make() -> list[str]:
        backend: Any = JsonlStorage if path.suffix else EntryFileStorage
        log = await EntryLog.open(await backend.create(path))
        ids = [await log.append_message(UserMessage(content="before")) for _ in range(2)]
        await log.aclose()
        return ids

    return anyio.run(make)


def inject(path: Path, loop: str, what: str, *, on: Path | None) -> dict[str, Any]:
    """Append six times under strace, which makes a call (on a file that is there already, if given) fail."""
    if not can("strace", "-qq", "-e", "trace=none", "true"):
        pytest.skip("strace cannot trace here")
    target = ["-P", on] if on else []
    call = what.split(":", maxsplit=1)[0]
    trace = path.parent / "trace.txt"
    found = run(
        *("strace", "-f", "-qq", "-o", trace, *target, "-e", f"trace={call}", "-e", f"inject={what}"),
        *(*PROGRAM, "plain", path, loop),
    )
    assert "(INJECTED)" in trace.read_text()
    return found


def test_a_failed_sync_is_not_retried(tmp_path: Path, loop: str) -> None:
    """R10: an fdatasync that fails with EIO: that write fails, the log is tainted, nothing is written or synced again."""
    path = tmp_path / "chat.jsonl"
    ids = begin(path)
    found = inject(path, loop, "fdatasync:error=EIO:when=3", on=path)
    good, bad = found["results"][:2], found["results"][2:]
    assert all(isinstance(result, str) for result in good)
    assert bad == [{"errno": errno.EIO, "kind": "StorageError"}] * 4
    assert found["calls"] == ["OSError", "OSError"]
    trace = (tmp_path / "trace.txt").read_text()
    assert trace.count("fdatasync(") == 3
    assert found["held"][:4] == [*ids, *good]
    assert len(found["held"]) == 5  # written, though nobody knows whether durably


def test_a_write_that_fails(tmp_path: Path, loop: str) -> None:
    """R10: a write that fails with EIO and leaves nothing: that entry fails, the next ones are tried and succeed."""
    path = tmp_path / "chat.jsonl"
    ids = begin(path)
    found = inject(path, loop, "write:error=EIO:when=2", on=path)
    results = found["results"]
    assert results[1] == {"errno": errno.EIO, "kind": "StorageError"}
    good = [result for result in results if isinstance(result, str)]
    assert len(good) == 5
    assert found["held"] == [*ids, *good]
    assert found["calls"] == ["fine", "fine"]


def test_a_write_that_lies(tmp_path: Path, loop: str) -> None:
    """R12: a kernel that says 50 bytes were written when none were: nothing is acknowledged, nothing is damaged."""
    path = tmp_path / "chat.jsonl"
    ids = begin(path)
    found = inject(path, loop, "write:retval=50:when=2", on=path)
    assert isinstance(found["results"][0], str)
    assert all(not isinstance(result, str) for result in found["results"][1:])
    assert found["held"] == [*ids, found["results"][0]]
    assert len(committed_lines(path.read_bytes())) == 4


def test_a_cut_that_fails(tmp_path: Path, loop: str) -> None:
    """R10: when the half line of a short write cannot be cut off, nobody can show that it worked: tainted."""
    path = tmp_path / "chat.jsonl"
    if not can("strace", "-qq", "-e", "trace=none", "true"):
        pytest.skip("strace cannot trace here")
    begin(path)
    trace = tmp_path / "trace.txt"
    failing = subprocess.run(
        ["strace", "-f", "-qq", "-o", trace, "-e", "trace=ftruncate", "-P", path, "-e", "inject=ftruncate:error=EIO",
         *PROGRAM, "size", path, loop],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "(INJECTED)" in trace.read_text()
    assert failing.returncode != 0
    assert "the file could not be cut back" in failing.stderr
    data = path.read_bytes()
    assert not data.endswith(b"\n")
    repaired = anyio.run(reopen_and_append, path)
    assert repaired == len(committed_lines(data))


async def reopen_and_append(path: Path) -> int:
    """Repair, append one, and count the entries."""
    log = await EntryLog.open(await JsonlStorage.open(path, on_torn_tail="repair"))
    await log.append_message(UserMessage(content="after"))
    await log.aclose()
    log = await EntryLog.open(await JsonlStorage.open(path, on_torn_tail="raise"))
    count = len(log.index)
    await log.aclose()
    return count


def test_a_failed_folder_sync(tmp_path: Path, loop: str) -> None:
    """R10: for entry files it is the folder's sync that makes them durable: when it fails, the log is tainted."""
    path = tmp_path / "chat"
    begin(path)
    found = inject(path, loop, "fsync:error=EIO:when=2", on=path / "entries")
    good, bad = found["results"][:1], found["results"][1:]
    assert isinstance(good[0], str)
    assert bad == [{"errno": errno.EIO, "kind": "StorageError"}] * 5
    assert found["calls"] == ["OSError", "OSError"]


def test_a_rename_that_fails(tmp_path: Path, loop: str) -> None:
    """R10: for entry files a rename that fails leaves nothing of that entry; the next ones succeed."""
    path = tmp_path / "chat"
    ids = begin(path)
    found = inject(path, loop, "rename:error=EIO:when=2", on=None)
    results = found["results"]
    good = [result for result in results if isinstance(result, str)]
    assert len(good) == 5
    assert found["held"] == [*ids, *good]
    left = [item.name for item in (path / "entries").iterdir() if not item.name.endswith(".json")]
    assert left == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_dev_full_takes_nothing(loop: str) -> None:
    """R15: /dev/full, which takes no byte, is no session's file, and is refused before anything is made."""

    async def attempt() -> None:
        with pytest.raises(OSError, match="not a file|already"):
            await JsonlStorage.open_or_create("/dev/full")

    anyio.run(attempt, backend=loop)
    assert not os.path.exists("/dev/full.lock")
