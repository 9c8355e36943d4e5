"""Every state that a disk may be left in by a power loss, at any moment of what we do to it (R9, R13).

Each script runs once, on a real disk, with every call recorded; each state is made in a folder of its own and opened
by the real session.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from harness import Session
from storage import StorageError, UserMessage, files
from storage.testing import CrashDisk, FaultyDisk
from storage.testing.crash_disk import CrashState
from tests.faults.crash_scripts import (
    BACKENDS,
    Recorded,
    Script,
    Steps,
    backend_of,
    check,
    record,
    unsynced,
)


async def creating(script: Script) -> None:
    """A new session, an entry, two side by side."""
    session = await script.create()
    await script.say(session, "a")
    await script.say(session, "b", "c")
    await script.close(session)


async def with_blobs(script: Script) -> None:
    """Two large outputs, each named by an entry."""
    session = await script.create()
    await script.keep(session, b"one" * 20)
    await script.keep(session, b"two")
    await script.close(session)


async def forking(script: Script) -> None:
    """A fork that takes blobs along."""
    session = await script.open()
    into = backend_of(script.kind)
    fork = await session.fork(into=lambda **given: into.create(script.place("fork"), **given))
    script.mark("created", "fork")
    script.mark("acknowledged", "fork", len(fork.log.index))
    await script.say(fork, "in the fork", name="fork")
    await script.close(fork, "fork")
    await script.close(session)


async def deleting(script: Script) -> None:
    """A session with blobs is deleted."""
    session = await script.open()
    script.note(session)
    script.mark("deleting")
    await session.delete()
    script.mark("deleted")


async def torn(script: Script) -> None:
    """A session whose last batch a crash tore."""
    session = await script.create()
    await script.say(session, "a")
    script.note(session)
    ids = await script.say(session, "b", "c", "d")
    await session.aclose()
    place = script.place("chat")
    if script.kind == "jsonl":
        data = place.read_bytes()
        place.write_bytes(data[: data.index(ids[0].encode()) + 60])
    else:
        (place / "entries" / f"{ids[0]}.json").unlink()


async def repairing(script: Script) -> None:
    """The tail is set aside, and the session goes on."""
    session = await script.open()
    await script.say(session, "after the repair")
    await script.close(session)


async def half_begun(script: Script) -> None:
    """What is left of a session that never was one."""
    place = script.place("chat")
    if script.kind == "jsonl":
        place.write_bytes(b'{"type":"session","vers')
    else:
        place.mkdir()
        (place / "entries").mkdir()


async def beginning_anew(script: Script) -> None:
    """A session is begun where only bytes lie."""
    session = await Session.open(backend_of(script.kind).open_or_create(script.place("chat"), cwd="/"))
    script.mark("created")
    await script.say(session, "a")
    await script.close(session)


async def failing(script: Script) -> None:
    """The disk is full in the middle of a batch, then emptied, and the session goes on."""
    session = await script.create()
    await script.say(session, "a")
    with FaultyDisk(script.folder) as disk:
        for room in (300, 40):
            disk.room = room
            writes = [session.append_message(UserMessage(content=text)) for text in ("b", "c")]
            for write in writes:
                try:
                    await write
                except StorageError:
                    continue
                script.mark("acknowledged", "chat", len(session.log.index))
    await script.say(session, "there is room again")
    await script.close(session)


SCRIPTS: dict[str, tuple[Steps | None, Steps]] = {
    "create and append": (None, creating),
    "blobs": (None, with_blobs),
    "fork with blobs": (with_blobs, forking),
    "delete": (with_blobs, deleting),
    "repair": (torn, repairing),
    "begin where only bytes lie": (half_begun, beginning_anew),
    "a full disk": (None, failing),
}
"""What was there before, and what is recorded."""

SOME = 250
"""How many states of a script are made in the quick run, at most."""


async def check_all(states: list[CrashState], recorded: Recorded, folder: Path) -> None:
    """Make and check each; the first that fails tells what it is."""
    for number, state in enumerate(states):
        place = folder / f"{number}"
        place.mkdir()
        try:
            await check(state, recorded, place)
        except BaseException as error:
            error.add_note(f"after {state.marks}: { {path: (data or b'')[:80] for path, data in state.tree.items()} }")
            raise
        shutil.rmtree(place)


def states_of(kind: str, script: str, folder: Path, cuts: int) -> tuple[Recorded, list[CrashState]]:
    """Record a script, and replay it."""
    before, steps = SCRIPTS[script]
    (folder / "recorded").mkdir()
    recorded = anyio.run(lambda: record(kind, folder / "recorded", steps, before=before))
    return recorded, recorded.disk.states(cuts=cuts)


def check_on_both_loops(states: list[CrashState], recorded: Recorded, folder: Path) -> None:
    """Check the states, on asyncio and trio by turns."""
    with unsynced():
        for backend, some in (("asyncio", states[::2]), ("trio", states[1::2])):
            (folder / backend).mkdir()
            anyio.run(lambda some=some, place=folder / backend: check_all(some, recorded, place), backend=backend)


@pytest.mark.parametrize("script", ["create and append", "repair"])
def test_every_byte(tmp_path: Path, script: str) -> None:
    """R9, R13: JSONL, cut at every byte of everything that is on its way, with all combinations of the rest.

    All that was acknowledged is there, in order, nothing half is shown, and it goes on.
    """
    recorded, states = states_of("jsonl", script, tmp_path, 1_000_000)
    assert len(states) > 300
    check_on_both_loops(states, recorded, tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", BACKENDS)
def test_some_of_each_script(tmp_path: Path, kind: str, script: str) -> None:
    """R9, R13: the same for each script on each backend, of many states some, evenly spread."""
    recorded, states = states_of(kind, script, tmp_path, 10)
    assert len(states) > 5
    check_on_both_loops(states[:: -(-len(states) // SOME)], recorded, tmp_path)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", BACKENDS)
def test_all_of_each_script(tmp_path: Path, kind: str, script: str) -> None:
    """R9, R13: and all of them."""
    recorded, states = states_of(kind, script, tmp_path, 40 if kind == "jsonl" else 10)
    check_on_both_loops(states, recorded, tmp_path)


@pytest.mark.parametrize("operation", ["sync_data", "sync_folder"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_a_missing_sync_is_seen(tmp_path: Path, kind: str, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests can fail: without one kind of sync, something that was acknowledged is missing in some state."""
    with monkeypatch.context() as patch:
        patch.setattr(files, operation, lambda _: None)
        recorded, states = states_of(kind, "create and append", tmp_path, 2)
    with pytest.raises(BaseException, match="gone|entries are shown|JSON|not how|header|missing"):
        check_on_both_loops(states, recorded, tmp_path)


def test_what_is_not_seen_is_told(tmp_path: Path) -> None:
    """A file that was written behind the recorder's back is an error, not a state that is never tried."""
    with pytest.raises(RuntimeError, match="without a call of os that could be seen"), CrashDisk(tmp_path):
        with closing(sqlite3.connect(tmp_path / "x")) as connection:
            connection.execute("CREATE TABLE x (x)")


def test_files_of_python_are_seen(tmp_path: Path) -> None:
    """What is written by ``open`` and its like is on its way until it is synced; reading is left alone."""
    with CrashDisk(tmp_path) as disk:
        with (tmp_path / "x").open("w", encoding="utf-8") as file:
            file.write("hello")
            file.flush()
            disk.mark("written")
            os.fsync(file.fileno())
            disk.mark("synced")
        assert (tmp_path / "x").read_text() == "hello"
        (tmp_path / "y").write_bytes(b"unsynced")
        disk.mark("both")
    found = {state.marks[-1:]: [] for state in disk.states()}
    for state in disk.states():
        found[state.marks[-1:]].append(state.tree)
    assert {"x": b"hel"} in found["written",]
    assert {"x": b"hello", "y": b"unsy"} in found["both",]
    assert {} in found["both",]  # nobody synced the folder
