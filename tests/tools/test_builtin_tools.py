"""The tools ``read``, ``list`` and ``search``, called as a model calls them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.tools import ToolContext, list_tool, read_tool, search, search_tool, workspace_tools
from harness.tools.definition import Tool
from harness.tools.search import MAX_FILE_BYTES
from storage.errors import ToolError

pytestmark = pytest.mark.anyio


async def call(tool: Tool, context: ToolContext | None = None, **arguments: Any) -> str:
    """What the tool says."""
    said = await tool.execute(tool.prepare(arguments), context or ToolContext())
    assert isinstance(said, str)
    return said


def test_the_three_have_names_and_descriptions(tmp_path: Path) -> None:
    """A model is told what each is for, and about each parameter."""
    tools = workspace_tools(tmp_path)
    assert [tool.name for tool in tools] == ["read", "list", "search"]
    for tool in tools:
        assert tool.description
        assert all(parameter["description"] for parameter in tool.parameters["properties"].values())


async def test_read_gives_ranges_of_lines(tmp_path: Path) -> None:
    """Lines are counted from 1 and split on LF alone; what follows is said with the offset to go on with."""
    (tmp_path / "file").write_bytes(b"one\r\ntwo\xe2\x80\xa8still two\n\nfour\nfive")
    read = read_tool(tmp_path)
    assert await call(read, path="file") == "one\r\ntwo\u2028still two\n\nfour\nfive"
    assert await call(read, path="file", offset=2, limit=2) == (
        "two\u2028still two\n\n[lines 2 to 3; more follow, go on with offset=4]"
    )
    assert await call(read, path="file", offset=4, limit=2) == "four\nfive"
    with pytest.raises(ToolError, match="has only 5 lines, so there is no line 6"):
        await call(read, path="file", offset=6)
    with pytest.raises(ToolError, match="offset: Input should be greater"):
        await call(read, path="file", offset=0)
    (tmp_path / "empty").touch()
    assert await call(read, path="empty") == "(the file is empty)"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
async def test_read_knows_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    """UTF-8 with and without its mark, UTF-16 and UTF-32 give the same text, also across the borders of pieces."""
    text = "".join(f"Zeile {number} – é 𝄞 漢\n" for number in range(20_000))
    (tmp_path / "file").write_bytes(text.encode(encoding))
    said = await call(read_tool(tmp_path), path="file", offset=15_000, limit=3)
    assert said.startswith("Zeile 14999 – é 𝄞 漢\nZeile 15000 – é 𝄞 漢\nZeile 15001 – é 𝄞 漢\n[")


async def test_read_shows_bytes_of_other_encodings_as_replacements(tmp_path: Path) -> None:
    """One bad byte costs one character, not the file."""
    (tmp_path / "file").write_bytes(b"caf\xe9 au lait\nplain\n")
    assert await call(read_tool(tmp_path), path="file") == "caf\ufffd au lait\nplain"


async def test_read_refuses_binaries(tmp_path: Path) -> None:
    """A file with NUL in its beginning is named as binary, with its size."""
    (tmp_path / "file").write_bytes(b"\x7fELF\0\0\0")
    with pytest.raises(ToolError, match="a binary file of 7 bytes"):
        await call(read_tool(tmp_path), path="file")


async def test_read_takes_files_of_any_size(tmp_path: Path) -> None:
    """A gigabyte in one line, and a huge file of many, are read in a moment and cut."""
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"x" * 9_000)
        file.truncate(1 << 30)
    with (tmp_path / "long").open("wb") as file:
        for _ in range(100):
            file.write(b"y" * 1_000_000)
    begun = time.process_time()  # what else runs on this machine does not count
    said = await call(read_tool(tmp_path), path="long")
    assert said.endswith("[… 99,995,000 more characters in this line]")
    assert time.process_time() - begun < 5
    (tmp_path / "many").write_text("z" * 99 + "\n", encoding="utf-8")
    (tmp_path / "many").write_text(("z" * 99 + "\n") * 100_000, encoding="utf-8")
    said = await call(read_tool(tmp_path), path="many", limit=100_000)
    assert len(said) <= 50_000
    assert "more follow, go on with offset=496]" in said


async def test_read_stops_when_nobody_waits(tmp_path: Path) -> None:
    """A read that was cancelled stops between two pieces instead of going through the whole file."""
    (tmp_path / "long").write_bytes(b"y" * 1_000_000)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(ToolError, match="stopped"):
        await call(read_tool(tmp_path), ToolContext(stopped=stopped), path="long")


async def test_list_shows_what_is_there(tmp_path: Path) -> None:
    """Folders end in a slash, files have their size, links their target; links out are refused as places to list."""
    (tmp_path / "root" / "folder").mkdir(parents=True)
    (tmp_path / "root" / "file.txt").write_text("12345")
    (tmp_path / "root" / "link").symlink_to("..")
    os.mkfifo(tmp_path / "root" / "pipe")
    listing = list_tool(tmp_path / "root")
    assert await call(listing) == "file.txt (5 bytes)\nfolder/\nlink -> ..\npipe (a device, pipe or socket)"
    assert await call(listing, path="folder") == "(the folder is empty)"
    with pytest.raises(ToolError, match="outside the working directory"):
        await call(listing, path="link")


async def test_list_is_capped(tmp_path: Path) -> None:
    """A huge folder is listed in part, and how many are missing stands there."""
    for number in range(1_003):
        (tmp_path / f"{number:04}").touch()
    lines = (await call(list_tool(tmp_path))).split("\n")
    assert len(lines) == 1_001
    assert lines[-1] == "[3 more; list a folder below it, or search]"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with what a search must not look into."""
    root = tmp_path / "root"
    for folder in (".git", "src", "src/deep"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / ".git" / "config").write_text("needle")
    (root / "src" / "a.py").write_text("first\nneedle (1)\n")
    (root / "src" / "deep" / "b.txt").write_text("NEEDLE\nneedle [2]\n")
    (root / "binary").write_bytes(b"needle\0")
    (root / "readme.md").write_text("no such thing\n")
    (tmp_path / "outside.txt").write_text("needle")
    (root / "link.txt").symlink_to("../outside.txt")
    (root / "src" / "loop").symlink_to("..")
    os.mkfifo(root / "pipe")
    return root


