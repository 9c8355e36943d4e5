"""The command line's commands and options. What they do is in a module for each, imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from harness.cli.failures import (
    DONE,
    FAILED,
    READER_GONE,
    WRONG_COMMAND,
    CommandLineError,
    exit_code,
    message,
    show_traceback,
    single,
)
from harness.cli.screen import Screen, forget_stream, one_line, prepare_streams
from harness.cli.shelf import ROOT_VARIABLE

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

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        envvar=ROOT_VARIABLE,
        help="The folder that holds the sessions; by default in your user data folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
MaxCharsOption = Annotated[
    int | None, typer.Option("--max-chars", min=1, metavar="N", help="Show the model at most so many characters.")
]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", min=1, metavar="N", help="Show the model at most so many tokens.")
]
SessionArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="A session's id, the beginning of one, 'last', or the path of its file."),
]


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
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            envvar="BRANCHLINE_MODEL",
            help="The model; claude-NAME is Anthropic's, 'local' runs one here.",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="An OpenAI-compatible server (http://localhost:11434/v1)."),
    ] = None,
    model_file: Annotated[
        Path | None, typer.Option("--model-file", metavar="FILE", help="A GGUF file for the model on this machine.")
    ] = None,
    cwd: Annotated[
        Path | None,
        typer.Option("--cwd", metavar="DIR", help="What the tools may read; else the current folder."),
    ] = None,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="Offer the model no tools.")] = False,
    max_chars: MaxCharsOption = None,
    max_tokens: MaxTokensOption = None,
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
            model=model,
            base_url=base_url,
            model_file=model_file,
            cwd=cwd,
            tools=not no_tools,
            max_chars=max_chars,
            max_tokens=max_tokens,
            root=root,
        )
        return run_chat(screen, options)

    return _run(command, as_json=as_json)


@app.command()
def sessions(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read each session whole: count its entries, and find damage anywhere in it.")
    ] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the sessions, the one used last first; damaged ones are marked."""

    def command(screen: Screen) -> int:
        from harness.cli.sessions import run_sessions

        return run_sessions(screen, root=root, deep=deep)

    return _run(command, as_json=as_json)


@app.command()
def tree(
    session: SessionArgument = "last",
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Draw the bookkeeping as well: turns, labels, settings.")
    ] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Draw a session's tree; the path that the conversation is on goes straight down the left side."""

    def command(screen: Screen) -> int:
        from harness.cli.tree import run_tree

        return run_tree(screen, session, root=root, everything=everything)

    return _run(command, as_json=as_json)


@app.command()
def context(
    session: SessionArgument = "last",
    at: Annotated[
        str | None, typer.Option("--at", metavar="ENTRY", help="As if one went on from this entry or label.")
    ] = None,
    max_chars: MaxCharsOption = None,
    max_tokens: MaxTokensOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what the model would be shown: each message, its size, and what is left out."""

    def command(screen: Screen) -> int:
        from harness.cli.context import run_context

        return run_context(screen, session, at=at, max_chars=max_chars, max_tokens=max_tokens, root=root)

    return _run(command, as_json=as_json)


@app.command()
def verify(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION", help="An id, the beginning of one, 'last', or the path of a file; without it, all."
        ),
    ] = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read a session, or all, from end to end and say what is wrong. Changes nothing."""

    def command(screen: Screen) -> int:
        from harness.cli.verify import run_verify

        return run_verify(screen, session, root=root)

    return _run(command, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors become one line on standard error.

    ``arguments`` are those after the command's name; by default the process's own.
    """
    prepare_streams()
    app.rich_markup_mode = "rich" if sys.stdout.isatty() else None
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="branchline", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        return _usage(error)
    except SystemExit as leaving:  # what typer makes of a pipe that closed while it printed help
        forget_stream(1)
        return leaving.code if isinstance(leaving.code, int) else FAILED
    except OSError as error:
        return _failed(Screen(), error)
    return code if isinstance(code, int) else DONE


def _run(command: Callable[[Screen], int], *, as_json: bool) -> int:
    """Run one command; whatever it raises becomes one line and an exit code here, and nowhere else."""
    screen = Screen(as_json=as_json)
    try:
        code = command(screen)
        screen.flush()
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - nothing is swallowed: it is told, and it is the exit code
        return _failed(screen, error)
    return code


def _failed(screen: Screen, error: BaseException) -> int:
    cause = single(error)
    code = exit_code(cause)
    show_traceback(error)
    if code == READER_GONE:
        forget_stream(1)
        return code
    try:
        screen.flush()
    except OSError:
        forget_stream(1)
    if code <= WRONG_COMMAND:
        screen.fail(message(cause))
        screen.notes(f"  {hint}" for hint in getattr(cause, "hints", ()))
    return code


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
