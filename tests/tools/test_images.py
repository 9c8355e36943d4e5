"""The tool ``read`` on images, and on what tools kept in blobs."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from harness.tools import Tool, ToolContext, read_tool
from harness.tools.images import MAX_IMAGE_BYTES
from storage.errors import StorageError, ToolError
from storage.messages import ImageContent, TextContent

pytestmark = pytest.mark.anyio

IMAGES = Path(__file__).parent.parent / "data" / "images"
PNG = (IMAGES / "red.png").read_bytes()


async def read(tool: Tool, path: str, context: ToolContext | None = None, **more: Any) -> Any:
    """What the tool answers."""
    return await tool.execute(tool.prepare({"path": path, **more}), context or ToolContext())


@pytest.mark.parametrize("name", sorted(path.name for path in IMAGES.iterdir()))
async def test_images_are_shown(name: str) -> None:
    """PNG, JPEG, GIF and WebP of every kind: the bytes as they are, with a line that says what they are."""
    said, image = await read(read_tool(IMAGES), name)
    data = (IMAGES / name).read_bytes()
    kind = {"jpg": "jpeg"}.get(name.rpartition(".")[2], name.rpartition(".")[2])
    assert said == TextContent(text=f"{name}: image/{kind}, 5 x 3 pixels, {len(data):,} bytes")
    assert image == ImageContent(data=base64.b64encode(data).decode(), mime_type=f"image/{kind}")


async def test_a_name_says_nothing(tmp_path: Path) -> None:
    """An image without an ending is one, a text called .png is a text."""
    (tmp_path / "image").write_bytes(PNG)
    (tmp_path / "text.png").write_text("no image")
    assert (await read(read_tool(tmp_path), "image"))[1].mime_type == "image/png"
    assert await read(read_tool(tmp_path), "text.png") == "no image"


def wide(width: int, height: int) -> bytes:
    """A PNG that says it is so large."""
    return PNG[:16] + struct.pack(">II", width, height) + PNG[24:]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (PNG + b"\0" * MAX_IMAGE_BYTES, r"3,750,077 bytes; only up to 3,750,000 can be shown, so make a smaller copy"),
        (wide(8_001, 3), "8,001 x 3 pixels; only up to 8,000 a side"),
        (wide(0, 3), "damaged image"),
        (PNG[:40], "damaged image"),
        (PNG[:12], "damaged image"),
        (PNG[:8] + b"\0", "damaged image"),
        ((IMAGES / "red.jpg").read_bytes()[:-2], "damaged image"),
        ((IMAGES / "red.jpg").read_bytes()[:100], "damaged image"),
        (b"\xff\xd8\xff", "damaged image"),
        (b"\xff\xd8\xff\xe0\x00\x00" * 9, "damaged image"),
        (b"\xff\xd8" + b"\xff" * 5_000, "damaged image"),
        ((IMAGES / "red.gif").read_bytes()[:-1], "damaged image"),
        (b"GIF89a", "damaged image"),
        ((IMAGES / "red-lossy.webp").read_bytes()[:-3], "damaged image"),
        (b"RIFF\xff\xff\xff\xffWEBPVP8X", "damaged image"),
    ],
    ids=[f"case {number}" for number in range(15)],
)
async def test_images_that_would_be_refused_are(tmp_path: Path, data: bytes, says: str) -> None:
    """A vendor would refuse such an image with every request from then on, so it never gets into a history."""
    (tmp_path / "image").write_bytes(data)
    with pytest.raises(ToolError, match=says):
        await read(read_tool(tmp_path), "image")


async def test_an_image_outside_is_refused(tmp_path: Path) -> None:
    """The same borders as for text."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.png").symlink_to(IMAGES / "red.png")
    with pytest.raises(ToolError, match="outside the working directory"):
        await read(read_tool(tmp_path / "root"), "link.png")


async def test_blobs_are_read_in_ranges(tmp_path: Path) -> None:
    """By the name that a result gave, with the same ranges and notes as a file; images as images."""
    blobs = {"abc": b"one\ntwo\nthree\n", "image": PNG, "binary": b"\0\1"}

    async def kept(name: str) -> bytes:
        return blobs[name]

    context = ToolContext(read_blob=kept)
    tool = read_tool(tmp_path)
    assert await read(tool, "blob:abc", context) == "one\ntwo\nthree"
    assert await read(tool, "blob:abc", context, offset=2, limit=1) == (
        "two\n[lines 2 to 2; more follow, go on with offset=3]"
    )
    assert (await read(tool, "blob:image", context))[1].mime_type == "image/png"
    for path, says in {
        "blob:no": "blob:no: there is no such blob",
        "blob:binary": "blob:binary: a binary file of 2 bytes",
        "blob:": "no such blob",
    }.items():
        with pytest.raises(ToolError, match=says):
            await read(tool, path, context)
    with pytest.raises(ToolError, match="keeps no blobs"):
        await read(tool, "blob:abc")


async def test_what_the_storage_says_is_told(tmp_path: Path) -> None:
    """Without the place of the file, which is none of the model's business."""

    async def kept(name: str) -> bytes:
        raise StorageError("the disk is gone", path="/secret/place")

    with pytest.raises(ToolError, match="blob:abc: the disk is gone") as caught:
        await read(read_tool(tmp_path), "blob:abc", ToolContext(read_blob=kept))
    assert "secret" not in caught.value.message
