"""Writing below a working directory: in one step, with the mode kept, and never outside it, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.tools import replacing
from harness.tools import workspace as module
from harness.tools.replacing import MISSING, Replaced
from harness.tools.workspace import Workspace
from storage.errors import ToolError
from tests.storage.test_permissions import NOBODY, as_nobody

SECRET = b"secret"


@pytest.fixture(params=["descriptors", "resolved"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files and links in and out of it; with the system's directory descriptors and without."""
    if request.param == "resolved":
        monkeypatch.setattr(module, "_HAS_DIRECTORY_DESCRIPTORS", False)
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "file.txt").write_bytes(b"before")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file.txt").write_bytes(SECRET)
    for name, target in {
        "to_file": "folder/file.txt",
        "to_folder": "folder",
        "absolute_in": root / "folder" / "file.txt",
        "dangling_in": "folder/new.txt",
        "dangling_out": "../outside/new.txt",
        "out_file": "../outside/file.txt",
        "out_folder": "../outside",
        "loop": "loop",
    }.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    return root


def everything(folder: Path) -> dict[str, Any]:
    """All that is below a folder: links by their target, files by their content."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("path", ["folder/file.txt", "to_file", "to_folder/file.txt", "absolute_in", "{root}/to_file"])
def test_a_file_is_replaced_where_it_is(root: Path, path: str) -> None:
    """A link inside is followed and stays a link; nothing else is left in the folder."""
    before = everything(root)
    done = Workspace(root).replace(path.format(root=root), b"after, and longer")
    assert done == Replaced(17, 6)
    assert everything(root) == before | {"folder/file.txt": b"after, and longer"}


@pytest.mark.parametrize("path", ["new.txt", "folder/new.txt", "dangling_in", "to_folder/../new.txt"])
def test_a_new_file_is_made(root: Path, path: str) -> None:
    """Also through a link to what is not there yet; its mode is what the umask leaves."""
    assert Workspace(root).replace(path, b"new") == Replaced(3, None)
    made = root / "new.txt" if (root / "new.txt").exists() else root / "folder" / "new.txt"
    assert made.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(made.stat().st_mode) == 0o666 & ~mask


def test_folders_are_made_if_asked(root: Path) -> None:
    """Missing folders are an error by default, and made on request; not where the path goes up from one of them."""
    workspace = Workspace(root)
    with pytest.raises(ToolError, match="No such file"):
        workspace.replace("a/b/c.txt", b"new")
    assert not (root / "a").exists()
    workspace.replace("a/b/c.txt", b"new", make_folders=True)
    workspace.replace("to_folder/deep/d.txt", b"new", make_folders=True)
    assert (root / "a" / "b" / "c.txt").read_bytes() == (root / "folder" / "deep" / "d.txt").read_bytes() == b"new"


def test_going_up_from_a_missing_folder_makes_none(root: Path) -> None:
    """The system would not find such a path either."""
    if not module._HAS_DIRECTORY_DESCRIPTORS:
        pytest.skip("without descriptors the path is resolved by its words")
    with pytest.raises(ToolError, match="No such file"):
        Workspace(root).replace("missing/../x.txt", b"new", make_folders=True)
    assert not (root / "missing").exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../outside/file.txt", "outside the working directory"),
        ("../new.txt", "outside the working directory"),
        ("folder/../../new.txt", "outside the working directory"),
        ("/tmp/branchline-new.txt", "outside the working directory"),
        ("out_file", "outside the working directory"),
        ("out_folder/file.txt", "outside the working directory"),
        ("out_folder/new/new.txt", "outside the working directory"),
        ("dangling_out", "outside the working directory"),
        ("{parent}/outside/file.txt", "outside the working directory"),
        ("folder", "is a folder"),
        ("to_folder", "is a folder"),
        ("new/", "is a folder"),
        ("", "is a folder"),
        (".", "is a folder"),
        ("folder/..", "is a folder"),
        ("pipe", "pipe"),
        ("loop", "symbolic links"),
        ("folder/file.txt/more", "Not a directory|exists"),
        ("a\0b", "NUL"),
        ("half \ud83d", "not a path"),
        ("x" * 300, "too long"),
    ],
)
def test_what_cannot_be_written_is_refused(root: Path, path: str, says: str) -> None:
    """What leads out, folders, pipes and impossible names: an error in words, and nothing anywhere has changed."""
    before = everything(root.parent)
    with pytest.raises(ToolError, match=says) as caught:
        Workspace(root).replace(path.format(parent=root.parent), b"x", make_folders=True)
    assert "{parent}" in path or str(root) not in caught.value.message
    assert everything(root.parent) == before


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o640])
def test_the_mode_is_kept(root: Path, mode: int) -> None:
    """A program stays executable, a private file private, under any umask."""
    file = root / "folder" / "file.txt"
    file.chmod(mode)
    before = os.umask(0o077)
    try:
        Workspace(root).replace("to_file", b"after")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_file_changed_since_it_was_seen_is_left(root: Path) -> None:
    """Other bytes, no file any more, or one where there was none: refused, and nothing is left behind."""
    workspace = Workspace(root)
    file = root / "folder" / "file.txt"
    seen = workspace.look("to_file", limit=100)
    assert seen.content == b"before"
    assert workspace.look("nothing.txt", limit=100) == workspace.look("no/folder.txt", limit=100) == MISSING
    file.write_bytes(b"BEFORE")
    before = everything(root)
    with pytest.raises(ToolError, match="changed meanwhile"):
        workspace.replace("to_file", b"after", seen=seen)
    with pytest.raises(ToolError, match="changed meanwhile"):
        workspace.replace("to_file", b"after", seen=MISSING)
    assert everything(root) == before
    file.unlink()
    with pytest.raises(ToolError, match="changed meanwhile"):
        workspace.replace("to_file", b"after", seen=seen)
    file.write_bytes(b"before")
    os.utime(file, (1, 1))
    assert workspace.replace("to_file", b"after", seen=seen) == Replaced(5, 6), "the same bytes are the same file"


def test_a_large_file_is_told_by_its_marks(root: Path) -> None:
    """Above the limit its bytes are not kept, and still a change is seen."""
    workspace = Workspace(root)
    seen = workspace.look("to_file", limit=3)
    assert seen.content is None
    assert not seen.is_missing
    workspace.replace("to_file", b"after", seen=seen)
    with pytest.raises(ToolError, match="changed meanwhile"):
        workspace.replace("to_file", b"again", seen=seen)


def test_what_was_stopped_writes_nothing(root: Path) -> None:
    """A call that nobody waits for any more does not replace the file behind everybody's back."""
    before = everything(root)
    with pytest.raises(ToolError, match="stopped"):
        Workspace(root).replace("to_file", b"after", stopped=lambda: True)
    assert everything(root) == before


