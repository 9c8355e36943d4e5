"""What lies under an open session is removed, replaced, cut, grown or made read-only, and the session notices (R12)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from harness import Session
from storage import (
    BlobNotFoundError,
    BranchlineError,
    DamagedSessionError,
    MessageEntry,
    SessionNotFoundError,
    StaleSessionError,
    UserMessage,
)
from tests.faults.crash_scripts import backend_of, place_of

pytestmark = pytest.mark.anyio

Change = Callable[[Path], object]


def replace_file(path: Path) -> None:
    """Another file, of the same bytes, takes its place."""
    other = path.with_name("other")
    shutil.copyfile(path, other)
    os.replace(other, path)


def replace_folder(path: Path) -> None:
    """Another folder, of the same files, takes its place."""
    copied = path.with_name("copied")
    shutil.copytree(path, copied)
    shutil.rmtree(path)
    copied.rename(path)


def first_entry(path: Path) -> Path:
    """The file of the first entry."""
    return next(found for found in (path / "entries").iterdir() if b'{"seq":0,' in found.read_bytes())


def add_entry(path: Path) -> None:
    """Somebody else adds an entry."""
    data = first_entry(path).read_bytes()
    old = first_entry(path).stem
    (path / "entries" / "theirs.json").write_bytes(
        data.replace(b'"seq":0,"batch":0', b'"seq":2,"batch":2').replace(old.encode(), b"theirs")
    )


LOST: dict[str, dict[str, Change]] = {
    "jsonl": {
        "removed": lambda path: path.unlink(),
        "moved away": lambda path: path.rename(path.with_name("moved")),
        "replaced by its copy": replace_file,
        "emptied": lambda path: os.truncate(path, 0),
        "cut": lambda path: os.truncate(path, path.stat().st_size - 7),
        "grown": lambda path: path.write_bytes(path.read_bytes() + b'{"half'),
        "its place taken by a folder": lambda path: (path.unlink(), path.mkdir()),
    },
    "entry files": {
        "removed": shutil.rmtree,
        "moved away": lambda path: path.rename(path.with_name("moved")),
        "replaced by its copy": replace_folder,
        "header removed": lambda path: (path / "metadata.json").unlink(),
        "header replaced": lambda path: replace_file(path / "metadata.json"),
        "entries removed": lambda path: shutil.rmtree(path / "entries"),
        "one entry removed": lambda path: first_entry(path).unlink(),
        "grown": add_entry,
        "its place taken by a file": lambda path: (shutil.rmtree(path), path.write_text("a file")),
    },
}
CASES = [pytest.param(kind, how, id=f"{kind}, {how}") for kind, changes in LOST.items() for how in changes]


async def begun(kind: str, place: Path) -> Session:
    """An open session of two entries."""
    session = await Session.open(backend_of(kind).create(place))
    for text in ("first", "second"):
        await session.append_message(UserMessage(content=text))
    return session


async def texts_in(session: Session) -> list[str]:
    """The texts of its messages."""
    return [entry.message.text for entry in await session.entries() if isinstance(entry, MessageEntry)]


@pytest.mark.parametrize(("kind", "how"), CASES)
async def test_changed_while_open(tmp_path: Path, kind: str, how: str) -> None:
    """R12: the next append is StaleSessionError, and nothing is written anywhere; so is each one after it.

    No new headerless file, no fork in silence; what was read before can still be told from what is on the disk.
    """
    place = place_of(kind, tmp_path, "chat")
    session = await begun(kind, place)
    LOST[kind][how](place)
    before = bytes_below(tmp_path)
    for _ in range(2):
        with pytest.raises(StaleSessionError):
            await session.append_message(UserMessage(content="late"))
    with pytest.raises(BranchlineError):
        await session.write_blob(b"late")
    assert not session.writable
    await session.aclose()
    assert bytes_below(tmp_path) == before


def bytes_below(folder: Path) -> dict[str, bytes]:
    """All files but locks, and what they hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