async def test_search_finds_lines(project: Path) -> None:
    """Matches come with path, line number and line; .git, binaries, links and pipes are left out."""
    search = search_tool(project)
    assert await call(search, pattern=r"needle .\d") == (
        "src/a.py:2: needle (1)\nsrc/deep/b.txt:2: needle [2]\n[files not searched: 1 binary]"
    )
    assert "src/deep/b.txt:1: NEEDLE" in await call(search, pattern="needle", ignore_case=True)
    assert (await call(search, pattern="needle (1)", literal=True)).startswith("src/a.py:2:")
    assert await call(search, pattern="needle", glob="*.txt") == "src/deep/b.txt:2: needle [2]"
    assert await call(search, pattern="needle", path="src/deep") == "src/deep/b.txt:2: needle [2]"
    assert await call(search, pattern="needle", path="src/a.py") == "src/a.py:2: needle (1)"
    assert await call(search, pattern="absent", path="src") == "no match"
    assert "[stopped after 1 matches" in await call(search, pattern="e", limit=1)


async def test_search_stays_inside(project: Path) -> None:
    """A search begun at a link out of the root, or above it, is refused."""
    for path in ("link.txt", "..", "/etc", "src/../.."):
        with pytest.raises(ToolError, match="outside the working directory"):
            await call(search_tool(project), pattern="needle", path=path)


async def test_search_refuses_patterns_that_cannot_be(project: Path) -> None:
    """A wrong or empty expression is told with the place where it is wrong."""
    with pytest.raises(ToolError, match="invalid regular expression '\\('.*position 1"):
        await call(search_tool(project), pattern="(")
    with pytest.raises(ToolError, match="empty pattern"):
        await call(search_tool(project), pattern="")


async def test_search_gives_up_on_patterns_that_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern of exponential cost ends in an error that names the line, and the event loop goes on meanwhile."""
    (tmp_path / "file").write_text("short\n" + "x" * 4_000 + "\n")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    for seconds in (1.0, 5.0, 25.0):  # until this machine lets the event loop have its turns
        monkeypatch.setattr(search, "_SECONDS_A_LINE", seconds)
        ticks = 0
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            with pytest.raises(ToolError, match="takes too long at file:2"):
                await call(search_tool(tmp_path), pattern="(x+x+)+y")
            group.cancel_scope.cancel()
        if ticks > 5:
            break
    assert ticks > 5


async def test_search_leaves_out_what_is_too_large_or_not_readable(tmp_path: Path) -> None:
    """Files that are too large are counted; a search that was cancelled stops."""
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (tmp_path / "small.txt").write_text("needle")
    assert await call(search_tool(tmp_path), pattern="needle") == (
        "small.txt:1: needle\n[files not searched: 1 too large]"
    )
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(ToolError, match="stopped"):
        await call(search_tool(tmp_path), ToolContext(stopped=stopped), pattern="needle")


async def test_search_shows_long_lines_in_part(tmp_path: Path) -> None:
    """A match in a minified file shows the beginning of its line only."""
    (tmp_path / "min.js").write_text("needle" + "x" * 10_000)
    said = await call(search_tool(tmp_path), pattern="needle")
    assert len(said) < 400
    assert said.endswith(" …")
