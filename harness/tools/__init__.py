"""Tools: made of typed functions or of objects, what becomes of what they return, and those that come along."""

from __future__ import annotations

from harness.tools.builtin import list_tool, read_tool, search_tool, workspace_tools
from harness.tools.context import ToolContext
from harness.tools.definition import Tool, ToolOutput, as_tools, tool
from harness.tools.text import MAX_RESULT_CHARACTERS, to_text
from harness.tools.workspace import Workspace

__all__ = [
    "MAX_RESULT_CHARACTERS",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "Workspace",
    "as_tools",
    "list_tool",
    "read_tool",
    "search_tool",
    "to_text",
    "tool",
    "workspace_tools",
]