@pytest.mark.parametrize(("kind", "how"), CASES)
async def test_what_a_reader_meets(tmp_path: Path, kind: str, how: str) -> None:
    """R12: a reader who refreshes sees the same as before, or is told that it is stale or damaged; never less."""
    place = place_of(kind, tmp_path, "chat")
    await (await begun(kind, place)).aclose()
    async with Session.open(backend_of(kind).open(place, mode="read")) as reader:
        LOST[kind][how](place)
        try:
            await reader.refresh()
        except (StaleSessionError, DamagedSessionError, SessionNotFoundError):
            return
        assert (await texts_in(reader))[:2] == ["first", "second"]


@pytest.mark.parametrize("kind", LOST)
async def test_one_entry_is_cut(tmp_path: Path, kind: str) -> None:
    """R14: bytes that were committed and then damaged are named at the next opening, and salvage shows the rest."""
    place = place_of(kind, tmp_path, "chat")
    await (await begun(kind, place)).aclose()
    if kind == "jsonl":
        header, _, second = place.read_bytes().split(b"\n")[:3]
        place.write_bytes(header + b'\n{"seq":0,"type":"mess\n' + second + b"\n")
    else:
        os.truncate(first_entry(place), 20)
    with pytest.raises(DamagedSessionError):
        await Session.open(backend_of(kind).open(place, on_torn_tail="repair"))
    async with Session.open(backend_of(kind).open(place, on_corrupt="skip")) as session:
        assert await texts_in(session) == ["second"]


@pytest.mark.parametrize("kind", LOST)
async def test_blobs_that_are_gone(tmp_path: Path, kind: str) -> None:
    """R15: a blob that was removed under an open session is a BlobNotFoundError; the session goes on."""
    place = place_of(kind, tmp_path, "chat")
    session = await begun(kind, place)
    name = await session.write_blob(b"large")
    (found,) = (path for path in tmp_path.rglob(name))
    shutil.rmtree(found.parent)
    with pytest.raises(BlobNotFoundError):
        await session.read_blob(name)
    again = await session.write_blob(b"another")
    assert await session.read_blob(again) == b"another"
    await session.append_message(UserMessage(content="third"))
    await session.aclose()


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder that other users may enter; pytest closes its own to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


READ_ONLY = """
import os, sys, anyio
from harness import Session
from storage import BranchlineError, UserMessage
from tests.faults.crash_scripts import backend_of

async def main(kind, place, locked):
    os.setuid(65534)
    session = await Session.open(backend_of(kind).open(place))
    kept = [await session.append_message(UserMessage(content="before"))]
    os.chmod(locked, 0o555 if os.path.isdir(locked) else 0o444)
    for _ in range(2):
        try:
            kept.append(await session.append_message(UserMessage(content="meanwhile")))
        except BranchlineError as error:
            print(error.code)
    try:
        await session.write_blob(b"large")
    except BranchlineError as error:
        print(error.code)
    os.chmod(locked, 0o755 if os.path.isdir(locked) else 0o644)
    kept.append(await session.append_message(UserMessage(content="after")))
    await session.aclose()
    async with Session.open(backend_of(kind).open(place, on_torn_tail="raise")) as session:
        assert [entry.id for entry in await session.entries()][-len(kept):] == kept
        print(len(session.log.index))

anyio.run(main, *sys.argv[1:4], backend=sys.argv[4])
"""


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="drops to another user, so it needs root")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("kind", "locked", "told"),
    [("jsonl", "chat.jsonl", ["6"]), ("jsonl", ".", ["storage", "6"]), ("entry files", "chat/entries", None)],
)
def test_made_read_only(open_folder: Path, kind: str, locked: str, told: Any, loop: str) -> None:
    """R10: a file that is open is written to whatever becomes of its mode; in a folder that takes no new names appends fail.

    And go on when it does again. Run as another user, for whom modes count.
    """
    import anyio

    async def make() -> None:
        await (await begun(kind, place_of(kind, open_folder, "chat"))).aclose()

    anyio.run(make)
    for path in (open_folder, *open_folder.rglob("*")):
        os.chown(path, 65534, 65534)
    place = place_of(kind, open_folder, "chat")
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, kind, str(place), str(open_folder / locked), loop],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (told or ["storage", "storage", "4"])
