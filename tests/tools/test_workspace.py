"""Nothing outside the working directory can be opened, whatever the path, the links and the moment."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from harness.tools import workspace as module
from harness.tools.workspace import Found, Workspace
from storage.errors import ToolError

SECRET = b"secret"


@pytest.fixture(params=["descriptors", "resolved"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files and links in and out of it; with the system's directory descriptors and without."""
    if request.param == "resolved":
        monkeypatch.setattr(module, "_HAS_DIRECTORY_DESCRIPTORS", False)
    root = tmp_path / "root"
    (root / "folder" / "deeper").mkdir(parents=True)
    (root / "folder" / "file.txt").write_text("inside")
    (root / "-rf").write_text("odd name")
    (root / "é \u2028.txt").write_text("odd name")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file.txt").write_bytes(SECRET)
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "file.txt").write_bytes(SECRET)
    for name, target in {
        "to_file": "folder/file.txt",
        "to_folder": "folder",
        "absolute_in": root / "folder" / "file.txt",
        "chain": "to_folder",
        "up_and_in": "../root/folder/file.txt",
        "out_file": "../outside/file.txt",
        "out_folder": "../outside",
        "out_absolute": tmp_path / "outside",
        "out_up": "..",
        "out_beside": tmp_path / "root2",
        "out_chain": "out_folder",
        "loop": "loop",
        "loop_a": "loop_b",
        "loop_b": "loop_a",
        "dangling": "nowhere",
    }.items():
        (root / name).symlink_to(target)
    (root / "folder" / "out_deep").symlink_to("../../outside")
    os.mkfifo(root / "pipe")
    return root


def read(root: Path, path: str) -> bytes:
    with Workspace(root).open_file(path) as stream:
        return stream.read() or b""


@pytest.mark.parametrize(
    "path",
    [
        "folder/file.txt",
        "./folder//file.txt",
        "folder/../folder/file.txt",
        "folder/deeper/../file.txt",
        "to_file",
        "to_folder/file.txt",
        "to_folder/deeper/../file.txt",
        "chain/file.txt",
        "absolute_in",
    ],
)
def test_what_stays_inside_opens(root: Path, path: str) -> None:
    """Links and ``..`` that lead to something inside are followed."""
    assert read(root, path) == b"inside"


def test_an_absolute_path_inside_opens(root: Path) -> None:
    """An absolute path below the root is as good as a relative one, also when the root is reached through a link."""
    assert read(root, str(root / "folder" / "file.txt")) == b"inside"
    link = root.parent / "link"
    link.symlink_to(root)
    assert read(link, str(link / "folder" / "file.txt")) == b"inside"
    assert read(link, str(root / "folder" / "file.txt")) == b"inside"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside/file.txt",
        "folder/../../outside/file.txt",
        "folder/../../root2/file.txt",
        "/etc/passwd",
        "/",
        "//etc/passwd",
        "/proc/self/root/etc/passwd",
        "out_file",
        "out_folder/file.txt",
        "out_absolute/file.txt",
        "out_up/outside/file.txt",
        "out_beside/file.txt",
        "out_chain/file.txt",
        "folder/out_deep/file.txt",
        "to_folder/out_deep/file.txt",
        "{root}/../outside/file.txt",
        "{root}2/file.txt",
        "{parent}/outside/file.txt",
    ],
)
def test_what_leads_out_is_refused(root: Path, path: str) -> None:
    """``..``, absolute paths, and links of files and folders that leave the root are refused by name."""
    path = path.format(root=root, parent=root.parent)
    with pytest.raises(ToolError, match="outside the working directory"):
        read(root, path)
    with pytest.raises(ToolError, match="outside the working directory"):
        Workspace(root).scan(path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("loop", "symbolic links"),
        ("loop_a", "symbolic links"),
        ("dangling", "No such file"),
        ("nothing/here", "No such file"),
        ("folder/file.txt/more", "Not a directory"),
        ("folder", "is a folder"),
        ("", "is a folder"),
        (".", "is a folder"),
        ("pipe", "pipe"),
        ("a\0b", "NUL"),
        ("\0", "NUL"),
        ("x" * 300, "too long"),
        ("a/" * 3000, "No such file|too long"),
        ("half \ud83d", "not a path"),
    ],
)
def test_what_cannot_be_read_is_told(root: Path, path: str, says: str) -> None:
    """Each way a path can fail is an error in words, at once: no traceback of the system, no waiting on a pipe."""
    with pytest.raises(ToolError, match=says) as caught:
        read(root, path)
    assert str(root) not in caught.value.message


def test_devices_and_sockets_are_refused(root: Path) -> None:
    """Only regular files are opened."""
    with socket.socket(socket.AF_UNIX) as listening:
        previous = os.getcwd()
        os.chdir(root)  # a socket's path has room for 100 bytes only
        try:
            listening.bind("socket")
        finally:
            os.chdir(previous)
        with pytest.raises(ToolError, match="socket, not a file"):
            read(root, "socket")
    with pytest.raises(ToolError, match="device"):
        read(Path("/dev"), "null")


def test_a_root_must_be_a_folder(tmp_path: Path) -> None:
    """A root that is missing or a file is refused when the workspace is made."""
    (tmp_path / "file").touch()
    for root in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(ToolError, match="is no folder"):
            Workspace(root)


def test_scan_tells_kinds_and_sizes(root: Path) -> None:
    """A folder's content is sorted, with links shown and not followed."""
    found = {item.name: item for item in Workspace(root).scan(".")}
    assert list(found) == sorted(found)
    assert found["folder"] == Found("folder", "folder")
    assert found["-rf"] == Found("-rf", "file", 8)
    assert found["out_folder"] == Found("out_folder", "link", target="../outside")
    assert found["pipe"].kind == "other"
    assert [item.name for item in Workspace(root).scan("to_folder")] == ["deeper", "file.txt", "out_deep"]
    with pytest.raises(ToolError, match="is a file"):
        Workspace(root).scan("-rf")


def test_no_descriptor_is_left_open(root: Path) -> None:
    """Opening, refusing and scanning give back every descriptor."""
    workspace = Workspace(root)
    before = len(os.listdir("/dev/fd"))
    for path in ("folder/file.txt", "out_folder/file.txt", "folder/deeper/../file.txt", "loop", "pipe", "absolute_in"):
        for use in (lambda path: workspace.open_file(path).close(), workspace.scan, workspace.is_folder):
            try:
                use(path)
            except ToolError:
                continue
    assert len(os.listdir("/dev/fd")) == before


def test_swapping_a_folder_for_a_link_never_leads_out(tmp_path: Path) -> None:
    """A folder that becomes a link out of the root, and back, again and again: its secret is never read."""
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real" / "file.txt").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file.txt").write_bytes(SECRET)
    (root / "link").symlink_to("../outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "real", root / "folder")
            os.rename(root / "folder", root / "real")
            os.rename(root / "link", root / "folder")
            os.rename(root / "folder", root / "link")

    swapping = threading.Thread(target=swap)
    swapping.start()
    workspace = Workspace(root)
    seen: set[bytes | str] = set()
    begun = time.monotonic()
    seen_both = False
    try:
        while time.monotonic() < begun + (1.5 if seen_both else 60):
            seen_both = b"inside" in seen and any("outside" in str(item) for item in seen)
            try:
                with workspace.open_file("folder/file.txt") as stream:
                    seen.add(stream.read() or b"")
            except ToolError as error:
                seen.add(error.message.rpartition(":")[2])
    finally:
        stop.set()
        swapping.join()
    assert SECRET not in seen
    assert b"inside" in seen
    assert any("outside" in str(item) for item in seen)
