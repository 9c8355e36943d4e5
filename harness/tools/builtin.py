"""The tools that come along: ``read``, ``list`` and ``search``, confined to a working directory."""

from __future__ import annotations

import os
from itertools import islice
from typing import Annotated

from pydantic import Field

from harness.tools.context import ToolContext
from harness.tools.definition import Tool, tool
from harness.tools.lines import text_lines
from harness.tools.search import Search, compile_pattern
from harness.tools.text import MAX_RESULT_CHARACTERS
from harness.tools.workspace import Found, Workspace
from storage.errors import ToolError

MAX_LISTED = 1_000
"""How many names of a folder are listed."""

_SEARCH_SECONDS = 60.0
_ROOM_FOR_NOTES = 500


def workspace_tools(root: str | os.PathLike[str] = ".") -> list[Tool]:
    """``read``, ``list`` and ``search`` for one working directory. Raises ``ToolError`` if it is no folder."""
    return [read_tool(root), list_tool(root), search_tool(root)]


def read_tool(root: str | os.PathLike[str] = ".") -> Tool:
    """The tool ``read``: the lines of a text file below ``root``."""
    workspace = Workspace(root)

    def read(
        context: ToolContext,
        path: Annotated[str, Field(description="the file, relative to the working directory")],
        offset: Annotated[int, Field(ge=1, description="the first line to read, counted from 1")] = 1,
        limit: Annotated[int, Field(ge=1, description="how many lines to read at most")] = 2_000,
    ) -> str:
        """Read a text file, or a range of its lines."""
        with workspace.open_file(path) as stream:
            lines = text_lines(stream, stopped=lambda: context.cancelled)
            if lines is None:
                raise ToolError(f"{path}: a binary file of {os.fstat(stream.fileno()).st_size:,} bytes, not text")
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