def test_a_full_disk_leaves_the_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says while the new content is written is told, and the old content is there, alone."""
    before = everything(root)

    def full(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replacing.os, "write", full)
    with pytest.raises(ToolError, match=r"to_file: No space left on device"):
        Workspace(root).replace("to_file", b"after")
    monkeypatch.undo()
    assert everything(root) == before


def test_no_descriptor_is_left_open(root: Path) -> None:
    """Writing and refusing give back every descriptor."""
    workspace = Workspace(root)
    before = len(os.listdir("/dev/fd"))
    for path in ("folder/file.txt", "out_folder/x", "dangling_out", "folder", "loop", "pipe", "new/er.txt", "no\0"):
        for make_folders in (False, True):
            try:
                workspace.look(path, limit=10)
                workspace.replace(path, b"x", make_folders=make_folders)
            except ToolError:
                continue
    assert len(os.listdir("/dev/fd")) == before


def swapped_at(step: int, place: Path, path: str, what: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Write while, before the ``step``-th call of the system, something becomes a link out; whether there were so many.

    Fails if anything outside was touched.
    """
    root, outside = place / "root", place / "outside"
    for folder in (root / "folder", outside / "deep" / "er"):
        folder.mkdir(parents=True)
    for folder in (root / "folder", outside, outside / "deep", outside / "deep" / "er"):
        (folder / "file.txt").write_bytes(SECRET)
    (root / "to_folder").symlink_to("folder")
    before = everything(outside)
    passed = 0
    swapped = False

    def swap() -> None:
        if what == "folder":
            os.rename(root / "folder", root / "moved")
            os.symlink("../outside", root / "folder")
        else:
            os.rename(root / "folder" / "file.txt", root / "folder" / "moved")
            os.symlink("../../outside/file.txt", root / "folder" / "file.txt")

    def watched(real: Any) -> Any:
        def watching(*arguments: Any, **more: Any) -> Any:
            nonlocal passed, swapped
            passed += 1
            if passed == step and not swapped:
                swapped = True
                swap()
            return real(*arguments, **more)

        return watching

    workspace = Workspace(root)
    with monkeypatch.context() as patched:
        for name in ("open", "stat", "mkdir", "readlink", "replace", "unlink", "fstat", "fchmod"):
            patched.setattr(os, name, watched(getattr(os, name)))
        with contextlib.suppress(ToolError):
            workspace.replace(path, b"inside", make_folders=True)
    assert everything(outside) == before
    return swapped


