"""The tools that come along, confined to a working directory; ``read``, ``list`` and ``search`` are here."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from harness.tools.bash import HAS_BASH, bash_tool
from harness.tools.changing import edit_tool, write_tool
from harness.tools.context import ToolContext
from harness.tools.definition import Tool, ToolContent, tool
from harness.tools.functions import run_in_tool_thread
from harness.tools.reading import blob_name, read_blob, read_file
from harness.tools.search import Search, compile_pattern
from harness.tools.workspace import Found, Workspace

MAX_LISTED = 1_000
"""How many names of a folder are listed."""

_SEARCH_SECONDS = 60.0


def workspace_tools(root: str | os.PathLike[str] = ".", *, write: bool = False, bash: bool = False) -> list[Tool]:
    """The tools for one working directory: ``read``, ``list`` and ``search``.

    ``write=True`` adds ``write`` and ``edit``, ``bash=True`` adds ``bash`` (on Windows there is none). Each call of these
    needs approval; ``bash`` alone is not confined to the directory. Raises ``ToolError`` if ``root`` is no folder.
    """
    tools = [read_tool(root), list_tool(root), search_tool(root)]
    if write:
        tools += write_tool(root), edit_tool(root)
    if bash and HAS_BASH:
        tools.append(bash_tool(root))
    return tools


def read_tool(root: str | os.PathLike[str] = ".") -> Tool:
    """The tool ``read``: the lines of a text file below ``root``, an image there, or what a tool kept in a blob."""
    workspace = Workspace(root)

    async def read(
        context: ToolContext,
        path: Annotated[
            str, Field(description="the file, relative to the working directory, or blob:NAME for what a tool kept")
        ],
        offset: Annotated[int, Field(ge=1, description="the first line to read, counted from 1")] = 1,
        limit: Annotated[int, Field(ge=1, description="how many lines to read at most")] = 2_000,
    ) -> ToolContent:
        """Read a text file, or a range of its lines; or look at an image (PNG, JPEG, GIF, WebP)."""
        name = blob_name(path)
        if name is not None:
            return await read_blob(name, context, offset, limit)
        try:
            return await run_in_tool_thread(lambda: read_file(workspace, path, context, offset, limit))
        finally:
            context.stopped.set()

    return tool(read)


def list_tool(root: str | os.PathLike[str] = ".") -> Tool:
    """The tool ``list``: what is in a folder below ``root``."""
    workspace = Workspace(root)

    def list_folder(
        path: Annotated[str, Field(description="the folder, relative to the working directory")] = ".",
    ) -> str:
        """List a folder: its files with their sizes in bytes, its folders (with a slash), its links."""
        found = workspace.scan(path)
        lines = [_listed(item) for item in found[:MAX_LISTED]]
        if len(found) > MAX_LISTED:
            lines.append(f"[{len(found) - MAX_LISTED:,} more; list a folder below it, or search]")
        return "\n".join(lines) or "(the folder is empty)"

    return tool(name="list")(list_folder)


def search_tool(root: str | os.PathLike[str] = ".") -> Tool:
    """The tool ``search``: lines that match a pattern, in the text files below ``root``."""
    workspace = Workspace(root)

    def search(
        context: ToolContext,
        pattern: Annotated[str, Field(description="a regular expression, or with literal the text itself")],
        path: Annotated[
            str, Field(description="the folder or file to search, relative to the working directory")
        ] = ".",
        glob: Annotated[str | None, Field(description="only files of such a name or path, such as *.py")] = None,
        literal: Annotated[bool, Field(description="take the pattern as plain text")] = False,
        ignore_case: Annotated[bool, Field(description="take upper and lower case as the same")] = False,
        limit: Annotated[int, Field(ge=1, le=1_000, description="how many matching lines to show at most")] = 100,
    ) -> str:
        """Search text files for lines that match; shows path, line number and line. Binary files are left out."""
        compiled = compile_pattern(pattern, literal=literal, ignore_case=ignore_case)
        searching = Search(workspace, compiled, glob, limit, lambda: context.cancelled)
        searching.below(path)
        return searching.report()

    return tool(timeout=_SEARCH_SECONDS)(search)


def _listed(item: Found) -> str:
    if item.kind == "folder":
        return f"{item.name}/"
    if item.kind == "link":
        return f"{item.name} -> {item.target}" if item.target else f"{item.name} (a link)"
    return f"{item.name} ({item.size:,} bytes)" if item.kind == "file" else f"{item.name} (a device, pipe or socket)"
