"""What ``branchline chat`` talks to, with what, and where it is kept."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.settings import CompactionSettings
from harness.cli.model_choice import URL_VARIABLE
from harness.cli.options import MODEL_VARIABLE
from harness.cli.places import Place, Shelf
from harness.cli.plain_text import given_text
from harness.settings import AgentSettings
from harness.tools import Tool, memory_tool, workspace_tools

SYSTEM_PROMPT: Final = "You are a helpful assistant. Answer briefly and exactly."
WITH_TOOLS: Final = " With your tools you can read the files below the folder {cwd}; look there before you guess."
WITH_WRITING: Final = (
    " You can also change these files and run commands in that folder; a person is shown each change and each command "
    "before it happens, and may say no."
)

_SECRET_IN_QUERY: Final = re.compile(r"(?i)(?<=[?&])([^=&#]*(?:key|token|secret|password|sig)[^=&#]*=)[^&#]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """What to talk to, and where to keep it.

    ``place`` is the session to go on with; without one a session begins with the first prompt, in ``new_file`` or else
    under a new id on ``shelf`` (``root`` is what was given for it). ``at`` is the entry (or label) to branch from, with
    ``summarize`` a summary of what is left behind. ``continues`` is the session whose working memory a new one begins with,
    ``with_summary`` its last summary as well; ``memory`` offers the model a tool that changes it. ``write`` offers the tools
    that change something; ``approve_all`` lets them without asking, and ``can_ask`` says whether there is somebody to be
    asked. ``context_window`` is the model's, in tokens, where the person knows better; without ``compact`` nothing is
    ever summarised.
    """

    place: Place | None
    shelf: Shelf
    root: str | None
    new_file: Path | None
    at: str | None
    summarize: bool
    continues: Place | None
    with_summary: bool
    model: str | None
    base_url: str | None
    model_file: Path | None
    cwd: Path
    tools: bool
    memory: bool
    write: bool
    approve_all: bool
    can_ask: bool
    system: str | None
    thinking_level: str | None
    max_steps: int | None
    max_chars: int | None
    max_tokens: int | None
    context_window: int | None
    compact: bool

    @property
    def folder(self) -> str:
        """The folder that the tools work in, as text for the record and for the model."""
        return given_text(str(self.cwd))

    def offered_tools(self) -> list[Tool]:
        """All tools that the model can be offered."""
        if not self.tools:
            return []
        tools = workspace_tools(self.cwd, write=self.write, bash=self.write)
        return [*tools, memory_tool()] if self.memory else tools

    def system_prompt(self) -> str:
        """The person's own, or ours, which speaks of the tools that there are."""
        if self.system is not None:
            return self.system
        with_tools = WITH_TOOLS.format(cwd=self.folder) if self.tools else ""
        return SYSTEM_PROMPT + with_tools + (WITH_WRITING if self.tools and self.write else "")

    def said_again(self, *, is_model_recorded: bool) -> list[str]:
        """The options that the next ``chat`` needs once more: where the model is, and where the tools work.

        The record keeps neither an address nor a file, and a model's name only once it was recorded.
        """
        words: list[str] = []
        if self.model is not None and not is_model_recorded and self.model != os.environ.get(MODEL_VARIABLE):
            words += ["--model", self.model]
        if self.base_url is not None and self.base_url != os.environ.get(URL_VARIABLE):
            words += ["--base-url", _SECRET_IN_QUERY.sub(r"\1", self.base_url)]
        if self.model_file is not None:
            words += ["--model-file", str(self.model_file)]
        if self.tools and not _is_current_folder(self.cwd):
            words += ["--cwd", str(self.cwd)]
        return words

    def agent_settings(self, thinking_level: str | None) -> AgentSettings:
        """The limits of the harness."""
        window, max_tokens = self.context_window, self.max_tokens
        if window is not None and not self.compact and max_tokens is None:
            max_tokens = window - AgentSettings().reserve(window)
        compaction = CompactionSettings(context_window=window) if self.compact and window is not None else self.compact
        return AgentSettings(
            max_chars=self.max_chars,
            max_tokens=max_tokens,
            compaction=compaction,
            max_steps=AgentSettings().max_steps if self.max_steps is None else self.max_steps,
            working_directory=self.cwd,
            thinking_level=thinking_level,
        )


def _is_current_folder(folder: Path) -> bool:
    try:
        return folder == Path.cwd().resolve()
    except FileNotFoundError:  # it is gone
        return False