@pytest.mark.parametrize("path", ["folder/file.txt", "folder/new.txt", "folder/deep/er/new.txt", "to_folder/file.txt"])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_swap_at_any_moment_never_leads_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    """Before each single call of the system, the folder (or the file) becomes a link out: nothing is written there."""
    step = 1
    while swapped_at(step, tmp_path / str(step), path, what, monkeypatch):
        step += 1
    assert step > 6


@pytest.mark.parametrize("way", ["folder or link", "link in or out"])
def test_a_swapped_folder_never_leads_out(tmp_path: Path, way: str) -> None:
    """A folder that leads out of the root at one moment and not at the next: nothing is ever written out there."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    outside.mkdir()
    (outside / "file.txt").write_bytes(SECRET)
    (root / "link").symlink_to("../outside")
    (root / "folder").symlink_to("real")
    stop = threading.Event()

    def swap() -> None:
        if way == "folder or link":
            os.unlink(root / "folder")
        while not stop.is_set():
            if way == "folder or link":
                os.rename(root / "real", root / "folder")
                os.rename(root / "folder", root / "real")
                os.rename(root / "link", root / "folder")
                os.rename(root / "folder", root / "link")
            else:
                for target in ("../outside", "real"):
                    os.symlink(target, root / "next")
                    os.rename(root / "next", root / "folder")

    swapping = threading.Thread(target=swap)
    swapping.start()
    workspace = Workspace(root)
    said: set[str] = set()
    begun = time.monotonic()
    said_both = False
    try:
        while time.monotonic() < begun + (1 if said_both else 60):
            said_both = "written" in said and any("outside" in item for item in said)
            try:
                if way == "folder or link":
                    workspace.replace("folder/file.txt", b"inside")
                else:
                    shutil.rmtree(root / "real" / "deep", ignore_errors=True)
                    workspace.replace("folder/deep/er/file.txt", b"inside", make_folders=True)
                said.add("written")
            except ToolError as error:
                said.add(error.message.rpartition(":")[2])
    finally:
        stop.set()
        swapping.join()
    assert everything(outside) == {"file.txt": SECRET}
    assert os.listdir(outside) == ["file.txt"]
    assert "written" in said
    assert any("outside" in item for item in said)
    assert not list(tmp_path.rglob(".branchline-*")), "each temporary file is renamed or removed"


def test_a_swapped_file_never_leads_out(tmp_path: Path) -> None:
    """A file that becomes a link out of the root, and back: what the link names keeps its content."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.txt").write_bytes(SECRET)
    (root / "real").write_bytes(b"inside")
    (root / "link").symlink_to("../outside.txt")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for name in ("real", "link"):
                shutil.copy(root / name, root / "next", follow_symlinks=False)
                os.rename(root / "next", root / "file.txt")

    swapping = threading.Thread(target=swap)
    swapping.start()
    workspace = Workspace(root)
    written = 0
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + (1 if written else 60):
            try:
                workspace.replace("file.txt", b"written")
                written += 1
            except ToolError:
                continue
    finally:
        stop.set()
        swapping.join()
    assert written
    assert (tmp_path / "outside.txt").read_bytes() == SECRET


