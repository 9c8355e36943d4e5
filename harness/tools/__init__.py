"""Tools: made of typed functions or of objects, what becomes of what they return, and those that come along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy_names import lazy_names

if TYPE_CHECKING:
    from harness.tools.bash import bash_tool
    from harness.tools.builtin import list_tool, read_tool, search_tool, workspace_tools
    from harness.tools.changing import edit_tool, write_tool
    from harness.tools.context import ToolContext
    from harness.tools.definition import Tool, ToolOutput, as_tools, tool
    from harness.tools.memory import memory_tool
    from harness.tools.text import MAX_RESULT_CHARACTERS, to_text
    from harness.tools.workspace import Workspace
else:
    _HOMES = {
        "harness.tools.bash": "bash_tool",
        "harness.tools.changing": "edit_tool write_tool",
        "harness.tools.builtin": "list_tool read_tool search_tool workspace_tools",
        "harness.tools.context": "ToolContext",
        "harness.tools.definition": "Tool ToolOutput as_tools tool",
        "harness.tools.memory": "memory_tool",
        "harness.tools.text": "MAX_RESULT_CHARACTERS to_text",
        "harness.tools.workspace": "Workspace",
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "MAX_RESULT_CHARACTERS",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "Workspace",
    "as_tools",
    "bash_tool",
    "edit_tool",
    "list_tool",
    "memory_tool",
    "read_tool",
    "search_tool",
    "to_text",
    "tool",
    "workspace_tools",
    "write_tool",
]
