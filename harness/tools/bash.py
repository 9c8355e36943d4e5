"""The tool ``bash``: shell commands in the working directory. Not confined to it: a person's approval guards it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import Field

from harness.tools.command_output import MAX_OUTPUT_BYTES, CommandOutput
from harness.tools.context import ToolContext
from harness.tools.definition import Tool, ToolOutput, tool
from harness.tools.functions import run_in_tool_thread
from harness.tools.shell import Ended, ShellCommand, shell_arguments
from harness.tools.text import NO_OUTPUT
from harness.tools.workspace import Workspace
from storage.errors import BranchlineError, ToolError

DEFAULT_SECONDS = 120.0
"""How long a command may run that names no limit."""

MAX_SECONDS = 3_600.0

HAS_BASH = sys.platform != "win32"
"""Whether there is such a tool on this system."""

_MODEL_KEY = re.compile(
    r"(.*API_?KEYS?(_\w+)?|.*_API_TOKEN|ANTHROPIC_AUTH_TOKEN|HF_TOKEN|HUGGING_FACE_HUB_TOKEN|AWS_BEARER_.*)",
    re.IGNORECASE,
)
_LOOK_SECONDS = 0.001


def bash_tool(
    root: str | os.PathLike[str] = ".", *, environment: Mapping[str, str] | None = None, needs_approval: bool = True
) -> Tool:
    """The tool ``bash``: runs a command in ``root`` and gives its output. It can do whatever this program's user can.

    ``environment`` is what the command sees; ``None``: this program's own (as it is at the call) without the keys of
    models (names such as ``…_API_KEY``). Raises ``ToolError`` on Windows, and if ``root`` is no folder.
    """
    if not HAS_BASH:
        raise ToolError("there is no tool bash on Windows; leave it out")
    folder = Workspace(root).root

    async def bash(
        context: ToolContext,
        command: Annotated[str, Field(description="the command line, as for bash -c")],
        timeout: Annotated[  # noqa: ASYNC109 - the model's word, and the thread's
            float, Field(gt=0, le=MAX_SECONDS, description="seconds after which it is killed")
        ] = DEFAULT_SECONDS,
    ) -> ToolOutput:
        """Run a shell command in the working directory and show its output (standard output and error together).

        There is no terminal and no input. What it leaves running in the background is killed when it ends. Very long
        output is shown in part, and kept.
        """
        if "\0" in command:
            raise ToolError("a command cannot hold a NUL character")
        seen = without_model_keys(os.environ) if environment is None else environment
        with CommandOutput(context.progress) as output:
            running = ShellCommand(
                shell_arguments(command),
                folder=folder,
                environment=seen,
                timeout=_within(timeout, context.remaining()),
                sink=output,
            )
            ended = await _run(running)
            output.finish()
            return await _result(ended, output, context)

    return tool(parallel=False, needs_approval=needs_approval, preview=_preview(folder))(bash)


def without_model_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the keys of models. They are then not in what ``env`` prints; who wants them finds them."""
    return {name: value for name, value in environment.items() if not _MODEL_KEY.fullmatch(name)}


async def _run(running: ShellCommand) -> Ended:
    """Run it in a thread. However this is left, also by a cancellation of any kind, its processes are gone."""
    try:
        return await run_in_tool_thread(running.run)
    except OSError as error:
        raise ToolError(f"the command could not be run to its end: {error.strerror or error}") from error
    finally:
        running.stop()
        with anyio.CancelScope(shield=True):
            while running.is_running:  # noqa: ASYNC110 - a thread sets no event of a loop that may be closing
                await anyio.sleep(_LOOK_SECONDS)


async def _result(ended: Ended, output: CommandOutput, context: ToolContext) -> ToolOutput:
    details: dict[str, Any] = {
        "endedBy": ended.how,
        "seconds": round(ended.seconds, 3),
        "bytes": output.size,
        "lines": output.line_count,
    }
    details |= {"exitCode": ended.exit_code} if ended.exit_code is not None else {}
    details |= {"signal": ended.signal} if ended.signal is not None else {}
    details |= {"leftBehind": ended.left_behind} if ended.left_behind else {}
    notes = _notes(ended)
    blobs: list[str] = []
    if not output.is_shown_whole:
        try:
            name = await context.keep(await run_in_tool_thread(output.data))
        except BranchlineError as error:
            notes.insert(0, f"[the rest was not kept: {error.message}]")
        else:
            blobs.append(name)
            details["blob"] = name
            notes.insert(0, f"[all {output.line_count:,} lines are kept: read blob:{name} with an offset and a limit]")
    text = output.shown()
    if not text and not notes:
        text = NO_OUTPUT
    is_error = ended.how != "exit" or ended.exit_code != 0
    return ToolOutput("\n".join(filter(None, [text, *notes])), details=details, is_error=is_error, blobs=blobs)


def _notes(ended: Ended) -> list[str]:
    notes: list[str] = []
    if ended.left_behind:
        processes = "one process" if ended.left_behind == 1 else f"{ended.left_behind} processes"
        notes.append(f"[{processes} left running in the background, killed]")
    if ended.how == "timeout":
        notes.append(f"[killed after {ended.seconds:.4g} seconds, its limit; its outcome is unknown]")
    elif ended.how == "output limit":
        notes.append(f"[killed, since it wrote more than {MAX_OUTPUT_BYTES >> 20} MiB; write to a file, or print less]")
    elif ended.signal is not None:
        notes.append(f"[ended by signal {ended.signal}]")
    elif ended.exit_code:
        notes.append(f"[exit code {ended.exit_code}]")
    elif ended.exit_code is None:
        notes.append("[its outcome is unknown]")
    return notes


def _within(timeout: float, remaining: float | None) -> float:
    """The limit, a little below the call's own, so that its output so far is not lost with it."""
    return timeout if remaining is None else min(timeout, max(remaining - 0.5, remaining * 0.8))


def _preview(folder: Path) -> Callable[[Mapping[str, Any]], str]:
    def preview(arguments: Mapping[str, Any]) -> str:
        limit = arguments.get("timeout", DEFAULT_SECONDS)
        return f"{arguments.get('command', '')}\n(in {folder}, for {limit} seconds at most)"

    return preview
