"""The tools ``write`` and ``edit``: text files below a working directory, changed in one step or not at all."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from harness.tools.context import ToolContext
from harness.tools.definition import Tool, ToolOutput, tool
from harness.tools.diff import unified_diff
from harness.tools.editing import Replacement, apply_edits
from harness.tools.replacing import Snapshot
from harness.tools.text_file import text_file
from harness.tools.workspace import Workspace
from storage.errors import ToolError

MAX_EDITED_BYTES = 10_000_000
"""Larger files cannot be edited; replacing one shows no diff."""

_SHOWN_DIFF_CHARACTERS = 10_000

_edits: TypeAdapter[list[Replacement]] = TypeAdapter(list[Replacement])


def write_tool(root: str | os.PathLike[str] = ".", *, needs_approval: bool = True) -> Tool:
    """The tool ``write``: makes or replaces a text file below ``root``, and the folders above it."""
    workspace = Workspace(root)

    def write(
        context: ToolContext,
        path: Annotated[str, Field(description="the file, relative to the working directory")],
        content: Annotated[str, Field(description="all that is to be in the file")],
    ) -> ToolOutput:
        """Make a text file, or replace all of one. To change a part of a file, edit it."""
        seen = workspace.look(path, limit=MAX_EDITED_BYTES)
        data = content.encode()
        done = workspace.replace(path, data, seen=seen, make_folders=True, stopped=lambda: context.cancelled)
        details: dict[str, Any] = {"path": path, "created": done.size_before is None, "size": done.size}
        if done.size_before is None:
            said = f"{path}: created, {_lines(content)}, {done.size:,} bytes"
        else:
            details["sizeBefore"] = done.size_before
            said = f"{path}: replaced, {done.size_before:,} bytes before, {_lines(content)}, {done.size:,} bytes now"
        diff = _diff(seen, content, path)
        return ToolOutput(said, details=details if diff is None else details | {"diff": diff})

    def preview(arguments: Mapping[str, Any]) -> str:
        path, content = str(arguments.get("path")), str(arguments.get("content"))
        seen = workspace.look(path, limit=MAX_EDITED_BYTES)
        diff = _diff(seen, content, path)
        if diff is None:
            return f"{path}: replaced by {_lines(content)}; the file there is not shown, since it is large or no text"
        return diff or f"{path}: written again, as it is"

    return tool(parallel=False, needs_approval=needs_approval, preview=_safe(preview))(write)


def edit_tool(root: str | os.PathLike[str] = ".", *, needs_approval: bool = True) -> Tool:
    """The tool ``edit``: exact replacements in a text file below ``root``."""
    workspace = Workspace(root)

    def edited(path: str, edits: list[Replacement]) -> tuple[Snapshot, bytes, str]:
        """The file, what it shall be, and the diff."""
        seen = workspace.look(path, limit=MAX_EDITED_BYTES)
        if seen.is_missing:
            raise ToolError(f"{path}: No such file or directory; use write to make it")
        if seen.content is None:
            raise ToolError(f"{path}: is larger than {MAX_EDITED_BYTES:,} bytes, which is too large to be edited")
        file = text_file(seen.content, path)
        here = [Replacement(old=file.as_here(edit.old), new=file.as_here(edit.new)) for edit in edits]
        text = apply_edits(file.text, here, path)
        return seen, file.encoded(text), unified_diff(file.text, text, path)

    def edit(
        context: ToolContext,
        path: Annotated[str, Field(description="the file, relative to the working directory")],
        edits: Annotated[list[Replacement], Field(min_length=1, description="made all together, or none of them")],
    ) -> ToolOutput:
        """Replace exact pieces of a text file. Each old text must be in the file once; read the file first."""
        seen, data, diff = edited(path, edits)
        workspace.replace(path, data, seen=seen, stopped=lambda: context.cancelled)
        count = "one edit" if len(edits) == 1 else f"{len(edits)} edits"
        shown = diff
        if len(diff) > _SHOWN_DIFF_CHARACTERS:
            shown = f"{diff[:_SHOWN_DIFF_CHARACTERS]}\n[the rest of the diff is left out]"
        return ToolOutput(f"{path}: {count} made\n{shown}", details={"path": path, "edits": len(edits), "diff": diff})

    def preview(arguments: Mapping[str, Any]) -> str:
        given = _usual(arguments)
        return edited(str(given.get("path")), _edits.validate_python(given.get("edits")))[2]

    made = tool(parallel=False, needs_approval=needs_approval, preview=_safe(preview))(edit)
    checked = made.prepare

    def prepare(arguments: Mapping[str, Any]) -> Any:
        return checked(_usual(arguments))

    return replace(made, prepare=prepare, parameters=_inlined(made.parameters))


def _inlined(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its definition where it is used: some servers drop what they do not know of a schema."""
    schema = copy.deepcopy(dict(parameters))
    definitions = schema.pop("$defs")
    items = schema["properties"]["edits"]["items"]
    schema["properties"]["edits"]["items"] = definitions[items["$ref"].rpartition("/")[2]]
    return schema


def _usual(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the schema has them, where a model wrote a single edit at the top, or the list as a text."""
    given = dict(arguments)
    if "edits" not in given and {"old", "new"} <= given.keys():
        given["edits"] = [{"old": given.pop("old"), "new": given.pop("new")}]
    edits = given.get("edits")
    if isinstance(edits, str):
        try:
            edits = json.loads(edits)
        except (ValueError, RecursionError):
            return given  # the validator says what is wrong with it
    return given if edits is None else given | {"edits": [edits] if isinstance(edits, dict) else edits}


def _diff(seen: Snapshot, content: str, path: str) -> str | None:
    """What writing ``content`` changes; ``None`` where the file is too large, or no text that can be shown."""
    if seen.is_missing:
        return unified_diff("", content, path)
    if seen.content is None or len(content) > MAX_EDITED_BYTES:
        return None
    try:
        before = text_file(seen.content, path)
    except ToolError:
        return None
    # With the line ends that are in the file, since these change too.
    return unified_diff(before.text.replace("\n", "\r\n") if before.has_crlf else before.text, content, path)


def _lines(content: str) -> str:
    count = content.count("\n") + (not content.endswith("\n") and content != "")
    return "1 line" if count == 1 else f"{count:,} lines"


def _safe(preview: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """What cannot be done has a preview, too: why not."""

    def shown(arguments: Mapping[str, Any]) -> str:
        try:
            return preview(arguments)
        except ToolError as error:
            return f"This call would fail:\n{error.message}"
        except ValidationError as error:
            return f"This call would fail:\n{error}"

    return shown
