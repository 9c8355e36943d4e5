"""The commands that make, name, mend, delete and carry sessions: their options. The rest is imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import (
    BaseUrlOption,
    EntryArgument,
    JsonOption,
    ModelFileOption,
    ModelOption,
    RemoveOption,
    RootOption,
    SessionArgument,
    WindowOption,
    YesOption,
)
from harness.cli.running import run
from harness.cli.screen import Screen

FORMATS = ("markdown", "openai", "anthropic", "jsonl")


def fork(
    session: SessionArgument = "last",
    entry: Annotated[
        str | None,
        typer.Argument(
            metavar="ENTRY", help="The last entry to take along: an id or a label; by default all is taken."
        ),
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="Take what comes before ENTRY: to ask a question in another way.")
    ] = False,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Make it in this file, not where the sessions are.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What the new session is called.")] = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make a new session of the way to an entry. The old one stays as it is."""

    def command(screen: Screen) -> int:
        from harness.cli.fork import run_fork

        return run_fork(screen, session, entry, before=before, to=to, name=name, root=root)

    return run(command, as_json=as_json)


def label(
    session: SessionArgument,
    entry: EntryArgument,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The label; without it, the one it has.")] = None,
    remove: RemoveOption = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Label an entry, so that it can be named by that; or show its label, or take it away."""

    def command(screen: Screen) -> int:
        from harness.cli.label import run_label

        return run_label(screen, session, entry, name, remove=remove, root=root)

    return run(command, as_json=as_json)


def name(
    session: SessionArgument,
    new_name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The name; without it, the one it has.")
    ] = None,
    remove: RemoveOption = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Name a session; or show its name, or take it away."""

    def command(screen: Screen) -> int:
        from harness.cli.name import run_name

        return run_name(screen, session, new_name, remove=remove, root=root)

    return run(command, as_json=as_json)


def compact(
    session: SessionArgument = "last",
    instructions: Annotated[
        str | None, typer.Option("--instructions", "-i", metavar="TEXT", help="What the summary must not leave out.")
    ] = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    model_file: ModelFileOption = None,
    context_window: WindowOption = None,
    without_model: Annotated[
        bool, typer.Option("--without-model", help="Ask no model: pick out requests, decisions, files and errors.")
    ] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Have the older part of a conversation summarised: the model is then shown the summary, and the last turn.

    The record keeps everything; 'branchline chat --at ENTRY' goes on from before the summary.
    """

    def command(screen: Screen) -> int:
        from harness.cli.compacting import CompactOptions, run_compact

        options = CompactOptions(
            session=session,
            instructions=instructions,
            model=model,
            base_url=base_url,
            model_file=model_file,
            context_window=context_window,
            without_model=without_model,
            root=root,
        )
        return run_compact(screen, options)

    return run(command, as_json=as_json)


def repair(
    session: SessionArgument,
    yes: YesOption = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what is wrong with a session and what can be done, ask, and do it. Nothing that was recorded is lost.

    A last line that was cut off is moved to a file beside the session. A turn that was cut off gets its end. What can
    be read of a damaged session is copied to a new one, and the damaged one is not touched.
    """

    def command(screen: Screen) -> int:
        from harness.cli.repair import run_repair

        return run_repair(screen, session, yes=yes, root=root)

    return run(command, as_json=as_json)


def delete(
    sessions: Annotated[
        list[str],
        typer.Argument(metavar="SESSION...", help="Ids, beginnings of ids, 'last', or paths of files."),
    ],
    yes: YesOption = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Delete sessions, and all that lies beside them. Asks before, and cannot be undone."""

    def command(screen: Screen) -> int:
        from harness.cli.delete import run_delete

        return run_delete(screen, sessions, yes=yes, root=root)

    return run(command, as_json=as_json)


def export(
    session: SessionArgument = "last",
    form: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help="markdown, openai, anthropic or jsonl.")
    ] = "markdown",
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="ENTRY", help="The way to this entry or label; by default to the leaf."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; it must be a new one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --output if there is one.")] = False,
    root: RootOption = None,
) -> int:
    """Write a conversation as Markdown to read, as JSON messages for a vendor, or as one message a line."""

    def command(screen: Screen) -> int:
        from harness.cli.export import run_export

        return run_export(screen, session, form=form, at=at, output=output, force=force, root=root)

    return run(command)


def migrate(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A folder, a SQLite file or a postgresql:// address with sessions.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="The place to bring them to; it need not be there yet.")],
    sessions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SESSION...]", help="Ids, beginnings of ids, or 'last'; without any, all."),
    ] = None,
    entry_files: Annotated[
        bool, typer.Option("--entry-files", help="In a folder: make folders of entry files, not files of lines.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Bring sessions from one place to another, between any two kinds, to the byte; FROM stays as it is.

    Everything is read again and compared. Stopped and begun again, it goes on where it was.
    """

    def command(screen: Screen) -> int:
        from harness.cli.migrate import run_migrate

        return run_migrate(screen, source, target, sessions or [], entry_files=entry_files)

    return run(command, as_json=as_json)


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Sessions of pi (versions 1, 2 and 3), or messages as JSON, one a line."
        ),
    ],
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Bring conversations from other programs to where the sessions are. The files are only read."""

    def command(screen: Screen) -> int:
        from harness.cli.importing import run_import

        return run_import(screen, files, root=root)

    return run(command, as_json=as_json)