def test_side_by_side_none_is_lost(tmp_path: Path) -> None:
    """Threads that read, change and replace one file: each either counts, or is told that somebody was faster."""
    (tmp_path / "count").write_bytes(b"0")
    workspace = Workspace(tmp_path)
    counted = [0] * 4

    def count(number: int) -> None:
        for _ in range(100):
            seen = workspace.look("count", limit=100)
            try:
                workspace.replace("count", str(int(seen.content or b"") + 1).encode(), seen=seen)
            except ToolError:
                continue
            counted[number] += 1

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int((tmp_path / "count").read_bytes()) == sum(counted)
    assert sum(counted) >= 100


def test_a_reader_sees_the_old_or_the_new(tmp_path: Path) -> None:
    """Never half of it, and never an empty file."""
    contents = {b"a" * 100_000, b"b" * 100_000}
    (tmp_path / "file").write_bytes(b"a" * 100_000)
    workspace = Workspace(tmp_path)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                workspace.replace("file", content)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert all((tmp_path / "file").read_bytes() in contents for _ in range(500))
    finally:
        stop.set()
        writing.join()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches (pytest's own are closed to others)."""
    folder = Path(tempfile.mkdtemp(prefix="branchline-tools-"))
    folder.chmod(0o777)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)
    shutil.rmtree(folder)


def test_permissions_are_respected(open_folder: Path) -> None:
    """A read-only file is not replaced, though renaming would get past it; nor is one in a read-only folder."""
    (open_folder / "read_only.txt").write_bytes(b"before")
    (open_folder / "closed").mkdir()
    (open_folder / "closed" / "file.txt").write_bytes(b"before")
    if os.getuid() == 0:
        for path in open_folder.rglob("*"):
            os.chown(path, NOBODY, NOBODY)
    (open_folder / "read_only.txt").chmod(0o444)
    (open_folder / "closed").chmod(0o555)
    before = everything(open_folder)

    async def work() -> None:
        workspace = Workspace(open_folder)
        for path in ("read_only.txt", "closed/file.txt", "closed/new.txt"):
            with pytest.raises(ToolError, match=f"{path}: Permission denied"):
                workspace.replace(path, b"after")
        with pytest.raises(ToolError, match="Permission denied"):
            workspace.replace("closed/new/file.txt", b"after", make_folders=True)

    as_nobody(work)
    assert everything(open_folder) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root has files of two users")
def test_owners_are_kept_as_far_as_may_be(open_folder: Path) -> None:
    """Root's edit leaves a file its owner's; somebody else's of a file that all may write is theirs then, without setuid."""
    file = open_folder / "file.txt"
    file.write_bytes(b"before")
    os.chown(file, NOBODY, NOBODY)
    file.chmod(0o4755)
    Workspace(open_folder).replace("file.txt", b"after")
    known = file.stat()
    assert (known.st_uid, known.st_gid, stat.S_IMODE(known.st_mode)) == (NOBODY, NOBODY, 0o4755)
    os.chown(file, 0, 0)
    file.chmod(0o4777)

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        Workspace(open_folder).replace("file.txt", b"theirs")

    as_nobody(work)
    known = file.stat()
    assert (known.st_uid, stat.S_IMODE(known.st_mode), file.read_bytes()) == (NOBODY, 0o777, b"theirs")
