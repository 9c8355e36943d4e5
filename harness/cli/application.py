"""The command line's commands and options. What they do is in a module for each, imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from harness.cli.changing_commands import compact, delete, export, fork, import_, label, migrate, name, repair
from harness.cli.failures import DONE, FAILED, INTERRUPTED, WRONG_COMMAND, CommandLineError, message
from harness.cli.looking_commands import context, follow, sessions, show, tree, verify
from harness.cli.options import (
    BaseUrlOption,
    JsonOption,
    MaxCharsOption,
    MaxTokensOption,
    ModelFileOption,
    ModelOption,
    RootOption,
    WindowOption,
)
from harness.cli.running import failed, run
from harness.cli.screen import Screen, forget_stream, one_line, prepare_streams

app: typer.Typer = typer.Typer(
    name="branchline",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 failed, or verify found something wrong; 2 the command line is wrong and nothing "
    "was begun; 130 Ctrl-C; 141 the reader of the output went away; 143 terminated.",
)

_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The base of what the parser raises for a wrong command line. It has no public name in typer."""


@app.callback(invoke_without_command=True)
def branchline(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Conversations with a model that survive: stop, come back, go back to any point and take another way."""
    if version:
        typer.echo(f"branchline {_version()}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_COMMAND)


@app.command()
def chat(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="What to ask. Without it, standard input or, in a terminal, prompts."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", metavar="ID", help="Go on with this session: its id, a beginning, or 'last'."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Go on with (or begin) a session in this file.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="ENTRY", help="Branch: go on from this entry (see 'branchline tree') or label."),
    ] = None,
    summarize: Annotated[
        bool, typer.Option("--summarize", help="With --at: have what is left behind summarised, and shown there.")
    ] = False,
    continues: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="ID",
            help="Begin a new session with the working memory of this one: its id, or 'last'.",
        ),
    ] = None,
    with_summary: Annotated[
        bool, typer.Option("--with-summary", help="With --continue: take over its last summary as well.")
    ] = False,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    model_file: ModelFileOption = None,
    cwd: Annotated[
        Path | None,
        typer.Option("--cwd", metavar="DIR", help="What the tools may read; else the current folder."),
    ] = None,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="Offer the model no tools.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Offer a tool by which the model keeps facts that it is always shown.")
    ] = False,
    write: Annotated[
        bool,
        typer.Option(
            "--write", "-w", help="Offer tools that write files and run commands, too; you are asked each time."
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Let --write tools do it without asking. Needed where nobody can be asked."),
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="The system prompt, in place of ours.")
    ] = None,
    thinking: Annotated[
        str | None,
        typer.Option("--thinking", metavar="LEVEL", help="How much it thinks: off, minimal, low, medium or high."),
    ] = None,
    show_thinking: Annotated[
        bool, typer.Option("--show-thinking", help="Show what it thinks, as far as it says so, on standard error.")
    ] = False,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", min=1, metavar="N", help="At most so many requests for one prompt.")
    ] = None,
    max_chars: MaxCharsOption = None,
    max_tokens: MaxTokensOption = None,
    context_window: WindowOption = None,
    no_compact: Annotated[
        bool, typer.Option("--no-compact", help="Never summarise; what no longer fits the model is left out.")
    ] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Ask a model, and keep the conversation.

    With PROMPT: one question, one answer. Without it, in a terminal: a prompt, until Ctrl-D. The answer goes to
    standard output as it comes; how to go on with the session, to standard error.
    """

    def command(screen: Screen) -> int:
        from harness.cli.chat import ChatOptions, run_chat

        options = ChatOptions(
            prompt=prompt,
            session=session,
            file=file,
            at=at,
            summarize=summarize,
            continues=continues,
            with_summary=with_summary,
            model=model,
            base_url=base_url,
            model_file=model_file,
            cwd=cwd,
            tools=not no_tools,
            memory=memory,
            write=write,
            yes=yes,
            system=system,
            thinking=thinking,
            show_thinking=show_thinking,
            max_steps=max_steps,
            max_chars=max_chars,
            max_tokens=max_tokens,
            context_window=context_window,
            compact=not no_compact,
            root=root,
        )
        return run_chat(screen, options)

    return run(command, as_json=as_json)


for _command in (
    sessions,
    tree,
    show,
    context,
    verify,
    follow,
    fork,
    label,
    name,
    compact,
    repair,
    delete,
    migrate,
    export,
):
    app.command()(_command)
app.command("import")(import_)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors become one line on standard error.

    ``arguments`` are those after the command's name; by default the process's own.
    """
    try:
        prepare_streams()
        app.rich_markup_mode = "rich" if sys.stdout.isatty() else None
        command = typer.main.get_command(app)
        code = command.main(args=arguments, prog_name="branchline", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):  # before the command has begun, or after its end
        return INTERRUPTED
    except SystemExit as leaving:  # what typer makes of a pipe that closed while it printed help
        forget_stream(1)
        return leaving.code if isinstance(leaving.code, int) else FAILED
    except OSError as error:
        return failed(Screen(), error)
    return code if isinstance(code, int) else DONE


def _usage(error: BaseException) -> int:
    """What the parser says, on one line."""
    screen = Screen()
    text = one_line(getattr(error, "format_message", error.__str__)())
    context: typer.Context | None = getattr(error, "ctx", None)
    name = context.command_path if context is not None else "branchline"
    screen.fail(message(CommandLineError(f"{text.rstrip('.')}; '{name} --help' shows what there is")))
    return WRONG_COMMAND


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("branchline")
    except PackageNotFoundError:
        return "(not installed)"
