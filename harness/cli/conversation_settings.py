"""What ``branchline chat`` talks to, with what, and where it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.cli.plain_text import given_text
from harness.cli.shelf import Place
from harness.settings import AgentSettings
from harness.tools import Tool, workspace_tools

SYSTEM_PROMPT: Final = "You are a helpful assistant. Answer briefly and exactly."
WITH_TOOLS: Final = " With your tools you can read the files below the folder {cwd}; look there before you guess."
WITH_WRITING: Final = (
    " You can also change these files and run commands in that folder; a person is shown each change and each command "
    "before it happens, and may say no."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """What to talk to, and where to keep it.

    ``place`` is the session to go on with; without one a session begins with the first prompt, in ``new_file`` or else
    under a new id in ``root``. ``at`` is the entry (or label) to branch from. ``write`` offers the tools that change
    something; ``approve_all`` lets them without asking, and ``can_ask`` says whether there is somebody to be asked.
    """

    place: Place | None
    root: Path
    new_file: Path | None
    at: str | None
    model: str | None
    base_url: str | None
    model_file: Path | None
    cwd: Path
    tools: bool
    write: bool
    approve_all: bool
    can_ask: bool
    system: str | None
    thinking_level: str | None
    max_steps: int | None
    max_chars: int | None
    max_tokens: int | None

    @property
    def folder(self) -> str:
        """The folder that the tools work in, as text for the record and for the model."""
        return given_text(str(self.cwd))

    def offered_tools(self) -> list[Tool]:
        """All tools that the model can be offered."""
        return workspace_tools(self.cwd, write=self.write, bash=self.write) if self.tools else []

    def system_prompt(self) -> str:
        """The person's own, or ours, which speaks of the tools that there are."""
        if self.system is not None:
            return self.system
        with_tools = WITH_TOOLS.format(cwd=self.folder) if self.tools else ""
        return SYSTEM_PROMPT + with_tools + (WITH_WRITING if self.tools and self.write else "")

    def agent_settings(self, thinking_level: str | None) -> AgentSettings:
        """The limits of the harness."""
        return AgentSettings(
            max_chars=self.max_chars,
            max_tokens=self.max_tokens,
            max_steps=AgentSettings().max_steps if self.max_steps is None else self.max_steps,
            working_directory=self.cwd,
            thinking_level=thinking_level,
        )
