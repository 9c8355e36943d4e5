"""What the tool ``read`` gives: a range of lines, or an image."""

from __future__ import annotations

import io
import os
from itertools import islice
from typing import BinaryIO

from harness.tools.context import ToolContext
from harness.tools.definition import ToolContent
from harness.tools.functions import run_in_tool_thread
from harness.tools.images import LOOKED_AT_BYTES, MAX_IMAGE_BYTES, image_of, image_type, too_large
from harness.tools.lines import text_lines
from harness.tools.text import MAX_RESULT_CHARACTERS
from harness.tools.workspace import Workspace
from storage.errors import BranchlineError, ToolError
from storage.messages import TextContent

_ROOM_FOR_NOTES = 500
_BLOB = "blob:"


def blob_name(path: str) -> str | None:
    """The name in ``blob:NAME``, else ``None``. A file of such a name is read as ``./blob:NAME``."""
    return path.removeprefix(_BLOB).strip() if path.startswith(_BLOB) else None


async def read_blob(name: str, context: ToolContext, offset: int, limit: int) -> ToolContent:
    """The lines of what a tool kept. Raises ``ToolError`` where there is no such blob, or it is no text."""
    try:
        data = await context.kept(name)
    except ToolError:
        raise
    except (LookupError, BranchlineError) as error:
        why = error.message if isinstance(error, BranchlineError) else "there is no such blob"
        raise ToolError(f"{_BLOB}{name:.140}: {why}; give the name as a result in this conversation has it") from error
    return await run_in_tool_thread(
        lambda: _read(io.BytesIO(data), f"{_BLOB}{name}", len(data), context, offset, limit)
    )


def read_file(workspace: Workspace, path: str, context: ToolContext, offset: int, limit: int) -> ToolContent:
    """The lines of a file below the root, or the image that it is. Blocks; raises ``ToolError``."""
    with workspace.open_file(path) as stream:
        return _read(stream, path, os.fstat(stream.fileno()).st_size, context, offset, limit)


def _read(stream: BinaryIO, path: str, size: int, context: ToolContext, offset: int, limit: int) -> ToolContent:
    if image_type(stream.read(LOOKED_AT_BYTES)):
        if size > MAX_IMAGE_BYTES:
            raise too_large(path, size)
        stream.seek(0)
        image = image_of(stream.read(), path)
        return [TextContent(text=f"{path}: {image}"), image.content]
    stream.seek(0)
    return _lines(stream, path, size, context, offset, limit)


def _lines(stream: BinaryIO, path: str, size: int, context: ToolContext, offset: int, limit: int) -> str:
    lines = text_lines(stream, stopped=lambda: context.cancelled)
    if lines is None:
        raise ToolError(f"{path}: a binary file of {size:,} bytes, not text")
    passed = sum(1 for _ in islice(lines, offset - 1))
    shown: list[str] = []
    room = MAX_RESULT_CHARACTERS - _ROOM_FOR_NOTES
    for line in lines:
        text = str(line)
        room -= len(text) + 1
        if len(shown) == limit or (room < 0 and shown):
            following = offset + len(shown)
            shown.append(f"[lines {offset} to {following - 1}; more follow, go on with offset={following}]")
            return "\n".join(shown)
        shown.append(text)
    if not shown and offset > 1:
        raise ToolError(f"{path}: has only {passed} lines, so there is no line {offset}")
    return "\n".join(shown) or "(the file is empty)"
