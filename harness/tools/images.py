"""Images by their first bytes, checked for what makes a vendor refuse a conversation that holds them."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass

from storage.errors import ToolError
from storage.messages import ImageContent

MAX_IMAGE_BYTES = 3_750_000
"""Larger ones are refused: in base64 they are over 5 MB, which is where vendors stop."""

MAX_IMAGE_PIXELS = 8_000
"""The longest side that vendors take."""

LOOKED_AT_BYTES = 16
"""How much of a file's beginning ``image_type`` needs."""

_PNG = b"\x89PNG\r\n\x1a\n"
# The markers of a JPEG's frame, which says its size; the numbers between them mean other things.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, slots=True)
class Image:
    """An image that can be sent: its media type, its size in pixels, and its bytes."""

    mime_type: str
    width: int
    height: int
    data: bytes

    @property
    def content(self) -> ImageContent:
        """It as a part of a message."""
        return ImageContent(data=base64.b64encode(self.data).decode(), mime_type=self.mime_type)

    def __str__(self) -> str:
        return f"{self.mime_type}, {self.width} x {self.height} pixels, {len(self.data):,} bytes"


def image_type(beginning: bytes) -> str | None:
    """The media type of PNG, JPEG, GIF and WebP by their first bytes, or ``None``. A file's name says nothing."""
    if beginning.startswith(_PNG):
        return "image/png"
    if beginning.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if beginning.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    return None


def image_of(data: bytes, path: str) -> Image:
    """The image in ``data``, which ``image_type`` knows.

    Raises:
        ToolError: it is too large in bytes or pixels, or is cut off or damaged where that can be seen without drawing it.
            Once recorded, such an image would make every later request fail.
    """
    mime_type = image_type(data)
    if mime_type is None:
        raise ToolError(f"{path}: is no PNG, JPEG, GIF or WebP image")
    if len(data) > MAX_IMAGE_BYTES:
        raise too_large(path, len(data))
    try:
        width, height = _size(data, mime_type)
    except (IndexError, struct.error):
        width = height = 0
    if not width or not height or not _is_whole(data, mime_type):
        raise ToolError(f"{path}: is a damaged image ({mime_type}, {len(data):,} bytes), or only the beginning of one")
    if max(width, height) > MAX_IMAGE_PIXELS:
        raise ToolError(
            f"{path}: is an image of {width:,} x {height:,} pixels; only up to {MAX_IMAGE_PIXELS:,} a side can be shown, "
            "so make a smaller copy"
        )
    return Image(mime_type, width, height, data)


def too_large(path: str, size: int) -> ToolError:
    """The error for an image of ``size`` bytes."""
    return ToolError(
        f"{path}: is an image of {size:,} bytes; only up to {MAX_IMAGE_BYTES:,} can be shown, so make a smaller copy"
    )


def _size(data: bytes, mime_type: str) -> tuple[int, int]:
    if mime_type == "image/png":
        return _pair(">II", data, 16)
    if mime_type == "image/gif":
        return _pair("<HH", data, 6)
    if mime_type == "image/webp":
        return _webp_size(data)
    height, width = _pair(">HH", data, _jpeg_frame(data) + 4)
    return width, height


def _pair(form: str, data: bytes, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from(form, data, at)
    return first, second


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = _pair("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1


def _jpeg_frame(data: bytes) -> int:
    """Where the marker of the frame is. What comes before it may hold a whole small image, with an end of its own."""
    at = 2
    while True:
        while data[at] == 0xFF:  # any number of these may come before a marker
            at += 1
        marker = data[at]
        length = int.from_bytes(data[at + 1 : at + 3], "big")
        if marker in _JPEG_FRAMES:
            return at
        if length < 2:
            raise IndexError
        at += 1 + length


def _is_whole(data: bytes, mime_type: str) -> bool:
    """Whether it has its end. Cameras and programs write other things behind that."""
    if mime_type == "image/png":
        return b"IEND" in data
    if mime_type == "image/jpeg":
        return data.find(b"\xff\xd9", _jpeg_frame(data)) >= 0
    if mime_type == "image/gif":
        return b"\x3b" in data[-1024:]
    return len(data) >= int.from_bytes(data[4:8], "little") + 8 - 1
